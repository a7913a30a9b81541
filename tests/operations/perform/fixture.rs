//! A guild, a gate and an executor. The managed objects are a set in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use guildhall::discord::executor::{DiscordExecutor, ExecutorConfig, ObjectOwnership};
use guildhall_actors::gate::{CallOutcome, Gate, GateConfig, Rest as _};
use guildhall_actors::guild::Journal;
use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_actors::ports::{
    Execution, ExecutionOutput, ExecutionResult, OperationExecutor as _, ReconcileResult, StoreFuture,
};
use guildhall_core::access::{Bounds, Grant, Owner, ScopeSet};
use guildhall_core::breaker::BreakerConfig;
use guildhall_core::limit::LimitConfig;
use guildhall_core::operation::payload::{
    ChannelType, CreateChannel, CreateRole, Location, MessageBody, NewChannel, NewRole, Overwrite, OverwriteTarget,
    SendMessage,
};
use guildhall_core::operation::{
    Failure, FailureClass, ManagedKind, Marker, OperationId, Payload, Progress, Reference,
};
use guildhall_core::response::Credential;
use guildhall_core::time::UnixMs;
use guildhall_sim::{FaultAction, GuildsSpec};
use guildhall_testkit::gate::{GuildIds, SimWorld, answered};
use http::Method;
use serde_json::Value;
use twilight_model::id::Id;

/// Permissions of a bot that is not an administrator: manage channels and roles, view, send, manage messages, read
/// history.
pub(crate) const BASIC_PERMISSIONS: u64 = 1 << 4 | 1 << 28 | VIEW_CHANNEL | 1 << 11 | 1 << 13 | 1 << 16;
pub(crate) const VIEW_AUDIT_LOG: u64 = 1 << 7;
pub(crate) const VIEW_CHANNEL: u64 = 1 << 10;

/// More failures than a test has, so that no breaker opens.
const UNREACHED_FAILURES: u32 = 1_000;

/// Managed objects, and the owners of locations.
#[derive(Clone, Debug, Default)]
pub(crate) struct FakeOwnership(Arc<Mutex<BTreeSet<(ManagedKind, u64)>>>, Arc<Mutex<BTreeMap<Location, Owner>>>);

impl FakeOwnership {
    pub(crate) fn insert(&self, kind: ManagedKind, id: u64) {
        self.0.lock().unwrap().insert((kind, id));
    }

    /// Sets the owner of a location.
    pub(crate) fn set_owner(&self, location: Location, owner: Owner) {
        self.1.lock().unwrap().insert(location, owner);
    }
}

impl ObjectOwnership for FakeOwnership {
    fn bound(&self, kind: ManagedKind, ids: Vec<u64>) -> StoreFuture<'_, Vec<u64>> {
        let bound = self.0.lock().unwrap();
        let managed = ids.into_iter().filter(|id| bound.contains(&(kind, *id))).collect();
        Box::pin(async move { Ok(managed) })
    }

    fn owners(&self, locations: Vec<Location>) -> StoreFuture<'_, Vec<Option<Owner>>> {
        let owners = self.1.lock().unwrap();
        let found = locations.iter().map(|location| owners.get(location).cloned()).collect();
        Box::pin(async move { Ok(found) })
    }

    fn store_guild(&self, location: Location, guild: Option<u64>) -> StoreFuture<'_, Owner> {
        let owner = Owner { guild, tenant: "default".to_owned() };
        self.1.lock().unwrap().insert(location, owner.clone());
        Box::pin(async move { Ok(owner) })
    }
}

pub(crate) struct ExecutorFixture {
    pub(crate) world: SimWorld,
    pub(crate) gate: Arc<Gate>,
    pub(crate) executor: DiscordExecutor,
    pub(crate) ownership: FakeOwnership,
    pub(crate) create_guild_fixture: GuildIds,
    pub(crate) application: u64,
    next_id: AtomicU64,
}

impl ExecutorFixture {
    /// With a bot that has all permissions.
    pub(crate) async fn new() -> Self {
        Self::with_store(SimWorld::unlimited(1).await, UNREACHED_FAILURES)
    }

    /// With a bot in this many guilds.
    pub(crate) async fn with_guilds(guilds: u32) -> Self {
        Self::with_store(SimWorld::unlimited(guilds).await, UNREACHED_FAILURES)
    }

    /// With a bot that has these permissions, in addition to those of everyone.
    pub(crate) async fn with_permissions(bits: u64) -> Self {
        let mut world = SimWorld::unlimited(0).await;
        let spec = GuildsSpec { bot_permissions: Some(bits), ..GuildsSpec::default() };
        world.sim.create_guilds(&spec).unwrap();
        world.refresh_guilds().await;
        Self::with_store(world, UNREACHED_FAILURES)
    }

