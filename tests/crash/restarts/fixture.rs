//! A simulator with many guilds and four shards, and a daemon whose handlers leave an effect for each of their events.

use std::{net::SocketAddr, process::Command, time::Duration};

use guildhall_sim::{BotConfig, GatewayConfig, LimitConfig, Sim, SimConfig, SimHandle};
use guildhall_testkit::{
    crash::daemon_process::DaemonProcess,
    program::{get, request},
};
use serde_json::Value;
use tempfile::TempDir;

/// A token in Discord's format: it contains the id of the bot.
const TOKEN: &str = "MTk4NjIyNDgzNDcxOTI1MjQ4.again.ZnCjm1XVW7vRze4b7Cq4se7kKWs";
const ADMIN_KEY: &str = "the-key-of-those-who-restart";

pub(crate) const SHARDS: u32 = 4;
const GUILDS: u32 = 1_000;
/// Guilds in which messages are written.
const MESSAGE_GUILDS: usize = 50;
/// Those of them in which a join has an effect: one join in forty.
const JOIN_GUILDS: usize = 25;

/// A timeout that only a defect reaches; no test waits for it.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(90);
/// Interval between two checks of an awaited state.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A guild whose events have effects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventGuild {
    pub(crate) guild: u64,
    pub(crate) channel: u64,
    /// Its index among all guilds, oldest first.
    pub(crate) index: u64,
    /// Whether joins have effects too.
    pub(crate) has_join_effect: bool,
}

/// A simulator, and a directory that outlives the daemon.
pub(crate) struct RestartFixture {
    pub(crate) sim: SimHandle,
    pub(crate) event_guilds: Vec<EventGuild>,
    pub(crate) guild_count: u64,
    /// Number of events that a shard of the daemon buffers.
    buffer_events: u32,
    folder: TempDir,
}

