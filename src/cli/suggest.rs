//! Values that a shell may suggest; others are accepted as well, since a newer daemon may know more.

use std::ffi::OsStr;

use clap::{
    Arg, Command, Error,
    builder::{PossibleValue, StringValueParser, TypedValueParser},
};
use guildhall_core::{
    access::Scope,
    operation::{FailureClass, OperationKind, OperationState},
};

/// Accepts any value, and suggests some.
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

/// Kinds of operations.
pub(super) fn kinds() -> SuggestedValues {
    SuggestedValues(|| OperationKind::ALL.map(OperationKind::name).to_vec())
}

/// States of operations.
pub(super) fn states() -> SuggestedValues {
    SuggestedValues(|| OperationState::ALL.map(OperationState::name).to_vec())
}

/// Error classes of operations.
pub(super) fn classes() -> SuggestedValues {
    SuggestedValues(|| FailureClass::ALL.map(FailureClass::name).to_vec())
}

/// Scopes of keys.
pub(super) fn scopes() -> SuggestedValues {
    SuggestedValues(|| Scope::ALL.map(Scope::name).to_vec())
}
