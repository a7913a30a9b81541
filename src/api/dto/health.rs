//! Health of the daemon.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Whether the daemon is alive.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Live {
    pub(crate) live: bool,
}

/// Whether the daemon has started.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Started {
    pub(crate) started: bool,
}

/// Whether a part is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub(crate) enum ComponentState {
    Ready,
    NotReady {
        /// Why the part is not ready.
        reason: String,
    },
}

/// Whether the daemon is ready.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Readiness)]
pub(crate) struct ReadinessReport {
    pub(crate) ready: bool,
    /// Whether the process is shutting down.
    pub(crate) stopping: bool,
    /// All parts, by name.
    pub(crate) parts: BTreeMap<String, ComponentState>,
}

impl ReadinessReport {
    /// The parts that are not ready, each with the reason.
    pub(crate) fn reasons(&self) -> impl Iterator<Item = (&str, &str)> {
        self.parts.iter().filter_map(|(part, state)| match state {
            ComponentState::Ready => None,
            ComponentState::NotReady { reason } => Some((part.as_str(), reason.as_str())),
        })
    }
}
