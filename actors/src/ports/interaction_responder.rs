//! The port to what answers interactions at once, past the store: Discord waits three seconds.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use guildhall_core::event::Interaction;
use guildhall_core::trace::TraceContext;
use serde_json::Value;

/// An answer on its way.
pub type RespondFuture = Pin<Box<dyn Future<Output = ResponseResult> + Send>>;

/// What is told an interaction at once.
#[derive(Clone, Debug, PartialEq)]
pub enum InitialResponse {
    /// That an answer is on its way; whether it will be for one pair of eyes only.
    Deferred {
        /// For whoever asked alone.
        ephemeral: bool,
    },
    /// The answer itself, as Discord takes it: `{"type": 4, "data": {…}}`.
    Whole(Value),
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseResult {
    /// Discord knows.
    Now,
    /// Discord was told before.
    Before,
    /// The interaction is over: nobody waits any more.
    TooLate,
    /// Discord could not be told.
    Failed(String),
}

/// Whoever tells Discord.
pub trait InteractionResponder: Send + Sync {
    /// Tells Discord at once, however often that takes within the time there is, as a part of this trace.
    fn tell(&self, interaction: Arc<Interaction>, first: InitialResponse, trace: TraceContext) -> RespondFuture;
}
