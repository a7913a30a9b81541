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
    events::{LocalProcessDied, emit},
    redis::{
        ProcessLock, RateLimitBlock, RedisClient, RedisConfig, RedisConfigError, RedisKeys, RedisWindow, SharedState,
        SharedStateConfig, fingerprint,
    },
    settings::{SecretValue, Settings},
};

/// How often a death is reported: a message may be lost, or this process may be disconnected at that moment.
const MAX_REPORTS: u32 = 5;

/// The state that a process of a fleet shares with the others.
#[derive(Debug)]
pub(crate) struct Fleet {
    redis: RedisClient,
    window: RedisWindow,
    limit_config: SharedLimitConfig,
    lock: ProcessLock,
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
    pub(crate) fn connect(
        settings: &Settings,
        application: u64,
        token: &SecretValue,
    ) -> Result<Option<Self>, RedisConfigError> {
        let Some(config) = RedisConfig::new(&settings.redis) else { return Ok(None) };
        let redis = RedisClient::new(config)?;
        let keys = RedisKeys::new(application);
        let limit_config = shared_limit_config(settings);
        let window = RedisWindow::new(redis.clone(), &keys, limit_config.clone());
        let lock = ProcessLock::take_or_continue_without(&ProcessLock::folder(
            settings.redis.seat_dir.as_deref(),
            application,
        ));
        let state = SharedStateConfig {
            application,
            process: lock.id().to_owned(),
            ip_group: settings.egress.ip_group.clone(),
            tokens: vec![(Credential::Application(application), fingerprint(token))],
            invalid: settings.gate.invalid,
            fallback: match settings.redis.on_loss {
                // As long as it may use a share, it also has the part of this budget that was lent to it.
                LimitFallback::Share | LimitFallback::Closed => LedgerFallback::Stop,
                LimitFallback::Open => LedgerFallback::Share,
            },
            // Changes are pushed, and missed ones are read with every new subscription; this covers the rest.
            heartbeat: settings.redis.heartbeat * 2,
        };
        Ok(Some(Self { redis, window, limit_config, lock, state }))
    }

    /// The Redis connection of the fleet.
    pub(crate) fn redis(&self) -> &RedisClient {
        &self.redis
    }

    /// The id of this process in the fleet.
    pub(crate) fn process_id(&self) -> &str {
        self.lock.id()
    }

    /// How the token bucket shares its limits.
    pub(crate) fn limits(&self, credential: Credential) -> SharedLimits {
        let sharing = SharingConfig {
            rules: self.limit_config.clone(),
            member_id: self.lock.id().to_owned(),
            incarnation: self.lock.life(),
        };
        SharedLimits { window: Arc::new(WindowPort(self.window.clone())), sharing, credential }
    }

    /// Shares the remaining state, and watches the process locks of this machine. Must be called before the first call.
    pub(crate) fn join(self, gate: &Gate) -> FleetMembership {
        let period = self.limit_config.heartbeat;
        let (tokens, application) = (gate.tokens().clone(), self.state.application);
        let on_block = move |block: RateLimitBlock| {
            let credential = match block.scope.as_str() {
                "bot" => Credential::Application(application),
                // An unknown one is of a later version, and of no limit here.
                scope => match scope.parse() {
                    Ok(credential) => credential,
                    Err(_) => return,
                },
            };
            tokens.on_blocked(credential, Duration::from_millis(block.ms));
        };
        let state = SharedState::start(self.redis, gate.breaker().clone(), self.state, on_block);
        let lock: SharedProcessLock = Arc::new(Mutex::new(Some(self.lock)));
        let tokens = gate.tokens().clone();
        let task = report_dead(Arc::clone(&lock), period, move |dead| tokens.remove_members(dead));
        let watch = supervision::spawn(Part::DeadProcesses, task);
        FleetMembership { state: Mutex::new(Some(state)), lock, watch_task: watch }
    }
}

/// The lock of this process, until it leaves.
pub(crate) type SharedProcessLock = Arc<Mutex<Option<ProcessLock>>>;

/// Membership of a process in the fleet; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct FleetMembership {
    state: Mutex<Option<SharedState>>,
    lock: SharedProcessLock,
    watch_task: JoinHandle<()>,
}

impl FleetMembership {
    /// Leaves the fleet. Call this only when no call is in flight any more.
    pub(crate) async fn leave(&self) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(state) = state {
            state.leave().await;
        }
        self.watch_task.abort();
        let lock = Arc::clone(&self.lock);
        // It accesses the disk. If the runtime is shutting down, the lock is released anyway.
        let _ = spawn_blocking_work(move || {
            if let Some(lock) = lock.lock().unwrap_or_else(PoisonError::into_inner).take() {
                lock.release();
            }
        })
        .await;
    }
}

impl Drop for FleetMembership {
    fn drop(&mut self) {
        self.watch_task.abort();
    }
}

/// Looks for processes of this machine that died, and reports them, so that nothing waits for them.
pub(crate) async fn report_dead(lock: SharedProcessLock, period: Duration, report: impl Fn(Vec<String>)) {
    let mut tick = tokio::time::interval(period);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut report_counts: HashMap<String, u32> = HashMap::new();
    loop {
        tick.tick().await;
        failpoint::message(Part::DeadProcesses);
        let reported: Vec<String> =
            report_counts.extract_if(|_, times| *times >= MAX_REPORTS).map(|(id, _)| id).collect();
        let lock = Arc::clone(&lock);
        // It accesses the disk.
        let scan = spawn_blocking_work(move || {
            let mut lock = lock.lock().unwrap_or_else(PoisonError::into_inner);
            let lock = lock.as_mut()?;
            if !reported.is_empty() {
                lock.forget(&reported);
            }
            Some(lock.dead_ids())
        });
        let Ok(Some(dead)) = scan.await else { return };
        if dead.is_empty() {
            continue;
        }
        for id in &dead {
            let times = report_counts.entry(id.clone()).or_default();
            if *times == 0 {
                emit(LocalProcessDied { member: id });
            }
            *times += 1;
        }
        report(dead);
    }
}

/// The configuration of the shared limit, from the settings.
fn shared_limit_config(settings: &Settings) -> SharedLimitConfig {
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
