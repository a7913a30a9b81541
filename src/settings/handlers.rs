//! Typed settings of event handlers and interactions.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use guildhall_core::event::handler::DeferMode;

use super::{of, public_key::PublicKey, resolve::Effective, take, value::Value};

/// Settings of event handlers.
#[derive(Clone, Debug)]
pub struct HandlerSettings {
    /// The handlers file; `None` means that there are no handlers.
    pub file: Option<PathBuf>,
    /// Whether all handlers are in shadow.
    pub shadow: bool,
    /// Timeout of a webhook, unless its handler sets another one.
    pub timeout: Duration,
    /// An event whose handler takes longer is moved to the inbox.
    pub slow: Duration,
    /// Maximum number of events in the inbox.
    pub max_inbox_events: u64,
    /// Maximum number of attempts of a handler with an event.
    pub attempts: u32,
    /// Delay before the first retry; doubles with each further one.
    pub backoff_base: Duration,
    /// Maximum delay between two attempts.
    pub backoff_cap: Duration,
}

/// Defaults for interactions whose handler does not set them, and the endpoint for posted interactions.
#[derive(Clone, Copy, Debug)]
pub struct InteractionSettings {
    /// Whether they are deferred.
    pub defer: DeferMode,
    /// Whether only the user of an interaction sees the response.
    pub ephemeral: bool,
    /// How long a handler may take for an interaction that is not deferred.
    pub timeout: Duration,
    /// Public key that posted interactions must be signed with; `None` accepts none.
    pub public_key: Option<PublicKey>,
    /// Address that they are posted to.
    pub bind: SocketAddr,
    /// Maximum difference between the time of their signatures and the current time.
    pub replay_window: Duration,
}

pub(super) fn typed(effective: &[Effective]) -> HandlerSettings {
    let narrow = "invariant: the schema's bounds fit the type";
    HandlerSettings {
        file: take!(effective, "handlers.file", Path),
        shadow: take!(effective, "handlers.shadow", Bool),
        timeout: Duration::from_millis(take!(effective, "handlers.timeout_ms", Integer)),
        slow: Duration::from_millis(take!(effective, "handlers.slow_ms", Integer)),
        max_inbox_events: take!(effective, "handlers.inbox_most", Integer),
        attempts: take!(effective, "handlers.attempts", Integer).try_into().expect(narrow),
        backoff_base: Duration::from_millis(take!(effective, "handlers.backoff_base_ms", Integer)),
        backoff_cap: Duration::from_millis(take!(effective, "handlers.backoff_cap_ms", Integer)),
    }
}

pub(super) fn interactions(effective: &[Effective]) -> InteractionSettings {
    InteractionSettings {
        defer: match take!(effective, "interactions.defer", Text).as_str() {
            "never" => DeferMode::Never,
            _ => DeferMode::Auto,
        },
        ephemeral: take!(effective, "interactions.ephemeral", Bool),
        timeout: Duration::from_millis(take!(effective, "interactions.within_ms", Integer)),
        public_key: take!(effective, "interactions.public_key", PublicKey),
        bind: take!(effective, "interactions.bind", Address),
        replay_window: Duration::from_millis(take!(effective, "interactions.replay_window_ms", Integer)),
    }
}
