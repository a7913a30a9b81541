//! Breakers that processes share: publishes changes, receives those of others, and reads the full state.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ::redis::Value;
use actix::Addr;
use guildhall_actors::circuit_breaker::{
    BreakerChangeReplicated, CircuitBreaker, ForcedBreakerEnded, ProbeClaimed, RemoteBreakerChanged, SharedStateRead,
    TakeBreakerChanges, TakeProbeClaims,
};
use guildhall_actors::failpoint;
use guildhall_actors::supervision::Part;
use guildhall_core::breaker::{
    BreakerStatus, ClaimResponse, LocalChange, ProbeClaim, SharedBreaker, SharedBreakerState,
};
use tokio::time::{MissedTickBehavior, interval};

use super::{
    RedisCallError, RedisClient, RedisErrorReason, RedisKeys, Script, Subscription, SubscriptionEvent,
    events::RedisCallRejected,
    pubsub::{BreakerRecord, PubSubMessage, RateLimitBlock, field_name, to_script_record},
    shared_state::{ActorStopped, SharedStateConfig, StateNotifier, send},
};
use crate::events::emit;

/// How long a closed breaker is stored: longer than a process needs to read the full state.
const CLOSED_RETENTION: Duration = Duration::from_secs(600);

/// How long the last change of a process is remembered: longer than a call can be late.
const PROCESS_RETENTION: Duration = Duration::from_secs(3_600);

/// How long everything is stored when no process is left.
const RETENTION: Duration = Duration::from_secs(86_400);

/// Maximum number of shared breakers.
const MAX_RECORDS: usize = 1_000;

/// Why a step stopped.
enum StopReason {
    /// Redis is lost: the next heartbeat retries.
    Lost,
    ActorStopped,
}

impl From<RedisCallError> for StopReason {
    fn from(_: RedisCallError) -> Self {
        Self::Lost
    }
}

impl From<ActorStopped> for StopReason {
    fn from(ActorStopped: ActorStopped) -> Self {
        Self::ActorStopped
    }
}

pub(super) struct BreakerSync {
    redis: RedisClient,
    breaker: Addr<CircuitBreaker>,
    publish: Script,
    read: Script,
    claim: Script,
    keys: [String; 2],
    /// Prefix of the keys of probe claims.
    claim_prefix: String,
    channel: String,
    process: String,
    ip_group: String,
    heartbeat: Duration,
    on_block: Box<dyn Fn(RateLimitBlock) + Send + Sync>,
    /// Whether an unreadable message was already logged since the last connection.
    unreadable_logged: AtomicBool,
}

impl BreakerSync {
    pub(super) fn new(
        redis: RedisClient,
        breaker: Addr<CircuitBreaker>,
        keys: &RedisKeys,
        config: SharedStateConfig,
        on_block: Box<dyn Fn(RateLimitBlock) + Send + Sync>,
    ) -> Self {
        Self {
            redis,
            breaker,
            publish: Script::new("breakers_publish", include_str!("publish.lua")),
            read: Script::new("breakers_read", include_str!("read.lua")),
            claim: Script::new("breakers_claim", include_str!("claim.lua")),
            keys: [keys.of("breakers"), keys.of("breakers:clock")],
            claim_prefix: keys.of("breakers:claim:"),
            channel: keys.of("news"),
            process: config.process,
            ip_group: config.ip_group,
            heartbeat: config.heartbeat,
            on_block,
            unreadable_logged: AtomicBool::new(false),
        }
    }

