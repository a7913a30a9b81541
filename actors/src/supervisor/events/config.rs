//! How events are handled.

use std::time::Duration;

use guildhall_core::event::handler::{DeferMode, EventHandler};
use guildhall_core::operation::Backoff;

use crate::supervisor::restart_policy::RestartPolicy;
use crate::supervisor::store_retry::StoreRetry;

/// How events are handled.
#[derive(Clone, Debug)]
pub struct EventsConfig {
    /// All shards of the bot.
    pub shards: u32,
    /// How long a handler may take before its event is put into the inbox, so that its session need not wait.
    pub slow: Duration,
    /// How long a webhook may take in all.
    pub within: Duration,
    /// How long the answer to an interaction may take that cannot be deferred.
    pub answer_within: Duration,
    /// What becomes of interactions whose handlers do not say.
    pub defer: DeferMode,
    /// Whether only who asked sees the answer, if the handler does not say.
    pub ephemeral: bool,
    /// How often a handler is tried before its event is given up.
    pub attempts: u32,
    /// Waits between those tries.
    pub backoff: Backoff,
    /// Events that may wait in the inbox. Past it, whoever would put one there waits.
    pub inbox_most: usize,
    /// Of them, those that are kept in memory.
    pub inbox_loaded: usize,
    /// How often it is kept how far sessions are confirmed.
    pub keep_every: Duration,
    /// How long a guild without events is kept.
    pub idle_after: Duration,
    /// Waits while the store does not answer.
    pub store_backoff: Backoff,
    /// How long the store may take.
    pub store_timeout: Duration,
    /// How often a guild that broke is started again within a minute before it rests.
    pub most_restarts: usize,
    /// How long it rests then.
    pub rest: Duration,
}

impl EventsConfig {
    pub(crate) fn store_retry(&self) -> StoreRetry {
        StoreRetry { timeout: self.store_timeout, backoff: self.store_backoff }
    }

    pub(crate) fn restart_policy(&self) -> RestartPolicy {
        RestartPolicy { max_restarts: self.most_restarts, rest: self.rest }
    }

    /// Whether interactions are deferred for this handler.
    pub(crate) fn defers(&self, handler: &EventHandler) -> bool {
        handler.defer.unwrap_or(self.defer) == DeferMode::Auto
    }

    /// Whether this handler's response is visible only to the user of the interaction.
    pub(crate) fn is_ephemeral(&self, handler: &EventHandler) -> bool {
        handler.ephemeral.unwrap_or(self.ephemeral)
    }
}

impl Default for EventsConfig {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        let millis = Duration::from_millis;
        Self {
            shards: 1,
            slow: seconds(2),
            within: seconds(10),
            answer_within: millis(2_500),
            defer: DeferMode::Auto,
            ephemeral: false,
            attempts: 10,
            backoff: Backoff { base: seconds(1), cap: seconds(300), ..Backoff::default() },
            inbox_most: 100_000,
            inbox_loaded: 4_096,
            keep_every: seconds(1),
            idle_after: seconds(300),
            store_backoff: Backoff { base: millis(100), cap: seconds(5), ..Backoff::default() },
            store_timeout: seconds(10),
            most_restarts: 5,
            rest: seconds(30),
        }
    }
}
