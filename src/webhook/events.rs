//! Log lines, metrics and spans of webhook requests.

use std::sync::Arc;
use std::time::Duration;

use guildhall_actors::telemetry::span;
use guildhall_actors::telemetry::span::{Span, SpanKind};
use guildhall_core::failure_streak::FailureSummary;
use guildhall_core::time::millis;
use guildhall_core::trace::{SpanId, TraceContext};
use tracing::{debug, warn};

use super::error::WebhookRequestError;
use crate::{
    events::{counter, event, histogram},
    metrics::{WEBHOOK_REQUEST_SECONDS, WEBHOOK_REQUESTS},
};

event! {
    /// A webhook was called for an event, or the call was prevented.
    pub(super) struct WebhookCalled<'a> {
        handler: &'a Arc<str>,
        /// Id of the event for this handler.
        id: &'a str,
        /// The span of the request, and the handler's span, which is its parent.
        trace: TraceContext,
        parent: SpanId,
        /// The error, if there is no usable response.
        error: Option<&'a WebhookRequestError>,
        /// Duration of the request, if one was sent or attempted.
        elapsed: Option<Duration>,
        /// What to log if it failed, and a line is due.
        summary: Option<FailureSummary>,
    }
    let (name, result) = (&**handler, error.map_or("answered", WebhookRequestError::name));
    let (duration_ms, trace_id) = (elapsed.map(millis), trace.id);
    match error {
        None => debug!(handler = name, id, result, duration_ms, %trace_id, "webhook responded"),
        // The breaker has reported that it opened.
        Some(error @ WebhookRequestError::BreakerOpen { .. }) => {
            debug!(handler = name, id, result, why = %error, %trace_id, "webhook not called");
        }
        Some(error) => match summary.as_ref().map(FailureSummary::repeated) {
            Some((failures, failing_for_s)) => warn!(
                handler = name, id, result, duration_ms, why = %error, failures, failing_for_s, %trace_id,
                "webhook failed"
            ),
            None => debug!(handler = name, id, result, duration_ms, why = %error, %trace_id, "webhook failed"),
        },
    }
    if let Some(elapsed) = elapsed {
        span::record(Some(trace), |trace| {
            let span = Span::ended_now(trace, Some(parent), "POST webhook", elapsed).kind(SpanKind::Client);
            let span = span.text("guildhall.handler", name.to_owned()).text("guildhall.result", result);
            span.failed(error.map(ToString::to_string))
        });
    }
    // A handler name that is not in the settings would be a label without bounds.
    let label =
        if matches!(error, Some(WebhookRequestError::NoWebhook)) { Arc::from("unknown") } else { handler.clone() };
    counter!(WEBHOOK_REQUESTS, "handler" => label.clone(), "outcome" => result).increment(1);
    if let Some(elapsed) = elapsed {
        histogram!(WEBHOOK_REQUEST_SECONDS, "handler" => label).record(elapsed);
    }
}
