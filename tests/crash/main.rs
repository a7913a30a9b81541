//! The daemon is killed at every step boundary and at random moments, and started again on the same store, until all
//! accepted operations are finished. The simulator's score decides: nothing lost, nothing duplicated, nothing out of
//! order.
//!
//! ```text
//!  callers ──HTTP, idempotency keys──▶ guildhall serve (a child; killed, started again) ──▶ simulator (in this process)
//!     └── accepted operations ───────────────────────▶ checker ◀───────────── effects ────────────┘
//! ```
//!
//! `scripts/soak crash` runs the random kills in larger numbers.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "../support/postgres.rs"]
mod postgres;
#[cfg(feature = "failpoints")]
#[path = "../support/redis.rs"]
mod redis;

// The ownership tests use these too, and each binary uses its own part of them.
mod checker;
#[allow(dead_code, reason = "the ownership tests use it")]
mod client;
#[allow(dead_code, reason = "the ownership tests use it")]
mod daemon_process;
#[allow(dead_code, reason = "the ownership tests use it")]
mod fixture;
mod generator;
#[cfg(feature = "failpoints")]
#[allow(dead_code, reason = "each binary kills its own parts")]
mod killed_parts;
#[cfg(feature = "failpoints")]
mod part_exit;
mod test_operation;

#[cfg(feature = "failpoints")]
mod boundaries;
mod faults;
mod late_call;
#[cfg(feature = "failpoints")]
mod parts;
#[cfg(feature = "failpoints")]
mod poison;
mod random;
mod steps;
mod store_loss;
