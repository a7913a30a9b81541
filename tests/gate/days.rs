//! Three virtual days of the gate, with its actors, in front of the simulator's limits and bans: Discord refuses, blocks,
//! breaks and stalls, the gate is killed and started again, and nothing but an injected fault ever brings a 429.
//!
//! Time is paused, so three days take seconds.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use guildhall::discord::rest::classify;
use guildhall_actors::circuit_breaker::TokenChanged;
use guildhall_actors::gate::{
    CallOutcome, ClearedRequest, Gate, GateConfig, RawResponse, RequestBody, Rest as _, RestRequest, SendFuture,
    Transport, TransportError,
};
use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_actors::ports::{SnapshotFuture, SnapshotStore};
use guildhall_actors::snapshot::SnapshotConfig;
use guildhall_actors::wall_clock::WallClock;
use guildhall_core::invalid::{InvalidConfig, Submitter};
use guildhall_core::lane::Lane;
use guildhall_core::response::Credential;
use guildhall_core::route::SublimitKind;
use guildhall_core::time::UnixMs;
use guildhall_sim::{At, BotConfig, CloudflareForm, Fault, FaultAction, OfflineSim, Scope, SimConfig};
use http::{HeaderMap, Method, Request, header};
use http_body_util::BodyExt as _;
use tokio::sync::watch;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep, sleep_until};

/// Address of the gate, by which invalid requests are counted.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// When the first day begins, by Discord's clock.
const EPOCH: At = At::from_micros(1_700_000_000_000_000);

const HOUR: Duration = Duration::from_secs(3_600);
const MINUTE: Duration = Duration::from_secs(60);

const GUILDS: u32 = 40;

/// Bots, tasks and users that make one call at a time.
const CLIENTS: usize = 64;

/// API keys that half of the clients use; the others are the operator's own.
const KEYS: usize = 8;

/// The client that changes the topics of channels, one after the other.
const TOPIC_CLIENT: usize = 0;

/// Time between two changes of topics.
const TOPIC_PAUSE: Duration = Duration::from_secs(3);

/// Prefix of the tokens of interactions.
const INTERACTION_TOKEN: &str = "aW50ZXJhY3Rpb246";

/// Transport's timeout.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// What happens for a while in each hour.
#[derive(Clone, Copy, Debug)]
enum Episode {
    /// More calls than the limit permits.
    Rush,
    /// A rush during which the gate is killed several times.
    Killed,
    /// Nearly every call is refused with 403, for longer than the window of a ban.
    Forbidden,
    /// The same, and the gate is killed several times.
    ForbiddenAndKilled,
    /// Every call to a webhook is refused with 401.
    DeadWebhooks,
    /// The bot token is invalid; then it is replaced.
    TokenRefused,
    /// Cloudflare's page, which names no time.
    CloudflarePage,
    /// Cloudflare's JSON, which does.
    CloudflareJson,
    /// 429s of every scope that no limit of the simulator caused.
    RateLimits,
    /// Errors, and connections that are cut before and after the effect of a call.
    Outage,
    Unreachable,
    /// Calls and responses that take seconds.
    Slow,
}

/// One for each hour, in turn, but for the hours of storms.
const EPISODES: [Episode; 10] = [
    Episode::Rush,
    Episode::TokenRefused,
    Episode::Slow,
    Episode::Killed,
    Episode::CloudflareJson,
    Episode::DeadWebhooks,
    Episode::RateLimits,
    Episode::Outage,
    Episode::Unreachable,
    Episode::CloudflarePage,
];

/// What happens in an hour. Storms take most of the time of the test, so they are few.
fn episode_of(hour: usize) -> Episode {
    match hour {
        8 => Episode::Forbidden,
        44 => Episode::ForbiddenAndKilled,
        _ => EPISODES[hour % EPISODES.len()],
    }
}

/// How the path to Discord behaves.
#[derive(Clone, Copy, Debug)]
enum Network {
    Normal,
    Slow,
    Unreachable,
}

/// How much the clients want.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Demand {
    /// A call every few minutes from each.
    Calm,
    /// As much as possible.
    Rush,
}

/// Discord, and the path to it.
struct Discord {
    sim: OfflineSim,
    application: u64,
    started: Instant,
    network: Mutex<Network>,
    rng: Mutex<Rng>,
    /// Responses by class.
    received: Mutex<BTreeMap<&'static str, u64>>,
}

/// The transport of one gate. The requests of a dead one that were sent before still arrive.
struct Link {
    discord: Arc<Discord>,
    is_alive: Arc<AtomicBool>,
}

