//! Log lines, metrics and spans of webhook requests.

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

/// A webhook was called for an event, or the call was prevented.
pub(super) struct WebhookCalled<'a> {
    pub(super) handler: &'a Arc<str>,
    /// Id of the event for this handler.
    pub(super) id: &'a str,
    /// The span of the request, and the handler's span, which is its parent.
    pub(super) trace: TraceContext,
    pub(super) parent: SpanId,
    /// The error, if there is no usable response.
    pub(super) error: Option<&'a WebhookRequestError>,
    /// Duration of the request, if one was sent or attempted.
    pub(super) elapsed: Option<Duration>,
}

impl InternalEvent for WebhookCalled<'_> {
    fn emit(self) {
        let (handler, id) = (&**self.handler, self.id);
        let duration_ms = self.elapsed.map(|elapsed| u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
        let (result, trace_id) = (self.error.map_or("answered", WebhookRequestError::name), self.trace.id);
        match self.error {
            None => debug!(handler, id, result, duration_ms, %trace_id, "webhook responded"),
            // The breaker has reported that it opened.
            Some(fault @ WebhookRequestError::BreakerOpen { .. }) => {
                debug!(handler, id, result, why = %fault, %trace_id, "webhook not called");
            }
            Some(fault) => {
                warn!(handler, id, result, duration_ms, why = %fault, %trace_id, "webhook failed");
            }
        }
        if let Some(elapsed) = self.elapsed {
            span::record(Some(self.trace), |trace| {
                let span = Span::ended_now(trace, Some(self.parent), "POST webhook", elapsed).kind(SpanKind::Client);
                let span = span.text("guildhall.handler", handler.to_owned()).text("guildhall.result", result);
                span.failed(self.error.map(ToString::to_string))
            });
        }
        // A handler name that is not in the settings would be a label without bounds.
        let label = if matches!(self.error, Some(WebhookRequestError::NoWebhook)) {
            Arc::from("unknown")
        } else {
            self.handler.clone()
        };
        counter!(WEBHOOK_REQUESTS, "handler" => label.clone(), "outcome" => result).increment(1);
        if let Some(elapsed) = self.elapsed {
            histogram!(WEBHOOK_REQUEST_SECONDS, "handler" => label).record(elapsed);
        }
    }
}
