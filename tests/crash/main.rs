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

// The tests of ownership use these, too, and each uses its own part of them.
mod asker;
#[allow(dead_code, reason = "the tests of ownership use it")]
mod caller;
mod errand;
mod judge;
#[allow(dead_code, reason = "the tests of ownership use it")]
mod life;
#[allow(dead_code, reason = "the tests of ownership use it")]
mod stage;

#[cfg(feature = "failpoints")]
mod boundaries;
mod faults;
mod late;
mod random;
mod store_loss;