impl Transport for Link {
    fn send(&self, call: ClearedRequest) -> SendFuture<'_> {
        Box::pin(async move {
            if !self.is_alive.load(Ordering::Relaxed) {
                return Err(TransportError::Connect("the process has ended".to_owned()));
            }
            self.discord.exchange(call.into_request()).await
        })
    }
}

impl Discord {
    fn new(seed: u64) -> Arc<Self> {
        // Effects are not checked here, and would only use memory.
        let config =
            SimConfig { seed, guilds: GUILDS, members: 1, channels: 1, max_effects: 0, ..SimConfig::default() };
        let sim = OfflineSim::new(config, EPOCH);
        let application = sim.application(&BotConfig::default().token).unwrap().get();
        Arc::new(Self {
            sim,
            application,
            started: Instant::now(),
            network: Mutex::new(Network::Normal),
            rng: Mutex::new(Rng::with_seed(seed)),
            received: Mutex::default(),
        })
    }

    fn now(&self) -> At {
        EPOCH.after(self.started.elapsed())
    }

    fn credential(&self) -> Credential {
        Credential::Application(self.application)
    }

    /// Time until a request arrives, and until its response does.
    fn latency(&self, network: Network) -> (Duration, Duration) {
        let mut rng = self.rng.lock().unwrap();
        let mut up_to = |ms: u64| Duration::from_millis(rng.u64(5..=ms));
        match network {
            Network::Normal | Network::Unreachable => (up_to(300), up_to(300)),
            // One in ten takes much longer, and some of the responses come too late.
            Network::Slow => {
                let (is_stalled, is_late) = (up_to(100).as_millis() > 90, up_to(100).as_millis() > 90);
                (up_to(if is_stalled { 6_000 } else { 400 }), up_to(if is_late { 20_000 } else { 400 }))
            }
        }
    }

    async fn exchange(&self, request: RestRequest) -> Result<RawResponse, TransportError> {
        let network = *self.network.lock().unwrap();
        let (there, back) = self.latency(network);
        if let Network::Unreachable = network {
            sleep(there).await;
            return Err(TransportError::Connect("no route to host".to_owned()));
        }
        let credential = request.credential;
        let arriving = http_request(request);
        sleep(there).await;
        let response = self.sim.respond(ADDRESS, arriving, self.now());
        if there + back > REQUEST_TIMEOUT {
            sleep(REQUEST_TIMEOUT - there).await;
            return Err(TransportError::TimedOut);
        }
        sleep(back).await;
        let response = response.ok_or_else(|| TransportError::Broken("connection reset".to_owned()))?;
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let found = classify(credential, head.status, &head.headers, &body);
        *self.received.lock().unwrap().entry(found.class.name()).or_default() += 1;
        Ok(RawResponse {
            status: head.status,
            headers: head.headers,
            body,
            stream: None,
            upload: Duration::ZERO,
            class: found.class,
            code: found.code,
            rate: found.rate,
        })
    }

    fn received(&self, class: &str) -> u64 {
        self.received.lock().unwrap().get(class).copied().unwrap_or(0)
    }

    fn fault(&self, route: &str, action: FaultAction, probability: f64, count: Option<u64>) {
        self.sim.add_fault(Fault { route: route.into(), action, probability, count, skip: 0 }).unwrap();
    }

    fn set_network(&self, network: Network) {
        *self.network.lock().unwrap() = network;
    }

    /// Ends all faults.
    fn heal(&self) {
        self.sim.remove_faults(None);
        self.set_network(Network::Normal);
    }
}

/// The request as the transport of the daemon sends it.
fn http_request(request: RestRequest) -> Request<Bytes> {
    let RestRequest { method, path, headers, body, credential, .. } = request;
    let body = match body {
        RequestBody::Whole(body) => body,
        RequestBody::Empty => Bytes::new(),
        RequestBody::Stream(_) => panic!("no client streams a body"),
    };
    let mut out = Request::new(body);
    (*out.method_mut(), *out.headers_mut()) = (method, headers);
    *out.uri_mut() = format!("/api/v10{path}").parse().unwrap();
    out.headers_mut().insert(header::USER_AGENT, "DiscordBot (https://example.invalid, 1)".parse().unwrap());
    if credential != Credential::Anonymous {
        let token = format!("Bot {}", BotConfig::default().token);
        out.headers_mut().insert(header::AUTHORIZATION, token.parse().unwrap());
    }
    out
}

/// What a gate has saved. Only the gate that is alive can save.
struct MemoryStore {
    text: Arc<Mutex<Option<String>>>,
    is_alive: Arc<AtomicBool>,
}

