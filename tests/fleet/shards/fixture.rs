//! A simulator with four shards, a PostgreSQL, and daemons that echo messages.

use std::{collections::BTreeMap, net::SocketAddr, process::Command, time::Duration};

use guildhall_sim::{BotConfig, GatewayConfig, LimitConfig, MessageSpec, Sim, SimConfig, SimHandle, Snowflake};
use guildhall_testkit::{
    crash::daemon_process::DaemonProcess,
    postgres,
    program::{HttpResponse, get, request},
};
use serde_json::Value;
use tempfile::TempDir;

/// A token in Discord's format: it contains the id of the bot.
const TOKEN: &str = "MTk4NjIyNDgzNDcxOTI1MjQ4.shard.ZnCjm1XVW7vRze4b7Cq4se7kKWs";
const ADMIN_KEY: &str = "the-key-of-those-who-share";

pub(crate) const SHARDS: u32 = 4;
const GUILDS: u32 = 40;
/// A timeout that only a defect reaches; no test waits for it.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A lease that expires within a test.
pub(crate) const SHORT_LEASE: [(&str, &str); 3] = [
    ("GUILDHALL__OPERATIONS__LEASE_MS", "2500"),
    ("GUILDHALL__OPERATIONS__HEARTBEAT_MS", "500"),
    ("GUILDHALL__OPERATIONS__LEASE_MARGIN_MS", "500"),
];

/// A lease that does not expire within a test: shards that are not handed over would wait for it.
pub(crate) const LONG_LEASE: [(&str, &str); 3] = [
    ("GUILDHALL__OPERATIONS__LEASE_MS", "120000"),
    ("GUILDHALL__OPERATIONS__HEARTBEAT_MS", "1000"),
    ("GUILDHALL__OPERATIONS__LEASE_MARGIN_MS", "1000"),
];

pub(crate) struct ShardFixture {
    pub(crate) sim: SimHandle,
    /// Guilds and a channel of each.
    channels: Vec<(u64, u64)>,
    store: String,
    written: std::sync::Mutex<BTreeMap<u64, Vec<String>>>,
    folder: TempDir,
}

