//! Configuration of event handling.

use std::time::Duration;

use guildhall_core::backoff::Backoff;
use guildhall_core::event::Event;
use guildhall_core::event::handler::{DeferMode, EventHandler};

use crate::guild::FallbackReason;
use crate::supervisor::restart_policy::RestartPolicy;
use crate::supervisor::store_retry::StoreRetry;

/// Configuration of event handling.
#[derive(Clone, Debug)]
pub struct EventsConfig {
    /// Number of shards of the bot.
    pub shards: u32,
    /// How long a handler may take before its event is moved to the inbox, so that its session does not wait.
    pub slow_after: Duration,
    /// Timeout of a webhook call.
    pub webhook_timeout: Duration,
    /// Timeout of a response to an interaction that cannot be deferred.
    pub response_timeout: Duration,
    /// Whether interactions are deferred if the handler does not say.
    pub defer: DeferMode,
    /// Whether only the user sees the response, if the handler does not say.
    pub ephemeral: bool,
    /// What users see instead of a response.
    pub fallback: FallbackConfig,
    /// Maximum number of attempts of a handler before its event is dead.
    pub max_attempts: u32,
    /// Delays between attempts.
    pub backoff: Backoff,
    /// Maximum number of events in the inbox. Producers wait while it is full.
    pub max_inbox: usize,
    /// Maximum number of inbox events in memory.
    pub max_inbox_loaded: usize,
    /// How often confirmed positions of sessions are stored.
    pub save_interval: Duration,
    /// How long a guild without events stays in memory.
    pub idle_after: Duration,
    /// Delays between calls while the store fails.
    pub store_backoff: Backoff,
    /// Timeout of a call to the store.
    pub store_timeout: Duration,
    /// Maximum number of restarts of a crashing guild within a minute before it rests.
    pub max_restarts: usize,
    /// How long it rests.
    pub rest: Duration,
}

/// Texts for interactions that get no response from their handler. Without a text, there is no fallback.
#[derive(Clone, Debug)]
pub struct FallbackConfig {
    /// The handler's cooldown applies.
    pub cooldown: Option<String>,
    /// The handler failed, or its response is invalid.
    pub failed: Option<String>,
    /// The webhook cannot be called.
    pub unavailable: Option<String>,
    /// Time from the interaction until `unavailable` is sent.
    pub unavailable_after: Duration,
    /// There is no response, and no failure.
    pub unanswered: Option<String>,
    /// Time from the interaction until `unanswered` is sent.
    pub unanswered_after: Duration,
}

impl Default for FallbackConfig {
    fn default() -> Self {
        Self {
            cooldown: None,
            failed: None,
            unavailable: None,
            unavailable_after: Duration::from_secs(30),
            unanswered: None,
            unanswered_after: Duration::from_secs(5 * 60),
        }
    }
}

impl FallbackConfig {
    /// The text for a reason.
    #[must_use]
    pub(crate) fn text(&self, reason: FallbackReason) -> Option<&str> {
        let text = match reason {
            FallbackReason::Cooldown => &self.cooldown,
            FallbackReason::Failed => &self.failed,
            FallbackReason::Unavailable => &self.unavailable,
            FallbackReason::Unanswered => &self.unanswered,
        };
        text.as_deref()
    }
}

impl EventsConfig {
    pub(crate) fn store_retry(&self) -> StoreRetry {
        StoreRetry { timeout: self.store_timeout, backoff: self.store_backoff }
    }

    pub(crate) fn restart_policy(&self) -> RestartPolicy {
        RestartPolicy { max_restarts: self.max_restarts, rest: self.rest }
    }

    /// How long a handler may take for an event before the event has to be stored: its session must not wait, nor must the
    /// fallback of an interaction be missing when it is due.
    pub(crate) fn event_timeout(&self, event: &Event) -> Duration {
        match event.interaction {
            Some(_) => self.slow_after.min(self.fallback.unanswered_after),
            None => self.slow_after,
        }
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
            slow_after: seconds(2),
            webhook_timeout: seconds(10),
            response_timeout: millis(2_500),
            defer: DeferMode::Auto,
            ephemeral: false,
            fallback: FallbackConfig::default(),
            max_attempts: 10,
            backoff: Backoff { base: seconds(1), cap: seconds(300), ..Backoff::default() },
            max_inbox: 100_000,
            max_inbox_loaded: 4_096,
            save_interval: seconds(1),
            idle_after: seconds(300),
            store_backoff: Backoff { base: millis(100), cap: seconds(5), ..Backoff::default() },
            store_timeout: seconds(10),
            max_restarts: 5,
            rest: seconds(30),
        }
    }
}
