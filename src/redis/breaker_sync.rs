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
    pubsub::{BreakerRecord, PubSubMessage, RateLimitBlock, field, write},
    shared_state::{ActorStopped, SharedStateConfig, StateNotifier, send},
};
use crate::events::emit;

/// How long a closed breaker is stored: longer than a process needs to read the full state.
const CLOSED_LASTS: Duration = Duration::from_secs(600);

/// How long the last change of a process is remembered: longer than a call can be late.
const PROCESS_LASTS: Duration = Duration::from_secs(3_600);

/// How long everything is stored when no process is left.
const LASTS: Duration = Duration::from_secs(86_400);

/// Maximum number of shared breakers.
const MOST_RECORDS: usize = 1_000;

/// Why a step stopped.
enum StopReason {
    /// Redis is lost: the next heartbeat retries.
    Lost,
    Gone,
}

impl From<RedisCallError> for StopReason {
    fn from(_: RedisCallError) -> Self {
        Self::Lost
    }
}

impl From<ActorStopped> for StopReason {
    fn from(ActorStopped: ActorStopped) -> Self {
        Self::Gone
    }
}

pub(super) struct BreakerSync {
    redis: RedisClient,
    breaker: Addr<CircuitBreaker>,
    tell: Script,
    read: Script,
    claim: Script,
    keys: [String; 2],
    /// Prefix of the keys of probe claims.
    claims: String,
    channel: String,
    process: String,
    ip_group: String,
    heartbeat: Duration,
    on_block: Box<dyn Fn(RateLimitBlock) + Send + Sync>,
    /// Whether an unreadable message was already logged since the last connection.
    complained: AtomicBool,
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
            tell: Script::new("breakers_tell", include_str!("tell.lua")),
            read: Script::new("breakers_read", include_str!("read.lua")),
            claim: Script::new("breakers_claim", include_str!("claim.lua")),
            keys: [keys.of("breakers"), keys.of("breakers:clock")],
            claims: keys.of("breakers:claim:"),
            channel: keys.of("news"),
            process: config.process,
            ip_group: config.ip_group,
            heartbeat: config.heartbeat,
            on_block,
            complained: AtomicBool::new(false),
        }
    }

    /// Ends with the actor.
    pub(super) async fn run(self, bell: Arc<StateNotifier>) {
        let mut subscription = self.redis.subscribe(&self.channel);
        let mut heartbeat = interval(self.heartbeat);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let done = tokio::select! {
                event = Subscription::next(&mut subscription) => match event {
                    SubscriptionEvent::Subscribed => {
                        self.complained.store(false, Ordering::Relaxed);
                        self.agree().await
                    }
                    SubscriptionEvent::Message(text) => self.hear(&text).await,
                    SubscriptionEvent::Lost => Ok(()),
                },
                () = bell.turned.notified() => self.tell_all().await,
                _ = heartbeat.tick() => self.agree().await,
            };
            failpoint::message(Part::RedisState);
            if matches!(done, Err(StopReason::Gone)) {
                return;
            }
        }
    }

    /// Reads the full state, recreates what is missing there, and publishes pending changes.
    async fn agree(&self) -> Result<(), StopReason> {
        let all = match self.read_all().await {
            Ok(all) => all,
            Err(lost) => {
                self.claim_probes().await?;
                return Err(lost.into());
            }
        };
        for standing in send(&self.breaker, SharedStateRead(all)).await? {
            self.seed(&standing).await?;
        }
        self.tell_all().await
    }

    async fn hear(&self, text: &[u8]) -> Result<(), StopReason> {
        match PubSubMessage::read(text) {
            Ok(PubSubMessage::Breaker(record)) if record.by != self.process && self.concerns(&record) => {
                send(&self.breaker, RemoteBreakerChanged(record.news)).await?;
            }
            Ok(PubSubMessage::Breaker(_)) => {}
            Ok(PubSubMessage::Block(block)) => (self.on_block)(block),
            Err(error) => self.refuse("news", &error),
        }
        Ok(())
    }

    fn concerns(&self, record: &BreakerRecord) -> bool {
        record.group.as_ref().is_none_or(|group| *group == self.ip_group)
    }

    async fn read_all(&self) -> Result<Vec<guildhall_core::breaker::RemoteChange>, RedisCallError> {
        let times = [CLOSED_LASTS.as_millis(), PROCESS_LASTS.as_secs().into(), LASTS.as_millis()];
        let args = || times.iter().map(|time| time.to_string().into_bytes()).collect();
        let answer = self.redis.run(&self.read, &self.keys, |_| args()).await?;
        let Value::Array(parts) = answer else { return Err(self.unreadable()) };
        let mut parts = parts.into_iter();
        let now_ms = parts.next().as_ref().and_then(number).ok_or_else(|| self.unreadable())?;
        let mut all = Vec::with_capacity(parts.len());
        for part in parts {
            let Value::BulkString(text) = part else { return Err(self.unreadable()) };
            match BreakerRecord::read(&text, now_ms) {
                Ok(record) if self.concerns(&record) => all.push(record.news),
                Ok(_) => {}
                // A record of a later version. The others are still valid.
                Err(error) => self.refuse(self.read.name(), &error),
            }
        }
        Ok(all)
    }

    /// Publishes all pending changes, then requests the claims to probe half-open breakers.
    async fn tell_all(&self) -> Result<(), StopReason> {
        let told = self.tell_turns().await;
        // Also without Redis: every claim is then answered as unreachable.
        self.claim_probes().await?;
        told
    }

    async fn claim_probes(&self) -> Result<(), ActorStopped> {
        loop {
            let claims = send(&self.breaker, TakeProbeClaims).await?;
            if claims.is_empty() {
                return Ok(());
            }
            for claim in claims {
                let answer = self.claim_probe(&claim).await.ok();
                send(&self.breaker, ProbeClaimed { claim, answer }).await?;
            }
        }
    }

    async fn claim_probe(&self, claim: &ProbeClaim) -> Result<ClaimResponse, RedisCallError> {
        let keys = [self.claim_key(&field(&claim.matter, &self.ip_group))];
        let lasting = claim.lasting.as_millis().to_string();
        let args = || vec![self.process.clone().into_bytes(), lasting.into_bytes()];
        let answer = self.redis.run(&self.claim, &keys, |_| args()).await?;
        match number(&answer).ok_or_else(|| self.unreadable())? {
            0 => Ok(ClaimResponse::Granted),
            remaining => Ok(ClaimResponse::HeldElsewhere { remaining: Duration::from_millis(remaining) }),
        }
    }

    fn claim_key(&self, field: &str) -> String {
        format!("{}{field}", self.claims)
    }

    async fn tell_turns(&self) -> Result<(), StopReason> {
        loop {
            let turns = send(&self.breaker, TakeBreakerChanges).await?;
            if turns.is_empty() {
                return Ok(());
            }
            for turn in turns {
                self.tell(turn).await?;
            }
        }
    }

    async fn tell(&self, turn: LocalChange) -> Result<(), StopReason> {
        let (version, instead) = match self.say("turn", &turn.word, turn.number()).await? {
            PublishResult::Told(record) => (record.news.version, None),
            PublishResult::Kept(Some(record)) => (record.news.version, Some(record.news)),
            // It was published and has ended; or there is no room for it, and it stays local.
            PublishResult::Kept(None) | PublishResult::Gone(_) | PublishResult::Full => (0, None),
        };
        Ok(send(&self.breaker, BreakerChangeReplicated { turn, version, instead }).await?)
    }

    /// Recreates a breaker that is open here and missing there.
    async fn seed(&self, standing: &SharedBreaker) -> Result<(), StopReason> {
        match self.say("seed", &standing.word, standing.version).await? {
            PublishResult::Told(record) | PublishResult::Kept(Some(record)) => {
                send(&self.breaker, RemoteBreakerChanged(record.news)).await?;
            }
            // A cooldown ends by itself.
            PublishResult::Gone(version) if standing.word.stand == SharedBreakerState::ForcedOpen => {
                send(&self.breaker, ForcedBreakerEnded { matter: standing.word.matter.clone(), version }).await?;
            }
            PublishResult::Gone(_) | PublishResult::Kept(None) | PublishResult::Full => {}
        }
        Ok(())
    }

    async fn say(&self, how: &str, word: &BreakerStatus, number: u64) -> Result<PublishResult, RedisCallError> {
        let told = write(word, &self.ip_group, &self.process);
        let args = || {
            let (number, remaining) = (number.to_string(), told.remaining_ms.to_string());
            let (lasts, most) = (LASTS.as_millis().to_string(), MOST_RECORDS.to_string());
            let args: [&str; 11] = [
                how,
                &told.field,
                &told.head,
                told.state,
                told.why,
                &remaining,
                &self.process,
                &number,
                &self.channel,
                &lasts,
                &most,
            ];
            args.iter().map(|arg| arg.as_bytes().to_vec()).collect()
        };
        let [records, clock] = self.keys.clone();
        let keys = [records, clock, self.claim_key(&told.field)];
        let answer = self.redis.run(&self.tell, &keys, |_| args()).await?;
        PublishResult::read(answer).ok_or_else(|| self.unreadable())
    }

    fn unreadable(&self) -> RedisCallError {
        let why = RedisErrorReason::Error;
        emit(RedisCallRejected { script: self.tell.name(), why, says: "unexpected response of the script" });
        RedisCallError { why }
    }

    /// Logs an unreadable message once: other processes may publish any number of them.
    fn refuse(&self, whose: &'static str, error: &dyn std::error::Error) {
        if !self.complained.swap(true, Ordering::Relaxed) {
            emit(RedisCallRejected { script: whose, why: RedisErrorReason::Error, says: &error.to_string() });
        }
    }
}

/// Response of `tell.lua`.
enum PublishResult {
    /// It is stored now.
    Told(BreakerRecord),
    /// Another record is stored, if any.
    Kept(Option<BreakerRecord>),
    /// It has ended; the version is that of its end, or later.
    Gone(u64),
    /// There is no room.
    Full,
}

impl PublishResult {
    fn read(answer: Value) -> Option<Self> {
        let Value::Array(parts) = answer else { return None };
        let [Value::BulkString(kind), now_ms, Value::BulkString(text)] = <[Value; 3]>::try_from(parts).ok()? else {
            return None;
        };
        let now_ms = number(&now_ms)?;
        Some(match kind.as_slice() {
            b"told" => Self::Told(BreakerRecord::read(&text, now_ms).ok()?),
            b"kept" if text.is_empty() => Self::Kept(None),
            b"kept" => Self::Kept(Some(BreakerRecord::read(&text, now_ms).ok()?)),
            b"gone" => Self::Gone(std::str::from_utf8(&text).ok()?.parse().ok()?),
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
