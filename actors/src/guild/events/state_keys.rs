//! Refuses keys of stored values that belong to the daemon, wherever a handler could name one.

use guildhall_core::event::Event;
use guildhall_core::event::handler::{EventHandler, TemplateError};
use guildhall_core::state_key::{ReservedKey, check_reserved};
use tokio::task::JoinError;

use super::context::{HandlerOutcome, heard};
use crate::ports::{WebhookCallError, WebhookResponse};
use crate::telemetry::emit;
use crate::telemetry::events::ReservedKeyRefused;

/// Why a template has no value for an event. A reserved key is counted and logged.
pub(crate) fn template_error(
    handler: &EventHandler,
    event: &Event,
    source: &'static str,
    error: &TemplateError,
) -> String {
    match error {
        TemplateError::Reserved { prefix, .. } => {
            emit(ReservedKeyRefused { handler: &handler.name, event, source, prefix });
        }
        TemplateError::Missing { .. } | TemplateError::NotJson { .. } | TemplateError::Key { .. } => {}
    }
    error.to_string()
}

/// The result of a webhook call. An answer that sets a reserved key is refused as a whole, before any of it has an effect.
pub(crate) fn answered(
    handler: &EventHandler,
    event: &Event,
    answer: Result<Result<WebhookResponse, WebhookCallError>, JoinError>,
) -> HandlerOutcome {
    let ran = heard(answer);
    let HandlerOutcome::Gave(given) = &ran else { return ran };
    let reserved = given.set.iter().find_map(|(key, ..)| Some((key, check_reserved(key).err()?)));
    match reserved {
        Some((key, reserved @ ReservedKey { prefix })) => {
            emit(ReservedKeyRefused { handler: &handler.name, event, source: "answer", prefix });
            let shown: String = key.chars().take(64).flat_map(char::escape_debug).collect();
            HandlerOutcome::Never { why: format!("the webhook's answer was refused: set.{shown}: a key {reserved}") }
        }
        None => ran,
    }
}
