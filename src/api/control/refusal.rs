//! What the desk refuses, as problems.

use guildhall_actors::operations::{
    StoreError, SubmitError,
    desk::{DeskError, SubmitProblem},
};

use guildhall_core::usage::{Bound, BoundExceeded};
use serde_json::json;

use crate::api::problem::{Problem, Told};

/// How a request named its operations, for telling which field is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// The body is the operation.
    One,
    /// The body has a list of them.
    Many,
}

impl Shape {
    /// The name of a field of one of the operations.
    pub(super) fn field(self, index: usize, field: &str) -> String {
        match (self, field) {
            (Self::One, field) => field.to_owned(),
            (Self::Many, "") => format!("operations[{index}]"),
            (Self::Many, field) => format!("operations[{index}].{field}"),
        }
    }
}

/// Why operations were not accepted.
pub(super) fn of_submission(problem: SubmitProblem, shape: Shape) -> Told {
    let whole = |problem: &SubmitProblem| {
        let message = problem.to_string();
        Problem::InvalidOperation.says(format!("{message}.")).errors([("operations".to_owned(), message)])
    };
    match problem {
        SubmitProblem::Empty | SubmitProblem::TooMany { .. } => whole(&problem),
        SubmitProblem::Invalid(wrong) => {
            let errors = wrong.into_iter().map(|(index, wrong)| (shape.field(index, &wrong.field), wrong.message));
            Told::from(Problem::InvalidOperation).errors(errors)
        }
        SubmitProblem::NoGuild(_) => Problem::NotFound.says(format!("{problem}.")),
        SubmitProblem::Forbidden(lacks) => {
            let errors = lacks.into_iter().map(|(index, lack)| (shape.field(index, &lack.field), lack.message));
            Problem::Forbidden.says("Nothing was accepted. `errors` says what the key lacks.").errors(errors)
        }
        SubmitProblem::Elsewhere(wrong) => {
            let errors = wrong.into_iter().map(|(index, wrong)| (shape.field(index, &wrong.field), wrong.message));
            Problem::NotFound.says("Nothing was accepted. `errors` says what is not there for this key.").errors(errors)
        }
        SubmitProblem::Store(error) => of_submit_error(&error, shape),
    }
}

fn of_submit_error(error: &SubmitError, shape: Shape) -> Told {
    match error {
        SubmitError::Store(error) => of_store(error),
        SubmitError::KeyReused { index, id } => {
            let message = format!("was used for another payload, by operation {id}; take a new key for something new");
            Problem::KeyReused
                .says(format!("Nothing was accepted: the key {message}."))
                .with("operation_id", id.to_string())
                .errors([(shape.field(*index, "key"), message)])
        }
        SubmitError::Full { pending, most, .. } => Problem::QueueFull
            .says(format!("The queue holds {pending} operations that are not done, and takes no more than {most}: ask again when some \
                 are done, or raise store.max_queued_per_guild."))
            .with("pending", *pending)
            .with("most", *most),
        SubmitError::OverBound(exceeded) => over_bound(exceeded),
        SubmitError::NotYours { .. } => Problem::NotFound.says(format!("{error}.")),
        SubmitError::NoSuchOperation { index, id } => {
            let message = format!("refers to operation {id}, which this guild does not have");
            Told::from(Problem::InvalidOperation).errors([(shape.field(*index, "payload"), message)])
        }
    }
}

fn over_bound(exceeded: &BoundExceeded) -> Told {
    let BoundExceeded { bound, used, more, most } = exceeded;
    let problem = match bound {
        Bound::File => Problem::StoreFull,
        Bound::KeyOperations
        | Bound::KeyBytes
        | Bound::TenantOperations
        | Bound::TenantBytes
        | Bound::OperatorOperations
        | Bound::OperatorBytes => Problem::ShareFull,
    };
    let (counted, setting) = (bound.counted(), bound.setting());
    problem
        .says(format!(
            "Nothing was accepted: {used} {counted}, this request adds {more}, and {most} are allowed. Try again when some \
             are finished or removed, or ask the operator to raise {setting}."
        ))
        .with("bound", bound.name())
        .with("used", *used)
        .with("more", *more)
        .with("most", *most)
        .with("setting", setting)
}

pub(super) fn of_store(error: &StoreError) -> Told {
    match error {
        StoreError::Unavailable(_) => Problem::StoreUnavailable.says(format!(
            "{error}. Try again; what has an idempotency key is never accepted twice with the same one."
        )),
        StoreError::Corrupt(_) => Problem::Internal.says(format!("{error}.")),
    }
}

/// Why something was not done to an operation, a letter or a guild.
pub(super) fn of_desk(error: &DeskError) -> Told {
    match error {
        DeskError::NoOperation(_) | DeskError::NoLetter(_) | DeskError::NoGuild(_) => {
            Problem::NotFound.says(format!("{error}."))
        }
        DeskError::Unfit { state, .. } => Problem::Conflict.says(format!("{error}.")).with("state", state.name()),
        DeskError::Tried { state, progress, .. } => {
            Problem::Conflict.says(format!("{error}.")).with("state", state.name()).with("progress", json!(progress))
        }
        DeskError::AlreadyRedriven { by, .. } => {
            let told = Problem::AlreadyRedriven.says(format!("{error}."));
            match by {
                Some(by) => told.with("operation_id", by.to_string()),
                None => told,
            }
        }
        DeskError::Forbidden { .. } => Problem::Forbidden.says(format!("{error}.")),
        DeskError::Elsewhere { .. } => Problem::NotFound.says(format!("{error}.")),
        DeskError::NotReceived(_) => Problem::InvalidOperation.says(format!("{error}.")),
        DeskError::Submit(error) => of_submit_error(error, Shape::One),
    }
}
