//! A simulator with guilds, and a store that outlives the daemon.

use std::{
    net::SocketAddr,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures_util::{StreamExt as _, stream};
use guildhall_sim::{
    BotConfig, FireSpec, GatewayConfig, GuildsSpec, LimitConfig, Sim, SimConfig, SimHandle, Snowflake,
};
use http::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;

use crate::{
    caller::{Http, STUCK},
    life::{Heard, Life},
    postgres,
};

/// A token in Discord's format: it contains the id of the bot.
const TOKEN: &str = "MTk4NjIyNDgzNDcxOTI1MjQ4.crash.ZnCjm1XVW7vRze4b7Cq4se7kKWs";
pub(crate) const ADMIN_KEY: &str = "the-key-of-those-who-crash";

/// Number of guilds that are set up concurrently.
const FURNISHED_AT_ONCE: usize = 8;

/// The engine of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Sqlite,
    Postgres,
}

impl Engine {
    pub(crate) const BOTH: [Self; 2] = [Self::Sqlite, Self::Postgres];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
        }
    }
}

/// Ids of a guild and of objects in it, for test operations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    pub(crate) guild: u64,
    pub(crate) channel: u64,
    pub(crate) members: Vec<u64>,
    /// The user who gets direct messages.
    pub(crate) confidant: u64,
    pub(crate) roles: Vec<u64>,
    /// To be deleted, with their names.
    pub(crate) doomed_roles: Vec<(u64, String)>,
    pub(crate) doomed_channels: Vec<(u64, String)>,
}

/// Number of guilds and of objects in each of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Furniture {
    pub(crate) guilds: u32,
    /// Number of roles to assign, and of roles and channels to delete.
    pub(crate) roles: usize,
    pub(crate) doomed: usize,
    /// Permissions of the bot; all by default.
    pub(crate) permissions: Option<u64>,
}

/// A simulator, and a store that outlives the daemon.
pub(crate) struct Stage {
    pub(crate) sim: SimHandle,
    pub(crate) http: Http,
    pub(crate) places: Vec<Place>,
    /// Number of operations that callers know to be accepted.
    pub(crate) answers: AtomicUsize,
    folder: TempDir,
    store: String,
    addresses: watch::Sender<Vec<SocketAddr>>,
}

