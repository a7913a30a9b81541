//! The vocabulary and the state machines of Guildhall.
//!
//! ```text
//!  shard ─▶ supervisor ─▶ guild ─▶ breaker ─▶ token bucket ─▶ REST
//!    └──────────┴───────────┴─────────┴────────────┘
//!                each decides here, and acts elsewhere
//! ```
//!
//! Every decision on that path is made by a machine of this crate: a struct with methods of the form
//! `on_x(&mut self, input, now) -> effects`. There is no I/O here, no clock, no async and no randomness of
//! its own: time and chance are arguments, so that a test can put a machine through a year in a millisecond.

pub mod access;
pub mod breaker;
pub mod budget;
pub mod clock;
pub mod command;
pub mod event;
pub mod guild;
pub mod heavy_hitters;
pub mod interaction;
pub mod invalid;
pub mod lane;
pub mod limit;
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
