//! Breakers and the budget of invalid requests that processes share over a real Redis. Each process of a test is a
//! separate actor with its own connection.

mod breakers;
mod ledger;
mod lender;
mod scripts;

use std::{future::Future, time::Duration};

use actix::{Actor as _, Addr};
use guildhall::redis::{RateLimitBlock, RedisClient, RedisConfig, SharedState, SharedStateConfig};
use guildhall::settings::RedisUrl;
use guildhall_actors::circuit_breaker::{
    Admit, BreakerChanged, CircuitBreaker, CircuitBreakerSnapshot, ForceOpen, ObserveCircuitBreaker, Pass,
    ResetBreaker, SubscribeBreakerChanges,
};
use guildhall_actors::clock::Clock;
use guildhall_core::{
    breaker::{BreakerConfig, BreakerKey, CallInfo, CallRejection, CallResult},
    invalid::{InvalidConfig, LedgerFallback, Submitter},
    lane::Lane,
    response::{Credential, ResponseClass},
    route::{RouteKey, TopLevelId},
};
use guildhall_testkit::redis::RedisServer;
use redis::{AsyncConnectionConfig, aio::MultiplexedConnection};
use tokio::{
    sync::{broadcast, mpsc},
    task::{LocalSet, yield_now},
    time::timeout,
};

/// A timeout that only a defect reaches; no test waits for it.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

const APPLICATION: u64 = 42;
const BOT: Credential = Credential::Application(APPLICATION);
const READ: &str = "GET /guilds/{id}/roles";

/// Key of the budget of the address group `home`.
const LEDGER: &str = "guildhall:{42}:invalid:home";
const BREAKERS: &str = "guildhall:{42}:breakers";
const NEWS: &str = "guildhall:{42}:news";

const BAN: CallResult = CallResult::Answered(ResponseClass::Blocked { retry_after: None });
const UNAUTHORIZED: CallResult = CallResult::Answered(ResponseClass::Unauthorized);
const FORBIDDEN: CallResult = CallResult::Answered(ResponseClass::Forbidden);
const SUCCESS: CallResult = CallResult::Answered(ResponseClass::Success);

/// Runs a test: its actors in one local task set, connections and tasks on any thread.
fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

/// Waits for something that must happen.
async fn with_timeout<T>(future: impl Future<Output = T>) -> T {
    timeout(TEST_TIMEOUT, future).await.expect("timed out")
}

/// Polls until the condition holds.
async fn wait_until<F: Future<Output = bool>>(condition: impl Fn() -> F) {
    with_timeout(async {
        while !condition().await {
            yield_now().await;
        }
    })
    .await;
}

/// Configuration of a process.
#[derive(Clone)]
struct ProcessConfig {
    url: RedisUrl,
    name: &'static str,
    token: &'static str,
    ip_group: &'static str,
    cooldown: Duration,
    limit: u32,
    heartbeat: Duration,
}

impl ProcessConfig {
    fn new(url: RedisUrl, name: &'static str) -> Self {
        Self {
            url,
            name,
            token: "token",
            ip_group: "home",
            cooldown: Duration::from_secs(600),
            limit: 10_000,
            heartbeat: Duration::from_millis(100),
        }
    }

    fn start(self) -> Process {
        let Self { url, name, token, ip_group, cooldown, limit, heartbeat } = self;
        let redis = RedisClient::new(RedisConfig { url, ca_file: None, timeout: Duration::from_millis(250) }).unwrap();
        let breakers =
            BreakerConfig { cooldown, max_cooldown: cooldown, jitter_percent: 0, ..BreakerConfig::default() };
        let invalid = InvalidConfig { limit, ..InvalidConfig::default() };
        let breaker = CircuitBreaker::new(Clock::start(), breakers, invalid, 1).start();
        let (block_sender, blocks) = mpsc::unbounded_channel();
        let config = SharedStateConfig {
            application: APPLICATION,
            process: name.to_owned(),
            ip_group: ip_group.to_owned(),
            tokens: vec![(BOT, token.to_owned())],
            invalid,
            fallback: LedgerFallback::Stop,
            heartbeat,
        };
        let state = SharedState::start(redis, breaker.clone(), config, move |block| block_sender.send(block).unwrap());
        Process { breaker, state, blocks }
    }
}

