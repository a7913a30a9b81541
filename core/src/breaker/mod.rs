//! Circuit breakers: whether a call is permitted, based on the results of similar calls.
//!
//! ```text
//!   address ──▶ credential ──▶ route ──▶ route + id          (a call to Discord passes all four)
//!   target                                                   (any other upstream has one)
//! ```
//!
//! A failure counts at every level, but a level opens only when its failures came from two of the parts below it. So a
//! broken object stops the calls to itself, a broken route stops that route, and only when several routes fail do all
//! calls to Discord stop. The address is a separate level, because a ban applies to it and so to every bot here.
//!
//! [`Breakers`] issues a [`CallPermit`] for each call and takes it back with the call's result. Permits are numbered;
//! each state change of a breaker makes all earlier permits obsolete, and the results of obsolete permits change
//! nothing.
//!
//! Processes share the decisions of their breakers: see `replication.rs`. One of them probes for all: see
//! `probe_claim.rs`.

mod call;
mod config;
mod ended_targets;
mod failure_window;
mod key;
mod machine;
mod probe_claim;
#[cfg(test)]
mod probe_claim_tests;
#[cfg(test)]
mod properties;
mod refused_tokens;
mod registry;
mod replication;
mod rng;
mod saved_state;
#[cfg(test)]
mod saved_state_tests;
mod shared;
#[cfg(test)]
mod shared_tests;
mod snapshot;
mod table;
#[cfg(test)]
mod tests;

pub use call::{Attempt, BreakerEffect, CallInfo, CallPermit, CallRejection, CallResult, ReportOutcome};
pub use config::BreakerConfig;
pub use key::{BreakerKey, BreakerKind, ParseBreakerKeyError};
pub use machine::{BreakerReason, BreakerState};
pub use probe_claim::{ClaimResponse, ProbeClaim};
pub use registry::{Breakers, ForceError, TooManyKeys};
pub use saved_state::SavedBreakers;
pub use shared::{
    BreakerStatus, ChangeOrigin, LocalChange, RemoteChange, SharedBreaker, SharedBreakerKey, SharedBreakerState,
};
pub use snapshot::{BreakerSnapshot, BreakersSnapshot, StateCounts};
