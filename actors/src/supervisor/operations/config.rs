//! Configuration of operations.

use std::time::Duration;

use guildhall_core::backoff::Backoff;
use guildhall_core::guild::OrderConfig;

use crate::supervisor::restart_policy::RestartPolicy;
use crate::supervisor::store_retry::StoreRetry;

/// Configuration of operations.
#[derive(Clone, Debug)]
pub struct OperationsConfig {
    /// How long an operation is delayed before others may pass it, and how many operations are considered.
    pub order: OrderConfig,
    /// Maximum number of operations in one read.
    pub page_size: usize,
    /// Maximum number of scheduled operations that join their queue in one call.
    pub max_joins: usize,
    /// Maximum size of the payloads that a guild holds in memory, in bytes of JSON. It always holds at least one.
    pub max_payload_bytes: usize,
    /// Delays between attempts.
    pub backoff: Backoff,
    /// How long an operation waits for its permit at the gate before it is delayed.
    pub max_wait: Duration,
    /// Timeout of a call to Discord. A call that was sent longer ago has taken effect or never will.
    pub request_timeout: Duration,
    /// Maximum number of failed checks of the outcome of an operation before it needs review.
    pub check_attempts: u32,
    /// How long the outcome of an operation may stay unknown because Discord cannot be queried before it needs review.
    pub check_timeout: Duration,
    /// Minimum delay, whatever a limit says.
    pub min_delay: Duration,
    /// Delay if its length is unknown, such as for a breaker that needs a manual reset.
    pub default_delay: Duration,
    /// Delays while an operation waits for another one that it refers to.
    pub reference_backoff: Backoff,
    /// Delays between calls while the store is unreachable.
    pub store_backoff: Backoff,
    /// Timeout of a call to the store.
    pub store_timeout: Duration,
    /// Timeout of one execution with all its calls. It should never be reached.
    pub execution_timeout: Duration,
    /// How often to look for due queues without an owner.
    pub poll_interval: Duration,
    /// Maximum number of active queues.
    pub max_active: usize,
    /// Maximum number of active queues of interactions, in addition.
    pub max_interactions: usize,
    /// Maximum number of queues in one claim.
    pub claim_batch: usize,
    /// How long an idle guild stays in memory.
    pub idle_after: Duration,
    /// How long an idle queue of an interaction stays in memory.
    pub interaction_idle_after: Duration,
    /// A guild that waits longer than this makes room for others.
    pub long_wait: Duration,
    /// Maximum number of crashes of a guild within a minute before it rests.
    pub max_restarts: usize,
    /// How long it rests.
    pub rest: Duration,
    /// Maximum number of running operations over all guilds; 0 means no limit. Interactions do not count.
    pub max_running: usize,
    /// Maximum number of started operations per second over all guilds; 0 means no limit. Interactions do not count.
    pub per_second: u32,
    /// Mailbox capacity of a guild and of the supervisor.
    pub mailbox_capacity: usize,
    /// Maximum number of queues with pending wake-ups. Beyond it, all queues are checked.
    pub max_wakeups: usize,
}

impl OperationsConfig {
    pub(crate) fn store_retry(&self) -> StoreRetry {
        StoreRetry { timeout: self.store_timeout, backoff: self.store_backoff }
    }

    pub(crate) fn restart_policy(&self) -> RestartPolicy {
        RestartPolicy { max_restarts: self.max_restarts, rest: self.rest }
    }
}

impl Default for OperationsConfig {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            order: OrderConfig::default(),
            page_size: 100,
            max_joins: 500,
            max_payload_bytes: 64 * 1_024,
            backoff: Backoff { base: seconds(1), cap: seconds(20), jitter: 0.3 },
            max_wait: seconds(5),
            request_timeout: seconds(15),
            check_attempts: 10,
            check_timeout: seconds(24 * 60 * 60),
            min_delay: Duration::from_millis(50),
            default_delay: seconds(30),
            reference_backoff: Backoff { base: seconds(1), cap: seconds(30), jitter: 0.3 },
            store_backoff: Backoff { base: Duration::from_millis(100), cap: seconds(5), jitter: 0.3 },
            store_timeout: seconds(30),
            execution_timeout: seconds(120),
            poll_interval: seconds(1),
            max_active: 2_000,
            max_interactions: 500,
            claim_batch: 200,
            idle_after: seconds(300),
            interaction_idle_after: seconds(1),
            long_wait: seconds(5),
            max_restarts: 5,
            rest: seconds(60),
            max_running: 0,
            per_second: 0,
            mailbox_capacity: 64,
            max_wakeups: 100_000,
        }
    }
}
