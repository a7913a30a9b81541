//! Support for tests of the gate: a simulator that checks, a gate in front of it, and requests to send through it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use guildhall::discord::rest::{HyperTransport, TransportConfig};
use guildhall::settings::SecretValue;
use guildhall_actors::circuit_breaker::{BreakerChanged, SubscribeBreakerChanges};
use guildhall_actors::gate::{
    CallOutcome, Gate, GateConfig, NotSent, RequestBody, Rest as _, RestRequest, RestResponse,
};
use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_core::breaker::{BreakerKey, BreakerState};
use guildhall_core::response::Credential;
use guildhall_sim::{
    BotConfig, Fault, FaultAction, JoinSpec, LimitConfig, Score, Sim, SimConfig, SimHandle, Snowflake,
};
use http::{HeaderValue, Method, header};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::broadcast;
use tokio::task::LocalSet;
use tokio::time::timeout;

/// A timeout that only a defect reaches; no test waits for it.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a test: the simulator on its own threads, the gate's actors on the test's thread.
pub fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

/// Ids of a guild of the simulator and of objects in it.
#[derive(Clone, Debug)]
pub struct GuildIds {
    pub guild: u64,
    pub channel: u64,
    /// The bot's own role, which cannot be given to a member: requests with it count, get a 400, and change nothing.
    pub role: u64,
    pub member: u64,
}

/// A simulator with its guilds.
pub struct SimWorld {
    pub sim: SimHandle,
    pub bot: Credential,
    pub guilds: Vec<GuildIds>,
}

impl SimWorld {
    /// Starts a simulated Discord with these limits and so many guilds.
    pub async fn start(guilds: u32, limits: LimitConfig) -> Self {
        let sim = Sim::start(SimConfig { guilds, limits, members: 1, channels: 1, ..SimConfig::default() });
        let sim = sim.await.unwrap();
        let bot = Credential::Application(sim.application(&BotConfig::default().token).unwrap().get());
        let mut world = Self { sim, bot, guilds: Vec::new() };
        world.refresh_guilds().await;
        world
    }

    /// Starts a simulated Discord without limits.
    pub async fn unlimited(guilds: u32) -> Self {
        Self::start(guilds, LimitConfig::off()).await
    }

    /// Loads all guilds, including those created since the last call.
    pub async fn refresh_guilds(&mut self) {
        let state = get_json(&self.sim, "/sim/state").await;
        self.guilds.clear();
        for guild in state["guilds"].as_array().unwrap() {
            let id = parse_id(&guild["id"]);
            let joined = self.sim.join(Snowflake::new(id), JoinSpec::default()).await.unwrap();
            self.guilds.push(GuildIds {
                guild: id,
                channel: parse_id(&guild["channels"][0]["id"]),
                role: guild["roles"].as_array().unwrap().iter().map(|role| parse_id(&role["id"])).max().unwrap(),
                member: joined.id.unwrap().get(),
            });
        }
    }

    pub fn transport(&self) -> HyperTransport {
        transport(self.sim.api_url(), Duration::from_secs(15))
    }

    pub fn gate(&self, config: GateConfig) -> Arc<Gate> {
        Gate::start(self.transport(), config, LeaseGuard::always())
    }

    pub fn score(&self) -> Score {
        self.sim.score()
    }

    /// Requests that arrived, including probes of the gate.
    pub fn arrived(&self) -> u64 {
        self.score().requests
    }

    /// Requests that arrived at a route, given by the simulator's name for it.
    pub fn arrived_at(&self, route: &str) -> u64 {
        self.score().routes.get(route).map_or(0, |route| route.requests)
    }

    /// The maximum number of arrivals in any second.
    pub fn max_per_second(&self) -> u32 {
        self.score().max_per_second.values().copied().max().unwrap_or(0)
    }

    pub fn fault(&self, route: &str, action: FaultAction) -> u64 {
        self.faults(route, action, 1.0, None)
    }

    pub fn fault_once(&self, route: &str, action: FaultAction) -> u64 {
        self.faults(route, action, 1.0, Some(1))
    }

