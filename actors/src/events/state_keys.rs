//! Refuses keys of stored values that belong to the daemon, wherever a handler could name one.

use guildhall_core::event::Event;
use guildhall_core::event::handler::{Handler, TemplateProblem};
use guildhall_core::state_key::{ReservedKey, check_reserved};
use tokio::task::JoinError;

use super::hub::{Ran, heard};
use super::webhook::{BrainError, Said};
use crate::telemetry::emit;
use crate::telemetry::events::ReservedKeyRefused;

/// Why a template has no value for an event. A reserved key is counted and logged.
pub(super) fn template_error(
    handler: &Handler,
    event: &Event,
    source: &'static str,
    error: &TemplateProblem,
) -> String {
    match error {
        TemplateProblem::Reserved { prefix, .. } => {
            emit(ReservedKeyRefused { handler: &handler.name, event, source, prefix });
        }
        TemplateProblem::Missing { .. } | TemplateProblem::NotJson { .. } | TemplateProblem::Key { .. } => {}
    }
    error.to_string()
}

/// The result of a webhook call. An answer that sets a reserved key is refused as a whole, before any of it has an effect.
pub(super) fn answered(handler: &Handler, event: &Event, answer: Result<Result<Said, BrainError>, JoinError>) -> Ran {
    let ran = heard(answer);
    let Ran::Gave(given) = &ran else { return ran };
    let reserved = given.set.iter().find_map(|(key, ..)| Some((key, check_reserved(key).err()?)));
    match reserved {
        Some((key, reserved @ ReservedKey { prefix })) => {
            emit(ReservedKeyRefused { handler: &handler.name, event, source: "answer", prefix });
            let shown: String = key.chars().take(64).flat_map(char::escape_debug).collect();
            Ran::Never { why: format!("the webhook's answer was refused: set.{shown}: a key {reserved}") }
        }
        None => ran,
    }
}
