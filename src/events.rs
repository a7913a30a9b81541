//! What the daemon has to say. One event, one emission: the log line and the metric come from the same fields, so they
//! cannot disagree.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use metrics::{counter, gauge};
use tracing::{debug, error, info, trace, warn};

use crate::metrics::{
    DEAD_LETTERS, GATEWAY_DISCONNECTS, GATEWAY_EVENTS, GATEWAY_SESSIONS, GATEWAY_SHARD_CONNECTED, QUEUE_DEPTH, READY,
    STORE_SWEPT,
};

pub use guildhall_actors::telemetry::{InternalEvent, emit};

/// Discord has not said where the gateway is.
pub struct GatewayNotFound<'a> {
    /// Why.
    pub why: &'a str,
    /// How long until it is asked again.
    pub retry_after: Duration,
}

impl InternalEvent for GatewayNotFound<'_> {
    fn emit(self) {
        let retry_after_ms = u64::try_from(self.retry_after.as_millis()).unwrap_or(u64::MAX);
        warn!(why = self.why, retry_after_ms, "Discord has not said where the gateway is");
    }
}

/// The listener accepts connections.
pub struct ListenerStarted {
    /// Where, with the real port.
    pub address: SocketAddr,
}

impl InternalEvent for ListenerStarted {
    fn emit(self) {
        info!(address = %self.address, "listening");
    }
}

/// A part became ready.
pub struct PartReady {
    /// Its name.
    pub part: &'static str,
}

impl InternalEvent for PartReady {
    fn emit(self) {
        info!(part = self.part, "part is ready");
        gauge!(READY, "part" => self.part).set(1);
    }
}

/// A part is not ready (any more).
pub struct PartNotReady<'a> {
    /// Its name.
    pub part: &'static str,
    /// Why.
    pub reason: &'a str,
}

impl InternalEvent for PartNotReady<'_> {
    fn emit(self) {
        info!(part = self.part, reason = self.reason, "part is not ready");
        gauge!(READY, "part" => self.part).set(0);
    }
}

/// A shard is about to connect for the first time.
pub struct ShardStarted {
    /// Its number.
    pub shard: u32,
}

impl InternalEvent for ShardStarted {
    fn emit(self) {
        debug!(shard = self.shard, "shard starts");
        gauge!(GATEWAY_SHARD_CONNECTED, "shard" => self.shard.to_string()).set(0);
    }
}

/// A shard has a session that receives events.
pub struct ShardConnected {
    /// Its number.
    pub shard: u32,
    /// `ready` for a new session, `resumed` for an old one.
    pub how: &'static str,
}

impl InternalEvent for ShardConnected {
    fn emit(self) {
        info!(shard = self.shard, how = self.how, "shard is connected");
        counter!(GATEWAY_SESSIONS, "how" => self.how).increment(1);
        gauge!(GATEWAY_SHARD_CONNECTED, "shard" => self.shard.to_string()).set(1);
    }
}

/// A shard's connection ended, and another one will be made.
pub struct ShardDisconnected {
    /// Its number.
    pub shard: u32,
    /// The close code, when there was one.
    pub code: Option<u16>,
}

impl InternalEvent for ShardDisconnected {
    fn emit(self) {
        warn!(shard = self.shard, code = self.code, "shard lost its connection");
        counter!(GATEWAY_DISCONNECTS, "why" => "closed").increment(1);
        gauge!(GATEWAY_SHARD_CONNECTED, "shard" => self.shard.to_string()).set(0);
    }
}

/// A connection could not be made, or what came over it could not be read; it will be tried again.
pub struct ShardTroubled<'a> {
    /// Its number.
    pub shard: u32,
    /// What happened.
    pub error: &'a dyn std::error::Error,
}

impl InternalEvent for ShardTroubled<'_> {
    fn emit(self) {
        let source = self.error.source().map(ToString::to_string);
        warn!(shard = self.shard, error = %self.error, source, "shard has trouble");
        counter!(GATEWAY_DISCONNECTS, "why" => "error").increment(1);
    }
}

/// Discord ended a shard for good.
pub struct ShardRefused<'a> {
    /// Its number.
    pub shard: u32,
    /// The close code.
    pub code: u16,
    /// What to do about it.
    pub advice: &'a str,
}

impl InternalEvent for ShardRefused<'_> {
    fn emit(self) {
        error!(shard = self.shard, code = self.code, advice = self.advice, "Discord refused the shard");
        counter!(GATEWAY_DISCONNECTS, "why" => "refused").increment(1);
        gauge!(GATEWAY_SHARD_CONNECTED, "shard" => self.shard.to_string()).set(0);
    }
}

/// A shard closed because we asked it to.
pub struct ShardClosed {
    /// Its number.
    pub shard: u32,
    /// Whether it had a session, which then lives on for a while.
    pub resumable: bool,
}

impl InternalEvent for ShardClosed {
    fn emit(self) {
        info!(shard = self.shard, resumable = self.resumable, "shard closed");
        gauge!(GATEWAY_SHARD_CONNECTED, "shard" => self.shard.to_string()).set(0);
    }
}

/// A dispatch arrived.
pub struct DispatchReceived {
    /// The shard it came over.
    pub shard: u32,
    /// Its type, out of a fixed set.
    pub kind: &'static str,
    /// Its number within the session.
    pub sequence: u64,
}

impl InternalEvent for DispatchReceived {
    fn emit(self) {
        trace!(shard = self.shard, kind = self.kind, sequence = self.sequence, "dispatch received");
        counter!(GATEWAY_EVENTS, "type" => self.kind).increment(1);
    }
}

/// The process was asked to end, or has to.
pub struct ShutdownStarted<'a> {
    /// Why.
    pub reason: &'a str,
}

impl InternalEvent for ShutdownStarted<'_> {
    fn emit(self) {
        info!(reason = self.reason, "shutting down");
    }
}

/// Everything has ended as it should.
pub struct ShutdownFinished;

impl InternalEvent for ShutdownFinished {
    fn emit(self) {
        info!("shut down");
    }
}

/// What was kept long enough is gone.
pub struct Swept {
    /// How much of it.
    pub swept: guildhall_actors::operations::Swept,
}

impl InternalEvent for Swept {
    fn emit(self) {
        let guildhall_actors::operations::Swept { operations, letters, keys, state } = self.swept;
        debug!(operations, dead_letters = letters, idempotency_keys = keys, state, "swept what was kept long enough");
        for (what, count) in
            [("operations", operations), ("dead_letters", letters), ("idempotency_keys", keys), ("state", state)]
        {
            counter!(STORE_SWEPT, "what" => what).increment(count);
        }
    }
}

/// What was kept long enough could not be removed.
pub struct SweepFailed<'a> {
    /// Why.
    pub error: &'a guildhall_actors::operations::StoreError,
}

impl InternalEvent for SweepFailed<'_> {
    fn emit(self) {
        warn!(error = %self.error, "cannot sweep what was kept long enough; it is tried again");
    }
}

/// What waits was counted.
pub struct DepthsCounted<'a> {
    /// How many operations are in each state that is not final, and how many dead letters there are.
    pub depths: &'a BTreeMap<&'static str, u64>,
}

impl InternalEvent for DepthsCounted<'_> {
    #[expect(clippy::cast_precision_loss, reason = "a gauge")]
    fn emit(self) {
        for (&name, &count) in self.depths {
            if name == "dead_letters" {
                gauge!(DEAD_LETTERS).set(count as f64);
            } else {
                gauge!(QUEUE_DEPTH, "queue" => name).set(count as f64);
            }
        }
    }
}