impl ShardFixture {
    pub(crate) async fn new() -> Self {
        let gateway = GatewayConfig {
            shards: SHARDS,
            max_concurrency: SHARDS,
            session_life: Duration::from_secs(600),
            ..GatewayConfig::default()
        };
        let config = SimConfig {
            bots: vec![BotConfig { token: TOKEN.to_owned(), ..BotConfig::default() }],
            guilds: GUILDS,
            members: 1,
            channels: 1,
            limits: LimitConfig::off(),
            gateway,
            ..SimConfig::default()
        };
        let sim = Sim::start(config).await.unwrap();
        let state = get(sim.address(), &format!("/sim/state?limit={GUILDS}")).json();
        let parse_id = |id: &Value| id.as_str().unwrap().parse::<u64>().unwrap();
        let guild_and_channel = |guild: &Value| {
            let channel = guild["channels"].as_array().unwrap().iter().find(|channel| channel["type"] == 0).unwrap();
            (parse_id(&guild["id"]), parse_id(&channel["id"]))
        };
        let channel_ids = state["guilds"].as_array().unwrap().iter().map(guild_and_channel).collect();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("handlers.toml"), HANDLERS).unwrap();
        let store = postgres::shared().create_database().await;
        Self { sim, channels: channel_ids, store, written: std::sync::Mutex::default(), folder }
    }

    /// Starts a daemon, and waits until it listens.
    pub(crate) async fn start_daemon(&self, environment: &[(&str, &str)]) -> ShardDaemon {
        let (api, gateway, shards) = (self.sim.api_url(), self.sim.gateway_url(), SHARDS.to_string());
        let settings = [
            ("DISCORD__TOKEN", TOKEN),
            ("DISCORD__API_URL", &api),
            ("DISCORD__GATEWAY_URL", &gateway),
            ("GATEWAY__SHARDS", &shards),
            ("GATEWAY__MAX_CONCURRENCY", &shards),
            ("GATEWAY__INTENTS", "guilds,guild_messages,message_content"),
            ("GATEWAY__RECONNECT_BASE_MS", "10"),
            ("GATEWAY__RECONNECT_CAP_MS", "100"),
            ("HANDLERS__FILE", "handlers.toml"),
            ("API__BIND", "127.0.0.1:0"),
            ("API__ADMIN_KEY", ADMIN_KEY),
            // Limits per caller are not tested here.
            ("API__POLICIES__HEAVY_PER_SECOND", "0"),
            ("API__POLICIES__LIGHT_PER_SECOND", "0"),
            ("STORE__URL", &self.store),
            ("LOG__FORMAT", "json"),
            ("LIMITS__GLOBAL", "200"),
            ("LIMITS__MARGIN_MS", "0"),
            ("LIMITS__SETTLING_MS", "0"),
            ("OPERATIONS__POLL_MS", "50"),
        ];
        let mut command = Command::new(env!("CARGO_BIN_EXE_guildhall"));
        command.arg("serve").env_clear().current_dir(self.folder.path());
        command.envs(settings.map(|(name, value)| (format!("GUILDHALL__{name}"), value)));
        command.envs(environment.iter().copied());
        let process = DaemonProcess::spawn(command, |_| {});
        let address_found = tokio::time::timeout(TEST_TIMEOUT, process.wait_until_listening()).await;
        let address =
            address_found.ok().flatten().unwrap_or_else(|| panic!("it did not start\n{}", process.log_tail()));
        ShardDaemon { process, address }
    }

    /// Writes one message in every guild.
    pub(crate) async fn write_messages(&self, round: u32) {
        for (guild, channel) in &self.channels {
            let content = format!("mark-{round}");
            let channel_id = Snowflake::new(*channel);
            let spec = MessageSpec {
                channel_id,
                guild_id: None,
                content: content.clone(),
                user_id: None,
                count: 1,
                per_second: 0.0,
            };
            self.sim.send_messages(spec).await.unwrap();
            self.written.lock().unwrap().entry(*guild).or_default().push(content);
        }
    }

    /// The echoed messages, by guild and in order.
    fn echoed(&self) -> BTreeMap<u64, Vec<String>> {
        let mut echoed = BTreeMap::new();
        for (guild, effects) in self.sim.score().effects {
            let marks = effects.iter().map(|effect| effect.name.rsplit_once(' ').unwrap().1.to_owned()).collect();
            echoed.insert(guild.parse().unwrap(), marks);
        }
        echoed
    }

    /// Waits until as many messages were echoed as were written, and checks that they are the same, in order.
    pub(crate) async fn wait_until_echoed(&self, processes: &[&ShardDaemon]) {
        let count = |marks: &BTreeMap<u64, Vec<String>>| marks.values().map(Vec::len).sum::<usize>();
        let written = self.written.lock().unwrap().clone();
        self.wait_until("all messages are echoed", processes, || count(&self.echoed()) >= count(&written)).await;
        assert_eq!(self.echoed(), written);
    }

    /// Waits until these own all shards together, each at least so many, and all are connected.
    pub(crate) async fn wait_until_shared(&self, processes: &[&ShardDaemon], min_shards: usize) {
        self.wait_until("all shards have an owner", processes, || {
            let held: Vec<Vec<u64>> = processes.iter().map(|process| process.shards()).collect();
            let mut all: Vec<u64> = held.iter().flatten().copied().collect();
            all.sort_unstable();
            let ready = processes.iter().all(|process| get(process.address, "/readyz").status == 200);
            ready && all.into_iter().eq(0..u64::from(SHARDS)) && held.iter().all(|held| held.len() >= min_shards)
        })
        .await;
    }

    pub(crate) async fn wait_until(&self, description: &str, processes: &[&ShardDaemon], condition: impl Fn() -> bool) {
        let polling = async {
            while !condition() {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        if tokio::time::timeout(TEST_TIMEOUT, polling).await.is_err() {
            for process in processes {
                eprintln!("--- log of a daemon:\n{}", process.process.log_tail());
            }
            panic!("timed out: {description}; {:?}", self.sim.gateway_score());
        }
    }
}

/// A daemon.
pub(crate) struct ShardDaemon {
    pub(crate) process: DaemonProcess,
    pub(crate) address: SocketAddr,
}

impl ShardDaemon {
    /// Sends a request to its API.
    pub(crate) fn request(&self, method: &str, path: &str) -> HttpResponse {
        let head = format!("Host: test\r\nConnection: close\r\nAuthorization: Bearer {ADMIN_KEY}");
        request(self.address, &format!("{method} {path} HTTP/1.1\r\n{head}\r\n\r\n"))
    }

    /// The shards that it reports as its own.
    pub(crate) fn shards(&self) -> Vec<u64> {
        let response = self.request("GET", "/v1/instances");
        if response.status != 200 {
            return Vec::new();
        }
        let instances = response.json();
        let own = instances["instances"].as_array().unwrap().iter().find(|one| one["is_self"] == true);
        let shards = own.map(|own| own["shards"].as_array().unwrap().iter().filter_map(Value::as_u64).collect());
        shards.unwrap_or_default()
    }

    /// The value of one of its metrics.
    pub(crate) fn metric(&self, line: &str) -> f64 {
        let text = get(self.address, "/metrics").body;
        text.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok()).unwrap_or_default()
    }

    /// Stops it gracefully.
    pub(crate) async fn stop(mut self) {
        self.process.signal("TERM");
        let exited = tokio::time::timeout(TEST_TIMEOUT, self.process.wait_for_exit()).await;
        assert!(
            exited.is_ok() && self.process.kill().success(),
            "it did not exit gracefully\n{}",
            self.process.log_tail()
        );
    }
}

/// Echoes a message with the event's id. A gap would cause an unexpected effect.
const HANDLERS: &str = r#"[[handlers]]
name = "echo"
on = "message.create"
when = { bot = false }
do = [{ kind = "send_message", payload = { channel_id = "{channel_id}", content = "{event_id} {data.content}" } }]
"#;
