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
mod asker;
#[allow(dead_code, reason = "the ownership tests use it")]
mod caller;
#[cfg(feature = "failpoints")]
mod ended;
mod errand;
mod judge;
#[cfg(feature = "failpoints")]
#[allow(dead_code, reason = "each binary kills its own parts")]
mod killed;
#[allow(dead_code, reason = "the ownership tests use it")]
mod life;
#[allow(dead_code, reason = "the ownership tests use it")]
mod stage;

#[cfg(feature = "failpoints")]
mod boundaries;
mod faults;
mod late;
#[cfg(feature = "failpoints")]
mod parts;
#[cfg(feature = "failpoints")]
mod poison;
mod random;
mod steps;
mod store_loss;
