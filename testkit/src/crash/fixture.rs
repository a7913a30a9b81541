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

use super::{
    client::{HttpClient, TEST_TIMEOUT},
    daemon_process::{DaemonProcess, DaemonStatus},
    test_operation::ExpectedEffect,
};
use crate::{postgres, program::executable};

/// A token in Discord's format: it contains the id of the bot.
const TOKEN: &str = "MTk4NjIyNDgzNDcxOTI1MjQ4.crash.ZnCjm1XVW7vRze4b7Cq4se7kKWs";
pub const ADMIN_KEY: &str = "the-key-of-those-who-crash";

/// Number of guilds that are set up concurrently.
const SETUP_CONCURRENCY: usize = 8;

/// The engine of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Sqlite,
    Postgres,
}

impl Engine {
    pub const BOTH: [Self; 2] = [Self::Sqlite, Self::Postgres];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
        }
    }
}

/// Ids of a guild and of objects in it, for test operations.
#[derive(Clone, Debug, Default)]
pub struct GuildFixture {
    pub guild: u64,
    pub channel: u64,
    pub members: Vec<u64>,
    /// The user who gets direct messages.
    pub dm_user: u64,
    pub roles: Vec<u64>,
    /// To be deleted, with their names.
    pub roles_to_delete: Vec<(u64, String)>,
    pub channels_to_delete: Vec<(u64, String)>,
}

/// Number of guilds and of objects in each of them.
#[derive(Clone, Copy, Debug)]
pub struct FixtureSize {
    pub guilds: u32,
    /// Number of roles to assign, and of roles and channels to delete.
    pub roles: usize,
    pub to_delete: usize,
    /// Permissions of the bot; all by default.
    pub permissions: Option<u64>,
}

/// A simulator, and a store that outlives the daemon.
pub struct DaemonFixture {
    pub sim: SimHandle,
    pub http: HttpClient,
    pub guilds: Vec<GuildFixture>,
    /// Number of operations that callers know to be accepted.
    pub accepted_responses: AtomicUsize,
    folder: TempDir,
    store: String,
    addresses: watch::Sender<Vec<SocketAddr>>,
}

impl DaemonFixture {
    pub async fn new(engine: Engine, size: FixtureSize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = match engine {
            Engine::Sqlite => format!("sqlite:{}/guildhall.db", folder.path().display()),
            Engine::Postgres => postgres::shared().create_database().await,
        };
        Self::with_store(store, folder, size).await
    }

    pub async fn with_store(store: String, folder: TempDir, size: FixtureSize) -> Self {
        let config = SimConfig {
            bots: vec![BotConfig { token: TOKEN.to_owned(), ..BotConfig::default() }],
            guilds: 0,
            limits: LimitConfig::off(),
            gateway: GatewayConfig { session_starts: 100_000, max_concurrency: 1_000, ..GatewayConfig::default() },
            ..SimConfig::default()
        };
        let sim = Sim::start(config).await.unwrap();
        let (addresses, _) = watch::channel(Vec::new());
        let (http, answers) = (HttpClient::default(), AtomicUsize::new(0));
        let mut fixture = Self { sim, http, guilds: Vec::new(), accepted_responses: answers, folder, store, addresses };
        fixture.create_guilds(size).await;
        fixture.sim.reset_score();
        fixture
    }

    async fn create_guilds(&mut self, size: FixtureSize) {
        let spec = GuildsSpec { count: Some(size.guilds), members: Some(6), ..GuildsSpec::default() };
        let guilds = self.sim.create_guilds(&spec).unwrap();
        let guild_fixtures = stream::iter(guilds).map(|guild| self.create_guild_fixture(guild.get(), &size));
        self.guilds = guild_fixtures.buffered(SETUP_CONCURRENCY).collect().await;
        if let Some(bits) = size.permissions {
            for guild_fixture in &self.guilds {
                let url = format!("http://{}/sim/guilds/{}", self.sim.address(), guild_fixture.guild);
                let body = json!({ "bot_permissions": bits });
                let (status, body_received) = self.http.call(Method::PATCH, &url, &[], Some(&body)).await.unwrap();
                assert!(status < 300, "{status} {body_received}");
            }
        }
    }

