//! Logs and metrics of Redis.

use std::{sync::LazyLock, time::Duration};

use guildhall_core::failure_streak::{FailureSummary, Recovery};
use tracing::{debug, info, warn};

use super::error::RedisErrorReason;
use crate::{
    events::{FailureLog, counter, event, gauge, histogram},
    metrics::{IDEMPOTENCY_FORGOTTEN, REDIS_CALL_SECONDS, REDIS_CALLS, REDIS_UP},
    settings::RedisNode,
};

event! {
    /// A connection was made.
    pub(super) struct RedisConnected<'a> {
        node: &'a RedisNode,
        run_id: &'a str,
        /// The failures before, if they were logged.
        recovery: Option<Recovery>,
    }
    let failures = recovery.map(|recovery| recovery.failures);
    let failed_for_s = recovery.map(|recovery| recovery.failed_for.as_secs());
    info!(%node, run_id, failures, failed_for_s, "connected to Redis");
    gauge!(REDIS_UP).set(1);
}

event! {
    /// A connection has ended. Attempts to reconnect follow.
    pub(super) struct RedisDisconnected<'a> {
        reason: RedisErrorReason,
        /// Full error message.
        message: &'a str,
        /// What to log, if a line is due.
        summary: Option<FailureSummary>,
    }
    if let Some(summary) = summary {
        let ((failures, failing_for_s), why) = (summary.repeated(), reason.name());
        warn!(why, error = message, failures, failing_for_s, "connection to Redis lost");
    }
    gauge!(REDIS_UP).set(0);
}

event! {
    /// A connection attempt has failed. More follow.
    pub(super) struct RedisUnreachable<'a> {
        reason: RedisErrorReason,
        /// Full error message.
        message: &'a str,
        /// What to log, if a line is due.
        summary: Option<FailureSummary>,
    }
    if let Some(summary) = summary {
        let ((failures, failing_for_s), why) = (summary.repeated(), reason.name());
        warn!(why, error = message, failures, failing_for_s, "cannot connect to Redis");
    }
    gauge!(REDIS_UP).set(0);
}

event! {
    /// A script call has finished.
    pub(super) struct RedisCallFinished {
        script: &'static str,
        /// The error, if it failed.
        error: Option<RedisErrorReason>,
        elapsed: Duration,
    }
    let result = error.map_or("ok", RedisErrorReason::name);
    counter!(REDIS_CALLS, "script" => script, "result" => result).increment(1);
    histogram!(REDIS_CALL_SECONDS).record(elapsed);
}

/// Calls that Redis rejected, such as all writes while its disk is full.
static REJECTED_CALLS: LazyLock<FailureLog> = LazyLock::new(|| FailureLog::new("calls to Redis"));

event! {
    /// Redis responded to a call with an error that another connection would not avoid.
    pub(super) struct RedisCallRejected<'a> { script: &'static str, reason: RedisErrorReason, message: &'a str }
    if let Some(summary) = REJECTED_CALLS.on_isolated_failure() {
        let ((failures, failing_for_s), why) = (summary.repeated(), reason.name());
        warn!(script, why, error = message, failures, failing_for_s, "Redis rejected a call");
    }
}

event! {
    /// Idempotency keys are only in the store: Redis was lost, or too many were new at once.
    pub(super) struct IdempotencyKeysDropped { count: u64 }
    debug!(count, "idempotency keys not written to Redis");
    counter!(IDEMPOTENCY_FORGOTTEN).increment(count);
}