struct Process {
    breaker: Addr<CircuitBreaker>,
    state: SharedState,
    blocks: mpsc::UnboundedReceiver<RateLimitBlock>,
}

impl Process {
    /// Starts a process, and waits until it has been lent more than a new lender lends.
    async fn ready(spec: ProcessConfig, server: &RedisServer) -> Self {
        let initial_allowance = u64::from(spec.limit) / 40;
        let process = spec.start();
        let client = client(server).await;
        wait_until(async || {
            age_lender(&mut client.clone()).await;
            process.lent().await > initial_allowance
        })
        .await;
        process
    }

    async fn admit(&self, call: CallInfo) -> Result<Pass, CallRejection> {
        self.breaker.send(Admit(call)).await.unwrap()
    }

    async fn run(&self, call: CallInfo, result: CallResult) {
        let pass = self.admit(call).await.unwrap();
        pass.report(result, Duration::ZERO).attempt().await;
    }

    /// Reason for which calls are refused, if they are.
    async fn refusal(&self) -> Option<&'static str> {
        self.admit(call(1)).await.err().map(|refused| refused.reason)
    }

    async fn observe(&self) -> CircuitBreakerSnapshot {
        self.breaker.send(ObserveCircuitBreaker).await.unwrap()
    }

    async fn lent(&self) -> u64 {
        self.observe().await.invalid_requests.shared.unwrap().lent
    }

    async fn state_of(&self, key: &BreakerKey) -> &'static str {
        let snapshot = self.observe().await.breakers.breakers;
        snapshot.iter().find(|snapshot| snapshot.key == *key).map_or("closed", |snapshot| snapshot.state)
    }

    async fn force(&self, key: &BreakerKey) {
        self.breaker.send(ForceOpen(key.clone())).await.unwrap().unwrap();
    }

    async fn reset(&self, key: &BreakerKey) {
        self.breaker.send(ResetBreaker(key.clone())).await.unwrap();
    }

    async fn changes(&self) -> broadcast::Receiver<BreakerChanged> {
        self.breaker.send(SubscribeBreakerChanges).await.unwrap()
    }

    /// Waits until a breaker is in the state with this name.
    async fn until_state(&self, key: &BreakerKey, state: &str) {
        wait_until(async || self.state_of(key).await == state).await;
    }
}

/// Waits for the next change of a breaker to the state with this name.
async fn next_change(
    changes: &mut broadcast::Receiver<BreakerChanged>,
    key: &BreakerKey,
    state: &str,
) -> BreakerChanged {
    with_timeout(async {
        loop {
            let change = changes.recv().await.unwrap();
            if change.key == *key && change.to.name() == state {
                return change;
            }
        }
    })
    .await
}

fn call(id: u64) -> CallInfo {
    CallInfo {
        credential: BOT,
        route: RouteKey::new(READ),
        major: TopLevelId::of(id),
        lane: Lane::Interactive,
        guild: None,
        submitter: Submitter::default(),
        may_probe: true,
    }
}

fn target(name: &str) -> BreakerKey {
    BreakerKey::Target(name.to_owned())
}

/// A connection without response timeout.
async fn client(server: &RedisServer) -> MultiplexedConnection {
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
    server.client().get_multiplexed_async_connection_with_config(&config).await.unwrap()
}

/// Makes a lender that has just started appear older, so that it lends at once.
async fn age_lender(client: &mut MultiplexedConnection) {
    let script = redis::Script::new(
        "if redis.call('HEXISTS', KEYS[1], 'born') == 1 then
            redis.call('HSET', KEYS[1], 'born', redis.call('TIME')[1] * 1000 - 5000)
        end",
    );
    let () = script.key(LEDGER).invoke_async(client).await.unwrap();
}