    pub fn faults(&self, route: &str, action: FaultAction, probability: f64, count: Option<u64>) -> u64 {
        self.sim.add_fault(Fault { route: route.into(), action, probability, count, skip: 0 }).unwrap()
    }

    pub fn request(&self, method: Method, path: String) -> RestRequest {
        RestRequest::new(method, path, self.bot, LeaseGuard::always())
    }

    /// A request with a JSON body.
    pub fn json_request(&self, method: Method, path: String, body: &Value) -> RestRequest {
        let mut request = self.request(method, path);
        request.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        request.body = RequestBody::Whole(Bytes::from(body.to_string()));
        request
    }

    pub fn get_guild(&self, ids: &GuildIds) -> RestRequest {
        self.request(Method::GET, format!("/guilds/{}", ids.guild))
    }

    pub fn get_channel(&self, ids: &GuildIds) -> RestRequest {
        self.request(Method::GET, format!("/channels/{}", ids.channel))
    }

    pub fn create_role(&self, ids: &GuildIds, name: &str) -> RestRequest {
        self.json_request(Method::POST, format!("/guilds/{}/roles", ids.guild), &serde_json::json!({ "name": name }))
    }

    pub fn member_role(&self, method: Method, ids: &GuildIds) -> RestRequest {
        self.request(method, format!("/guilds/{}/members/{}/roles/{}", ids.guild, ids.member, ids.role))
    }

    pub fn message(&self, ids: &GuildIds, content: &str) -> RestRequest {
        let body = serde_json::json!({ "content": content });
        self.json_request(Method::POST, format!("/channels/{}/messages", ids.channel), &body)
    }
}

/// A transport to the API at this URL.
pub fn transport(api_url: String, request_timeout: Duration) -> HyperTransport {
    HyperTransport::new(TransportConfig {
        api_url,
        token: SecretValue::new(BotConfig::default().token),
        connect_timeout: Duration::from_secs(5),
        request_timeout,
        max_response_bytes: 4 << 20,
        pool_idle: Duration::from_secs(60),
        traceparent: false,
        http2: false,
    })
    .unwrap()
}

/// Sends requests concurrently and returns their outcomes in the same order.
pub async fn call_all(gate: &Gate, requests: impl IntoIterator<Item = RestRequest>) -> Vec<CallOutcome> {
    join_all(requests.into_iter().map(|request| gate.call(request))).await
}

/// The response; fails the test if there is none.
pub fn answered(outcome: CallOutcome) -> RestResponse {
    match outcome {
        CallOutcome::Answered(response) => response,
        other => panic!("expected a response, got {other:?}"),
    }
}

/// The reason why a request was not sent; fails the test if it was sent.
pub fn not_sent(outcome: CallOutcome) -> NotSent {
    match outcome {
        CallOutcome::NotSent(not_sent) => not_sent,
        other => panic!("expected a request that was not sent, got {other:?}"),
    }
}

/// Subscribes to all changes of all breakers.
pub async fn breaker_changes(gate: &Gate) -> broadcast::Receiver<BreakerChanged> {
    gate.breaker().send(SubscribeBreakerChanges).await.unwrap()
}

/// Waits until the breaker of a key is in this state.
pub async fn wait_for_breaker(
    changes: &mut broadcast::Receiver<BreakerChanged>,
    key: &BreakerKey,
    state: &str,
) -> BreakerState {
    let wait = async {
        loop {
            let change = changes.recv().await.unwrap();
            if change.key == *key && change.to.name() == state {
                return change.to;
            }
        }
    };
    timeout(TEST_TIMEOUT, wait).await.unwrap_or_else(|_| panic!("{key} never became {state}"))
}

async fn get_json(sim: &SimHandle, path: &str) -> Value {
    let mut stream = TcpStream::connect(sim.address()).await.unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nHost: sim\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    let (_, body) = response.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap()
}

fn parse_id(id: &Value) -> u64 {
    id.as_str().unwrap().parse().unwrap()
}