    /// With breakers that open at this many failures in a row.
    pub(crate) async fn with_breakers(failures_in_row: u32) -> Self {
        Self::with_store(SimWorld::unlimited(1).await, failures_in_row)
    }

    fn with_store(world: SimWorld, failures_in_row: u32) -> Self {
        let limits = LimitConfig {
            window: Duration::from_millis(20),
            margin: Duration::ZERO,
            settling: Duration::ZERO,
            request_timeout: Duration::from_millis(20),
            ..LimitConfig::default()
        };
        let breakers = BreakerConfig { failures_in_row, ..BreakerConfig::default() };
        let gate = world.gate(GateConfig { limits, breakers, ..GateConfig::default() });
        let Credential::Application(application) = world.bot else { panic!("a bot has an application") };
        let ownership = FakeOwnership::default();
        let config = ExecutorConfig { max_result_bytes: 4 * 1024, ..ExecutorConfig::default() };
        let rest = Arc::clone(&gate) as Arc<_>;
        let performer =
            DiscordExecutor::new(rest, Id::new(application), Id::new(application), ownership.clone(), config);
        let guild = world.guilds[0].clone();
        Self {
            world,
            gate,
            executor: performer,
            ownership,
            create_guild_fixture: guild,
            application,
            next_id: AtomicU64::new(1),
        }
    }

    /// An operation to execute now.
    pub(crate) fn execution(&self, payload: Payload) -> Execution {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis().try_into().unwrap();
        let mut random = [0; 10];
        random[2..].copy_from_slice(&self.next_id.fetch_add(1, Ordering::Relaxed).to_be_bytes());
        let id = OperationId::new(now, random);
        Execution {
            id,
            guild: Some(self.create_guild_fixture.guild),
            tenant: Arc::from("default"),
            caller: Arc::from("admin"),
            bounds: Bounds::Anywhere,
            scopes: ScopeSet::of(&Grant::everything()),
            lane: payload.kind().lane(),
            payload,
            existing: None,
            progress: Progress::default(),
            marker: Marker::of(id),
            reason: Some("asked for".to_owned()),
            max_wait: Duration::from_secs(5),
            intent_at: UnixMs::new(now),
            lease: LeaseGuard::always(),
            journal: Journal::none(),
            trace: None,
        }
    }

    pub(crate) async fn perform(&self, execution: &Execution) -> ExecutionResult {
        self.executor.execute(execution.clone()).await
    }

    /// Executes it, asserts success, and stores its bindings, as a store does.
    pub(crate) async fn execute(&self, execution: &Execution) -> ExecutionOutput {
        match self.perform(execution).await {
            ExecutionResult::Done(done) => {
                self.store_bindings(execution, &done);
                done
            }
            other => panic!("expected success, got {other:?}"),
        }
    }

    pub(crate) fn store_bindings(&self, execution: &Execution, done: &ExecutionOutput) {
        for binding in &done.bind {
            self.ownership.insert(binding.kind, binding.discord_id);
        }
        let kind = match execution.payload {
            Payload::CreateRole(_) | Payload::EnsureRole(_) => ManagedKind::Role,
            Payload::CreateChannel(_) | Payload::EnsureChannel(_) => ManagedKind::Channel,
            _ => ManagedKind::Message,
        };
        if let Some(created) = done.created {
            self.ownership.insert(kind, created);
        }
    }

    pub(crate) async fn execute_failing(&self, execution: &Execution) -> Failure {
        match self.perform(execution).await {
            ExecutionResult::Failed(failure) | ExecutionResult::Unknown(failure) => failure,
            other => panic!("expected a failure, got {other:?}"),
        }
    }

    /// Executes it while the connection is cut before or after the effect, so that the outcome is unknown.
    pub(crate) async fn execute_lost(&self, execution: &Execution, route: &str, action: FaultAction) {
        self.world.fault_once(route, action);
        let failure = self.execute_failing(execution).await;
        assert_eq!(failure.class, FailureClass::Ambiguous, "{failure:?}");
    }

    pub(crate) async fn reconcile(&self, execution: &Execution) -> ReconcileResult {
        self.executor.reconcile(execution.clone()).await
    }

    pub(crate) async fn verify(&self, execution: &Execution) -> ReconcileResult {
        self.executor.verify(execution.clone()).await
    }

