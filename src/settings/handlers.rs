//! What is done with events, and what becomes of interactions: the typed settings.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use guildhall_core::event::handler::DeferMode;

use super::{of, public_key::PublicKey, resolve::Effective, take, value::Value};

/// What is done with events.
#[derive(Clone, Debug)]
pub struct HandlerSettings {
    /// The file that says it; `None` means that there are no handlers.
    pub file: Option<PathBuf>,
    /// Whether all handlers are in shadow.
    pub shadow: bool,
    /// How long a webhook may take, unless its handler says otherwise.
    pub timeout: Duration,
    /// An event whose handler takes longer goes to the inbox.
    pub slow: Duration,
    /// How many events may wait in the inbox.
    pub inbox_most: u64,
    /// How often a handler is tried with an event.
    pub attempts: u32,
    /// How long after the first failure it is tried again; each further one waits twice as long.
    pub backoff_base: Duration,
    /// The longest such wait.
    pub backoff_cap: Duration,
}

/// What becomes of interactions whose handler does not say.
#[derive(Clone, Copy, Debug)]
pub struct InteractionSettings {
    /// Whether they are deferred.
    pub defer: DeferMode,
    /// Whether only who asked sees the answer.
    pub ephemeral: bool,
    /// How long a handler has for one that is not deferred.
    pub within: Duration,
    /// Whose signature counts on those that are posted; `None` takes none.
    pub public_key: Option<PublicKey>,
    /// Where they are posted.
    pub bind: SocketAddr,
    /// How far the time of their signatures may be from the present one.
    pub replay_window: Duration,
}

pub(super) fn typed(effective: &[Effective]) -> HandlerSettings {
    let narrow = "invariant: the schema's bounds fit the type";
    HandlerSettings {
        file: take!(effective, "handlers.file", Path),
        shadow: take!(effective, "handlers.shadow", Bool),
        timeout: Duration::from_millis(take!(effective, "handlers.timeout_ms", Integer)),
        slow: Duration::from_millis(take!(effective, "handlers.slow_ms", Integer)),
        inbox_most: take!(effective, "handlers.inbox_most", Integer),
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
        within: Duration::from_millis(take!(effective, "interactions.within_ms", Integer)),
        public_key: take!(effective, "interactions.public_key", PublicKey),
        bind: take!(effective, "interactions.bind", Address),
        replay_window: Duration::from_millis(take!(effective, "interactions.replay_window_ms", Integer)),
    }
}
