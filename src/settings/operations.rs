//! Typed settings of the execution and retention of operations.

use std::time::Duration;

use super::{error::SettingsProblem, of, resolve::Effective, take, value::Value};

/// Execution and retention of operations.
#[derive(Clone, Debug)]
pub struct OperationSettings {
    /// Maximum number of attempts.
    pub max_attempts: u32,
    /// Delay before the first retry; doubles with each further one.
    pub backoff_base: Duration,
    /// Maximum delay between two attempts.
    pub backoff_cap: Duration,
    /// Operations that share no object with one that is delayed for longer may overtake it.
    pub park_after: Duration,
    /// How long an operation waits for a permit of the gate before it is delayed.
    pub max_wait: Duration,
    /// How long an operation with an unknown outcome waits before Discord is checked for it.
    pub settle: Duration,
    /// How long an outcome may stay unknown because Discord cannot be checked, before the operation needs review.
    pub check_timeout: Duration,
    /// Maximum number of operations in progress, over all guilds; `None` means that only the gate limits them.
    pub max_running: Option<u32>,
    /// Maximum number of operations that start in a second, over all guilds; `None` means that only the gate limits
    /// them.
    pub per_second: Option<u32>,
    /// Maximum number of guild queues in memory.
    pub active_guilds: usize,
    /// How long the queue of an idle guild stays in memory.
    pub idle: Duration,
    /// How often the store is polled for due queues, in addition to notifications.
    pub poll: Duration,
    /// How long the permissions of a guild's roles are cached.
    pub role_max_age: Duration,
    /// How often expired data is removed.
    pub sweep_every: Duration,
    /// How long data about operations is stored.
    pub retention: RetentionSettings,
}

/// How long data about operations is stored.
#[derive(Clone, Copy, Debug)]
pub struct RetentionSettings {
    /// Succeeded and cancelled operations.
    pub completed: Duration,
    /// Failed operations.
    pub failed: Duration,
    /// Dead letters, and operations that need review.
    pub dead_letters: Duration,
    /// Idempotency keys, counted from the end of their operation.
    pub idempotency: Duration,
    /// Audit rows, and expired or revoked keys.
    pub audit: Duration,
    /// Hourly spend of named budgets.
    pub budget_spend: Duration,
}

/// Checks constraints between settings.
pub(super) fn check(effective: &[Effective]) -> Vec<SettingsProblem> {
    let (settle, request_timeout) = (of(effective, "operations.settle_ms"), of(effective, "rest.request_timeout_ms"));
    match (&settle.value, &request_timeout.value) {
        (Some(Value::Integer(settle_ms)), Some(Value::Integer(timeout_ms))) if (1..*timeout_ms).contains(settle_ms) => {
            vec![SettingsProblem {
                key: settle.key.path.to_owned(),
                origin: Some(settle.origin.clone()),
                message: format!(
                    "is {settle_ms}, less than rest.request_timeout_ms ({timeout_ms}): a call could still take effect \
                     after its outcome was checked. Set it to at least {timeout_ms}, or to 0 to use the request timeout"
                ),
            }]
        }
        _ => Vec::new(),
    }
}

pub(super) fn typed(effective: &[Effective]) -> OperationSettings {
    let narrow = "invariant: the schema's bounds fit the type";
    let request_timeout = take!(effective, "rest.request_timeout_ms", Integer);
    let settle = match take!(effective, "operations.settle_ms", Integer) {
        0 => request_timeout,
        settle => settle,
    };
    let limit = |value: u64| (value > 0).then(|| value.try_into().expect(narrow));
    OperationSettings {
        max_attempts: take!(effective, "operations.max_attempts", Integer).try_into().expect(narrow),
        backoff_base: Duration::from_millis(take!(effective, "operations.backoff_base_ms", Integer)),
        backoff_cap: Duration::from_millis(take!(effective, "operations.backoff_cap_ms", Integer)),
        park_after: Duration::from_millis(take!(effective, "operations.park_after_ms", Integer)),
        max_wait: Duration::from_millis(take!(effective, "operations.max_wait_ms", Integer)),
        settle: Duration::from_millis(settle),
        check_timeout: Duration::from_millis(take!(effective, "operations.check_timeout_ms", Integer)),
        max_running: limit(take!(effective, "operations.max_running", Integer)),
        per_second: limit(take!(effective, "operations.per_second", Integer)),
        active_guilds: take!(effective, "operations.active_guilds", Integer).try_into().expect(narrow),
        idle: Duration::from_millis(take!(effective, "operations.idle_ms", Integer)),
        poll: Duration::from_millis(take!(effective, "operations.poll_ms", Integer)),
        role_max_age: Duration::from_millis(take!(effective, "operations.role_max_age_ms", Integer)),
        sweep_every: Duration::from_millis(take!(effective, "operations.sweep_every_ms", Integer)),
        retention: RetentionSettings {
            completed: Duration::from_millis(take!(effective, "retention.completed_ms", Integer)),
            failed: Duration::from_millis(take!(effective, "retention.failed_ms", Integer)),
            dead_letters: Duration::from_millis(take!(effective, "retention.dead_letters_ms", Integer)),
            idempotency: Duration::from_millis(take!(effective, "retention.idempotency_ms", Integer)),
            audit: Duration::from_millis(take!(effective, "retention.audit_ms", Integer)),
            budget_spend: Duration::from_millis(take!(effective, "retention.budget_spend_ms", Integer)),
        },
    }
}