    /// Ends with the actor.
    pub(super) async fn run(self, notifier: Arc<StateNotifier>) {
        let mut subscription = self.redis.subscribe(&self.channel);
        let mut heartbeat = interval(self.heartbeat);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let done = tokio::select! {
                event = Subscription::next(&mut subscription) => match event {
                    SubscriptionEvent::Subscribed => {
                        self.unreadable_logged.store(false, Ordering::Relaxed);
                        self.synchronize().await
                    }
                    SubscriptionEvent::Message(text) => self.on_message(&text).await,
                    SubscriptionEvent::Lost => Ok(()),
                },
                () = notifier.turned.notified() => self.publish_all().await,
                _ = heartbeat.tick() => self.synchronize().await,
            };
            failpoint::message(Part::RedisState);
            if matches!(done, Err(StopReason::ActorStopped)) {
                return;
            }
        }
    }

    /// Reads the full state, recreates what is missing there, and publishes pending changes.
    async fn synchronize(&self) -> Result<(), StopReason> {
        let all = match self.read_all().await {
            Ok(all) => all,
            Err(error) => {
                self.claim_probes().await?;
                return Err(error.into());
            }
        };
        for breaker in send(&self.breaker, SharedStateRead(all)).await? {
            self.seed(&breaker).await?;
        }
        self.publish_all().await
    }

    async fn on_message(&self, text: &[u8]) -> Result<(), StopReason> {
        match PubSubMessage::parse(text) {
            Ok(PubSubMessage::Breaker(record)) if record.by != self.process && self.applies_here(&record) => {
                send(&self.breaker, RemoteBreakerChanged(record.change)).await?;
            }
            Ok(PubSubMessage::Breaker(_)) => {}
            Ok(PubSubMessage::Block(block)) => (self.on_block)(block),
            Err(error) => self.report_unreadable("news", &error),
        }
        Ok(())
    }

    fn applies_here(&self, record: &BreakerRecord) -> bool {
        record.group.as_ref().is_none_or(|group| *group == self.ip_group)
    }

    async fn read_all(&self) -> Result<Vec<guildhall_core::breaker::RemoteChange>, RedisCallError> {
        let times = [CLOSED_RETENTION.as_millis(), PROCESS_RETENTION.as_secs().into(), RETENTION.as_millis()];
        let args = || times.iter().map(|time| time.to_string().into_bytes()).collect();
        let response = self.redis.run(&self.read, &self.keys, |_| args()).await?;
        let Value::Array(parts) = response else { return Err(self.unexpected_response()) };
        let mut parts = parts.into_iter();
        let now_ms = parts.next().as_ref().and_then(number).ok_or_else(|| self.unexpected_response())?;
        let mut all = Vec::with_capacity(parts.len());
        for part in parts {
            let Value::BulkString(text) = part else { return Err(self.unexpected_response()) };
            match BreakerRecord::parse(&text, now_ms) {
                Ok(record) if self.applies_here(&record) => all.push(record.change),
                Ok(_) => {}
                // A record of a later version. The others are still valid.
                Err(error) => self.report_unreadable(self.read.name(), &error),
            }
        }
        Ok(all)
    }

    /// Publishes all pending changes, then requests the claims to probe half-open breakers.
    async fn publish_all(&self) -> Result<(), StopReason> {
        let result = self.publish_changes().await;
        // Also without Redis: every claim is then answered as unreachable.
        self.claim_probes().await?;
        result
    }

    async fn claim_probes(&self) -> Result<(), ActorStopped> {
        loop {
            let claims = send(&self.breaker, TakeProbeClaims).await?;
            if claims.is_empty() {
                return Ok(());
            }
            for claim in claims {
                let response = self.claim_probe(&claim).await.ok();
                send(&self.breaker, ProbeClaimed { claim, response }).await?;
            }
        }
    }

    async fn claim_probe(&self, claim: &ProbeClaim) -> Result<ClaimResponse, RedisCallError> {
        let keys = [self.claim_key(&field_name(&claim.shared_key, &self.ip_group))];
        let duration = claim.duration.as_millis().to_string();
        let args = || vec![self.process.clone().into_bytes(), duration.into_bytes()];
        let response = self.redis.run(&self.claim, &keys, |_| args()).await?;
        match number(&response).ok_or_else(|| self.unexpected_response())? {
            0 => Ok(ClaimResponse::Granted),
            remaining => Ok(ClaimResponse::HeldElsewhere { remaining: Duration::from_millis(remaining) }),
        }
    }

    fn claim_key(&self, field: &str) -> String {
        format!("{}{field}", self.claim_prefix)
    }

    async fn publish_changes(&self) -> Result<(), StopReason> {
        loop {
            let changes = send(&self.breaker, TakeBreakerChanges).await?;
            if changes.is_empty() {
                return Ok(());
            }
            for change in changes {
                self.publish(change).await?;
            }
        }
    }

    async fn publish(&self, change: LocalChange) -> Result<(), StopReason> {
        let (version, instead) = match self.run_publish("change", &change.status, change.number()).await? {
            PublishResult::Published(record) => (record.change.version, None),
            PublishResult::Existing(Some(record)) => (record.change.version, Some(record.change)),
            // It was published and has ended; or there is no room for it, and it stays local.
            PublishResult::Existing(None) | PublishResult::Ended(_) | PublishResult::Full => (0, None),
        };
        Ok(send(&self.breaker, BreakerChangeReplicated { change, version, winner: instead }).await?)
    }

    /// Recreates a breaker that is open here and missing there.
    async fn seed(&self, breaker: &SharedBreaker) -> Result<(), StopReason> {
        match self.run_publish("seed", &breaker.status, breaker.version).await? {
            PublishResult::Published(record) | PublishResult::Existing(Some(record)) => {
                send(&self.breaker, RemoteBreakerChanged(record.change)).await?;
            }
            // A cooldown ends by itself.
            PublishResult::Ended(version) if breaker.status.state == SharedBreakerState::ForcedOpen => {
                send(&self.breaker, ForcedBreakerEnded { key: breaker.status.shared_key.clone(), version }).await?;
            }
            PublishResult::Ended(_) | PublishResult::Existing(None) | PublishResult::Full => {}
        }
        Ok(())
    }

    async fn run_publish(
        &self,
        mode: &str,
        status: &BreakerStatus,
        number: u64,
    ) -> Result<PublishResult, RedisCallError> {
        let record = to_script_record(status, &self.ip_group, &self.process);
        let args = || {
            let (number, remaining) = (number.to_string(), record.remaining_ms.to_string());
            let (retention, max) = (RETENTION.as_millis().to_string(), MAX_RECORDS.to_string());
            let args: [&str; 11] = [
                mode,
                &record.field_name,
                &record.head,
                record.state,
                record.reason,
                &remaining,
                &self.process,
                &number,
                &self.channel,
                &retention,
                &max,
            ];
            args.iter().map(|arg| arg.as_bytes().to_vec()).collect()
        };
        let [records, clock] = self.keys.clone();
        let keys = [records, clock, self.claim_key(&record.field_name)];
        let response = self.redis.run(&self.publish, &keys, |_| args()).await?;
        PublishResult::read(response).ok_or_else(|| self.unexpected_response())
    }

    fn unexpected_response(&self) -> RedisCallError {
        let reason = RedisErrorReason::Error;
        emit(RedisCallRejected { script: self.publish.name(), reason, message: "unexpected response of the script" });
        RedisCallError { reason }
    }

    /// Logs an unreadable message once: other processes may publish any number of them.
    fn report_unreadable(&self, source: &'static str, error: &dyn std::error::Error) {
        if !self.unreadable_logged.swap(true, Ordering::Relaxed) {
            emit(RedisCallRejected { script: source, reason: RedisErrorReason::Error, message: &error.to_string() });
        }
    }
}

/// Response of `publish.lua`.
enum PublishResult {
    /// It is stored now.
    Published(BreakerRecord),
    /// Another record is stored, if any.
    Existing(Option<BreakerRecord>),
    /// It has ended; the version is that of its end, or later.
    Ended(u64),
    /// There is no room.
    Full,
}

impl PublishResult {
    fn read(response: Value) -> Option<Self> {
        let Value::Array(parts) = response else { return None };
        let [Value::BulkString(kind), now_ms, Value::BulkString(text)] = <[Value; 3]>::try_from(parts).ok()? else {
            return None;
        };
        let now_ms = number(&now_ms)?;
        Some(match kind.as_slice() {
            b"published" => Self::Published(BreakerRecord::parse(&text, now_ms).ok()?),
            b"existing" if text.is_empty() => Self::Existing(None),
            b"existing" => Self::Existing(Some(BreakerRecord::parse(&text, now_ms).ok()?)),
            b"ended" => Self::Ended(std::str::from_utf8(&text).ok()?.parse().ok()?),
            b"full" => Self::Full,
            _ => return None,
        })
    }
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}
