//! Port to the brain: the bot's own code behind a URL. It receives events and responds with what to do.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use guildhall_core::trace::TraceContext;
use serde_json::Value;

/// Pending call.
pub type WebhookCallFuture<'a> = Pin<Box<dyn Future<Output = Result<WebhookResponse, WebhookCallError>> + Send + 'a>>;

/// Serialized body of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookBody {
    /// Identifies the event for this handler. It is the same for each attempt.
    pub id: String,
    /// The event, as JSON.
    pub json: Arc<str>,
}

/// Parameters of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookCall {
    /// Name of the handler.
    pub handler: Arc<str>,
    /// Timeout of the call.
    pub timeout: Duration,
    /// Span of the handler in the trace of the event.
    pub trace: TraceContext,
}

/// Response of a webhook. An empty response has no content.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WebhookResponse {
    /// Operations in the event's guild, in the format of `POST /v1/guilds/{id}/operations`.
    pub operations: Vec<Value>,
    /// The response to an interaction: a message, or choices or a modal if it is not deferred.
    pub reply: Option<Value>,
    /// Values to store: key, value, and time to live.
    pub set: Vec<(String, Value, Option<Duration>)>,
    /// Key for which the handler must not be called again, and for how long.
    pub cooldown: Option<(String, Duration)>,
}

/// Why a call failed, or its response cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WebhookCallError {
    /// A retry may succeed: it is unreachable, timed out, responded with 5xx, 429 or 408, or its breaker is open.
    #[error("{reason}")]
    Retryable {
        /// The failure.
        reason: String,
        /// Minimum delay before a retry, if it responded with one.
        retry_after: Option<Duration>,
    },
    /// A retry would fail too: 3xx, 4xx, a response that is too large or invalid, or a URL that is not allowed.
    #[error("{reason}")]
    Permanent {
        /// The failure, and what to do about it.
        reason: String,
    },
}

/// Calls webhooks.
pub trait WebhookClient: Send + Sync {
    /// Sends an event, and waits for the response.
    fn call(&self, call: WebhookCall, body: WebhookBody) -> WebhookCallFuture<'_>;
}