    async fn create_guild_fixture(&self, guild: u64, size: &FixtureSize) -> GuildFixture {
        let channels = self.call_discord(Method::GET, &format!("/guilds/{guild}/channels"), None).await;
        let is_text = |channel: &&Value| channel["type"] == 0;
        let channel = parse_id(&channels.as_array().unwrap().iter().find(is_text).unwrap()["id"]);
        let members = self.call_discord(Method::GET, &format!("/guilds/{guild}/members?limit=100"), None).await;
        let users = members.as_array().unwrap().iter().filter(|member| member["user"]["bot"] != true);
        let mut members: Vec<u64> = users.map(|member| parse_id(&member["user"]["id"])).collect();
        let dm_user = members.pop().unwrap();
        let mut guild_fixture = GuildFixture {
            guild,
            channel,
            members,
            dm_user,
            roles: Vec::new(),
            roles_to_delete: Vec::new(),
            channels_to_delete: Vec::new(),
        };
        for index in 0..size.roles {
            guild_fixture.roles.push(self.create_object(guild, "roles", &format!("given-{index}")).await);
        }
        for index in 0..size.to_delete {
            let name = format!("doomed-{index}-{guild}");
            guild_fixture.roles_to_delete.push((self.create_object(guild, "roles", &name).await, name.clone()));
            guild_fixture.channels_to_delete.push((self.create_object(guild, "channels", &name).await, name));
        }
        guild_fixture
    }

    async fn create_object(&self, guild: u64, collection: &str, name: &str) -> u64 {
        let created = self
            .call_discord(Method::POST, &format!("/guilds/{guild}/{collection}"), Some(&json!({ "name": name })))
            .await;
        parse_id(&created["id"])
    }

    /// Calls Discord directly, without an operation.
    pub async fn call_discord(&self, method: Method, path: &str, body: Option<&Value>) -> Value {
        let (url, bot) = (format!("{}{path}", self.sim.api_url()), format!("Bot {TOKEN}"));
        let headers = [("Authorization", bot.as_str()), ("User-Agent", "DiscordBot (https://guildhall.example, 0)")];
        let response = self.http.call(method, &url, &headers, body).await.unwrap();
        assert!(response.0 < 300, "{path}: {response:?}");
        response.1
    }

    /// Fires a command and responds to it, so that follow-ups are possible.
    pub async fn create_interaction(&self, guild: u64) -> (u64, String) {
        let fired = self.sim.fire(FireSpec::command(Snowflake::new(guild), "hello")).await.unwrap();
        let (id, token) = (fired.id.unwrap().get(), fired.token.unwrap());
        let body = json!({ "type": 4, "data": { "content": "first" } });
        self.call_discord(Method::POST, &format!("/interactions/{id}/{token}/callback"), Some(&body)).await;
        (id, token)
    }

    pub fn accepted_count(&self) -> usize {
        self.accepted_responses.load(Ordering::SeqCst)
    }

    /// Address of any running daemon. Waits until there is one.
    pub async fn any_address(&self) -> SocketAddr {
        let mut addresses = self.addresses.subscribe();
        let available = addresses.wait_for(|addresses| !addresses.is_empty()).await.unwrap();
        available[fastrand::usize(..available.len())]
    }

    /// Lets callers use this daemon.
    pub fn add_address(&self, address: SocketAddr) {
        self.addresses.send_modify(|addresses| addresses.push(address));
    }

    /// Stops callers from using this daemon.
    pub fn remove_address(&self, address: SocketAddr) {
        self.addresses.send_modify(|addresses| addresses.retain(|other| *other != address));
    }

