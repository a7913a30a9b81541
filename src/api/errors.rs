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
pub(crate) fn submission_problem(problem: SubmissionError, shape: SubmissionShape) -> ProblemResponse {
    let whole = |problem: &SubmissionError| {
        let message = problem.to_string();
        ProblemType::InvalidOperation.with_detail(format!("{message}.")).errors([("operations".to_owned(), message)])
    };
    match problem {
        SubmissionError::Empty | SubmissionError::TooMany { .. } => whole(&problem),
        SubmissionError::Invalid(invalid) => {
            let errors =
                invalid.into_iter().map(|(index, invalid)| (shape.field(index, &invalid.field), invalid.message));
            ProblemResponse::from(ProblemType::InvalidOperation).errors(errors)
        }
        SubmissionError::GuildNotFound(_) => ProblemType::NotFound.with_detail(format!("{problem}.")),
        SubmissionError::Forbidden(lacks) => {
            let errors = lacks.into_iter().map(|(index, lack)| (shape.field(index, &lack.field), lack.message));
            ProblemType::Forbidden
                .with_detail("Nothing was accepted. `errors` lists what the key lacks.")
                .errors(errors)
        }
        SubmissionError::ForeignTarget(invalid) => {
            let errors =
                invalid.into_iter().map(|(index, invalid)| (shape.field(index, &invalid.field), invalid.message));
            ProblemType::NotFound
                .with_detail("Nothing was accepted. `errors` lists what does not exist for this key.")
                .errors(errors)
        }
        SubmissionError::Store(error) => submit_problem(&error, shape),
    }
}

fn submit_problem(error: &SubmitError, shape: SubmissionShape) -> ProblemResponse {
    match error {
        SubmitError::Store(error) => store_problem(error),
        SubmitError::KeyReused { index, id } => {
            let message = format!("was used for another payload, by operation {id}; use a new key for a new operation");
            ProblemType::KeyReused
                .with_detail(format!("Nothing was accepted: the key {message}."))
                .with("operation_id", id.to_string())
                .errors([(shape.field(*index, "key"), message)])
        }
        SubmitError::Full { pending, max: most, .. } => ProblemType::QueueFull
            .with_detail(format!(
                "The queue has {pending} unfinished operations, and at most {most} are permitted: retry when \
                some are finished, or raise store.max_queued_per_guild."
            ))
            .with("pending", *pending)
            .with("most", *most),
        SubmitError::OverBound(exceeded) => over_bound(exceeded),
        SubmitError::ForeignGuild { .. } => ProblemType::NotFound.with_detail(format!("{error}.")),
        SubmitError::UnknownOperation { index, id } => {
            let message = format!("refers to operation {id}, which does not exist in this guild");
            ProblemResponse::from(ProblemType::InvalidOperation).errors([(shape.field(*index, "payload"), message)])
        }
    }
}

fn over_bound(exceeded: &UsageBoundExceeded) -> ProblemResponse {
    let UsageBoundExceeded { bound, used, more, max } = exceeded;
    let problem = match bound {
        UsageBound::File => ProblemType::StoreFull,
        UsageBound::KeyOperations
        | UsageBound::KeyBytes
        | UsageBound::TenantOperations
        | UsageBound::TenantBytes
        | UsageBound::OperatorOperations
        | UsageBound::OperatorBytes => ProblemType::ShareFull,
    };
    let (counted, setting) = (bound.description(), bound.setting());
    problem
        .with_detail(format!(
            "Nothing was accepted: {used} {counted}, this request adds {more}, and {max} are permitted. Retry when \
             some are finished or removed, or ask the operator to raise {setting}."
        ))
        .with("bound", bound.name())
        .with("used", *used)
        .with("more", *more)
        .with("most", *max)
        .with("setting", setting)
}

pub(crate) fn store_problem(error: &StoreError) -> ProblemResponse {
    match error {
        StoreError::Unavailable(_) => ProblemType::StoreUnavailable
            .with_detail(format!("{error}. Retry; operations with an idempotency key are accepted only once.")),
        StoreError::Corrupt(_) => ProblemType::Internal.with_detail(format!("{error}.")),
    }
}

/// Why an operation, a dead letter or a guild was not changed.
pub(crate) fn operation_problem(error: &OperationError) -> ProblemResponse {
    match error {
        OperationError::OperationNotFound(_)
        | OperationError::DeadLetterNotFound(_)
        | OperationError::GuildNotFound(_) => ProblemType::NotFound.with_detail(format!("{error}.")),
        OperationError::WrongState { state, .. } => {
            ProblemType::Conflict.with_detail(format!("{error}.")).with("state", state.name())
        }
        OperationError::AlreadyAttempted { state, progress, .. } => ProblemType::Conflict
            .with_detail(format!("{error}."))
            .with("state", state.name())
            .with("progress", json!(progress)),
        OperationError::AlreadyRedriven { by, .. } => {
            let problem = ProblemType::AlreadyRedriven.with_detail(format!("{error}."));
            match by {
                Some(by) => problem.with("operation_id", by.to_string()),
                None => problem,
            }
        }
        OperationError::Forbidden { .. } => ProblemType::Forbidden.with_detail(format!("{error}.")),
        OperationError::ForeignTarget { .. } => ProblemType::NotFound.with_detail(format!("{error}.")),
        OperationError::NotReceived(_) => ProblemType::InvalidOperation.with_detail(format!("{error}.")),
        OperationError::Submit(error) => submit_problem(error, SubmissionShape::One),
    }
}
