//! Lanes: the order of calls that compete for the same limit.

use serde::{Deserialize, Serialize};

/// How urgent a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// A user is waiting: interaction responses. Gets the next available token.
    Interactive,
    /// Requested work: operations.
    Operation,
    /// Work that can wait: audits, drift checks.
    Background,
}

impl Lane {
    /// All lanes, the most urgent first.
    pub const ALL: [Self; 3] = [Self::Interactive, Self::Operation, Self::Background];

    /// Index in [`Lane::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Name in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Interactive => "interactive",
            Self::Operation => "operation",
            Self::Background => "background",
        }
    }
}
