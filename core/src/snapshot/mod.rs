//! What the gate must not forget over a restart.
//!
//! ```text
//!   limiter, breakers, ledger ──remember──▶ GateMemory ──encode──▶ … a store … ──decode──▶ GateMemory ──recall──▶ the same
//! ```
//!
//! Machines know no wall clock, and a restart has no other. So each says how long what it keeps still lasts, and the whole
//! is stamped with the time by the wall clock. Whoever recalls it takes off what has passed since, which is nothing if the
//! clock was set back meanwhile; and nothing lasts longer than [`LONGEST`], whatever was written.
//!
//! What is recalled only ever makes a gate stricter.

mod age;
mod gate_snapshot;
#[cfg(test)]
mod tests;

pub(crate) use age::lasting_ms;
pub use age::{LONGEST, SnapshotAge};
pub use gate_snapshot::{GateSnapshot, ShutdownKind, SnapshotDecodeError};

/// How soon a change should be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Some time: forgetting it costs a few careful calls.
    Later,
    /// As soon as can be: forgetting it means calls that must not be made.
    Soon,
}
