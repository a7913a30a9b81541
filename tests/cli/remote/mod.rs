//! The command line over the API: against the real daemon, and against servers that misbehave or have another version.

mod bulk;
mod cli_docs;
mod connect;
mod dead_letters;
mod fake_server;
mod fixture;
mod fleet;
mod keys;
mod operations;
mod responses;
mod stream;
mod tls;
