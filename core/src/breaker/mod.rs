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
//! [`Breakers`] hands out a [`Pass`] for each call and takes it back with the call's result. Passes are numbered; each
//! change of a breaker's state makes all passes before it old, and the results of old passes change nothing.
//!
//! Processes tell each other what their breakers decided: see `adopt.rs`. One of them probes for all: see `probe_claim.rs`.

mod adopt;
mod call;
mod chance;
mod config;
mod ended;
mod key;
mod machine;
mod memory;
#[cfg(test)]
mod memory_tests;
mod probe_claim;
#[cfg(test)]
mod probe_claim_tests;
#[cfg(test)]
mod properties;
mod registry;
mod shared;
#[cfg(test)]
mod shared_tests;
mod shelf;
mod snapshot;
mod tally;
#[cfg(test)]
mod tests;

pub use call::{Attempt, CallInfo, CallResult, Effect, Pass, Refused, Reported};
pub use config::BreakerConfig;
pub use key::{BreakerKey, Kind, ParseKeyError};
pub use machine::{State, Why};
pub use memory::BreakersMemory;
pub use probe_claim::{ClaimAnswer, ProbeClaim};
pub use registry::{Breakers, ForceError, TooManyKeys};
pub use shared::{Matter, News, Origin, Stand, Standing, Turn, Word};
pub use snapshot::{BreakerSnapshot, BreakersSnapshot, StateCounts};
