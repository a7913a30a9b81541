//! The domain types and state machines of Guildhall.
//!
//! ```text
//!  shard ─▶ supervisor ─▶ guild ─▶ breaker ─▶ token bucket ─▶ REST
//!    └──────────┴───────────┴─────────┴────────────┘
//!           each one decides here and acts elsewhere
//! ```
//!
//! A state machine of this crate makes every decision on that path. It is a struct with methods of the form `on_x(&mut
//! self, input, now) -> effects`. The crate has no I/O, no clock, no async code and no source of randomness: time and
//! random numbers are arguments, so a test can simulate a year in a millisecond.

pub mod access;
pub mod backoff;
pub mod breaker;
pub mod budget;
pub mod clock;
pub mod command;
pub mod egress_usage;
pub mod event;
pub mod failure_streak;
pub mod guild;
pub mod heavy_hitters;
pub mod interaction;
pub mod invalid;
pub mod lane;
pub mod limit;
mod named;
pub mod operation;
pub mod policy;
pub mod response;
pub mod route;
pub mod session;
pub mod snapshot;
pub mod spending;
pub mod state_key;
pub mod time;
pub mod trace;
pub mod usage;
