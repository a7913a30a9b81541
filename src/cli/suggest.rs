//! Words that a shell may complete, without being the only ones: a newer daemon may know more.

use std::ffi::OsStr;

use clap::{
    Arg, Command, Error,
    builder::{PossibleValue, StringValueParser, TypedValueParser},
};
use guildhall_core::{
    access::Scope,
    operation::{FailureClass, OperationKind, OperationState},
};

/// Takes any word, and knows some.
#[derive(Clone)]
pub(super) struct SuggestedValues(fn() -> Vec<&'static str>);

impl TypedValueParser for SuggestedValues {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.0)().into_iter().map(PossibleValue::new)))
    }
}

/// What operations do.
pub(super) fn kinds() -> SuggestedValues {
    SuggestedValues(|| OperationKind::ALL.map(OperationKind::name).to_vec())
}

/// What becomes of operations.
pub(super) fn states() -> SuggestedValues {
    SuggestedValues(|| OperationState::ALL.map(OperationState::name).to_vec())
}

/// Why operations fail.
pub(super) fn classes() -> SuggestedValues {
    SuggestedValues(|| FailureClass::ALL.map(FailureClass::name).to_vec())
}

/// What keys are good for.
pub(super) fn scopes() -> SuggestedValues {
    SuggestedValues(|| Scope::ALL.map(Scope::name).to_vec())
}
