//! Access to Discord's REST API: typed calls, all through one gate.

use std::{sync::Arc, time::Duration};

use guildhall_actors::gate::{Gate, GateConfig};
use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_actors::ports::{OperationStore, SnapshotStore, StateSnapshotStore};
use guildhall_actors::snapshot::SnapshotConfig;
use guildhall_core::{lane::Lane, response::Credential, route::Route};
use twilight_model::id::{Id, marker::ApplicationMarker};

use super::{
    fleet::{Fleet, FleetMembership},
    limit_division::DivisionMembership,
};
use tokio::time::{Instant, timeout_at};

use crate::{
    clock::Clocks,
    discord::{
        application_id,
        rest::{Authorization, CallBuilder, HyperTransport, TransportConfig, TransportConfigError},
    },
    redis::{RedisBudgets, RedisClient, RedisConfigError, RedisIdempotency, RedisKeys, RedisPolicies, fingerprint},
    settings::{SecretValue, Settings},
    store::Store,
};

/// Calls to Discord cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum RestError {
    /// The transport to Discord cannot be configured.
    #[error(transparent)]
    Transport(#[from] TransportConfigError),
    /// The connection to Redis cannot be configured.
    #[error(transparent)]
    Redis(#[from] RedisConfigError),
}

/// Where a gate stores the state that must outlive it, and how it learns of other processes.
pub enum GateState<'a> {
    /// In the store, which also lists the processes that share it.
    Store(&'a Store, Clocks),
    /// In this snapshot store only.
    Snapshot(Arc<dyn SnapshotStore>),
    /// Nowhere: the state is lost when the gate ends.
    Volatile,
}

/// How the processes of a bot share the global limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitSharing {
    /// No other process can use the store.
    Alone,
    /// Each process of the store has a share.
    Store,
    /// Redis counts for all of them.
    Redis,
}

impl LimitSharing {
    /// Its name in logs and the API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Store => "store",
            Self::Redis => "redis",
        }
    }
}

/// Access to Discord's REST API.
#[derive(Debug)]
pub struct RestComponent {
    /// The gate of every call.
    pub gate: Arc<Gate>,
    /// Builds calls.
    pub calls: CallBuilder,
    /// The token that calls are sent with.
    pub authorization: Authorization,
    application: Id<ApplicationMarker>,
    membership: Option<FleetMembership>,
    division: Option<DivisionMembership>,
    redis: Option<RedisClient>,
    /// Id of this process among those that share a Redis, if one is configured.
    process_id: Option<String>,
}

impl RestComponent {
    /// Starts the gate's actors in the caller's context, which must be an actix `System` or a `LocalSet`. If the
    /// settings name a Redis, the gate shares its limits with all other processes there; otherwise it uses its share of
    /// those of the store.
    ///
    /// # Errors
    ///
    /// When the settings are invalid.
    pub fn start(settings: &Settings, token: SecretValue, state: GateState<'_>) -> Result<Self, RestError> {
        // A token that does not name its application is a simulator's; any id keeps its calls together.
        let application = application_id(&token).and_then(Id::new_checked).unwrap_or(Id::new(1));
        let fleet = Fleet::connect(settings, application.get(), &token)?;
        let redis = fleet.as_ref().map(|fleet| fleet.redis().clone());
        let process_id = fleet.as_ref().map(|fleet| fleet.process_id().to_owned());
        let (snapshot, division, lease, clocks): (Option<Arc<dyn SnapshotStore>>, _, _, Option<Clocks>) = match state {
            GateState::Store(store, clocks) => {
                let division = DivisionMembership::join(settings, &token, store);
                let store: Arc<dyn OperationStore> = Arc::new(store.clone());
                let lease = store.lease();
                (Some(Arc::new(StateSnapshotStore::new(store, application.get(), None))), division, lease, Some(clocks))
            }
            GateState::Snapshot(snapshot) => (Some(snapshot), None, LeaseGuard::always(), None),
            GateState::Volatile => (None, None, LeaseGuard::always(), None),
        };
        let tokens = vec![(Credential::Application(application.get()), fingerprint(&token))];
        let snapshot = snapshot.map(|snapshot| {
            let config = SnapshotConfig::new(snapshot, tokens);
            match &clocks {
                Some(clocks) => SnapshotConfig { wall: clocks.store_time(), ..config },
                None => config,
            }
        });
        let transport = HyperTransport::new(TransportConfig::new(settings, token))?;
        let (transport, lease) = match &division {
            // Calls that belong to no queue count, too.
            Some(division) => {
                (transport.with_lease_for_all_calls(division.limit().lease_guard()), division.limit().lease_guard())
            }
            None => (transport.with_lease(lease), LeaseGuard::always()),
        };
        let authorization = transport.authorization();
        let transport = match clocks {
            Some(clocks) => transport.with_clocks(clocks),
            None => transport,
        };
        let shared = fleet.as_ref().map(|fleet| fleet.limits(Credential::Application(application.get())));
        let config = GateConfig {
            limits: settings.gate.limits.clone(),
            breakers: settings.gate.breakers,
            invalid: settings.gate.invalid,
            // Only varies cooldowns between processes.
            seed: u64::from(std::process::id()),
            shared,
            snapshot,
            divided: division.as_ref().map(|division| division.limit().limit()),
        };
        let gate = Gate::start(transport, config, lease);
        let membership = fleet.map(|fleet| fleet.join(&gate));
        Ok(Self {
            gate,
            calls: CallBuilder::new(application),
            authorization,
            application,
            membership,
            division,
            redis,
            process_id,
        })
    }