    /// A command of the program, with short timeouts.
    fn command(&self, args: &[&str]) -> Command {
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
        let mut command = Command::new(executable());
        command.args(args).env_clear().current_dir(self.folder.path());
        command.envs(settings.map(|(name, value)| (format!("GUILDHALL__{name}"), value)));
        command
    }

    /// URL of the store.
    pub fn store(&self) -> &str {
        &self.store
    }

    /// How often this effect happened.
    pub fn count_effects(&self, expected: &ExpectedEffect) -> usize {
        let score = self.sim.score();
        let is_same = |effect: &&guildhall_sim::EffectScore| {
            effect.verb == expected.verb && effect.kind == expected.object_kind && effect.name == expected.name
        };
        score.effects.values().flatten().filter(is_same).count()
    }

    pub fn file(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// Starts the daemon.
    pub fn start_daemon(&self) -> DaemonProcess {
        self.start_daemon_with(&[])
    }

    /// Starts the daemon with these environment variables.
    pub fn start_daemon_with(&self, environment: &[(&str, &str)]) -> DaemonProcess {
        let mut command = self.command(&["serve"]);
        command.envs(environment.iter().copied());
        self.spawn_daemon(command)
    }

    /// Starts the daemon on a store that was restored from a backup.
    pub fn start_restored_daemon(&self) -> DaemonProcess {
        self.spawn_daemon(self.command(&["serve", "--restored"]))
    }

    /// Runs another command of the program until it exits. Returns its standard output.
    pub fn run_command(&self, args: &[&str]) -> String {
        let output = self.command(args).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn spawn_daemon(&self, command: Command) -> DaemonProcess {
        // Callers know its address while it runs.
        let (addresses, mut own_address) = (self.addresses.clone(), None);
        DaemonProcess::spawn(command, move |status| match status {
            DaemonStatus::Starting => {}
            DaemonStatus::Listening(at) => {
                own_address = Some(at);
                addresses.send_modify(|addresses| addresses.push(at));
            }
            DaemonStatus::Exited => addresses.send_modify(|addresses| addresses.retain(|at| Some(*at) != own_address)),
        })
    }

    /// Waits until there are so many more effects, or until the timeout.
    pub async fn wait_for_more_effects(&self, more: usize, timeout: Duration) {
        let expected = self.effect_count() + more;
        drop(tokio::time::timeout(timeout, self.poll_until(|| self.effect_count() >= expected)).await);
    }

    /// Waits until there are so many effects in total.
    pub async fn wait_for_effects(&self, expected: usize) {
        let reached = tokio::time::timeout(TEST_TIMEOUT, self.poll_until(|| self.effect_count() >= expected)).await;
        assert!(reached.is_ok(), "{} effects, not {expected}", self.effect_count());
    }

    /// Waits until a condition is true.
    pub async fn wait_until(&self, condition: impl Fn() -> bool) {
        let reached = tokio::time::timeout(TEST_TIMEOUT, self.poll_until(condition)).await;
        assert!(reached.is_ok(), "the condition never became true");
    }

    /// Waits until a request has arrived.
    pub async fn wait_for_request(&self) {
        let arrived = tokio::time::timeout(TEST_TIMEOUT, self.poll_until(|| self.sim.score().requests > 0)).await;
        assert!(arrived.is_ok(), "no request arrived");
    }

    /// Waits until every request that arrived has been answered, even if its caller is gone.
    pub async fn wait_until_idle(&self) {
        let is_idle = || {
            let routes = self.sim.score().routes;
            routes.values().all(|route| route.requests == route.statuses.values().sum::<u64>())
        };
        let idle = tokio::time::timeout(TEST_TIMEOUT, self.poll_until(is_idle)).await;
        assert!(idle.is_ok(), "not every request was answered");
    }

    fn effect_count(&self) -> usize {
        self.sim.score().effects.values().map(Vec::len).sum()
    }

    async fn poll_until(&self, condition: impl Fn() -> bool) {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }
}

/// Parses an id in Discord's JSON.
fn parse_id(id: &Value) -> u64 {
    id.as_str().unwrap().parse().unwrap()
}
