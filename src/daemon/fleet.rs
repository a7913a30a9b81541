//! The fleet: processes of one bot that share its limits over Redis.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use guildhall_actors::gate::Gate;
use guildhall_actors::supervision::{Part, spawn_blocking_work};
use guildhall_actors::token_bucket::{SharedCallFuture, SharedLimits, SharedWindow};
use guildhall_actors::{failpoint, supervision};
use guildhall_core::{
    invalid::LedgerFallback,
    limit::{
        SharingConfig,
        shared::{LimitFallback, ScriptCall, SharedLimitConfig},
    },
    response::Credential,
};
use tokio::{task::JoinHandle, time::MissedTickBehavior};

use crate::{
    redis::{
        ProcessLock, RateLimitBlock, RedisClient, RedisConfig, RedisConfigError, RedisKeys, RedisWindow, SharedState,
        SharedStateConfig, fingerprint,
    },
    settings::{SecretValue, Settings},
};

/// How often a death is reported: a message may be lost, or this process may be disconnected at that moment.
const TELL: u32 = 5;

/// The state that a process of a fleet shares with the others.
#[derive(Debug)]
pub(crate) struct Fleet {
    redis: RedisClient,
    window: RedisWindow,
    rules: SharedLimitConfig,
    seat: ProcessLock,
    state: SharedStateConfig,
}

/// The window in Redis, as a port of the token bucket.
struct WindowPort(RedisWindow);

impl SharedWindow for WindowPort {
    fn call(&self, credential: Credential, call: ScriptCall) -> SharedCallFuture {
        let window = self.0.clone();
        // The Redis client reports why there is no response.
        Box::pin(async move { window.call(credential, &call).await.ok() })
    }
}

impl Fleet {
    /// Starts to connect. `None` if the settings name no Redis: the process is alone.
    pub(crate) fn meet(
        settings: &Settings,
        application: u64,
        token: &SecretValue,
    ) -> Result<Option<Self>, RedisConfigError> {
        let Some(config) = RedisConfig::new(&settings.redis) else { return Ok(None) };
        let redis = RedisClient::new(config)?;
        let keys = RedisKeys::new(application);
        let rules = rules(settings);
        let window = RedisWindow::new(redis.clone(), &keys, rules.clone());
        let seat =
            ProcessLock::take_or_do_without(&ProcessLock::folder(settings.redis.seat_dir.as_deref(), application));
        let state = SharedStateConfig {
            application,
            process: seat.id().to_owned(),
            ip_group: settings.egress.ip_group.clone(),
            tokens: vec![(Credential::Application(application), fingerprint(token))],
            invalid: settings.gate.invalid,
            when_lost: match settings.redis.on_loss {
                // As long as it may use a share, it also has the part of this budget that was lent to it.
                LimitFallback::Share | LimitFallback::Closed => LedgerFallback::Stop,
                LimitFallback::Open => LedgerFallback::Share,
            },
            // Changes are pushed, and missed ones are read with every new subscription; this covers the rest.
            heartbeat: settings.redis.heartbeat * 2,
        };
        Ok(Some(Self { redis, window, rules, seat, state }))
    }

    /// The Redis connection of the fleet.
    pub(crate) fn redis(&self) -> &RedisClient {
        &self.redis
    }

    /// The id of this process in the fleet.
    pub(crate) fn member(&self) -> &str {
        self.seat.id()
    }

    /// How the token bucket shares its limits.
    pub(crate) fn limits(&self, credential: Credential) -> SharedLimits {
        let sharing =
            SharingConfig { rules: self.rules.clone(), seat: self.seat.id().to_owned(), life: self.seat.life() };
        SharedLimits { window: Arc::new(WindowPort(self.window.clone())), sharing, credential }
    }

    /// Shares the remaining state, and watches the process locks of this machine. Must be called before the first call.
    pub(crate) fn join(self, gate: &Gate) -> FleetMembership {
        let every = self.rules.heartbeat;
        let (tokens, application) = (gate.tokens().clone(), self.state.application);
        let on_block = move |block: RateLimitBlock| {
            let credential = match block.scope.as_str() {
                "bot" => Credential::Application(application),
                _ => Credential::Anonymous,
            };
            tokens.blocked(credential, Duration::from_millis(block.ms));
        };
        let state = SharedState::start(self.redis, gate.breaker().clone(), self.state, on_block);
        let seat: SharedProcessLock = Arc::new(Mutex::new(Some(self.seat)));
        let tokens = gate.tokens().clone();
        let task = report_dead(Arc::clone(&seat), every, move |dead| tokens.bury(dead));
        let watch = supervision::spawn(Part::DeadProcesses, task);
        FleetMembership { state: Mutex::new(Some(state)), seat, watch }
    }
}

/// The lock of this process, until it leaves.
pub(crate) type SharedProcessLock = Arc<Mutex<Option<ProcessLock>>>;

/// Membership of a process in the fleet; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct FleetMembership {
    state: Mutex<Option<SharedState>>,
    seat: SharedProcessLock,
    watch: JoinHandle<()>,
}

impl FleetMembership {
    /// Leaves the fleet. Call this only when no call is in flight any more.
    pub(crate) async fn leave(&self) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(state) = state {
            state.leave().await;
        }
        self.watch.abort();
        let seat = Arc::clone(&self.seat);
        // It accesses the disk. If the runtime is shutting down, the lock is released anyway.
        let _ = spawn_blocking_work(move || {
            if let Some(seat) = seat.lock().unwrap_or_else(PoisonError::into_inner).take() {
                seat.leave();
            }
        })
        .await;
    }
}

impl Drop for FleetMembership {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

/// Looks for processes of this machine that died, and reports them, so that nothing waits for them.
pub(crate) async fn report_dead(seat: SharedProcessLock, every: Duration, report: impl Fn(Vec<String>)) {
    let mut tick = tokio::time::interval(every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told: HashMap<String, u32> = HashMap::new();
    loop {
        tick.tick().await;
        failpoint::message(Part::DeadProcesses);
        let known: Vec<String> = told.extract_if(|_, times| *times >= TELL).map(|(id, _)| id).collect();
        let seat = Arc::clone(&seat);
        // It accesses the disk.
        let looked = spawn_blocking_work(move || {
            let mut seat = seat.lock().unwrap_or_else(PoisonError::into_inner);
            let seat = seat.as_mut()?;
            if !known.is_empty() {
                seat.forget(&known);
            }
            Some(seat.dead())
        });
        let Ok(Some(dead)) = looked.await else { return };
        if dead.is_empty() {
            continue;
        }
        for id in &dead {
            let times = told.entry(id.clone()).or_default();
            if *times == 0 {
                tracing::info!(member = %id, "process of this machine died");
            }
            *times += 1;
        }
        report(dead);
    }
}

/// The configuration of the shared limit, from the settings.
fn rules(settings: &Settings) -> SharedLimitConfig {
    let (redis, limits) = (&settings.redis, &settings.gate.limits);
    SharedLimitConfig {
        limit: limits.global,
        window: limits.window + limits.margin,
        margin: limits.margin,
        on_loss: redis.on_loss,
        timeout: redis.timeout,
        heartbeat: redis.heartbeat,
        silence: redis.silence,
        forget: redis.forget,
        share_for: redis.share_for,
        newcomer: redis.newcomer,
        horizon: redis.horizon,
        guard: redis.guard,
        request_timeout: limits.request_timeout,
        burst: limits.burst,
        ..SharedLimitConfig::default()
    }
}
