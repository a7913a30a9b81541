//! Fallbacks of deferred interactions: texts that users see if there is no response, instead of "thinking…" until the
//! interaction expires.
//!
//! ```text
//!  cooldown, failed ──────────────────▶ at once ─┐
//!  unavailable, slow, no response yet ─▶ later ──┴▶ operation: edits the response only if it is still deferred
//! ```
//!
//! A fallback is an operation that is stored together with what became of the event, so it survives a restart. It never
//! replaces a response; a later response replaces it.

use std::sync::Arc;
use std::time::Duration;

use guildhall_core::event::handler::{EventHandler, EventView, HandlerAction, event_id};
use guildhall_core::event::{Event, Interaction, InteractionKind};
use guildhall_core::interaction::ReceivedInteraction;
use guildhall_core::operation::{OperationKind, QueueKey};
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

    /// The text for a handler that was to respond at once, and failed to: a message that only the user sees.
    pub(crate) fn immediate(&self, interaction: &Interaction, reason: FallbackReason) -> Option<Value> {
        if interaction.kind == InteractionKind::Autocomplete {
            return None;
        }
        let text = self.config.fallback.text(reason)?;
        Some(json!({ "type": 4, "data": { "content": text, "flags": 64 } }))
    }

    /// The text that replaces a reply that Discord rejects.
    pub(crate) fn if_rejected(&self) -> Option<&str> {
        self.config.fallback.text(FallbackReason::Failed)
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

    /// The fallback for an event that a handler finished with these operations and without a reply. The brain may respond
    /// later.
    pub(crate) fn unanswered_by(
        &self,
        event: &Event,
        handler: &EventHandler,
        operations: &[NewOperation],
    ) -> Option<Box<NewOperation>> {
        let interaction = event.interaction.as_ref()?;
        let queue = QueueKey::interaction(interaction.id);
        let responds = |operation: &NewOperation| {
            matches!(operation.kind, OperationKind::EditOriginal | OperationKind::SendFollowup)
                && operation.queue == queue
        };
        if operations.iter().any(responds) || self.is_left_to_another(event, handler) {
            return None;
        }
        self.unanswered(event, handler)
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
        let may_respond = |handler: &EventHandler| match &handler.action {
            HandlerAction::Webhook(_) | HandlerAction::Broker => true,
            HandlerAction::Rule(rule) => rule.has_reply(),
        };
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
