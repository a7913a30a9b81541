//! What there is to say about Redis.

use std::time::Duration;

use metrics::{counter, gauge, histogram};
use tracing::{debug, info, warn};

use super::error::RedisErrorReason;
use crate::{
    events::InternalEvent,
    metrics::{IDEMPOTENCY_FORGOTTEN, REDIS_CALL_SECONDS, REDIS_CALLS, REDIS_UP},
    settings::RedisNode,
};

/// There is a connection.
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

/// A connection has ended. Others are tried.
pub(super) struct RedisDisconnected<'a> {
    pub(super) why: RedisErrorReason,
    /// All of it, in words.
    pub(super) says: &'a str,
}

impl InternalEvent for RedisDisconnected<'_> {
    fn emit(self) {
        warn!(why = self.why.name(), error = self.says, "Redis is lost");
        gauge!(REDIS_UP).set(0);
    }
}

/// No connection can be made. It is tried again.
pub(super) struct RedisUnreachable<'a> {
    pub(super) why: RedisErrorReason,
    /// All of it, in words.
    pub(super) says: &'a str,
}

impl InternalEvent for RedisUnreachable<'_> {
    fn emit(self) {
        warn!(why = self.why.name(), error = self.says, "cannot connect to Redis");
        gauge!(REDIS_UP).set(0);
    }
}

/// A script was called.
pub(super) struct RedisCallFinished {
    pub(super) script: &'static str,
    /// Why it was lost, unless it was not.
    pub(super) lost: Option<RedisErrorReason>,
    pub(super) took: Duration,
}

impl InternalEvent for RedisCallFinished {
    fn emit(self) {
        let result = self.lost.map_or("ok", RedisErrorReason::name);
        counter!(REDIS_CALLS, "script" => self.script, "result" => result).increment(1);
        histogram!(REDIS_CALL_SECONDS).record(self.took);
    }
}

/// Redis answered a call with an error, and another connection would not help.
pub(super) struct RedisCallRejected<'a> {
    pub(super) script: &'static str,
    pub(super) why: RedisErrorReason,
    pub(super) says: &'a str,
}

impl InternalEvent for RedisCallRejected<'_> {
    fn emit(self) {
        warn!(script = self.script, why = self.why.name(), error = self.says, "Redis refused a call");
    }
}

/// Idempotency keys are known to the store alone: Redis was lost, or too many were new at once.
pub(super) struct IdempotencyKeysDropped {
    pub(super) count: u64,
}

impl InternalEvent for IdempotencyKeysDropped {
    fn emit(self) {
        debug!(count = self.count, "idempotency keys are known to the store alone");
        counter!(IDEMPOTENCY_FORGOTTEN).increment(self.count);
    }
}
