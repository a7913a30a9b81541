//! Logs and metrics of Redis.

use std::time::Duration;

use metrics::{counter, gauge, histogram};
use tracing::{debug, info, warn};

use super::error::RedisErrorReason;
use crate::{
    events::InternalEvent,
    metrics::{IDEMPOTENCY_FORGOTTEN, REDIS_CALL_SECONDS, REDIS_CALLS, REDIS_UP},
    settings::RedisNode,
};

/// A connection was made.
pub(super) struct RedisConnected<'a> {
    pub(super) node: &'a RedisNode,
    pub(super) run_id: &'a str,
}

impl InternalEvent for RedisConnected<'_> {
    fn emit(self) {
        info!(node = %self.node, run_id = self.run_id, "connected to Redis");
        gauge!(REDIS_UP).set(1);
    }
}

/// A connection has ended. Attempts to reconnect follow.
pub(super) struct RedisDisconnected<'a> {
    pub(super) reason: RedisErrorReason,
    /// Full error message.
    pub(super) message: &'a str,
}

impl InternalEvent for RedisDisconnected<'_> {
    fn emit(self) {
        warn!(why = self.reason.name(), error = self.message, "connection to Redis lost");
        gauge!(REDIS_UP).set(0);
    }
}

/// A connection attempt has failed. More follow.
pub(super) struct RedisUnreachable<'a> {
    pub(super) reason: RedisErrorReason,
    /// Full error message.
    pub(super) message: &'a str,
}

impl InternalEvent for RedisUnreachable<'_> {
    fn emit(self) {
        warn!(why = self.reason.name(), error = self.message, "cannot connect to Redis");
        gauge!(REDIS_UP).set(0);
    }
}

/// A script call has finished.
pub(super) struct RedisCallFinished {
    pub(super) script: &'static str,
    /// The error, if it failed.
    pub(super) error: Option<RedisErrorReason>,
    pub(super) elapsed: Duration,
}

impl InternalEvent for RedisCallFinished {
    fn emit(self) {
        let result = self.error.map_or("ok", RedisErrorReason::name);
        counter!(REDIS_CALLS, "script" => self.script, "result" => result).increment(1);
        histogram!(REDIS_CALL_SECONDS).record(self.elapsed);
    }
}

/// Redis responded to a call with an error that another connection would not avoid.
pub(super) struct RedisCallRejected<'a> {
    pub(super) script: &'static str,
    pub(super) reason: RedisErrorReason,
    pub(super) message: &'a str,
}

impl InternalEvent for RedisCallRejected<'_> {
    fn emit(self) {
        warn!(script = self.script, why = self.reason.name(), error = self.message, "Redis rejected a call");
    }
}

/// Idempotency keys are only in the store: Redis was lost, or too many were new at once.
pub(super) struct IdempotencyKeysDropped {
    pub(super) count: u64,
}

impl InternalEvent for IdempotencyKeysDropped {
    fn emit(self) {
        debug!(count = self.count, "idempotency keys not written to Redis");
        counter!(IDEMPOTENCY_FORGOTTEN).increment(self.count);
    }
}
