//! Rejects state keys that are reserved for the daemon, wherever a handler can set one.

use guildhall_core::event::Event;
use guildhall_core::event::handler::{EventHandler, RuleOutput, TemplateError};
use guildhall_core::state_key::{ReservedKey, check_reserved};

use super::handler_runner::HandlerOutcome;
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

/// Outcome of a webhook call. A response that sets a reserved key is rejected as a whole, before any of it takes
/// effect.
pub(crate) fn webhook_outcome(
    handler: &EventHandler,
    event: &Event,
    response: Result<WebhookResponse, WebhookCallError>,
) -> HandlerOutcome {
    let output = match response {
        Ok(WebhookResponse { operations, reply, set, cooldown }) => RuleOutput { operations, reply, set, cooldown },
        Err(WebhookCallError::Retryable { reason, retry_after }) => {
            return HandlerOutcome::Retryable { reason, retry_after };
        }
        Err(WebhookCallError::Permanent { reason }) => return HandlerOutcome::Permanent { reason },
    };
    if output.cooldown.is_some() && !handler.has_cooldown() {
        // It would have no effect: the keys of later events are unknown.
        let reason = "the webhook's response was refused: cooldown: the handler has no `cooldown`, so it would never \
                      apply; add `cooldown = { key = \"…\" }` with the same key to the handler";
        return HandlerOutcome::Permanent { reason: reason.to_owned() };
    }
    let reserved = output.set.iter().find_map(|(key, ..)| Some((key, check_reserved(key).err()?)));
    match reserved {
        Some((key, reserved @ ReservedKey { prefix })) => {
            emit(ReservedKeyRefused { handler: &handler.name, event, source: "answer", prefix });
            let key: String = key.chars().take(64).flat_map(char::escape_debug).collect();
            HandlerOutcome::Permanent {
                reason: format!("the webhook's response was refused: set.{key}: a key {reserved}"),
            }
        }
        None => HandlerOutcome::Produced(output),
    }
}
