//! A gate that is dropped and one that starts after it: the second keeps the blocks that the first has received.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "support/gate.rs"]
mod gate;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gate::{STUCK, World, answered, changes, not_sent, run, until};
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
use http::StatusCode;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

const CREATE_ROLE: &str = "POST /guilds/{guild.id}/roles";

const HOUR: Duration = Duration::from_secs(3_600);

/// A snapshot file, and the snapshots that were written to it.
struct Notebook {
    path: PathBuf,
    written: watch::Sender<GateSnapshot>,
    _folder: TempDir,
}

impl Notebook {
    fn new() -> Arc<Self> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memory.json");
        Arc::new(Self { path, written: watch::Sender::default(), _folder: folder })
    }

    /// Waits until a snapshot is written for which this holds.
    async fn holds(&self, enough: impl Fn(&GateSnapshot) -> bool) {
        let mut written = self.written.subscribe();
        let held = timeout(STUCK, written.wait_for(enough)).await;
        held.expect("no such snapshot was written").unwrap();
    }
}

impl SnapshotStore for Notebook {
    fn recall(&self) -> SnapshotFuture<'_, Option<String>> {
        Box::pin(async { Ok(std::fs::read_to_string(&self.path).ok()) })
    }

    fn keep(&self, text: String) -> SnapshotFuture<'_, ()> {
        Box::pin(async move {
            std::fs::write(&self.path, &text).map_err(|error| SnapshotError(error.to_string()))?;
            self.written.send_replace(GateSnapshot::decode(&text).unwrap());
            Ok(())
        })
    }
}

/// A gate with this token that restores the stored snapshot.
fn start(world: &World, notebook: &Arc<Notebook>, token: &str, breakers: BreakerConfig) -> Arc<Gate> {
    start_with(world, notebook, token, GateConfig { breakers, ..GateConfig::default() })
}

fn start_with(world: &World, notebook: &Arc<Notebook>, token: &str, config: GateConfig) -> Arc<Gate> {
    let token = SecretValue::new(token);
    let memory: Arc<dyn SnapshotStore> = notebook.clone();
    let memory = SnapshotConfig {
        later: Duration::from_millis(50),
        soon: Duration::from_millis(50),
        ..SnapshotConfig::new(memory, vec![(world.bot, fingerprint(&token))])
    };
    let transport = HyperTransport::new(TransportConfig {
        api_url: world.sim.api_url(),
        token,
        connect_timeout: Duration::from_secs(5),
        request_timeout: Duration::from_secs(15),
        max_response_bytes: 4 << 20,
        pool_idle: Duration::from_secs(60),
        traceparent: false,
    })
    .unwrap();
    Gate::start(transport, GateConfig { memory: Some(memory), ..config }, LeaseGuard::always())
}

fn right_token() -> String {
    BotConfig::default().token
}

/// The same gate as before, with default breakers.
fn restart(world: &World, notebook: &Arc<Notebook>) -> Arc<Gate> {
    start(world, notebook, &right_token(), BreakerConfig::default())
}

fn patient(mut request: RestRequest, max_wait: Duration) -> RestRequest {
    request.max_wait = max_wait;
    request
}

#[test]
fn nothing_is_sent_under_a_global_block_that_an_earlier_life_was_told_of() {
    run(async {
        let world = World::unlimited(1).await;
        let notebook = Notebook::new();
        let place = &world.places[0];
        let gate = restart(&world, &notebook);
        let block = |retry_after_ms| FaultAction::RateLimit { scope: Scope::Global, retry_after_ms };
        world.fault_once("GET /guilds/*", block(600_000));
        assert_eq!(answered(gate.call(world.get_guild(place)).await).status, StatusCode::TOO_MANY_REQUESTS);
        notebook.holds(|memory| memory.limits.closed() == 1).await;
        drop(gate);
        for _ in 0..2 {
            let before = world.arrived();
            let gate = restart(&world, &notebook);
            for request in [world.get_guild(place), world.get_channel(place), world.create_role(place, "a")] {
                let refused = not_sent(gate.call(request).await);
                assert_eq!(refused.reason, "global_limit");
                assert!(refused.retry_after.unwrap() > Duration::from_secs(500), "{refused:?}");
            }
            assert_eq!(world.arrived(), before);
        }
    });
}

#[test]
fn a_global_block_ends_when_it_would_have_without_a_restart() {
    run(async {
        let world = World::unlimited(1).await;
        let notebook = Notebook::new();
        let place = &world.places[0];
        let gate = restart(&world, &notebook);
        world.fault_once("GET /guilds/*", FaultAction::RateLimit { scope: Scope::Global, retry_after_ms: 4_000 });
        answered(gate.call(world.get_guild(place)).await);
        // A lower bound: the response came a little earlier.
        let began = Instant::now();
        notebook.holds(|memory| memory.limits.closed() == 1).await;
        drop(gate);
        let gate = restart(&world, &notebook);
        let outcome = gate.call(patient(world.get_guild(place), STUCK)).await;
        assert_eq!(answered(outcome).status, StatusCode::OK);
        assert!(began.elapsed() > Duration::from_millis(3_500), "{:?}", began.elapsed());
    });
}

