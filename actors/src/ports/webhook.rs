//! The port to a bot's brain: a program of somebody else's, behind an address, that is told of events and answers what to do.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use guildhall_core::trace::TraceContext;
use serde_json::Value;

/// A call under way.
pub type WebhookCallFuture<'a> = Pin<Box<dyn Future<Output = Result<WebhookResponse, WebhookCallError>> + Send + 'a>>;

/// What a brain is sent, already written out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookBody {
    /// Names this event for this handler: the same each time it is sent.
    pub id: String,
    /// The event, as JSON.
    pub json: Arc<str>,
}

/// Which brain, and how long it may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookCall {
    /// The handler's name.
    pub handler: Arc<str>,
    /// How long it may take in all.
    pub within: Duration,
    /// The part of the event's trace that the handler is.
    pub trace: TraceContext,
}

/// What a brain answered. An empty answer is all of it empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WebhookResponse {
    /// Operations in the event's guild, as `POST /v1/guilds/{id}/operations` takes them.
    pub operations: Vec<Value>,
    /// The answer to an interaction: a message, or for the synchronous path also choices or a modal.
    pub reply: Option<Value>,
    /// Values to keep: key, value, and for how long.
    pub set: Vec<(String, Value, Option<Duration>)>,
    /// The handler is not to be called again for this key for so long.
    pub cooldown: Option<(String, Duration)>,
}

/// Why a brain did not answer, or not so that it can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WebhookCallError {
    /// It may answer next time: it cannot be reached, took too long, answered 5xx, 429 or 408, or its breaker is open.
    #[error("{why}")]
    Later {
        /// What went wrong.
        why: String,
        /// Not before so long, if it said so.
        retry_after: Option<Duration>,
    },
    /// It would answer the same next time: 3xx, 4xx, too much, not JSON, not what an answer holds, an address that is not
    /// allowed.
    #[error("{why}")]
    Never {
        /// What is wrong, and what to do.
        why: String,
    },
}

/// Whoever is told of events.
pub trait WebhookClient: Send + Sync {
    /// Tells it, and waits for the answer.
    fn ask(&self, asks: WebhookCall, body: WebhookBody) -> WebhookCallFuture<'_>;
}