    pub(crate) async fn reconcile_found(&self, execution: &Execution) -> ExecutionOutput {
        match self.reconcile(execution).await {
            ReconcileResult::Found(done) => done,
            other => panic!("expected it to be found, got {other:?}"),
        }
    }

    pub(crate) async fn reconcile_unclear(&self, execution: &Execution) -> String {
        match self.reconcile(execution).await {
            ReconcileResult::Unclear(reason) => reason,
            other => panic!("expected it to be unclear, got {other:?}"),
        }
    }

    /// Reads from Discord.
    pub(crate) async fn get(&self, path: &str) -> Value {
        let mut request = self.world.request(Method::GET, path.to_owned());
        request.max_wait = Duration::from_secs(30);
        let response = answered(self.gate.call(request).await);
        assert!(response.status.is_success(), "{path}: {response:?}");
        serde_json::from_slice(&response.body).unwrap()
    }

    /// Makes a call to Discord that is not part of an operation.
    pub(crate) async fn call_discord(&self, method: Method, path: &str, body: &Value) -> Value {
        let outcome = self.gate.call(self.world.json_request(method, path.to_owned(), body)).await;
        let CallOutcome::Answered(response) = outcome else { panic!("{path}: {outcome:?}") };
        assert!(response.status.is_success(), "{path}: {response:?}");
        serde_json::from_slice(&response.body).unwrap_or_default()
    }

    pub(crate) async fn roles_named(&self, name: &str) -> Vec<Value> {
        let roles = self.get(&format!("/guilds/{}/roles", self.create_guild_fixture.guild)).await;
        roles.as_array().unwrap().iter().filter(|role| role["name"] == name).cloned().collect()
    }

    pub(crate) async fn channels_named(&self, name: &str) -> Vec<Value> {
        let channels = self.get(&format!("/guilds/{}/channels", self.create_guild_fixture.guild)).await;
        channels.as_array().unwrap().iter().filter(|channel| channel["name"] == name).cloned().collect()
    }

    /// Reasons in audit log entries of this type, newest first.
    pub(crate) async fn reasons(&self, action: u8) -> Vec<String> {
        let log =
            self.get(&format!("/guilds/{}/audit-logs?action_type={action}", self.create_guild_fixture.guild)).await;
        let entries = log["audit_log_entries"].as_array().unwrap();
        entries.iter().map(|entry| entry["reason"].as_str().unwrap_or_default().to_owned()).collect()
    }
}

pub(crate) fn role_named(name: &str) -> NewRole {
    NewRole { name: name.to_owned(), ..NewRole::default() }
}

pub(crate) fn create_role(name: &str) -> Payload {
    Payload::CreateRole(CreateRole { key: Some("a-role".to_owned()), role: role_named(name) })
}

pub(crate) fn channel_named(name: &str) -> NewChannel {
    NewChannel {
        name: name.to_owned(),
        kind: ChannelType::Text,
        parent: None,
        topic: None,
        nsfw: None,
        position: None,
        rate_limit_per_user: None,
        bitrate: None,
        user_limit: None,
        overwrites: None,
    }
}

pub(crate) fn create_channel(name: &str) -> Payload {
    Payload::CreateChannel(CreateChannel { key: Some("a-channel".to_owned()), channel: channel_named(name) })
}

/// A channel that only administrators can see.
pub(crate) fn create_hidden_channel(guild: u64, name: &str) -> Payload {
    let deny = Overwrite { target: OverwriteTarget::Role(Reference::Id(guild)), allow: 0, deny: VIEW_CHANNEL };
    let channel = NewChannel { overwrites: Some(vec![deny]), ..channel_named(name) };
    Payload::CreateChannel(CreateChannel { key: None, channel })
}

pub(crate) fn message_body(content: &str) -> MessageBody {
    MessageBody { content: Some(content.to_owned()), ..MessageBody::default() }
}

pub(crate) fn send_message(channel: u64, content: &str) -> Payload {
    let channel = Reference::Id(channel);
    Payload::SendMessage(SendMessage {
        channel,
        key: Some("a-message".to_owned()),
        reply_to: None,
        body: message_body(content),
    })
}

/// An id as Discord writes it.
pub(crate) fn parse_id(id: &Value) -> u64 {
    id.as_str().unwrap().parse().unwrap()
}

/// Moves the time of the intent, as if this process's clock were so many seconds ahead of Discord's or behind it.
pub(crate) fn with_clock_skew(execution: Execution, seconds: i64) -> Execution {
    let intent_at = UnixMs::new(execution.intent_at.millis().saturating_add_signed(seconds * 1_000));
    Execution { intent_at, ..execution }
}
