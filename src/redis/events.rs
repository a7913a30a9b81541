//! Logs and metrics of Redis.

use std::time::Duration;

use tracing::{debug, info, warn};

use super::error::RedisErrorReason;
use crate::{
    events::{counter, event, gauge, histogram},
    metrics::{IDEMPOTENCY_FORGOTTEN, REDIS_CALL_SECONDS, REDIS_CALLS, REDIS_UP},
    settings::RedisNode,
};

event! {
    /// A connection was made.
    pub(super) struct RedisConnected<'a> { node: &'a RedisNode, run_id: &'a str }
    info!(%node, run_id, "connected to Redis");
    gauge!(REDIS_UP).set(1);
}

event! {
    /// A connection has ended. Attempts to reconnect follow.
    pub(super) struct RedisDisconnected<'a> {
        reason: RedisErrorReason,
        /// Full error message.
        message: &'a str,
    }
    warn!(why = reason.name(), error = message, "connection to Redis lost");
    gauge!(REDIS_UP).set(0);
}

event! {
    /// A connection attempt has failed. More follow.
    pub(super) struct RedisUnreachable<'a> {
        reason: RedisErrorReason,
        /// Full error message.
        message: &'a str,
    }
    warn!(why = reason.name(), error = message, "cannot connect to Redis");
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

event! {
    /// Redis responded to a call with an error that another connection would not avoid.
    pub(super) struct RedisCallRejected<'a> { script: &'static str, reason: RedisErrorReason, message: &'a str }
    warn!(script, why = reason.name(), error = message, "Redis rejected a call");
}

event! {
    /// Idempotency keys are only in the store: Redis was lost, or too many were new at once.
    pub(super) struct IdempotencyKeysDropped { count: u64 }
    debug!(count, "idempotency keys not written to Redis");
    counter!(IDEMPOTENCY_FORGOTTEN).increment(count);
}