#[test]
fn a_wrong_token_is_not_tried_again_and_a_new_one_is() {
    run(async {
        let world = World::unlimited(1).await;
        let notebook = Notebook::new();
        let place = &world.places[0];
        let wrong = || start(&world, &notebook, "MTIz.not.right", BreakerConfig::default());
        let gate = wrong();
        assert_eq!(answered(gate.call(world.get_guild(place)).await).status, StatusCode::UNAUTHORIZED);
        notebook.holds(|memory| memory.breakers.len() == 1).await;
        drop(gate);
        let before = world.arrived();
        for _ in 0..2 {
            let refused = not_sent(wrong().call(world.get_guild(place)).await);
            assert_eq!((refused.reason, refused.retry_after), ("unauthorized", None));
        }
        assert_eq!(world.arrived(), before);
        let text = std::fs::read_to_string(&notebook.path).unwrap();
        assert!(!text.contains("not.right"), "{text}");
        let gate = restart(&world, &notebook);
        assert_eq!(answered(gate.call(world.get_guild(place)).await).status, StatusCode::OK);
        notebook.holds(|memory| memory.breakers.is_empty()).await;
    });
}

#[test]
fn a_ban_is_waited_out_over_a_restart_and_then_probed() {
    run(async {
        let world = World::unlimited(1).await;
        let notebook = Notebook::new();
        let place = &world.places[0];
        let breakers = BreakerConfig { probe_after: Duration::from_millis(50), ..BreakerConfig::default() };
        let gate = start(&world, &notebook, &right_token(), breakers);
        let action = FaultAction::Cloudflare { form: CloudflareForm::Html, retry_after_ms: Some(6_000) };
        world.fault_once("GET /guilds/*", action);
        answered(gate.call(world.get_guild(place)).await);
        notebook.holds(|memory| memory.breakers.len() == 1).await;
        drop(gate);
        let before = world.arrived();
        let gate = start(&world, &notebook, &right_token(), breakers);
        let mut events = changes(&gate).await;
        let refused = not_sent(gate.call(world.create_role(place, "a")).await);
        assert_eq!(refused.reason, "blocked");
        until(&mut events, &BreakerKey::Address, "half_open").await;
        assert_eq!(world.arrived(), before, "nothing before the ban ends");
        until(&mut events, &BreakerKey::Address, "closed").await;
        assert_eq!(world.arrived_at(CREATE_ROLE), 0, "a create is not a probe");
        assert_eq!(answered(gate.call(world.create_role(place, "b")).await).status, StatusCode::OK);
        notebook.holds(|memory| memory.breakers.is_empty()).await;
    });
}

#[test]
fn a_bucket_that_is_empty_for_a_day_is_not_asked_again_and_all_others_are() {
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
        let world = World::start(2, limits).await;
        let notebook = Notebook::new();
        let (full, other) = (&world.places[0], &world.places[1]);
        let gate = restart(&world, &notebook);
        for name in ["a", "b"] {
            assert_eq!(answered(gate.call(world.create_role(full, name)).await).status, StatusCode::OK);
        }
        notebook.holds(|memory| memory.limits.closed() > 0 && memory.limits.routes() > 0).await;
        drop(gate);
        for restarts in 0..2 {
            let gate = restart(&world, &notebook);
            let refused = not_sent(gate.call(world.create_role(full, "c")).await);
            assert_eq!(refused.reason, "route_limit");
            assert!(refused.retry_after.unwrap() > 27 * HOUR, "{refused:?}");
            assert_eq!(answered(gate.call(world.get_guild(full)).await).status, StatusCode::OK);
            let created = gate.call(world.create_role(other, &format!("{restarts}"))).await;
            assert_eq!(answered(created).status, StatusCode::OK, "another guild has its own bucket");
            gate.remember().await;
        }
        // The usage of the other guild's bucket is not stored, but its exhaustion was reported.
        let gate = restart(&world, &notebook);
        assert_eq!(not_sent(gate.call(world.create_role(other, "c")).await).reason, "route_limit");
        let score = world.score();
        assert_eq!((score.rate_limited.user, score.rate_limited.global), (0, 0));
    });
}

#[test]
fn restart_does_not_reset_the_share_of_a_key() {
    run(async {
        let world = World::unlimited(2).await;
        let notebook = Notebook::new();
        let start = || {
            let invalid = InvalidConfig { limit: 40, ..InvalidConfig::default() };
            start_with(&world, &notebook, &right_token(), GateConfig { invalid, ..GateConfig::default() })
        };
        let of = |key: &str, tenant: &str, place: usize| {
            let mut request = world.get_guild(&world.places[place]);
            request.submitter = Submitter::of(&key.into(), &tenant.into());
            request.guild = Some(world.places[place].guild);
            request
        };
        let gate = start();
        let id = world.fault("*", FaultAction::Status { status: 403, code: 50_001 });
        for number in 0..10 {
            assert_eq!(answered(gate.call(of("greedy", "acme", number % 2)).await).status, StatusCode::FORBIDDEN);
        }
        assert_eq!(not_sent(gate.call(of("greedy", "acme", 0)).await).reason, "invalid_requests_key_share");
        gate.remember().await;
        drop(gate);

        world.sim.remove_faults(Some(id));
        let gate = start();
        let refused = not_sent(gate.call(of("greedy", "acme", 0)).await);
        assert_eq!(refused.reason, "invalid_requests_key_share");
        assert!(refused.why.contains("key greedy has used 10 of the 10 invalid requests"), "{}", refused.why);
        assert_eq!(not_sent(gate.call(of("second", "acme", 0)).await).reason, "invalid_requests_tenant_share");
        assert_eq!(answered(gate.call(of("calm", "rival", 0)).await).status, StatusCode::OK);
    });
}
