//! A gate that is dropped and one that starts after it: the second keeps the blocks that the first has received.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use guildhall::discord::rest::{HyperTransport, TransportConfig};
use guildhall::redis::fingerprint;
use guildhall::settings::SecretValue;
use guildhall_actors::gate::{Gate, GateConfig, Rest as _, RestRequest};
use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_actors::ports::{SnapshotError, SnapshotFuture, SnapshotStore};
use guildhall_actors::snapshot::SnapshotConfig;
use guildhall_core::breaker::{BreakerConfig, BreakerKey};
use guildhall_core::invalid::{InvalidConfig, Submitter};
use guildhall_core::snapshot::GateSnapshot;
use guildhall_sim::{Algorithm, BotConfig, Case, CloudflareForm, FaultAction, LimitConfig, RouteLimit, Scope};
use guildhall_testkit::gate::{SimWorld, TEST_TIMEOUT, answered, breaker_changes, not_sent, run, wait_for_breaker};
use http::StatusCode;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

const CREATE_ROLE: &str = "POST /guilds/{guild.id}/roles";

const HOUR: Duration = Duration::from_secs(3_600);

/// A snapshot file, and the snapshots that were written to it.
struct SnapshotFile {
    path: PathBuf,
    written: watch::Sender<GateSnapshot>,
    _folder: TempDir,
}

impl SnapshotFile {
    fn new() -> Arc<Self> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memory.json");
        Arc::new(Self { path, written: watch::Sender::default(), _folder: folder })
    }

    /// Waits until a snapshot is written for which this holds.
    async fn wait_for_snapshot(&self, condition: impl Fn(&GateSnapshot) -> bool) {
        let mut written = self.written.subscribe();
        let waited = timeout(TEST_TIMEOUT, written.wait_for(condition)).await;
        waited.expect("no such snapshot was written").unwrap();
    }
}

impl SnapshotStore for SnapshotFile {
    fn load(&self) -> SnapshotFuture<'_, Option<String>> {
        Box::pin(async { Ok(std::fs::read_to_string(&self.path).ok()) })
    }

    fn save(&self, text: String) -> SnapshotFuture<'_, ()> {
        Box::pin(async move {
            std::fs::write(&self.path, &text).map_err(|error| SnapshotError(error.to_string()))?;
            self.written.send_replace(GateSnapshot::decode(&text).unwrap());
            Ok(())
        })
    }
}

/// A gate with this token that restores the stored snapshot.
fn start(world: &SimWorld, snapshot_file: &Arc<SnapshotFile>, token: &str, breakers: BreakerConfig) -> Arc<Gate> {
    start_with(world, snapshot_file, token, GateConfig { breakers, ..GateConfig::default() })
}

fn start_with(world: &SimWorld, snapshot_file: &Arc<SnapshotFile>, token: &str, config: GateConfig) -> Arc<Gate> {
    let token = SecretValue::new(token);
    let snapshot: Arc<dyn SnapshotStore> = snapshot_file.clone();
    let snapshot = SnapshotConfig {
        later: Duration::from_millis(50),
        soon: Duration::from_millis(50),
        ..SnapshotConfig::new(snapshot, vec![(world.bot, fingerprint(&token))])
    };
    let transport = HyperTransport::new(TransportConfig {
        api_url: world.sim.api_url(),
        token,
        connect_timeout: Duration::from_secs(5),
        request_timeout: Duration::from_secs(15),
        max_response_bytes: 4 << 20,
        pool_idle: Duration::from_secs(60),
        traceparent: false,
        http2: false,
    })
    .unwrap();
    Gate::start(transport, GateConfig { snapshot: Some(snapshot), ..config }, LeaseGuard::always())
}

fn valid_token() -> String {
    BotConfig::default().token
}

/// The same gate as before, with default breakers.
fn restart(world: &SimWorld, snapshot_file: &Arc<SnapshotFile>) -> Arc<Gate> {
    start(world, snapshot_file, &valid_token(), BreakerConfig::default())
}

fn with_max_wait(mut request: RestRequest, max_wait: Duration) -> RestRequest {
    request.max_wait = max_wait;
    request
}

