//! What has become of an operation.

use serde::{Deserialize, Serialize};

/// What has become of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It waits for its turn.
    Queued,
    /// It is being done.
    Running,
    /// It waits for a limit, a breaker or a policy. No attempt was used.
    Delayed,
    /// It failed in a way that may go right next time.
    Retrying,
    /// It was sent, and what came of it is being looked for.
    Reconciling,
    /// It is done.
    Succeeded,
    /// It was given up. It lies with the dead letters, from where it can be sent again.
    Dead,
    /// A person took it back before it was sent.
    Cancelled,
    /// It may have happened or not, and only a person can tell.
    NeedsReview,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Queued,
        Self::Running,
        Self::Delayed,
        Self::Retrying,
        Self::Reconciling,
        Self::Succeeded,
        Self::Dead,
        Self::Cancelled,
        Self::NeedsReview,
    ];

    /// Its name, as the store, the API, metrics and logs have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Delayed => "delayed",
            Self::Retrying => "retrying",
            Self::Reconciling => "reconciling",
            Self::Succeeded => "succeeded",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
            Self::NeedsReview => "needs_review",
        }
    }

    /// The state of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Whether nothing more will become of it by itself.
    #[must_use]
    pub const fn is_final(self) -> bool {
        match self {
            Self::Queued | Self::Running | Self::Delayed | Self::Retrying | Self::Reconciling => false,
            Self::Succeeded | Self::Dead | Self::Cancelled | Self::NeedsReview => true,
        }
    }

    /// Whether a person may still take it back: nothing of it is under way.
    #[must_use]
    pub const fn may_cancel(self) -> bool {
        matches!(self, Self::Queued | Self::Delayed | Self::Retrying)
    }
}
