//! The command line over the API: against the real daemon, and against servers that misbehave or have another version.

#![expect(clippy::unwrap_used, reason = "tests")]

mod answers;
mod fake;
mod fleet;
mod keys;
mod letters;
mod operations;
mod page;
mod reach;
mod stage;
mod stream;
#[path = "../support/mod.rs"]
mod support;
mod tls;
