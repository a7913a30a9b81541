//! What several test binaries share. Only tests depend on it.
//!
//! ```text
//!  tests ─▶ program, crash ─▶ guildhall serve (a child process) ─▶ gateway, brain, simulator (in the test's process)
//!     └───▶ postgres, pgbouncer, rabbitmq, redis (child processes, each with its own directory and port)
//! ```
//!
//! A failed step panics, as in a test.

#![expect(missing_docs, reason = "test code; what needs an explanation has one")]
#![expect(clippy::unwrap_used, reason = "test code")]

pub mod brain;
pub mod crash;
pub mod gate;
pub mod gateway;
pub mod log;
pub mod movable_clock;
pub mod pgbouncer;
pub mod postgres;
pub mod program;
pub mod rabbitmq;
pub mod redis;
