//! Converts errors of services to problems.

use guildhall_actors::ports::{StoreError, SubmitError};
use guildhall_actors::submission::{OperationError, SubmissionError};

use guildhall_core::usage::{UsageBound, UsageBoundExceeded};
use serde_json::json;

use crate::api::problem::{ProblemResponse, ProblemType};

/// How a request lists its operations, to name the invalid field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubmissionShape {
    /// The body is the operation.
    One,
    /// The body contains a list of operations.
    Many,
}

impl SubmissionShape {
    /// The path of a field of one of the operations.
    pub(crate) fn field(self, index: usize, field: &str) -> String {
        match (self, field) {
            (Self::One, field) => field.to_owned(),
            (Self::Many, "") => format!("operations[{index}]"),
            (Self::Many, field) => format!("operations[{index}].{field}"),
        }
    }
}

/// Why operations were not accepted.
pub(crate) fn of_submission(problem: SubmissionError, shape: SubmissionShape) -> ProblemResponse {
    let whole = |problem: &SubmissionError| {
        let message = problem.to_string();
        ProblemType::InvalidOperation.says(format!("{message}.")).errors([("operations".to_owned(), message)])
    };
    match problem {
        SubmissionError::Empty | SubmissionError::TooMany { .. } => whole(&problem),
        SubmissionError::Invalid(wrong) => {
            let errors = wrong.into_iter().map(|(index, wrong)| (shape.field(index, &wrong.field), wrong.message));
            ProblemResponse::from(ProblemType::InvalidOperation).errors(errors)
        }
        SubmissionError::NoGuild(_) => ProblemType::NotFound.says(format!("{problem}.")),
        SubmissionError::Forbidden(lacks) => {
            let errors = lacks.into_iter().map(|(index, lack)| (shape.field(index, &lack.field), lack.message));
            ProblemType::Forbidden.says("Nothing was accepted. `errors` lists what the key lacks.").errors(errors)
        }
        SubmissionError::Elsewhere(wrong) => {
            let errors = wrong.into_iter().map(|(index, wrong)| (shape.field(index, &wrong.field), wrong.message));
            ProblemType::NotFound
                .says("Nothing was accepted. `errors` lists what does not exist for this key.")
                .errors(errors)
        }
        SubmissionError::Store(error) => of_submit_error(&error, shape),
    }
}

fn of_submit_error(error: &SubmitError, shape: SubmissionShape) -> ProblemResponse {
    match error {
        SubmitError::Store(error) => of_store(error),
        SubmitError::KeyReused { index, id } => {
            let message = format!("was used for another payload, by operation {id}; use a new key for a new operation");
            ProblemType::KeyReused
                .says(format!("Nothing was accepted: the key {message}."))
                .with("operation_id", id.to_string())
                .errors([(shape.field(*index, "key"), message)])
        }
        SubmitError::Full { pending, most, .. } => ProblemType::QueueFull
            .says(format!(
                "The queue has {pending} unfinished operations, and at most {most} are permitted: retry when \
                some are finished, or raise store.max_queued_per_guild."
            ))
            .with("pending", *pending)
            .with("most", *most),
        SubmitError::OverBound(exceeded) => over_bound(exceeded),
        SubmitError::NotYours { .. } => ProblemType::NotFound.says(format!("{error}.")),
        SubmitError::NoSuchOperation { index, id } => {
            let message = format!("refers to operation {id}, which does not exist in this guild");
            ProblemResponse::from(ProblemType::InvalidOperation).errors([(shape.field(*index, "payload"), message)])
        }
    }
}

fn over_bound(exceeded: &UsageBoundExceeded) -> ProblemResponse {
    let UsageBoundExceeded { bound, used, more, most } = exceeded;
    let problem = match bound {
        UsageBound::File => ProblemType::StoreFull,
        UsageBound::KeyOperations
        | UsageBound::KeyBytes
        | UsageBound::TenantOperations
        | UsageBound::TenantBytes
        | UsageBound::OperatorOperations
        | UsageBound::OperatorBytes => ProblemType::ShareFull,
    };
    let (counted, setting) = (bound.counted(), bound.setting());
    problem
        .says(format!(
            "Nothing was accepted: {used} {counted}, this request adds {more}, and {most} are permitted. Retry when \
             some are finished or removed, or ask the operator to raise {setting}."
        ))
        .with("bound", bound.name())
        .with("used", *used)
        .with("more", *more)
        .with("most", *most)
        .with("setting", setting)
}

pub(crate) fn of_store(error: &StoreError) -> ProblemResponse {
    match error {
        StoreError::Unavailable(_) => ProblemType::StoreUnavailable
            .says(format!("{error}. Retry; operations with an idempotency key are accepted only once.")),
        StoreError::Corrupt(_) => ProblemType::Internal.says(format!("{error}.")),
    }
}

/// Why an operation, a dead letter or a guild was not changed.
pub(crate) fn of_desk(error: &OperationError) -> ProblemResponse {
    match error {
        OperationError::NoOperation(_) | OperationError::NoLetter(_) | OperationError::NoGuild(_) => {
            ProblemType::NotFound.says(format!("{error}."))
        }
        OperationError::Unfit { state, .. } => {
            ProblemType::Conflict.says(format!("{error}.")).with("state", state.name())
        }
        OperationError::Tried { state, progress, .. } => ProblemType::Conflict
            .says(format!("{error}."))
            .with("state", state.name())
            .with("progress", json!(progress)),
        OperationError::AlreadyRedriven { by, .. } => {
            let told = ProblemType::AlreadyRedriven.says(format!("{error}."));
            match by {
                Some(by) => told.with("operation_id", by.to_string()),
                None => told,
            }
        }
        OperationError::Forbidden { .. } => ProblemType::Forbidden.says(format!("{error}.")),
        OperationError::Elsewhere { .. } => ProblemType::NotFound.says(format!("{error}.")),
        OperationError::NotReceived(_) => ProblemType::InvalidOperation.says(format!("{error}.")),
        OperationError::Submit(error) => of_submit_error(error, SubmissionShape::One),
    }
}