impl SnapshotStore for MemoryStore {
    fn load(&self) -> SnapshotFuture<'_, Option<String>> {
        Box::pin(async { Ok(self.text.lock().unwrap().clone()) })
    }

    fn save(&self, text: String) -> SnapshotFuture<'_, ()> {
        Box::pin(async move {
            if self.is_alive.load(Ordering::Relaxed) {
                *self.text.lock().unwrap() = Some(text);
            }
            Ok(())
        })
    }
}

/// The gate, the clients, and Discord.
struct World {
    discord: Arc<Discord>,
    config: GateConfig,
    wall: WallClock,
    saved: Arc<Mutex<Option<String>>>,
    is_alive: Mutex<Arc<AtomicBool>>,
    gate: watch::Sender<Option<Arc<Gate>>>,
    demand: watch::Sender<Demand>,
    guilds: Vec<u64>,
    /// No topic is changed while the gate is killed again and again: a gate stores changes within a second, and its
    /// successor assumes one that is not stored for each channel, not one for each of its predecessors.
    is_killing: AtomicBool,
    /// Reasons for which calls were not sent.
    refused: Mutex<HashSet<&'static str>>,
}

impl World {
    fn start(seed: u64, config: GateConfig) -> Arc<Self> {
        let discord = Discord::new(seed);
        let world = Arc::new(Self {
            guilds: discord.sim.guilds().into_iter().map(guildhall_sim::Snowflake::get).collect(),
            discord,
            config,
            wall: WallClock::anchored(UnixMs::new(EPOCH.millis())),
            saved: Arc::default(),
            is_alive: Mutex::default(),
            gate: watch::Sender::new(None),
            demand: watch::Sender::new(Demand::Calm),
            is_killing: AtomicBool::default(),
            refused: Mutex::default(),
        });
        world.restart_gate();
        for number in 0..CLIENTS {
            drop(tokio::task::spawn_local(Arc::clone(&world).run_client(number, seed)));
        }
        world
    }

    /// Kills the gate, if there is one, and starts one at once.
    fn restart_gate(&self) {
        let is_alive = Arc::new(AtomicBool::new(true));
        std::mem::replace(&mut *self.is_alive.lock().unwrap(), Arc::clone(&is_alive)).store(false, Ordering::Relaxed);
        let store = Arc::new(MemoryStore { text: Arc::clone(&self.saved), is_alive: Arc::clone(&is_alive) });
        let tokens = vec![(self.discord.credential(), "fingerprint".to_owned())];
        let snapshot = SnapshotConfig { wall: self.wall.clone(), ..SnapshotConfig::new(store, tokens) };
        let link = Link { discord: Arc::clone(&self.discord), is_alive };
        let config = GateConfig { snapshot: Some(snapshot), ..self.config.clone() };
        self.gate.send_replace(Some(Gate::start(link, config, LeaseGuard::always())));
    }

    fn gate(&self) -> Arc<Gate> {
        self.gate.borrow().clone().unwrap()
    }

