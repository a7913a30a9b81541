//! The daemon is stopped or killed at random moments and started again, under a load of events. The simulator's score
//! decides: every event is handled, none out of its guild's order, every effect once, and no session is started again.
//!
//! ```text
//!  load of joins, messages ──▶ simulator, 4 shards ──ws──▶ guildhall serve (a child; stopped, started again)
//!     │                             ▲                           │ handlers: a join makes a role, a message is echoed
//!     │                             └───────────REST────────────┘
//!     └── sent events ──▶ checker ◀── effects
//! ```
//!
//! `scripts/soak restarts` does this in larger numbers.

mod checker;
mod event_load;
mod fixture;

#[cfg(feature = "failpoints")]
mod parts;
mod random;