#[test]
fn global_block_survives_a_restart() {
    run(async {
        let world = SimWorld::unlimited(1).await;
        let snapshot_file = SnapshotFile::new();
        let guild_ids = &world.guilds[0];
        let gate = restart(&world, &snapshot_file);
        let block = |retry_after_ms| FaultAction::RateLimit { scope: Scope::Global, retry_after_ms };
        world.fault_once("GET /guilds/*", block(600_000));
        assert_eq!(answered(gate.call(world.get_guild(guild_ids)).await).status, StatusCode::TOO_MANY_REQUESTS);
        snapshot_file.wait_for_snapshot(|snapshot| snapshot.limits.closed() == 1).await;
        drop(gate);
        for _ in 0..2 {
            let before = world.arrived();
            let gate = restart(&world, &snapshot_file);
            for request in [world.get_guild(guild_ids), world.get_channel(guild_ids), world.create_role(guild_ids, "a")]
            {
                let refused = not_sent(gate.call(request).await);
                assert_eq!(refused.reason, "global_limit");
                assert!(refused.retry_after.unwrap() > Duration::from_secs(500), "{refused:?}");
            }
            assert_eq!(world.arrived(), before);
        }
    });
}

#[test]
fn restored_global_block_ends_on_time() {
    run(async {
        let world = SimWorld::unlimited(1).await;
        let snapshot_file = SnapshotFile::new();
        let guild_ids = &world.guilds[0];
        let gate = restart(&world, &snapshot_file);
        world.fault_once("GET /guilds/*", FaultAction::RateLimit { scope: Scope::Global, retry_after_ms: 4_000 });
        answered(gate.call(world.get_guild(guild_ids)).await);
        // A lower bound: the response came a little earlier.
        let started = Instant::now();
        snapshot_file.wait_for_snapshot(|snapshot| snapshot.limits.closed() == 1).await;
        drop(gate);
        let gate = restart(&world, &snapshot_file);
        let outcome = gate.call(with_max_wait(world.get_guild(guild_ids), TEST_TIMEOUT)).await;
        assert_eq!(answered(outcome).status, StatusCode::OK);
        assert!(started.elapsed() > Duration::from_millis(3_500), "{:?}", started.elapsed());
    });
}

#[test]
fn invalid_token_is_not_retried_after_a_restart_but_a_new_one_is() {
    run(async {
        let world = SimWorld::unlimited(1).await;
        let snapshot_file = SnapshotFile::new();
        let guild_ids = &world.guilds[0];
        let start_with_invalid_token = || start(&world, &snapshot_file, "MTIz.not.right", BreakerConfig::default());
        let gate = start_with_invalid_token();
        assert_eq!(answered(gate.call(world.get_guild(guild_ids)).await).status, StatusCode::UNAUTHORIZED);
        snapshot_file.wait_for_snapshot(|snapshot| snapshot.breakers.len() == 1).await;
        drop(gate);
        let before = world.arrived();
        for _ in 0..2 {
            let refused = not_sent(start_with_invalid_token().call(world.get_guild(guild_ids)).await);
            assert_eq!((refused.reason, refused.retry_after), ("unauthorized", None));
        }
        assert_eq!(world.arrived(), before);
        let text = std::fs::read_to_string(&snapshot_file.path).unwrap();
        assert!(!text.contains("not.right"), "{text}");
        let gate = restart(&world, &snapshot_file);
        assert_eq!(answered(gate.call(world.get_guild(guild_ids)).await).status, StatusCode::OK);
        snapshot_file.wait_for_snapshot(|snapshot| snapshot.breakers.is_empty()).await;
    });
}

#[test]
fn ban_survives_a_restart_and_is_probed_at_its_end() {
    run(async {
        let world = SimWorld::unlimited(1).await;
        let snapshot_file = SnapshotFile::new();
        let guild_ids = &world.guilds[0];
        let breakers = BreakerConfig { probe_after: Duration::from_millis(50), ..BreakerConfig::default() };
        let gate = start(&world, &snapshot_file, &valid_token(), breakers);
        let action = FaultAction::Cloudflare { form: CloudflareForm::Html, retry_after_ms: Some(6_000) };
        world.fault_once("GET /guilds/*", action);
        answered(gate.call(world.get_guild(guild_ids)).await);
        snapshot_file.wait_for_snapshot(|snapshot| snapshot.breakers.len() == 1).await;
        drop(gate);
        let before = world.arrived();
        let gate = start(&world, &snapshot_file, &valid_token(), breakers);
        let mut events = breaker_changes(&gate).await;
        let refused = not_sent(gate.call(world.create_role(guild_ids, "a")).await);
        assert_eq!(refused.reason, "blocked");
        wait_for_breaker(&mut events, &BreakerKey::Address, "half_open").await;
        assert_eq!(world.arrived(), before, "nothing before the ban ends");
        wait_for_breaker(&mut events, &BreakerKey::Address, "closed").await;
        assert_eq!(world.arrived_at(CREATE_ROLE), 0, "a create is not a probe");
        assert_eq!(answered(gate.call(world.create_role(guild_ids, "b")).await).status, StatusCode::OK);
        snapshot_file.wait_for_snapshot(|snapshot| snapshot.breakers.is_empty()).await;
    });
}

