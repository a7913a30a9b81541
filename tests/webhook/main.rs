//! Webhooks against brains on real sockets, with every kind of response.

#![expect(clippy::unwrap_used, reason = "tests")]

mod addresses;
mod answers;
mod brain;
mod counted;
mod isolation;
mod signatures;
mod stage;
mod tls;
mod trust;

#[path = "../support/log.rs"]
mod log;
