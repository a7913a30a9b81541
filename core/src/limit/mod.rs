//! Rate limits: the global window, route buckets and lanes, in one state machine.
//!
//! ```text
//!              ┌ sublimit  ┐     ┌ unknown: one probe      ┐
//!  acquire ──▶ │ (name…)   │ ──▶ │ bucket: a slot          │ ──▶ global: a token, by lane ──▶ grant
//!              └───────────┘     │ free: nothing           │
//!                                └─────────────────────────┘
//! ```
//!
//! [`Limiter`] never grants more than Discord allows, at any latency, and loses no caller: each request ends with a
//! grant, a delay, or its cancellation. It has no clock; [`Limiter::next_wake`] returns when to call it again.

mod bucket;
mod bucket_list;
mod caller;
mod config;
pub mod division;
mod domain;
mod global;
mod in_flight;
mod lane_queue;
mod limiter;
mod local_window;
mod pacer;
mod readiness;
mod route_table;
mod saved_state;
pub mod shared;
mod sublimit;
#[cfg(test)]
mod test_server;
mod turns;
mod view;
mod wait_queue;
mod wait_queues;

pub use bucket::BucketView;
pub use bucket_list::{BucketPage, BucketRow};
pub use caller::CallerId;
pub use config::LimitConfig;
pub use limiter::{
    AcquireOutcome, Delay, DelayReason, Limiter, LimiterEffect, PermitId, PermitRequest, RouteBucket, SharingConfig,
};
pub use saved_state::SavedLimiter;
pub use view::{CredentialView, LimiterView, WaitingView};
pub use wait_queue::Ticket;
