//! How operations are carried out, and how long what became of them is kept: the typed settings.

use std::time::Duration;

use super::{error::SettingsProblem, of, resolve::Effective, take, value::Value};

/// How operations are carried out.
#[derive(Clone, Debug)]
pub struct OperationSettings {
    /// How often one may be tried.
    pub max_attempts: u32,
    /// How long after the first failure it is tried again; each further one waits twice as long.
    pub backoff_base: Duration,
    /// The longest such wait.
    pub backoff_cap: Duration,
    /// One delayed for longer may be passed by those that share no object with it.
    pub park_after: Duration,
    /// How long an operation waits for a turn with the gate before it is delayed.
    pub max_wait: Duration,
    /// How long one whose outcome is unknown waits before it is looked for.
    pub settle: Duration,
    /// How long an outcome may stay unknown because Discord cannot be asked, before the operation needs a review.
    pub check_timeout: Duration,
    /// How many run at once, over all guilds; `None` means no limit but the gate's.
    pub max_running: Option<u32>,
    /// How many start in a second, over all guilds; `None` means no limit but the gate's.
    pub per_second: Option<u32>,
    /// How many guilds' queues are in memory at once.
    pub active_guilds: usize,
    /// How long a guild with nothing to do stays in memory.
    pub idle: Duration,
    /// How often the store is asked which queues are due, beside being told.
    pub poll: Duration,
    /// How long the permissions of a guild's roles are used after they were read.
    pub role_max_age: Duration,
    /// How often what was kept long enough is removed.
    pub sweep_every: Duration,
    /// How long what became of operations is kept.
    pub retention: RetentionSettings,
}

/// How long what became of operations is kept.
#[derive(Clone, Copy, Debug)]
pub struct RetentionSettings {
    /// Operations that succeeded or were cancelled.
    pub completed: Duration,
    /// Operations that were given up.
    pub failed: Duration,
    /// Dead letters, and operations that need a person.
    pub dead_letters: Duration,
    /// Idempotency keys, from when their operation was done.
    pub idempotency: Duration,
    /// Who changed what, and keys that are over.
    pub audit: Duration,
    /// What was spent of named budgets.
    pub budget_spend: Duration,
}

/// What is wrong with settings that depend on each other.
pub(super) fn check(effective: &[Effective]) -> Vec<SettingsProblem> {
    let (settle, request_timeout) = (of(effective, "operations.settle_ms"), of(effective, "rest.request_timeout_ms"));
    match (&settle.value, &request_timeout.value) {
        (Some(Value::Integer(settle_ms)), Some(Value::Integer(timeout_ms))) if (1..*timeout_ms).contains(settle_ms) => {
            vec![SettingsProblem {
                key: settle.key.path.to_owned(),
                origin: Some(settle.origin.clone()),
                says: format!(
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