impl RestartFixture {
    pub(crate) async fn new(buffer: u32) -> Self {
        let gateway = GatewayConfig {
            shards: SHARDS,
            max_concurrency: SHARDS,
            // Large enough for minutes of the load.
            replay_events: 1 << 17,
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
        let state = get(sim.address(), &format!("/sim/state?limit={MESSAGE_GUILDS}")).json();
        let mut all: Vec<u64> = sim.guilds().into_iter().map(guildhall_sim::Snowflake::get).collect();
        all.sort_unstable();
        let event_guilds = state["guilds"].as_array().unwrap().iter().enumerate().map(|(position, state_of_guild)| {
            let guild = parse_id(&state_of_guild["id"]);
            let channel =
                state_of_guild["channels"].as_array().unwrap().iter().find(|channel| channel["type"] == 0).unwrap();
            let nth = all.iter().position(|id| *id == guild).unwrap() as u64;
            EventGuild { guild, channel: parse_id(&channel["id"]), index: nth, has_join_effect: position < JOIN_GUILDS }
        });
        let (event_guilds, guilds) = (event_guilds.collect::<Vec<_>>(), all.len() as u64);
        assert_eq!((event_guilds.len(), guilds), (MESSAGE_GUILDS, u64::from(GUILDS)));
        let folder = tempfile::tempdir().unwrap();
        let owner = parse_id(&state["guilds"][0]["owner_id"]);
        std::fs::write(folder.path().join("handlers.toml"), handlers(&event_guilds, owner)).unwrap();
        Self { sim, event_guilds, guild_count: guilds, buffer_events: buffer, folder }
    }

    /// Starts the daemon with short timeouts.
    pub(crate) fn start_daemon(&self) -> DaemonProcess {
        self.start_daemon_with(&[])
    }

    /// Starts the daemon with these environment variables.
    pub(crate) fn start_daemon_with(&self, environment: &[(&str, &str)]) -> DaemonProcess {
        let (api, gateway) = (self.sim.api_url(), self.sim.gateway_url());
        let store = format!("sqlite:{}/guildhall.db", self.folder.path().display());
        let (shards, buffer) = (SHARDS.to_string(), self.buffer_events.to_string());
        let settings = [
            ("DISCORD__TOKEN", TOKEN),
            ("DISCORD__API_URL", &api),
            ("DISCORD__GATEWAY_URL", &gateway),
            ("GATEWAY__SHARDS", &shards),
            ("GATEWAY__MAX_CONCURRENCY", &shards),
            ("GATEWAY__INTENTS", "guilds,guild_members,guild_messages,message_content"),
            ("GATEWAY__BUFFER_EVENTS", &buffer),
            ("GATEWAY__RECONNECT_BASE_MS", "10"),
            ("GATEWAY__RECONNECT_CAP_MS", "100"),
            ("HANDLERS__FILE", "handlers.toml"),
            ("API__BIND", "127.0.0.1:0"),
            ("API__ADMIN_KEY", ADMIN_KEY),
            // Limits per caller are not tested here.
            ("API__POLICIES__HEAVY_PER_SECOND", "0"),
            ("API__POLICIES__LIGHT_PER_SECOND", "0"),
            ("STORE__URL", &store),
            ("LOG__FORMAT", "json"),
            ("REST__REQUEST_TIMEOUT_MS", "2000"),
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
        ];
        let mut command = Command::new(env!("CARGO_BIN_EXE_guildhall"));
        command.arg("serve").env_clear().current_dir(self.folder.path());
        command.envs(settings.map(|(name, value)| (format!("GUILDHALL__{name}"), value)));
        command.envs(environment.iter().copied());
        DaemonProcess::spawn(command, |_| {})
    }

    /// Number of effects.
    pub(crate) fn effect_count(&self) -> usize {
        self.sim.score().effects.values().map(Vec::len).sum()
    }

    /// Number of resumed sessions.
    pub(crate) fn resumes(&self) -> u64 {
        self.sim.gateway_score().resumes
    }

    /// Whether every event was sent to all connected shards.
    pub(crate) fn all_events_sent(&self) -> bool {
        self.sim.gateway_score().sessions.values().filter(|one| one.live).all(|one| one.sent_seq == one.last_seq)
    }

    /// Log, sessions and metrics, for diagnostics.
    pub(crate) async fn diagnostics(&self, daemon: &DaemonProcess) -> String {
        let sessions = self.sim.gateway_score().sessions;
        let metrics = match daemon.wait_until_listening().await {
            Some(address) => get(address, "/metrics").body,
            None => String::new(),
        };
        let metrics = metrics.lines().filter(|line| line.contains("_gateway_") || line.contains("_event"));
        let metrics = metrics.filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
        format!("{}\n{sessions:#?}\n{metrics}", daemon.log_tail())
    }

    /// Waits until a condition holds. Returns `false` after the timeout.
    pub(crate) async fn wait_until(&self, timeout: Duration, condition: impl Fn(&Self) -> bool) -> bool {
        let polling = async {
            while !condition(self) {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        tokio::time::timeout(timeout, polling).await.is_ok()
    }
}

/// Operations of a daemon that are pending or failed.
pub(crate) fn unfinished_operations(daemon: SocketAddr) -> Vec<Value> {
    let mut unfinished = Vec::new();
    for state in ["queued", "running", "delayed", "retrying", "reconciling", "dead", "needs_review"] {
        let path = format!("/v1/operations?state={state}&limit=5");
        let head = format!("Host: test\r\nConnection: close\r\nAuthorization: Bearer {ADMIN_KEY}");
        let response = request(daemon, &format!("GET {path} HTTP/1.1\r\n{head}\r\n\r\n"));
        match response.status {
            200 => unfinished.extend(response.json()["operations"].as_array().unwrap().iter().cloned()),
            // It listens, but does not execute operations yet.
            status => unfinished.push(Value::from(status)),
        }
    }
    unfinished
}

/// A join creates a role and a message is echoed, each with the event's id in its name. A gap causes a direct message.
fn handlers(event_guilds: &[EventGuild], dm_user: u64) -> String {
    let welcoming = event_guilds
        .iter()
        .filter(|event_guild| event_guild.has_join_effect)
        .map(|event_guild| format!("\"{}\"", event_guild.guild));
    let welcoming = welcoming.collect::<Vec<_>>().join(", ");
    format!(
        r#"[[handlers]]
name = "welcome"
on = "member.join"
when = {{ guild = [{welcoming}] }}
do = [{{ kind = "create_role", payload = {{ name = "{{event_id}}" }} }}]

[[handlers]]
name = "echo"
on = "message.create"
when = {{ bot = false }}
do = [{{ kind = "send_message", payload = {{ channel_id = "{{channel_id}}", content = "{{event_id}} {{data.content}}" }} }}]

[[handlers]]
name = "gaps"
on = "gateway.gap"
do = [{{ kind = "send_dm", payload = {{ user_id = "{dm_user}", content = "gap {{event_id}}" }} }}]
"#
    )
}

/// Parses an id in Discord's JSON.
fn parse_id(id: &Value) -> u64 {
    id.as_str().unwrap().parse().unwrap()
}
