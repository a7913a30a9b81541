//! Lanes: the order of calls that compete for the same limit.

use serde::{Deserialize, Serialize};

crate::named_enum! {
    /// How urgent a call is, the most urgent first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Lane {
        /// A user is waiting: interaction responses. Gets the next available token.
        Interactive = "interactive",
        /// Requested work: operations.
        Operation = "operation",
        /// Work that can wait: audits, drift checks.
        Background = "background",
    }
}

impl Lane {
    /// Index in [`Lane::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}
