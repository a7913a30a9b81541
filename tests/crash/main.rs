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

#[cfg(feature = "failpoints")]
mod boundaries;
mod faults;
mod late_call;
#[cfg(feature = "failpoints")]
mod parts;
#[cfg(feature = "failpoints")]
mod poison;
mod random;
mod restarts;
mod restored;
mod steps;
mod store_loss;
