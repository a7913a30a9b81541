//! Services next to the operation service: a gate to a fake Discord with scripted responses, fixed shards, and budgets.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use guildhall::api::{Control, GateService, GatewayServices, Services, ShardService};
use guildhall::store::Store;
use guildhall_actors::budget::{BudgetService, BudgetsHandle, SpendRecorder};
use guildhall_actors::gate::{
    ClearedRequest, Gate, GateConfig, RawResponse, Rest as _, RestRequest, SendFuture, Transport,
};
use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_actors::ports::{ShardAdmin, ShardState, ShardView, ShardsFuture};
use guildhall_actors::wall_clock::WallClock;
use guildhall_core::{
    budget::{BudgetLimits, BudgetName, Points},
    lane::Lane,
    limit::LimitConfig,
    response::{Credential, RateHeaders, ResponseClass},
};
use http::{HeaderMap, Method, StatusCode};

/// Credential of the test bot.
pub(crate) const BOT: Credential = Credential::Application(42);
/// Number of shards of the bot.
pub(crate) const SHARDS: u32 = 3;

/// Scripted responses of Discord, in order. When none is left, it responds with success.
#[derive(Clone, Default)]
struct FakeDiscord(Arc<Mutex<VecDeque<ResponseClass>>>);

impl Transport for FakeDiscord {
    fn send(&self, _: ClearedRequest) -> SendFuture<'_> {
        let class = self.0.lock().unwrap().pop_front().unwrap_or(ResponseClass::Success);
        let rate = (class == ResponseClass::Success).then(|| RateHeaders {
            bucket: "abcd1234".to_owned(),
            limit: 5,
            remaining: 4,
            reset_ms: 1_700_000_000_000,
            reset_after: Duration::from_secs(3_600),
        });
        let (headers, status) = (HeaderMap::new(), StatusCode::OK);
        let received = RawResponse {
            status,
            headers,
            body: Default::default(),
            stream: None,
            upload: Duration::ZERO,
            class,
            code: None,
            rate,
        };
        Box::pin(std::future::ready(Ok(received)))
    }
}

/// Shards of this process: the first two of three.
pub(crate) struct FakeShardAdmin {
    pub(crate) shards: Mutex<Vec<ShardView>>,
    pub(crate) restarted: Mutex<Vec<u32>>,
}

impl ShardAdmin for FakeShardAdmin {
    fn total(&self) -> u32 {
        SHARDS
    }

    fn shards(&self) -> ShardsFuture<'_> {
        Box::pin(async { self.shards.lock().unwrap().clone() })
    }

    fn restart(&self, shard: u32) -> bool {
        let is_own = self.shards.lock().unwrap().iter().any(|view| view.shard == shard);
        if is_own {
            self.restarted.lock().unwrap().push(shard);
        }
        is_own
    }
}

/// The gate, shards and budgets of an API.
pub(crate) struct ServiceFixture {
    pub(crate) gate: Arc<Gate>,
    pub(crate) shard_admin: Arc<FakeShardAdmin>,
    pub(crate) spend: SpendRecorder,
    discord: FakeDiscord,
}

impl ServiceFixture {
    /// Adds the services to the API.
    pub(crate) async fn open(control: Control, store: &Store, services: Services) -> (Self, Control) {
        let discord = FakeDiscord::default();
        // A new gate waits for a window.
        let window = Duration::from_millis(50);
        let limits = LimitConfig { window, settling: Duration::ZERO, margin: Duration::ZERO, ..LimitConfig::default() };
        let gate = Gate::start(discord.clone(), GateConfig { limits, ..GateConfig::default() }, LeaseGuard::always());
        let control = control.with_gate(GateService { gate: Arc::clone(&gate), credential: BOT });
        let shard = |shard, state, confirmed| ShardView {
            shard,
            state,
            session: Some(Arc::from("a-session")),
            sequence: 120,
            confirmed,
            latency: Some(Duration::from_millis(41)),
            resumes: 2,
            identifies: 1,
        };
        let shards = vec![shard(0, ShardState::Connected, Some(117)), shard(1, ShardState::Resuming, None)];
        let shard_admin = Arc::new(FakeShardAdmin { shards: Mutex::new(shards), restarted: Mutex::default() });
        let shards = ShardService { admin: shard_admin.clone(), sessions: Arc::new(store.clone()) };
        control.publish_gateway(GatewayServices { shards: Some(shards), ..GatewayServices::default() });
        let budgets = BudgetsHandle::start(3, Duration::from_secs(60));
        let limits = BudgetLimits { maximum: Points::whole(1_000), restore_per_second: Points::whole(50) };
        budgets.configure(&BudgetName::new("shop").unwrap(), limits).await.unwrap();
        let others = BudgetLimits { maximum: Points::whole(10), restore_per_second: Points::ZERO };
        let spend = SpendRecorder::new(Arc::new(store.clone()), "these-tests", WallClock::system());
        let budgets = Arc::new(BudgetService::new(budgets, Some(others), spend.clone()));
        control.publish(Services { budgets: Some(budgets), ..services });
        (Self { gate, shard_admin, spend, discord }, control)
    }

    /// Makes a call for a guild. Discord responds with `class`.
    pub(crate) async fn call(&self, guild: u64, class: ResponseClass) {
        self.discord.0.lock().unwrap().push_back(class);
        let mut request = RestRequest::new(Method::GET, format!("/guilds/{guild}/roles"), BOT, LeaseGuard::always());
        request.guild = Some(guild);
        request.lane = Lane::Interactive;
        request.max_wait = Duration::from_secs(30);
        let _ = self.gate.call(request).await;
        self.discord.0.lock().unwrap().clear();
    }
}
