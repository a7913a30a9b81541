//! The server, a simulator, and daemons that publish its events.

use std::{net::SocketAddr, process::Command, sync::OnceLock, time::Duration};

use guildhall_sim::{BotConfig, GatewayConfig, LimitConfig, Sim, SimConfig, SimHandle, StormEvent, StormSpec};
use guildhall_testkit::{crash::daemon_process::DaemonProcess, program::get, rabbitmq::RabbitServer};
use lapin::{Connection, ConnectionProperties};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    sync::{RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::{sleep, timeout},
};

/// A token in Discord's format: it contains the id of the bot.
const TOKEN: &str = "MTk4NjIyNDgzNDcxOTI1MjQ4.again.ZnCjm1XVW7vRze4b7Cq4se7kKWs";

/// A timeout that only a defect reaches; no test waits for it.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(240);

/// Interval between two checks of an awaited state.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(crate) const HANDLERS: &str = r#"[[handlers]]
name = "bus"
on = ["member.#", "message.#", "interaction.#"]
broker = true
"#;

static SERVER: OnceLock<RwLock<RabbitServer>> = OnceLock::new();

async fn lock() -> &'static RwLock<RabbitServer> {
    tokio::task::spawn_blocking(|| SERVER.get_or_init(|| RwLock::new(RabbitServer::start()))).await.unwrap()
}

/// The server, for a test that does nothing to it as a whole.
pub(crate) async fn shared_server() -> RwLockReadGuard<'static, RabbitServer> {
    lock().await.read().await
}

/// The server, for a test that no other runs beside.
pub(crate) async fn exclusive_server() -> RwLockWriteGuard<'static, RabbitServer> {
    lock().await.write().await
}

/// A simulator, and a directory that outlives the daemon.
pub(crate) struct BrokerFixture {
    pub(crate) sim: SimHandle,
    pub(crate) url: String,
    /// Prefix of the names of exchanges and queues: each test has its own.
    pub(crate) prefix: &'static str,
    pub(crate) partitions: u16,
    folder: TempDir,
}

impl BrokerFixture {
    pub(crate) async fn new(server: &RabbitServer, prefix: &'static str, partitions: u16) -> Self {
        let gateway = GatewayConfig {
            shards: 1,
            replay_events: 1 << 17,
            session_life: Duration::from_secs(600),
            ..GatewayConfig::default()
        };
        let config = SimConfig {
            bots: vec![BotConfig { token: TOKEN.to_owned(), ..BotConfig::default() }],
            guilds: 20,
            members: 1,
            channels: 1,
            limits: LimitConfig::off(),
            gateway,
            ..SimConfig::default()
        };
        let sim = Sim::start(config).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("handlers.toml"), HANDLERS).unwrap();
        Self { sim, url: server.url(), prefix, partitions, folder }
    }

    /// The program with the settings of this fixture.
    pub(crate) fn command(&self, args: &[&str], environment: &[(&str, &str)]) -> Command {
        let (api, gateway) = (self.sim.api_url(), self.sim.gateway_url());
        let store = format!("sqlite:{}/guildhall.db", self.folder.path().display());
        let partitions = self.partitions.to_string();
        let settings = [
            ("DISCORD__TOKEN", TOKEN),
            ("DISCORD__API_URL", &api),
            ("DISCORD__GATEWAY_URL", &gateway),
            ("GATEWAY__INTENTS", "guilds,guild_members,guild_messages,message_content"),
            ("GATEWAY__RECONNECT_BASE_MS", "10"),
            ("GATEWAY__RECONNECT_CAP_MS", "100"),
            ("HANDLERS__FILE", "handlers.toml"),
            ("API__BIND", "127.0.0.1:0"),
            ("API__ADMIN_KEY", "the-key-of-those-who-publish"),
            ("STORE__URL", &store),
            ("LOG__FORMAT", "json"),
            ("BROKER__URL", &self.url),
            ("BROKER__PREFIX", self.prefix),
            ("BROKER__PARTITIONS", &partitions),
            ("BROKER__PUBLISH_TIMEOUT_MS", "3000"),
        ];
        let mut command = Command::new(env!("CARGO_BIN_EXE_guildhall"));
        command.args(args).env_clear().current_dir(self.folder.path());
        command.envs(settings.map(|(name, value)| (format!("GUILDHALL__{name}"), value)));
        command.envs(environment.iter().map(|(name, value)| (format!("GUILDHALL__{name}"), *value)));
        command
    }

    pub(crate) fn start_daemon(&self, environment: &[(&str, &str)]) -> DaemonProcess {
        DaemonProcess::spawn(self.command(&["serve"], environment), |_| {})
    }

    /// Runs a command to its end, in its own thread. Returns its exit code and its output.
    pub(crate) async fn run(&self, args: &[&str], environment: &[(&str, &str)]) -> (Option<i32>, String) {
        let mut command = self.command(args, environment);
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    }

    /// Members join the guilds in turn.
    pub(crate) async fn join(&self, count: u64, per_second: u32) {
        let event = StormEvent::GuildMemberAdd;
        let spec =
            StormSpec { events_per_s: per_second, seconds: 600.0, count: Some(count), event, ..StormSpec::default() };
        self.sim.storm(spec).await;
    }

    /// Number of joins so far.
    pub(crate) fn joins(&self) -> usize {
        let score = self.sim.gateway_score();
        usize::try_from(score.events_by_type.get("GUILD_MEMBER_ADD").copied().unwrap_or_default()).unwrap()
    }

    pub(crate) fn queue(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    pub(crate) async fn connect(&self) -> Connection {
        Connection::connect(&self.url, ConnectionProperties::default()).await.unwrap()
    }
}

/// Waits until the daemon is ready.
pub(crate) async fn wait_until_ready(daemon: &DaemonProcess) -> SocketAddr {
    let address = daemon.wait_until_listening().await.unwrap();
    wait_until("the daemon is ready", || get(address, "/readyz").status == 200).await;
    address
}

/// Waits until `/readyz` gives this reason for the broker.
pub(crate) async fn wait_for_reason(address: SocketAddr, text: &str) {
    wait_until(text, || {
        let report = broker_state(address);
        report["reason"].as_str().is_some_and(|reason| reason.contains(text))
    })
    .await;
}

/// What `/readyz` says of the broker.
pub(crate) fn broker_state(address: SocketAddr) -> Value {
    get(address, "/readyz").json()["parts"]["broker"].clone()
}

/// The value of a metric; 0 if there is none.
pub(crate) fn metric(address: SocketAddr, line: &str) -> f64 {
    let text = get(address, "/metrics").body;
    let value = text.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok());
    value.unwrap_or_default()
}

/// Polls until a condition holds.
pub(crate) async fn wait_until(description: &str, mut condition: impl FnMut() -> bool) {
    let polling = async {
        while !condition() {
            sleep(POLL_INTERVAL).await;
        }
    };
    assert!(timeout(TEST_TIMEOUT, polling).await.is_ok(), "timed out: {description}");
}
