//! The fleet: processes of one bot that share its limits over Redis.

use guildhall_actors::token_bucket::{SharedFuture, SharedLimits, SharedWindow};
use guildhall_core::{
    answer::Credential,
    limit::{
        Sharing,
        shared::{Call, SharedConfig},
    },
};
use std::sync::Arc;

use crate::{
    redis::{Keys, Redis, RedisConfig, RedisConfigError, RedisWindow},
    settings::Settings,
};

/// What a process of a fleet has in common with the others.
#[derive(Debug)]
pub(super) struct Fleet {
    window: RedisWindow,
    rules: SharedConfig,
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
        Ok(Some(Self { window, rules }))
    }

    /// How the token bucket shares its limits.
    pub(super) fn limits(&self, credential: Credential) -> SharedLimits {
        let sharing = Sharing { rules: self.rules.clone(), seat: format!("{:x}", std::process::id()), life: 1 };
        SharedLimits { window: Arc::new(Port(self.window.clone())), sharing, credential }
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
