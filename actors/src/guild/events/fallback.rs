//! Fallbacks of deferred interactions: texts that users see if there is no response, instead of "thinking…" until the
//! interaction expires.
//!
//! ```text
//!  cooldown, known before the deferral ─▶ the first response, which only the user sees
//!  cooldown, failed ───────────────────▶ at once ─┐
//!  unavailable, slow, no response yet ──▶ later ──┴▶ operation: edits the response only if it is still deferred
//! ```
//!
//! A fallback is an operation that is stored together with what became of the event, so it survives a restart. It never
//! replaces a response; a later response replaces it.

use std::sync::Arc;
use std::time::Duration;

use guildhall_core::event::handler::{EventHandler, EventView, HandlerAction, event_id};
use guildhall_core::event::{Event, Interaction, InteractionKind};
use guildhall_core::interaction::ReceivedInteraction;
use guildhall_core::operation::OperationKind;
use guildhall_core::time::millis;
use serde_json::{Value, json};

use super::handler_runner::span_of;
use super::registry::HandlerRegistry;
use crate::ports::NewOperation;
use crate::submission::OperationService;
use crate::supervisor::EventsConfig;
use crate::telemetry::emit;
use crate::telemetry::events::InteractionFallbackQueued;
use crate::wall_clock::WallClock;

/// A fallback is due at least this long before the interaction expires.
const MARGIN: Duration = Duration::from_secs(30);

guildhall_core::named_enum! {
    /// Why an interaction gets a fallback.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum FallbackReason {
        /// The handler's cooldown applies.
        Cooldown = "cooldown",
        /// The handler failed, or its response is invalid.
        Failed = "failed",
        /// The webhook cannot be called.
        Unavailable = "unavailable",
        /// There is no response, and no failure.
        Unanswered = "unanswered",
    }
}

/// Creates fallbacks.
pub(crate) struct InteractionFallbacks {
    handlers: Arc<HandlerRegistry>,
    operations: Arc<OperationService>,
    clock: WallClock,
    config: EventsConfig,
}

impl InteractionFallbacks {
    pub(crate) fn new(
        handlers: Arc<HandlerRegistry>,
        operations: Arc<OperationService>,
        clock: WallClock,
        config: EventsConfig,
    ) -> Self {
        Self { handlers, operations, clock, config }
    }

    /// The text as the first response to an interaction: a message that only the user sees.
    pub(crate) fn immediate(&self, interaction: &Interaction, reason: FallbackReason) -> Option<Value> {
        if interaction.kind == InteractionKind::Autocomplete {
            return None;
        }
        let text = self.config.fallback.text(reason)?;
        Some(json!({ "type": 4, "data": { "content": text, "flags": 64 } }))
    }

    /// The text that replaces the deferral if Discord rejects a reply.
    pub(crate) fn if_rejected(&self) -> Option<&str> {
        self.config.fallback.text(FallbackReason::Failed)
    }

    /// Gives the edits of this interaction's response among these operations the text for a rejected reply, unless they
    /// have their own.
    pub(crate) fn complete_edits(&self, event: &Event, handler: &EventHandler, operations: &mut [Value]) {
        let Some(text) = self.if_rejected().filter(|_| self.defers(event, handler)) else { return };
        let Some(interaction) = &event.interaction else { return };
        for operation in operations.iter_mut().filter(|operation| is_edit_of(interaction, operation)) {
            if let Some(payload) = operation.get_mut("payload").and_then(Value::as_object_mut) {
                payload.entry("if_rejected").or_insert_with(|| text.into());
            }
        }
    }

    /// The fallback of an interaction whose handler will not respond to it; `None` if it was not deferred for this
    /// handler, or if there is no text for this reason.
    pub(crate) fn now(
        &self,
        event: &Event,
        handler: &EventHandler,
        reason: FallbackReason,
    ) -> Option<Box<NewOperation>> {
        self.after(Duration::ZERO, event, handler, reason)
    }

    /// The fallback of an interaction whose webhook failed, and is called again.
    pub(crate) fn unavailable(&self, event: &Event, handler: &EventHandler) -> Option<Box<NewOperation>> {
        self.after(self.config.fallback.unavailable_after, event, handler, FallbackReason::Unavailable)
    }

