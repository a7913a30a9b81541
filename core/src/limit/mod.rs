//! Rate limits: the global window, route buckets and lanes, in one machine.
//!
//! ```text
//!              ┌ side door ┐     ┌ unknown: one call ahead ┐
//!  acquire ──▶ │ (name…)   │ ──▶ │ bucket: a slot          │ ──▶ global: a token, by lane ──▶ grant
//!              └───────────┘     │ free: nothing           │
//!                                └─────────────────────────┘
//! ```
//!
//! [`Limiter`] never lets more through than Discord allows, whatever the latency, and forgets no caller: each ends with a
//! grant, a delay, or its own cancellation. It has no clock; [`Limiter::next_wake`] says when it wants to be asked again.

mod book;
mod bucket;
mod config;
pub mod division;
mod domain;
mod flights;
mod global;
mod limiter;
mod listing;
mod lot;
mod memory;
mod own;
mod pace;
pub mod shared;
mod side;
mod snapshot;
#[cfg(test)]
mod testing;
mod turn;
mod yard;

pub use bucket::BucketView;
pub use config::LimitConfig;
pub use limiter::{Acquired, Ask, Delay, Effect, Limiter, PermitId, Reason, Sharing};
pub use listing::{BucketRow, Listing};
pub use lot::Ticket;
pub use memory::LimiterMemory;
pub use snapshot::{CredentialView, LimiterView, WaitingView};