    /// A call of one client.
    fn request(&self, rng: &mut Rng, client: usize) -> RestRequest {
        let application = self.discord.application;
        // Every other call goes to one of four busy guilds, so that their buckets become empty. The sim's first channel
        // of a guild has an id of its own, but a bucket of a channel that does not exist counts like any other.
        let busy = if rng.bool() { 4 } else { self.guilds.len() };
        let guild = self.guilds[rng.usize(..busy)];
        let (channel, member, role) = (guild + 1, guild + 2, guild + 3);
        let bot = self.discord.credential();
        let (method, path, credential) = match rng.u8(..24) {
            _ if client == TOPIC_CLIENT => (Method::PATCH, format!("/channels/{channel}"), bot),
            0 | 1 => (Method::GET, format!("/channels/{channel}"), bot),
            2 | 3 => (Method::GET, format!("/guilds/{guild}"), bot),
            4 | 5 => (Method::GET, format!("/guilds/{guild}/roles"), bot),
            6 | 7 => (Method::GET, format!("/channels/{channel}/messages"), bot),
            8 | 9 => (Method::GET, format!("/guilds/{guild}/members/{member}"), bot),
            10 | 11 => (Method::PUT, format!("/guilds/{guild}/members/{member}/roles/{role}"), bot),
            12 | 13 => (Method::DELETE, format!("/guilds/{guild}/members/{member}/roles/{role}"), bot),
            14 | 15 => (Method::DELETE, format!("/guilds/{guild}/roles/{role}"), bot),
            16 => (Method::GET, "/users/@me".to_owned(), bot),
            17 | 18 => {
                let token = format!("{INTERACTION_TOKEN}{}", rng.u8(..50));
                (Method::POST, format!("/webhooks/{application}/{token}"), Credential::Anonymous)
            }
            _ => (Method::POST, format!("/channels/{channel}/typing"), bot),
        };
        let mut request = RestRequest::new(method, path, credential, LeaseGuard::always());
        if request.method == Method::PATCH {
            request.sub = Some(SublimitKind::ChannelName);
            request.body = RequestBody::Whole(Bytes::from_static(b"{\"topic\":\"news\"}"));
            request.headers =
                HeaderMap::from_iter([(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"))]);
        }
        request.lane = *rng.choice(&[Lane::Interactive, Lane::Operation, Lane::Operation, Lane::Background]).unwrap();
        request.max_wait = Duration::from_millis(rng.u64(..10_000));
        if client.is_multiple_of(2) {
            request.submitter = Submitter::of(&format!("key {}", client / 2 % KEYS).into(), &"acme".into());
            request.guild = Some(guild);
        }
        request
    }

    /// Makes one call after the other. A call of a gate that is killed is given up.
    async fn run_client(self: Arc<Self>, number: usize, seed: u64) {
        let mut rng = Rng::with_seed(seed ^ (number as u64) << 32);
        let (mut gates, mut demand) = (self.gate.subscribe(), self.demand.subscribe());
        // Half of the clients retry long before they may.
        let is_patient = number % 4 < 2;
        let mut wait = Duration::ZERO;
        loop {
            let now = *demand.borrow_and_update();
            let pause = Duration::from_millis(match now {
                Demand::Calm => rng.u64(..2_000_000),
                Demand::Rush => rng.u64(..100),
            });
            tokio::select! {
                biased;
                _ = demand.changed() => continue,
                () = sleep(pause.max(wait)) => {}
            }
            if number == TOPIC_CLIENT {
                sleep(TOPIC_PAUSE).await;
                if self.is_killing.load(Ordering::Relaxed) {
                    continue;
                }
            }
            let request = self.request(&mut rng, number);
            let gate = gates.borrow_and_update().clone().unwrap();
            let outcome = tokio::select! {
                biased;
                _ = gates.changed() => continue,
                outcome = gate.call(request) => outcome,
            };
            wait = match outcome {
                CallOutcome::NotSent(refused) => {
                    self.refused.lock().unwrap().insert(refused.reason);
                    let told = refused.retry_after.unwrap_or(MINUTE);
                    if is_patient { told } else { Duration::from_secs(2) }
                }
                CallOutcome::Answered(_) | CallOutcome::Unknown(_) => Duration::ZERO,
            };
        }
    }

    /// Lets the clients call as much as they can for this time.
    async fn rush(&self, time: Duration) {
        self.demand.send_replace(Demand::Rush);
        sleep(time).await;
        self.demand.send_replace(Demand::Calm);
    }

    /// The same, while the gate is killed again and again.
    async fn rush_with_kills(&self, kills: u32, time: Duration) {
        self.is_killing.store(true, Ordering::Relaxed);
        self.demand.send_replace(Demand::Rush);
        for _ in 0..kills {
            sleep(time / (kills + 1)).await;
            self.restart_gate();
        }
        sleep(time / (kills + 1)).await;
        self.demand.send_replace(Demand::Calm);
        self.is_killing.store(false, Ordering::Relaxed);
    }

    async fn run_episode(&self, episode: Episode) {
        let discord = &self.discord;
        let forbid = || discord.fault("*", FaultAction::Status { status: 403, code: 50_013 }, 0.97, None);
        match episode {
            Episode::Rush => self.rush(MINUTE / 4).await,
            Episode::Killed => self.rush_with_kills(2, MINUTE / 2).await,
            Episode::Forbidden => {
                forbid();
                self.rush(11 * MINUTE).await;
            }
            Episode::ForbiddenAndKilled => {
                forbid();
                self.rush_with_kills(4, 11 * MINUTE).await;
            }
            Episode::DeadWebhooks => {
                discord.fault("* /webhooks/*/*", FaultAction::Status { status: 401, code: 50_027 }, 1.0, None);
                self.rush(MINUTE / 2).await;
            }
            Episode::TokenRefused => {
                discord.fault("*", FaultAction::Status { status: 401, code: 0 }, 1.0, None);
                self.rush(MINUTE / 2).await;
                discord.heal();
                self.gate().breaker().send(TokenChanged(discord.credential())).await.unwrap();
            }
            Episode::CloudflarePage => {
                let action = FaultAction::Cloudflare { form: CloudflareForm::Html, retry_after_ms: None };
                discord.fault("*", action, 1.0, None);
                self.rush(MINUTE / 2).await;
            }
            Episode::CloudflareJson => {
                let action = FaultAction::Cloudflare { form: CloudflareForm::Json, retry_after_ms: Some(90_000) };
                discord.fault("*", action, 1.0, None);
                self.rush(4 * MINUTE).await;
            }
            Episode::RateLimits => {
                for (scope, retry_after_ms) in [(Scope::User, 7_000), (Scope::Shared, 4_000), (Scope::Global, 9_000)] {
                    discord.fault("*", FaultAction::RateLimit { scope, retry_after_ms }, 0.02, Some(3));
                }
                self.rush(MINUTE / 2).await;
            }
            Episode::Outage => {
                discord.fault("*", FaultAction::DropBefore, 0.2, None);
                discord.fault("*", FaultAction::DropAfter, 0.2, None);
                discord.fault("*", FaultAction::Status { status: 503, code: 0 }, 0.5, None);
                self.rush(MINUTE / 2).await;
            }
            Episode::Unreachable => {
                discord.set_network(Network::Unreachable);
                self.rush(MINUTE / 2).await;
            }
            Episode::Slow => {
                discord.set_network(Network::Slow);
                self.rush(MINUTE / 2).await;
            }
        }
        discord.heal();
    }
}

/// Runs a test in paused time.
fn run_paused<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

#[test]
fn three_days_of_failures_bring_no_ban_and_no_429() {
    const HOURS: usize = 72;
    run_paused(async {
        let world = World::start(20_261_119, GateConfig::default());
        let discord = &world.discord;
        let mut rng = Rng::with_seed(72);
        for hour in 0..HOURS {
            let end = Instant::now() + HOUR;
            sleep(Duration::from_secs(rng.u64(300..1_500))).await;
            let answered = discord.received("success");
            world.run_episode(episode_of(hour)).await;
            sleep_until(end).await;
            println!(
                "{:?}: {} succeeded, {:?}",
                episode_of(hour),
                discord.received("success") - answered,
                discord.received.lock().unwrap()
            );
        }
        // All has healed: every call is sent, and none fails.
        sleep(2 * HOUR).await;
        for guild in &world.guilds {
            let mut request =
                RestRequest::new(Method::GET, format!("/guilds/{guild}"), discord.credential(), LeaseGuard::always());
            request.max_wait = MINUTE;
            match world.gate().call(request).await {
                CallOutcome::Answered(response) => assert_eq!(response.status, 200),
                lost => panic!("{lost:?}"),
            }
        }

        let score = discord.sim.score();
        let received = discord.received.lock().unwrap().clone();
        let refused = world.refused.lock().unwrap().clone();
        println!(
            "{} arrived, at most {:?} in a second; {} invalid, at most {} in ten minutes; {:?} of {:?} were injected; \
             {received:?}; {refused:?}",
            score.requests,
            score.max_per_second,
            score.invalid_requests,
            score.max_invalid_in_window,
            score.injected_rate_limits,
            score.rate_limited,
        );
        assert_eq!((score.bans, score.requests_while_banned), (0, 0));
        assert_eq!(score.rate_limited, score.injected_rate_limits, "{:?}", score.routes);
        assert!(score.max_per_second.values().all(|most| *most <= 50), "{:?}", score.max_per_second);
        // What is above would also hold if nothing had happened.
        assert!(score.requests > 30_000, "{}", score.requests);
        assert!(score.max_invalid_in_window > 2_500, "{}", score.max_invalid_in_window);
        let injected = score.injected_rate_limits;
        assert!(injected.user > 0 && injected.shared > 0 && injected.global > 0, "{injected:?}");
        for class in ["success", "not_found", "forbidden", "interaction_ended", "server_error"] {
            assert!(received[class] > 50, "{class}: {received:?}");
        }
        for reason in ["unauthorized", "blocked", "route_limit", "global_limit", "breaker_open", "unreachable"] {
            assert!(refused.contains(reason), "{reason}: {refused:?}");
        }
        // An invalid token and a ban stop all calls but those in flight and the probes.
        let episodes = (HOURS / EPISODES.len()) as u64;
        assert!((1..=episodes * 100).contains(&received["unauthorized"]), "{received:?}");
        assert!((1..=episodes * 100).contains(&received["blocked"]), "{received:?}");
    });
}

#[test]
fn without_its_ledger_the_same_storm_brings_a_ban() {
    run_paused(async {
        let invalid = InvalidConfig { limit: 1_000_000, ..InvalidConfig::default() };
        let world = World::start(1, GateConfig { invalid, ..GateConfig::default() });
        world.run_episode(Episode::Forbidden).await;
        assert!(world.discord.sim.score().bans > 0);
    });
}
