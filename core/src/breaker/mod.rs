//! Circuit breakers: whether a call may go out at all, by how calls like it have fared.
//!
//! ```text
//!   address ──▶ credential ──▶ route ──▶ route + id          (a call to Discord passes all four)
//!   target                                                   (any other upstream has one)
//! ```
//!
//! A failure counts at every level, but a level opens only when its failures came from two of the parts below it. So a
//! broken object stops the calls to itself, a broken route stops that route, and only when several routes fail is the
//! whole of Discord left alone. The address is a level of its own, because a ban falls on it and so on every bot here.
//!
//! [`Breakers`] hands out a [`CallPermit`] for each call and takes it back with the call's result. Passes are numbered; each
//! change of a breaker's state makes all passes before it old, and the results of old passes change nothing.
//!
//! Processes tell each other what their breakers decided: see `adopt.rs`. One of them probes for all: see `probe_claim.rs`.

mod call;
mod config;
mod expired_interactions;
mod failure_window;
mod key;
mod machine;
mod probe_claim;
#[cfg(test)]
mod probe_claim_tests;
#[cfg(test)]
mod properties;
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