    /// Waits until the gate can send a call: a new gate must wait until the calls that others may have sent no longer
    /// count. Also returns when the gate reports that it takes longer than `timeout`.
    pub fn wait_until_open(&self, timeout: Duration) -> impl Future<Output = ()> + use<> {
        let route = Route::parse("GET", "/gateway/bot", self.application.get(), 0);
        let credential = Credential::Application(self.application.get());
        let tokens = self.gate.tokens().clone();
        // The permit is returned unused.
        async move { drop(tokens.acquire(credential, route, Lane::Operation, timeout).await) }
    }

    /// How the global limit is shared with other processes.
    #[must_use]
    pub fn sharing(&self) -> LimitSharing {
        match (&self.redis, &self.division) {
            (Some(_), _) => LimitSharing::Redis,
            (None, Some(_)) => LimitSharing::Store,
            (None, None) => LimitSharing::Alone,
        }
    }

    /// The credential of calls.
    #[must_use]
    pub fn credential(&self) -> Credential {
        Credential::Application(self.application.get())
    }

    /// The cache of idempotency keys beside the store, if Redis is configured.
    #[must_use]
    pub fn idempotency(&self) -> Option<RedisIdempotency> {
        let redis = self.redis.clone()?;
        Some(RedisIdempotency::start(redis, RedisKeys::new(self.application.get())))
    }

    /// The counter of API requests that is shared with other processes, if Redis is configured. No request may wait
    /// longer than `max_wait`.
    #[must_use]
    pub fn policies(&self, max_wait: Duration) -> Option<RedisPolicies> {
        let redis = self.redis.clone()?;
        Some(RedisPolicies::new(redis, RedisKeys::new(self.application.get()), max_wait))
    }

    /// The shared named budgets, if Redis is configured.
    #[must_use]
    pub fn budgets(&self) -> Option<RedisBudgets> {
        let (redis, process_id) = (self.redis.clone()?, self.process_id.as_deref()?);
        Some(RedisBudgets::new(redis, RedisKeys::new(self.application.get()), process_id))
    }

    /// [Leaves](Self::leave) the other processes. If there is no time for it, they notice it by a timeout.
    pub(crate) async fn stop(&self, deadline: Instant) {
        let _ = timeout_at(deadline, self.leave()).await;
    }

    /// Stores the gate's state, and leaves the group of processes that share the limits, so that they need not wait for
    /// a timeout.
    pub async fn leave(&self) {
        // First, while the gate still knows the shared state.
        self.gate.save_snapshot().await;
        self.gate.tokens().leave().await;
        if let Some(division) = &self.division {
            division.leave(&self.gate).await;
        }
        if let Some(membership) = &self.membership {
            membership.leave().await;
        }
    }
}
