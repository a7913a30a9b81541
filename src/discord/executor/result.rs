//! Results of operations on objects.

use guildhall_actors::ports::{Binding, ExecutionOutput};
use guildhall_core::operation::{FailureClass, ManagedKind};
use serde_json::json;

use super::execution_error::ExecutionError;

/// How an object was obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectOutcome {
    Created,
    Adopted,
    Updated,
    Unchanged,
    /// Created by an earlier attempt whose response was lost.
    Found,
}

impl ObjectOutcome {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Adopted => "adopted",
            Self::Updated => "updated",
            Self::Unchanged => "unchanged",
            Self::Found => "found",
        }
    }
}

/// The result for a role or a channel that was created or ensured. A key is bound to it.
pub(crate) fn object_output(
    kind: ManagedKind,
    id: u64,
    outcome: ObjectOutcome,
    key: Option<&str>,
    status: u16,
) -> ExecutionOutput {
    let id_field = match kind {
        ManagedKind::Role => "role_id",
        ManagedKind::Channel => "channel_id",
        ManagedKind::Message => "message_id",
    };
    ExecutionOutput {
        result: json!({ id_field: id.to_string(), "outcome": outcome.name() }),
        created: Some(id),
        bind: bindings(kind, id, None, outcome, key),
        unbind: Vec::new(),
        status: Some(status),
    }
}

/// The result for a message that was sent or ensured.
pub(crate) fn message_output(
    channel: u64,
    id: u64,
    outcome: ObjectOutcome,
    key: Option<&str>,
    status: u16,
) -> ExecutionOutput {
    ExecutionOutput {
        result: json!({ "channel_id": channel.to_string(), "message_id": id.to_string(), "outcome": outcome.name() }),
        created: Some(id),
        bind: bindings(ManagedKind::Message, id, Some(channel), outcome, key),
        unbind: Vec::new(),
        status: Some(status),
    }
}

fn bindings(
    kind: ManagedKind,
    id: u64,
    channel: Option<u64>,
    outcome: ObjectOutcome,
    key: Option<&str>,
) -> Vec<Binding> {
    let origin = match outcome {
        ObjectOutcome::Created | ObjectOutcome::Updated | ObjectOutcome::Unchanged | ObjectOutcome::Found => "created",
        ObjectOutcome::Adopted => "adopted",
    };
    let bind = |key: &str| Binding { kind, key: key.to_owned(), discord_id: id, channel, origin };
    key.map(bind).into_iter().collect()
}

/// The result for an object that was deleted, or did not exist.
pub(crate) fn delete_output(
    result: Result<u16, ExecutionError>,
    gone: Option<(ManagedKind, u64)>,
) -> Result<ExecutionOutput, ExecutionError> {
    let (was_there, status) = match result {
        Ok(status) => (true, status),
        Err(error) if error.is_gone() => (false, 404),
        Err(error) => return Err(error),
    };
    Ok(ExecutionOutput {
        result: json!({ "deleted": was_there }),
        unbind: gone.into_iter().collect(),
        status: Some(status),
        ..ExecutionOutput::default()
    })
}

/// The result for an object that an earlier attempt deleted.
pub(crate) fn already_deleted_output(gone: (ManagedKind, u64)) -> ExecutionOutput {
    ExecutionOutput {
        result: json!({ "deleted": true }),
        unbind: vec![gone],
        status: Some(200),
        ..ExecutionOutput::default()
    }
}

/// The error when several objects match.
pub(crate) fn several_match(kind: &str, name: &str, key: &str, ids: &[u64]) -> ExecutionError {
    let displayed: Vec<String> = ids.iter().take(10).map(u64::to_string).collect();
    let message = format!(
        "{} {kind} are named `{name}` and have no key ({}): rename or delete all but the one for `{key}`, or submit \
         again without `adopt` to create a new one",
        ids.len(),
        displayed.join(", "),
    );
    ExecutionError::failed(FailureClass::Conflict, message)
}

/// An object that disappeared during the operation is searched for again.
pub(crate) fn retry_if_gone(error: ExecutionError, object: &str) -> ExecutionError {
    if error.is_gone() {
        return ExecutionError::failed(FailureClass::Transient, format!("{object} was deleted during the operation"));
    }
    error
}
