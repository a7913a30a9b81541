//! The state of the gate that must survive a restart.
//!
//! ```text
//!   limiter, breakers, ledger ──save──▶ GateSnapshot ──encode──▶ store ──decode──▶ GateSnapshot ──restore──▶ the same
//! ```
//!
//! State machines have no wall clock, but after a restart only the wall clock is left. So each one saves the remaining
//! durations, and the snapshot contains the wall-clock time. On restore, the time that has passed since is subtracted,
//! which is zero if the clock was set back meanwhile. No restored duration exceeds the upper bound in this module.
//!
//! Restored state only ever makes a gate stricter.

mod age;
mod gate_snapshot;
#[cfg(test)]
mod tests;

pub(crate) use age::duration_ms;
pub use age::{MAX_DURATION, SnapshotAge};
pub use gate_snapshot::{GateSnapshot, ShutdownKind, SnapshotDecodeError};

/// How soon a change should be saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Some time later: losing it costs a few probes and waits.
    Later,
    /// As soon as possible: losing it causes calls that must not be made.
    Soon,
}
