//! The daemon is ended and started again at any moment, with and without warning, while events pour in. The simulator's score
//! is the judge: every event handled, none out of its guild's order, every effect once, and no session begun anew.
//!
//! ```text
//!  storm of joins, messages ──▶ simulator, 4 shards ──ws──▶ guildhall serve (a child; ended, started again)
//!     │                             ▲                           │ handlers: a join makes a role, a message is echoed
//!     │                             └───────────REST────────────┘
//!     └── what was sent ──▶ judge ◀── what happened
//! ```
//!
//! `scripts/soak restarts` does this in larger numbers.

#![expect(clippy::unwrap_used, reason = "tests")]

#[allow(dead_code, reason = "the tests of crashes use it")]
#[path = "../crash/life.rs"]
mod life;
#[path = "../support/mod.rs"]
mod support;

#[cfg(feature = "failpoints")]
#[path = "../crash/ended.rs"]
mod ended;
mod judge;
#[cfg(feature = "failpoints")]
#[allow(dead_code, reason = "each of the tests kills its own")]
#[path = "../crash/killed.rs"]
mod killed;
mod stage;
mod weather;

#[cfg(feature = "failpoints")]
mod parts;
mod random;