impl Stage {
    pub(crate) async fn new(engine: Engine, furniture: Furniture) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = match engine {
            Engine::Sqlite => format!("sqlite:{}/guildhall.db", folder.path().display()),
            Engine::Postgres => postgres::shared().database().await,
        };
        Self::over(store, folder, furniture).await
    }

    pub(crate) async fn over(store: String, folder: TempDir, furniture: Furniture) -> Self {
        let config = SimConfig {
            bots: vec![BotConfig { token: TOKEN.to_owned(), ..BotConfig::default() }],
            guilds: 0,
            limits: LimitConfig::off(),
            gateway: GatewayConfig { session_starts: 100_000, max_concurrency: 1_000, ..GatewayConfig::default() },
            ..SimConfig::default()
        };
        let sim = Sim::start(config).await.unwrap();
        let (addresses, _) = watch::channel(Vec::new());
        let (http, answers) = (Http::new(), AtomicUsize::new(0));
        let mut stage = Self { sim, http, places: Vec::new(), answers, folder, store, addresses };
        stage.furnish(furniture).await;
        stage.sim.reset_score();
        stage
    }

    async fn furnish(&mut self, furniture: Furniture) {
        let spec = GuildsSpec { count: Some(furniture.guilds), members: Some(6), ..GuildsSpec::default() };
        let guilds = self.sim.make_guilds(&spec).unwrap();
        let places = stream::iter(guilds).map(|guild| self.place(guild.get(), &furniture));
        self.places = places.buffered(FURNISHED_AT_ONCE).collect().await;
        if let Some(bits) = furniture.permissions {
            for place in &self.places {
                let url = format!("http://{}/sim/guilds/{}", self.sim.address(), place.guild);
                let body = json!({ "bot_permissions": bits });
                let (status, told) = self.http.call(Method::PATCH, &url, &[], Some(&body)).await.unwrap();
                assert!(status < 300, "{status} {told}");
            }
        }
    }

    async fn place(&self, guild: u64, furniture: &Furniture) -> Place {
        let channels = self.discord(Method::GET, &format!("/guilds/{guild}/channels"), None).await;
        let is_text = |channel: &&Value| channel["type"] == 0;
        let channel = number(&channels.as_array().unwrap().iter().find(is_text).unwrap()["id"]);
        let members = self.discord(Method::GET, &format!("/guilds/{guild}/members?limit=100"), None).await;
        let people = members.as_array().unwrap().iter().filter(|member| member["user"]["bot"] != true);
        let mut members: Vec<u64> = people.map(|member| number(&member["user"]["id"])).collect();
        let confidant = members.pop().unwrap();
        let mut place = Place {
            guild,
            channel,
            members,
            confidant,
            roles: Vec::new(),
            doomed_roles: Vec::new(),
            doomed_channels: Vec::new(),
        };
        for index in 0..furniture.roles {
            place.roles.push(self.make(guild, "roles", &format!("given-{index}")).await);
        }
        for index in 0..furniture.doomed {
            let name = format!("doomed-{index}-{guild}");
            place.doomed_roles.push((self.make(guild, "roles", &name).await, name.clone()));
            place.doomed_channels.push((self.make(guild, "channels", &name).await, name));
        }
        place
    }

    async fn make(&self, guild: u64, what: &str, name: &str) -> u64 {
        let made = self.discord(Method::POST, &format!("/guilds/{guild}/{what}"), Some(&json!({ "name": name }))).await;
        number(&made["id"])
    }

    /// Calls Discord directly, without an operation.
    pub(crate) async fn discord(&self, method: Method, path: &str, body: Option<&Value>) -> Value {
        let (url, bot) = (format!("{}{path}", self.sim.api_url()), format!("Bot {TOKEN}"));
        let headers = [("Authorization", bot.as_str()), ("User-Agent", "DiscordBot (https://guildhall.example, 0)")];
        let answer = self.http.call(method, &url, &headers, body).await.unwrap();
        assert!(answer.0 < 300, "{path}: {answer:?}");
        answer.1
    }

    /// Fires a command and responds to it, so that follow-ups are possible.
    pub(crate) async fn interaction(&self, guild: u64) -> (u64, String) {
        let fired = self.sim.fire(FireSpec::command(Snowflake::new(guild), "hello")).await.unwrap();
        let (id, token) = (fired.id.unwrap().get(), fired.token.unwrap());
        let body = json!({ "type": 4, "data": { "content": "first" } });
        self.discord(Method::POST, &format!("/interactions/{id}/{token}/callback"), Some(&body)).await;
        (id, token)
    }

    pub(crate) fn accepted(&self) -> usize {
        self.answers.load(Ordering::SeqCst)
    }

    /// Address of any running daemon. Waits until there is one.
    pub(crate) async fn anywhere(&self) -> SocketAddr {
        let mut addresses = self.addresses.subscribe();
        let some = addresses.wait_for(|addresses| !addresses.is_empty()).await.unwrap();
        some[fastrand::usize(..some.len())]
    }

    /// Lets callers use this daemon.
    pub(crate) fn open_to_callers(&self, address: SocketAddr) {
        self.addresses.send_modify(|addresses| addresses.push(address));
    }

    /// Stops callers from using this daemon.
    pub(crate) fn close_to_callers(&self, address: SocketAddr) {
        self.addresses.send_modify(|addresses| addresses.retain(|known| *known != address));
    }

    /// The daemon's command, with short timeouts.
    fn command(&self) -> Command {
        let (api, gateway) = (self.sim.api_url(), self.sim.gateway_url());
        let settings = [
            ("DISCORD__TOKEN", TOKEN),
            ("DISCORD__API_URL", &api),
            ("DISCORD__GATEWAY_URL", &gateway),
            ("API__BIND", "127.0.0.1:0"),
            ("API__ADMIN_KEY", ADMIN_KEY),
            // Limits per caller are not tested here.
            ("API__POLICIES__HEAVY_PER_SECOND", "0"),
            ("API__POLICIES__LIGHT_PER_SECOND", "0"),
            ("STORE__URL", &self.store),
            ("LOG__FORMAT", "json"),
            ("REST__REQUEST_TIMEOUT_MS", "400"),
            // The gate assumes that a killed process has used this many invalid requests, so it must be low.
            ("LIMITS__GLOBAL", "200"),
            ("LIMITS__MARGIN_MS", "0"),
            ("LIMITS__SETTLING_MS", "0"),
            // Higher than any test reaches: an open breaker would only cost time.
            ("BREAKER__FAILURES_IN_ROW", "1000"),
            ("BREAKER__MIN_CALLS", "100000"),
            ("OPERATIONS__MAX_ATTEMPTS", "100"),
            ("OPERATIONS__BACKOFF_BASE_MS", "10"),
            ("OPERATIONS__BACKOFF_CAP_MS", "100"),
            ("OPERATIONS__POLL_MS", "50"),
            // On PostgreSQL, the next process waits until the lease of the previous one has expired.
            ("OPERATIONS__LEASE_MS", "700"),
            ("OPERATIONS__HEARTBEAT_MS", "150"),
            ("OPERATIONS__LEASE_MARGIN_MS", "100"),
        ];
        let mut command = Command::new(env!("CARGO_BIN_EXE_guildhall"));
        command.arg("serve").env_clear().current_dir(self.folder.path());
        command.envs(settings.map(|(name, value)| (format!("GUILDHALL__{name}"), value)));
        command
    }

    pub(crate) fn file(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// Starts the daemon.
    pub(crate) fn begin(&self) -> Life {
        self.begin_with(&[])
    }

    /// Starts the daemon with these environment variables.
    pub(crate) fn begin_with(&self, environment: &[(&str, &str)]) -> Life {
        let mut command = self.command();
        command.envs(environment.iter().copied());
        // Callers know its address while it runs.
        let (addresses, mut own) = (self.addresses.clone(), None);
        Life::begin(command, move |heard| match heard {
            Heard::Nothing => {}
            Heard::Listening(at) => {
                own = Some(at);
                addresses.send_modify(|addresses| addresses.push(at));
            }
            Heard::Ended => addresses.send_modify(|addresses| addresses.retain(|at| Some(*at) != own)),
        })
    }

    /// Waits until there are so many more effects, or until the timeout.
    pub(crate) async fn effects(&self, more: usize, within: Duration) {
        let enough = self.seen() + more;
        drop(tokio::time::timeout(within, self.sees(|| self.seen() >= enough)).await);
    }

    /// Waits until there are so many effects in total.
    pub(crate) async fn effects_in_all(&self, enough: usize) {
        let seen = tokio::time::timeout(STUCK, self.sees(|| self.seen() >= enough)).await;
        assert!(seen.is_ok(), "{} effects, not {enough}", self.seen());
    }

    /// Waits until a request has arrived.
    pub(crate) async fn arrival(&self) {
        let seen = tokio::time::timeout(STUCK, self.sees(|| self.sim.score().requests > 0)).await;
        assert!(seen.is_ok(), "no request arrived");
    }

    /// Waits until every request that arrived has been answered, even if its caller is gone.
    pub(crate) async fn at_rest(&self) {
        let rests = || {
            let routes = self.sim.score().routes;
            routes.values().all(|route| route.requests == route.statuses.values().sum::<u64>())
        };
        let rested = tokio::time::timeout(STUCK, self.sees(rests)).await;
        assert!(rested.is_ok(), "not every request was answered");
    }

    fn seen(&self) -> usize {
        self.sim.score().effects.values().map(Vec::len).sum()
    }

    async fn sees(&self, enough: impl Fn() -> bool) {
        while !enough() {
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }
}

/// Parses an id in Discord's JSON.
fn number(id: &Value) -> u64 {
    id.as_str().unwrap().parse().unwrap()
}
