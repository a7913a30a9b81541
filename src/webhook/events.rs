//! What there is to say about webhooks.

use std::sync::Arc;
use std::time::Duration;

use guildhall_actors::telemetry::span;
use guildhall_actors::telemetry::span::{Span, SpanKind};
use guildhall_core::trace::{SpanId, TraceContext};
use metrics::{counter, histogram};
use tracing::{debug, warn};

use super::error::WebhookRequestError;
use crate::{
    events::InternalEvent,
    metrics::{WEBHOOK_REQUEST_SECONDS, WEBHOOK_REQUESTS},
};

/// A webhook was asked about an event, or should have been.
pub(super) struct WebhookCalled<'a> {
    pub(super) handler: &'a Arc<str>,
    /// What the event is called for this handler.
    pub(super) id: &'a str,
    /// The part of the event's trace that the request is, and the handler that it is made for.
    pub(super) trace: TraceContext,
    pub(super) asked_by: SpanId,
    /// What is wrong, if there is no answer.
    pub(super) fault: Option<&'a WebhookRequestError>,
    /// How long it took, if a request was sent or tried.
    pub(super) took: Option<Duration>,
}

impl InternalEvent for WebhookCalled<'_> {
    fn emit(self) {
        let (handler, id) = (&**self.handler, self.id);
        let duration_ms = self.took.map(|took| u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
        let (result, trace_id) = (self.fault.map_or("answered", WebhookRequestError::name), self.trace.id);
        match self.fault {
            None => debug!(handler, id, result, duration_ms, %trace_id, "webhook answered"),
            // The breaker has told that it opened.
            Some(fault @ WebhookRequestError::Open { .. }) => {
                debug!(handler, id, result, why = %fault, %trace_id, "webhook not asked");
            }
            Some(fault) => {
                warn!(handler, id, result, duration_ms, why = %fault, %trace_id, "webhook gave no answer of use");
            }
        }
        if let Some(took) = self.took {
            span::record(Some(self.trace), |trace| {
                let span = Span::just_now(trace, Some(self.asked_by), "POST webhook", took).kind(SpanKind::Client);
                let span = span.text("guildhall.handler", handler.to_owned()).text("guildhall.result", result);
                span.failed(self.fault.map(ToString::to_string))
            });
        }
        // A name that no settings know would be a label without bounds.
        let label = if matches!(self.fault, Some(WebhookRequestError::Unknown)) {
            Arc::from("unknown")
        } else {
            self.handler.clone()
        };
        counter!(WEBHOOK_REQUESTS, "handler" => label.clone(), "outcome" => result).increment(1);
        if let Some(took) = self.took {
            histogram!(WEBHOOK_REQUEST_SECONDS, "handler" => label).record(took);
        }
    }
}