    /// The fallback of an interaction that may still get a response.
    pub(crate) fn unanswered(&self, event: &Event, handler: &EventHandler) -> Option<Box<NewOperation>> {
        self.after(self.config.fallback.unanswered_after, event, handler, FallbackReason::Unanswered)
    }

    /// The fallback of an interaction, at this time after the interaction.
    fn after(
        &self,
        after: Duration,
        event: &Event,
        handler: &EventHandler,
        reason: FallbackReason,
    ) -> Option<Box<NewOperation>> {
        let interaction = event.interaction.as_ref().filter(|_| self.defers(event, handler))?;
        let received = ReceivedInteraction::of(event)?;
        let text = self.config.fallback.text(reason)?;
        let now = self.clock.now();
        if received.has_expired(now) {
            return None;
        }
        let remaining = received.expires_at.since(now);
        let delay = (event.received_at + after).since(now).min(remaining.saturating_sub(MARGIN));
        let operation = json!({
            "kind": "edit_original",
            "payload": {
                "interaction_id": interaction.id.to_string(),
                "interaction_token": interaction.token,
                "content": text,
                "only_if_deferred": true,
            },
            // An event that is handled again, or by another process, gets no second one.
            "key": format!("fallback:{}:{}", reason.name(), event_id(&event.origin)),
            "delay_ms": millis(delay),
            "deadline_ms": millis(remaining),
        });
        let scope: Arc<str> = Arc::from(format!("handler:{}", handler.name));
        let trace = span_of(event, handler);
        let operation =
            self.operations.validate_handler_operations(event.guild, scope, trace, vec![operation]).ok()?.pop()?;
        emit(InteractionFallbackQueued { handler: &handler.name, event, reason, delay });
        Some(Box::new(operation))
    }

    /// Whether an interaction needs no fallback after a handler has finished with these operations and without a reply. An
    /// operation that may end without a response, for example at its deadline, is none.
    pub(crate) fn is_answered_by(&self, event: &Event, handler: &EventHandler, operations: &[Value]) -> bool {
        let Some(interaction) = &event.interaction else { return true };
        let responds = |operation: &Value| is_edit_of(interaction, operation) && always_leaves_a_response(operation);
        operations.iter().any(responds) || self.is_left_to_another(event, handler)
    }

    /// Whether the interaction was deferred for this handler.
    pub(crate) fn defers(&self, event: &Event, handler: &EventHandler) -> bool {
        let can_be_deferred = event.interaction.as_ref().is_some_and(|interaction| match interaction.kind {
            InteractionKind::Autocomplete => false,
            InteractionKind::Command | InteractionKind::Component | InteractionKind::Modal => true,
        });
        can_be_deferred && !handler.shadow && self.config.defers(handler)
    }

    /// Whether this handler is a rule that never responds, and another handler may.
    fn is_left_to_another(&self, event: &Event, handler: &EventHandler) -> bool {
        let is_other = |other: &EventHandler| other.name != handler.name && may_respond(other);
        !may_respond(handler) && {
            let view = EventView::new(event);
            self.handlers.matching(event.name.as_str()).into_iter().any(|number| {
                let other = self.handlers.handler(number);
                is_other(other) && self.defers(event, other) && other.accepts(&view)
            })
        }
    }
}

/// Whether a handler may respond to interactions.
pub(crate) const fn may_respond(handler: &EventHandler) -> bool {
    match &handler.action {
        HandlerAction::Webhook(_) | HandlerAction::Broker => true,
        HandlerAction::Rule(rule) => rule.has_reply(),
    }
}

/// Whether an operation, as a handler wrote it, edits the response to this interaction.
fn is_edit_of(interaction: &Interaction, operation: &Value) -> bool {
    let payload = &operation["payload"];
    operation["kind"] == OperationKind::EditOriginal.name()
        && payload["interaction_id"].as_str().is_some_and(|id| id.parse() == Ok(interaction.id))
        && payload["interaction_token"] == interaction.token
}

/// Whether an edit, as a handler wrote it, runs at once and as often as a reply, and leaves a text if Discord rejects it.
fn always_leaves_a_response(edit: &Value) -> bool {
    let is_default = |field: &str| edit[field].is_null();
    ["delay_ms", "deadline_ms", "max_attempts"].into_iter().all(is_default)
        && edit["payload"]["if_rejected"].is_string()
}
