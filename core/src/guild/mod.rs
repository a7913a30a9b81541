//! The order inside a guild: one operation at a time, in the order accepted.
//!
//! ```text
//!  loaded ─▶ [ 4 parked | 5 behind 4 | 6 | 7 | 8 … ] ─next─▶ Run(6)
//!                 ▲ delayed alone for long  ▲ shares nothing with 4 and 5
//! ```

#[cfg(test)]
mod bits;
mod conflict;
mod entry;
#[cfg(test)]
mod equivalence;
mod order;
mod parked;
mod position;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

pub use conflict::{ConflictIndex, Conflicts, ObjectIndex};
pub use entry::{DelayScope, QueueEntry, WaitPhase};
pub use order::{OperationOrder, OrderConfig, OrderStep};
