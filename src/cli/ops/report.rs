//! Operations as responses of the daemon report them.

use guildhall_core::operation::OperationState;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    api::dto::{Accepted, Operation},
    cli::output::read,
};

/// What a response reports about an operation.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum OperationReport {
    /// A stored operation.
    Stored(Box<StoredOperation>),
    /// An operation that was accepted now or before.
    Accepted(Box<Accepted>),
    /// Nothing yet except its ID.
    #[serde(skip)]
    NotQueried(String),
    /// An operation that the daemon does not have.
    #[serde(skip)]
    Gone(String),
}

/// What a response reports about several operations.
#[derive(Debug, Deserialize)]
pub(super) struct ReportList {
    pub(super) operations: Vec<OperationReport>,
}

/// A stored operation, from a list, a stream, a query or a submission that waited for it.
#[derive(Debug, Deserialize)]
pub(super) struct StoredOperation {
    #[serde(flatten)]
    pub(super) operation: Operation,
    /// Whether the submission was deduplicated.
    #[serde(default)]
    pub(super) replayed: bool,
}

/// State of an operation that the daemon does not have.
const GONE: &str = "gone";

impl OperationReport {
    pub(super) fn id(&self) -> &str {
        match self {
            Self::Stored(stored) => stored.operation.id.as_ref(),
            Self::Accepted(accepted) => accepted.id.as_ref(),
            Self::NotQueried(id) | Self::Gone(id) => id,
        }
    }

    pub(super) fn kind(&self) -> Option<&str> {
        match self {
            Self::Stored(stored) => Some(stored.operation.kind.as_ref()),
            Self::Accepted(accepted) => Some(accepted.kind.as_ref()),
            Self::NotQueried(_) | Self::Gone(_) => None,
        }
    }

    pub(super) fn guild_id(&self) -> Option<&str> {
        match self {
            Self::Stored(stored) => stored.operation.guild_id.as_ref().map(AsRef::as_ref),
            Self::Accepted(accepted) => accepted.guild_id.as_ref().map(AsRef::as_ref),
            Self::NotQueried(_) | Self::Gone(_) => None,
        }
    }

    /// The name of its state, if it is known.
    pub(super) fn state(&self) -> Option<&str> {
        match self {
            Self::Stored(stored) => Some(stored.operation.state.as_ref()),
            Self::Accepted(accepted) => Some(accepted.state.as_ref()),
            Self::NotQueried(_) => None,
            Self::Gone(_) => Some(GONE),
        }
    }

    pub(super) fn stored(&self) -> Option<&Operation> {
        match self {
            Self::Stored(stored) => Some(&stored.operation),
            Self::Accepted(_) | Self::NotQueried(_) | Self::Gone(_) => None,
        }
    }

    /// Whether it was accepted before, so that the submission was deduplicated.
    pub(super) fn is_replayed(&self) -> bool {
        match self {
            Self::Stored(stored) => stored.replayed,
            Self::Accepted(accepted) => accepted.replayed,
            Self::NotQueried(_) | Self::Gone(_) => false,
        }
    }

    pub(super) fn has_succeeded(&self) -> bool {
        self.state() == Some(OperationState::Succeeded.name())
    }

    /// Whether it does not change any more.
    pub(super) fn is_finished(&self) -> bool {
        match self {
            Self::Gone(_) => true,
            Self::Stored(_) | Self::Accepted(_) | Self::NotQueried(_) => {
                self.state().and_then(OperationState::from_name).is_some_and(OperationState::is_final)
            }
        }
    }
}

/// Why an operation has no state.
pub(super) fn gone_reason(id: &str) -> String {
    format!("operation {id} does not exist or was removed")
}

/// A report, and the response that it was read from, which is printed for programs.
#[derive(Debug)]
pub(super) struct ReportedOperation {
    pub(super) report: OperationReport,
    pub(super) value: Value,
}

impl ReportedOperation {
    /// Reads a response about one operation.
    pub(super) fn read(value: Value) -> anyhow::Result<Self> {
        Ok(Self { report: read(&value)?, value })
    }

    pub(super) fn not_queried(id: String) -> Self {
        let value = json!({ "id": id });
        Self { report: OperationReport::NotQueried(id), value }
    }

    pub(super) fn gone(id: String) -> Self {
        let value = json!({"id": id, "state": GONE, "error": {"message": gone_reason(&id)}});
        Self { report: OperationReport::Gone(id), value }
    }
}
