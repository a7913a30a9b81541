//! The fleet: processes of one bot that share its limits over Redis.

use std::{collections::HashMap, sync::Arc, time::Duration};

use guildhall_actors::token_bucket::{SharedFuture, SharedLimits, SharedWindow, Tokens};
use guildhall_core::{
    answer::Credential,
    limit::{
        Sharing,
        shared::{Call, SharedConfig},
    },
};
use tokio::{task::JoinHandle, time::MissedTickBehavior};

use crate::{
    redis::{Keys, Redis, RedisConfig, RedisConfigError, RedisWindow, Seat},
    settings::Settings,
};

/// How often a death is told: the word may be lost, or this process be cut off at that moment.
const TELL: u32 = 5;

/// What a process of a fleet has in common with the others.
#[derive(Debug)]
pub(super) struct Fleet {
    window: RedisWindow,
    rules: SharedConfig,
    seat: Seat,
}

/// The window in Redis, as the token bucket sees it.
struct Port(RedisWindow);

impl SharedWindow for Port {
    fn call(&self, credential: Credential, call: Call) -> SharedFuture {
        let window = self.0.clone();
        // Why there is no answer is told where that is known.
        Box::pin(async move { window.call(credential, &call).await.ok() })
    }
}

impl Fleet {
    /// Begins to connect. `None` if the settings name no Redis: the process is alone.
    pub(super) fn meet(settings: &Settings, application: u64) -> Result<Option<Self>, RedisConfigError> {
        let Some(config) = RedisConfig::new(&settings.redis) else { return Ok(None) };
        let redis = Redis::new(config)?;
        let keys = Keys::new(application);
        let rules = rules(settings);
        let window = RedisWindow::new(redis.clone(), &keys, rules.clone());
        let seat = Seat::take_or_do_without(&Seat::folder(settings.redis.seat_dir.as_deref(), application));
        Ok(Some(Self { window, rules, seat }))
    }

    /// How the token bucket shares its limits.
    pub(super) fn limits(&self, credential: Credential) -> SharedLimits {
        let sharing = Sharing { rules: self.rules.clone(), seat: self.seat.id().to_owned(), life: self.seat.life() };
        SharedLimits { window: Arc::new(Port(self.window.clone())), sharing, credential }
    }

    /// Watches over the seats of this machine from now on.
    pub(super) fn watch(self, tokens: Tokens) -> Watch {
        let every = self.rules.heartbeat;
        Watch(tokio::spawn(bury_the_dead(self.seat, tokens, every)))
    }
}

/// The watch over the seats of this machine. It ends, and the seat is free, when this is dropped.
#[derive(Debug)]
pub(super) struct Watch(JoinHandle<()>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Looks for processes of this machine that died, and tells the others that nothing has to wait for them.
async fn bury_the_dead(mut seat: Seat, tokens: Tokens, every: Duration) {
    let mut tick = tokio::time::interval(every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told: HashMap<String, u32> = HashMap::new();
    loop {
        tick.tick().await;
        let known: Vec<String> = told.extract_if(|_, times| *times >= TELL).map(|(id, _)| id).collect();
        // It touches the disk.
        let looked = tokio::task::spawn_blocking(move || {
            if !known.is_empty() {
                seat.forget(&known);
            }
            let dead = seat.dead();
            (seat, dead)
        });
        let Ok((kept, dead)) = looked.await else { return };
        seat = kept;
        if dead.is_empty() {
            continue;
        }
        for id in &dead {
            let times = told.entry(id.clone()).or_default();
            if *times == 0 {
                tracing::info!(member = %id, "a process of this machine has died");
            }
            *times += 1;
        }
        tokens.bury(dead);
    }
}

/// The rules of the shared limit, as the settings have them.
fn rules(settings: &Settings) -> SharedConfig {
    let (redis, limits) = (&settings.redis, &settings.gate.limits);
    SharedConfig {
        limit: limits.global,
        window: limits.window + limits.margin,
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
        ..SharedConfig::default()
    }
}
