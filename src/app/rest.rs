//! The way to Discord's REST API: typed calls, through the one gate.

use std::{sync::Arc, time::Duration};

use guildhall_actors::{
    memory::{MemoryConfig, StoreMemory},
    operations::OperationStore,
    rest::{Gate, GateConfig},
    right::Right,
};
use guildhall_core::{answer::Credential, lane::Lane, route::Route};
use twilight_model::id::{Id, marker::ApplicationMarker};

use super::fleet::{Fleet, Membership};
use crate::{
    discord::{
        application_of,
        rest::{Calls, HyperTransport, TransportConfig, TransportConfigError},
    },
    redis::{Keys, Redis, RedisBudgets, RedisConfigError, RedisIdempotency, RedisPolicies, fingerprint},
    settings::{Settings, Token},
};

/// Calls to Discord cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum RestError {
    /// The way to Discord is not one.
    #[error(transparent)]
    Transport(#[from] TransportConfigError),
    /// The way to the other processes is not one.
    #[error(transparent)]
    Redis(#[from] RedisConfigError),
}

/// The way to Discord's REST API.
#[derive(Debug)]
pub struct Rest {
    /// What every call goes through.
    pub gate: Arc<Gate>,
    /// What calls are built with.
    pub calls: Calls,
    application: Id<ApplicationMarker>,
    membership: Option<Membership>,
    redis: Option<Redis>,
    /// What the other processes know this one by, if there is a Redis.
    member: Option<String>,
}

impl Rest {
    /// Starts the gate's actors where the caller runs, which must be an actix `System` or a `LocalSet`. If the settings name
    /// a Redis, the gate shares its limits with all others there; if there is a store, it remembers over a restart what it
    /// must not forget.
    ///
    /// # Errors
    ///
    /// When the settings cannot be worked with.
    pub fn start(settings: &Settings, token: Token, store: Option<Arc<dyn OperationStore>>) -> Result<Self, RestError> {
        // A token that does not name its application is a simulator's; any id keeps its calls together.
        let application = application_of(&token).and_then(Id::new_checked).unwrap_or(Id::new(1));
        let fleet = Fleet::meet(settings, application.get(), &token)?;
        let redis = fleet.as_ref().map(|fleet| fleet.redis().clone());
        let member = fleet.as_ref().map(|fleet| fleet.member().to_owned());
        let lease = store.as_ref().map_or_else(Right::always, |store| store.lease());
        let memory = store.map(|store| {
            let memory = StoreMemory::new(store, application.get(), None);
            let tokens = vec![(Credential::Application(application.get()), fingerprint(&token))];
            MemoryConfig::new(Arc::new(memory), tokens)
        });
        let transport = HyperTransport::new(TransportConfig::new(settings, token))?.under(lease);
        let shared = fleet.as_ref().map(|fleet| fleet.limits(Credential::Application(application.get())));
        let config = GateConfig {
            limits: settings.gate.limits.clone(),
            breakers: settings.gate.breakers,
            invalid: settings.gate.invalid,
            // Only spreads cooldowns between processes.
            seed: u64::from(std::process::id()),
            shared,
            memory,
        };
        let gate = Gate::start(transport, config);
        let membership = fleet.map(|fleet| fleet.join(&gate));
        Ok(Self { gate, calls: Calls::new(application), application, membership, redis, member })
    }

    /// Waits until the gate would let a call go: a fresh one has to wait out what others may have sent. Ends when it says
    /// that this will not be so soon, too.
    pub fn opens(&self, within: Duration) -> impl Future<Output = ()> + use<> {
        let any = Route::parse("GET", "/gateway/bot", self.application.get(), 0);
        let credential = Credential::Application(self.application.get());
        let tokens = self.gate.tokens().clone();
        // The permit is given back unused.
        async move { drop(tokens.acquire(credential, any, Lane::Operation, within).await) }
    }

    /// Whom calls are made as.
    #[must_use]
    pub fn credential(&self) -> Credential {
        Credential::Application(self.application.get())
    }

    /// Where idempotency keys are remembered beside the store, if there is a Redis.
    #[must_use]
    pub fn idempotency(&self) -> Option<RedisIdempotency> {
        let redis = self.redis.clone()?;
        Some(RedisIdempotency::start(redis, Keys::new(self.application.get())))
    }

    /// Where requests to the API are counted together with other processes, if there is a Redis. None may wait for longer.
    #[must_use]
    pub fn policies(&self, longest: Duration) -> Option<RedisPolicies> {
        let redis = self.redis.clone()?;
        Some(RedisPolicies::new(redis, Keys::new(self.application.get()), longest))
    }

    /// Where named budgets are shared, if there is a Redis.
    #[must_use]
    pub fn budgets(&self) -> Option<RedisBudgets> {
        let (redis, member) = (self.redis.clone()?, self.member.as_deref()?);
        Some(RedisBudgets::new(redis, Keys::new(self.application.get()), member))
    }

    /// Keeps what must not be forgotten, and says goodbye to the processes that share the limits: they need not wait to find
    /// out.
    pub async fn leave(&self) {
        // First, while it still knows what is shared.
        self.gate.remember().await;
        self.gate.tokens().leave().await;
        if let Some(membership) = &self.membership {
            membership.leave().await;
        }
    }
}
