//! Port to the first responses to interactions, which do not pass the store: Discord waits three seconds.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use guildhall_core::event::Interaction;
use guildhall_core::trace::TraceContext;
use serde_json::Value;

/// Pending response.
pub type RespondFuture = Pin<Box<dyn Future<Output = ResponseResult> + Send>>;

/// First response to an interaction.
#[derive(Clone, Debug, PartialEq)]
pub enum InitialResponse {
    /// The response follows later.
    Deferred {
        /// Whether only the user sees it.
        ephemeral: bool,
    },
    /// The response in Discord's format: `{"type": 4, "data": {…}}`.
    Immediate(Value),
}

/// Result of sending a first response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseResult {
    /// Discord accepted it.
    Sent,
    /// The interaction has a response already.
    AlreadySent,
    /// The interaction has expired.
    Expired,
    /// It could not be sent.
    Failed(String),
}

/// Sends first responses to Discord.
pub trait InteractionResponder: Send + Sync {
    /// Sends a first response, with retries within the time that Discord allows, in this trace.
    fn respond(&self, interaction: Arc<Interaction>, response: InitialResponse, trace: TraceContext) -> RespondFuture;
}
