//! The daemon is ended without warning, at every step boundary and at any moment, and started again over the same store,
//! until all that it accepted is done. The simulator's score is the judge: nothing lost, nothing made twice, nothing out of
//! order.
//!
//! ```text
//!  callers ──HTTP, idempotency keys──▶ guildhall serve (a child; killed, started again) ──▶ simulator (in this process)
//!     └── what was accepted ─────────────────────────▶ judge ◀────────── what happened ──────────┘
//! ```
//!
//! `scripts/soak crash` runs the random kills in larger numbers.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "../support/postgres.rs"]
mod postgres;
#[cfg(feature = "failpoints")]
#[path = "../support/redis.rs"]
mod redis;

// The tests of ownership use these, too, and each uses its own part of them.
mod asker;
#[allow(dead_code, reason = "the tests of ownership use it")]
mod caller;
#[cfg(feature = "failpoints")]
mod ended;
mod errand;
mod judge;
#[cfg(feature = "failpoints")]
#[allow(dead_code, reason = "each of the tests kills its own")]
mod killed;
#[allow(dead_code, reason = "the tests of ownership use it")]
mod life;
#[allow(dead_code, reason = "the tests of ownership use it")]
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
