//! Settings of the execution and retention of operations.

use std::time::Duration;

use super::{
    declare::{Section as _, settings},
    discord::RestSettings,
    kind::Integer,
    values::Values,
};

settings! {
    /// Execution and retention of operations.
    #[derive(Clone, Debug)]
    pub struct OperationSettings in "operations" {
        /// Maximum number of attempts of an operation before it becomes a dead letter. Waiting for a limit or a breaker
        /// does not count as an attempt.
        pub max_attempts: u32 = Integer(1..=100), 3;
        /// Delay before the first retry of an operation, in milliseconds; doubles with each further failure.
        pub backoff_base as "backoff_base_ms": Duration = Integer(1..=600_000), 1000;
        /// Maximum delay between two attempts, in milliseconds.
        pub backoff_cap as "backoff_cap_ms": Duration = Integer(1..=3_600_000), 20000;
        /// An operation delayed for longer than this, in milliseconds, is parked: operations of its guild that share no
        /// object with it may overtake it.
        pub park_after as "park_after_ms": Duration = Integer(0..=86_400_000), 60000;
        /// How long an operation waits for a permit of Discord's limits before it is delayed, in milliseconds.
        pub max_wait as "max_wait_ms": Duration = Integer(1..=600_000), 5000;
        /// How long an operation with an unknown outcome waits before Discord is checked for it, in milliseconds. 0:
        /// `rest.request_timeout_ms`, so that no call of it can still be in flight. A value below
        /// `rest.request_timeout_ms` is rejected.
        let settle_or_zero as "settle_ms": Duration = Integer(0..=600_000), 0;
        /// How long an operation with an unknown outcome waits before Discord is checked for it.
        pub settle: Duration => |values| {
            if settle_or_zero.is_zero() { RestSettings::read(values).request_timeout } else { settle_or_zero }
        };
        /// How long an operation with an unknown outcome stays `reconciling` while Discord cannot be checked (a breaker
        /// is open), in milliseconds. After that it is `needs_review`.
        pub check_timeout as "check_timeout_ms": Duration = Integer(1_000..=604_800_000), 86400000;
        /// Maximum number of operations in progress, over all guilds. 0: only Discord's limits apply.
        pub max_running: Option<u32> = Integer(0..=100_000), 0;
        /// Maximum number of operations that start in a second, over all guilds. 0: only Discord's limits apply.
        pub per_second: Option<u32> = Integer(0..=100_000), 0;
        /// Maximum number of guild queues in memory. The others wait in the store.
        pub active_guilds: usize = Integer(1..=1_000_000), 2000;
        /// How long the queue of an idle guild stays in memory, in milliseconds.
        pub idle as "idle_ms": Duration = Integer(1..=86_400_000), 300000;
        /// How often the store is polled for due queues, in addition to notifications, in milliseconds.
        pub poll as "poll_ms": Duration = Integer(10..=600_000), 1000;
        /// How long the permissions of a guild's roles are cached, in milliseconds. They decide whether an operation
        /// needs the scope `danger` (docs/api.md#dangerous-permissions). Gateway events of the guild invalidate them
        /// sooner; 0 reads them for each operation.
        pub role_max_age as "role_max_age_ms": Duration = Integer(0..=600_000), 10000;
        use LeaseSettings;
        /// How often expired data is removed, in milliseconds.
        pub sweep_every as "sweep_every_ms": Duration = Integer(10..=86_400_000), 10000;
        /// How long data about operations is stored.
        pub retention: RetentionSettings;
    }

    /// Leases of processes that share a PostgreSQL.
    #[derive(Clone, Copy, Debug)]
    pub struct LeaseSettings in "operations" {
        /// Interval of the heartbeats of a process that shares a PostgreSQL with others, in milliseconds.
        pub heartbeat as "heartbeat_ms": Duration = Integer(10..=600_000), 5000;
        /// How long after its last heartbeat a process counts as alive, in milliseconds. After that, others take over
        /// its guilds, and it sends nothing for them any more.
        pub duration as "lease_ms": Duration = Integer(50..=3_600_000), 10000;
        /// How long before the end of its lease a process stops sending, in milliseconds.
        pub margin as "lease_margin_ms": Duration = Integer(0..=600_000), 2000;
    }

    /// How long data about operations is stored.
    #[derive(Clone, Copy, Debug)]
    pub struct RetentionSettings in "retention" {
        /// How long succeeded and cancelled operations are stored, in milliseconds.
        pub completed as "completed_ms": Duration = Integer(0..=31_536_000_000), 3600000;
        /// How long failed operations are stored, in milliseconds. Their dead letters are stored longer.
        pub failed as "failed_ms": Duration = Integer(0..=31_536_000_000), 86400000;
        /// How long dead letters and operations that need review are stored, in milliseconds.
        pub dead_letters as "dead_letters_ms": Duration = Integer(0..=31_536_000_000), 604800000;
        /// How long an idempotency key is stored after its operation has finished, in milliseconds.
        pub idempotency as "idempotency_ms": Duration = Integer(0..=31_536_000_000), 86400000;
        /// How long audit rows and expired or revoked keys are stored, in milliseconds.
        pub audit as "audit_ms": Duration = Integer(0..=315_360_000_000), 7776000000;
        /// Maximum number of audit rows of one key, including the operator's. Beyond it, the oldest rows of that key are
        /// removed before `retention.audit_ms` has passed. 0: no limit.
        pub audit_max_per_key: u64 = Integer(0..=1_000_000_000), 1000000;
        /// How long the hourly spend of each named budget is stored, in milliseconds.
        pub budget_spend as "budget_spend_ms": Duration = Integer(3_600_000..=31_536_000_000), 604800000;
    }
}

impl Default for LeaseSettings {
    fn default() -> Self {
        Self::read(&Values::defaults())
    }
}
