//! Lanes: whose turn it is when not everybody can go at once.

use serde::{Deserialize, Serialize};

/// How urgent a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// Somebody is looking at a screen: interaction answers. Takes the next token there is.
    Interactive,
    /// Work that was asked for: operations.
    Operation,
    /// What may wait: audits, drift checks.
    Background,
}

impl Lane {
    /// All lanes, the most urgent first.
    pub const ALL: [Self; 3] = [Self::Interactive, Self::Operation, Self::Background];

    /// Its place in [`Lane::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Its name, as metrics and logs have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Interactive => "interactive",
            Self::Operation => "operation",
            Self::Background => "background",
        }
    }
}
