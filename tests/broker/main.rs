//! Events through a real RabbitMQ: published in order, confirmed, and delivered to consumers, whatever happens to the daemon,
//! to the server and to its queues.
//!
//! ```text
//!  simulator ──ws──▶ daemon (a child process) ──▶ RabbitMQ (one for this binary) ──▶ consumers, which record
//! ```

#![expect(clippy::unwrap_used, reason = "tests")]

mod consumer;
mod dead_letters;
mod delivery;
mod fixture;
mod outages;
mod setup;
