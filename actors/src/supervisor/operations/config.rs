//! Every wait and bound of operations on their way.

use std::time::Duration;

use guildhall_core::guild::OrderConfig;
use guildhall_core::operation::Backoff;

use crate::supervisor::restart_policy::RestartPolicy;
use crate::supervisor::store_retry::StoreRetry;

/// Every wait and bound of operations on their way.
#[derive(Clone, Debug)]
pub struct OperationsConfig {
    /// How long one has to be held before others pass it, and how many are looked at.
    pub line: OrderConfig,
    /// How many operations are read at once.
    pub page: usize,
    /// How many scheduled operations join at once.
    pub join_most: usize,
    /// How much of their payloads a guild keeps in memory, in bytes of their JSON; one is always kept.
    pub payload_bytes: usize,
    /// The waits between tries.
    pub backoff: Backoff,
    /// How long an operation waits for its turn at the gate before it is delayed.
    pub max_wait: Duration,
    /// How long a call to Discord may take: what was sent before that long ago has happened or never will.
    pub request_timeout: Duration,
    /// How many times Discord is asked for the outcome of an operation without an answer before it needs a review.
    pub check_attempts: u32,
    /// How long the outcome of an operation may stay unknown because Discord cannot be asked before it needs a review.
    pub check_timeout: Duration,
    /// The shortest delay, whatever a limit says.
    pub least_hold: Duration,
    /// The delay where nobody can say how long, such as a breaker that a person has to reset.
    pub blind_hold: Duration,
    /// The waits for an operation that another one refers to.
    pub reference_backoff: Backoff,
    /// The waits while the store is out of reach.
    pub store_backoff: Backoff,
    /// How long a call to the store may take.
    pub store_timeout: Duration,
    /// How long doing one operation may take, with all its calls; it should never take so long.
    pub perform_timeout: Duration,
    /// How often the store is asked for what nobody looks after.
    pub poll: Duration,
    /// How many queues are looked after at once.
    pub most_active: usize,
    /// How many interactions are looked after besides.
    pub most_interactions: usize,
    /// How many queues are taken at once.
    pub claim_batch: usize,
    /// How long a guild is kept that has nothing to do.
    pub idle_after: Duration,
    /// How long an interaction is kept that has nothing to do.
    pub interaction_idle_after: Duration,
    /// A guild that waits longer than this makes room for others.
    pub long_wait: Duration,
    /// How often a guild may break within a minute before it is left alone.
    pub most_restarts: usize,
    /// How long it is left alone then.
    pub rest: Duration,
    /// How many operations run at once over all guilds; 0 is no limit. Interactions do not count.
    pub max_running: usize,
    /// How many operations start a second over all guilds; 0 is no limit. Interactions do not count.
    pub per_second: u32,
    /// Words to one guild, or to the supervisor, that wait at most.
    pub mailbox: usize,
    /// Queues that may be told of at once; past it, all are looked at.
    pub most_told: usize,
}

impl OperationsConfig {
    pub(crate) fn store_retry(&self) -> StoreRetry {
        StoreRetry { timeout: self.store_timeout, backoff: self.store_backoff }
    }

    pub(crate) fn restart_policy(&self) -> RestartPolicy {
        RestartPolicy { max_restarts: self.most_restarts, rest: self.rest }
    }
}

impl Default for OperationsConfig {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            line: OrderConfig::default(),
            page: 100,
            join_most: 500,
            payload_bytes: 64 * 1_024,
            backoff: Backoff { base: seconds(1), cap: seconds(20), jitter: 0.3 },
            max_wait: seconds(5),
            request_timeout: seconds(15),
            check_attempts: 10,
            check_timeout: seconds(24 * 60 * 60),
            least_hold: Duration::from_millis(50),
            blind_hold: seconds(30),
            reference_backoff: Backoff { base: seconds(1), cap: seconds(30), jitter: 0.3 },
            store_backoff: Backoff { base: Duration::from_millis(100), cap: seconds(5), jitter: 0.3 },
            store_timeout: seconds(30),
            perform_timeout: seconds(120),
            poll: seconds(1),
            most_active: 2_000,
            most_interactions: 500,
            claim_batch: 200,
            idle_after: seconds(300),
            interaction_idle_after: seconds(1),
            long_wait: seconds(5),
            most_restarts: 5,
            rest: seconds(60),
            max_running: 0,
            per_second: 0,
            mailbox: 64,
            most_told: 100_000,
        }
    }
}