#[test]
fn exhausted_bucket_survives_a_restart_and_others_stay_open() {
    run(async {
        let role = |limit| RouteLimit {
            method: "POST".into(),
            path: "/guilds/{guild.id}/roles".into(),
            case: Case::default(),
            bucket: None,
            limit,
            per_ms: 28 * 3_600_000,
            algorithm: Algorithm::Fixed,
        };
        let limits = LimitConfig { routes: vec![role(2)], ..LimitConfig::default() };
        let world = SimWorld::start(2, limits).await;
        let snapshot_file = SnapshotFile::new();
        let (exhausted, other) = (&world.guilds[0], &world.guilds[1]);
        let gate = restart(&world, &snapshot_file);
        for name in ["a", "b"] {
            assert_eq!(answered(gate.call(world.create_role(exhausted, name)).await).status, StatusCode::OK);
        }
        snapshot_file.wait_for_snapshot(|snapshot| snapshot.limits.closed() > 0 && snapshot.limits.routes() > 0).await;
        drop(gate);
        for restarts in 0..2 {
            let gate = restart(&world, &snapshot_file);
            let refused = not_sent(gate.call(world.create_role(exhausted, "c")).await);
            assert_eq!(refused.reason, "route_limit");
            assert!(refused.retry_after.unwrap() > 27 * HOUR, "{refused:?}");
            assert_eq!(answered(gate.call(world.get_guild(exhausted)).await).status, StatusCode::OK);
            // If the kind of the bucket is not known yet, it stays closed for a while after a sudden end.
            let patient = with_max_wait(world.create_role(other, &format!("{restarts}")), Duration::from_secs(30));
            let created = gate.call(patient).await;
            assert_eq!(answered(created).status, StatusCode::OK, "another guild has its own bucket");
            gate.save_snapshot().await;
        }
        // The usage of the other guild's bucket is not stored, but its exhaustion was reported.
        let gate = restart(&world, &snapshot_file);
        assert_eq!(not_sent(gate.call(world.create_role(other, "c")).await).reason, "route_limit");
        let score = world.score();
        assert_eq!((score.rate_limited.user, score.rate_limited.global), (0, 0));
    });
}

#[test]
fn restart_does_not_reset_the_share_of_a_key() {
    run(async {
        let world = SimWorld::unlimited(2).await;
        let snapshot_file = SnapshotFile::new();
        let start = || {
            let invalid = InvalidConfig { limit: 40, ..InvalidConfig::default() };
            start_with(&world, &snapshot_file, &valid_token(), GateConfig { invalid, ..GateConfig::default() })
        };
        let request_of = |key: &str, tenant: &str, guild_ids: usize| {
            let mut request = world.get_guild(&world.guilds[guild_ids]);
            request.submitter = Submitter::of(&key.into(), &tenant.into());
            request.guild = Some(world.guilds[guild_ids].guild);
            request
        };
        let gate = start();
        let id = world.fault("*", FaultAction::Status { status: 403, code: 50_001 });
        for number in 0..10 {
            assert_eq!(
                answered(gate.call(request_of("greedy", "acme", number % 2)).await).status,
                StatusCode::FORBIDDEN
            );
        }
        assert_eq!(not_sent(gate.call(request_of("greedy", "acme", 0)).await).reason, "invalid_requests_key_share");
        gate.save_snapshot().await;
        drop(gate);

        world.sim.remove_faults(Some(id));
        let gate = start();
        let refused = not_sent(gate.call(request_of("greedy", "acme", 0)).await);
        assert_eq!(refused.reason, "invalid_requests_key_share");
        assert!(refused.message.contains("key greedy has used 10 of the 10 invalid requests"), "{}", refused.message);
        assert_eq!(not_sent(gate.call(request_of("second", "acme", 0)).await).reason, "invalid_requests_tenant_share");
        assert_eq!(answered(gate.call(request_of("calm", "rival", 0)).await).status, StatusCode::OK);
    });
}
