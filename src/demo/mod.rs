//! The demo: the daemon against the built-in simulator, with a scenario that shows what it does.
//!
//! ```text
//!   this process                         another one, killed and started again
//!  ┌─────────────────────┐  operations   ┌─────────┐
//!  │ scenario ─▶ client ──┼─────────────▶│ serve   │──▶ store, in a folder that outlives it
//!  │ brain ◀──────────────┼── webhooks ──│         │
//!  │ check ◀─ simulator ◀─┼── REST, ws ──│         │
//!  └─────────────────────┘               └─────────┘
//! ```

mod api_client;
mod brain;
mod daemon_process;
mod effect_check;
mod faults;
mod http;
mod message_stream;
mod operation;
mod scenario;
mod step_table;

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitStatus,
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use guildhall_sim::{BotConfig, ControlError, Sim, SimConfig, SimHandle};
use tempfile::TempDir;
use twilight_model::gateway::Intents;

pub use self::http::DemoHttpError;
use self::{
    api_client::ApiClient,
    brain::DemoBrain,
    daemon_process::{DaemonCommand, DaemonProcess},
    http::DemoHttpClient,
    step_table::StepTable,
};
use crate::{
    api::BindError,
    private_files,
    settings::{Flag, LoadedSettings, SecretValue},
};

/// Shards of the demo.
const SHARDS: u32 = 2;
/// Guilds of the simulator.
const GUILDS: u32 = 10;
/// The bot's id, which its token contains, as in Discord's tokens.
const BOT: u64 = 1_100_000_000_000_000_000;
/// Timeout of each step, long enough for a busy machine.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between two checks whether a step is complete.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The default log filter. Failures that the demo causes itself are part of its scenario, and so are its requests
/// before the API is open.
const DEFAULT_LOG_FILTER: &str = "warn,guildhall_actors::telemetry::operations=error,guildhall::api::events=error";

/// Why the demo failed.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The simulator cannot start.
    #[error("cannot start the simulator: {0}")]
    Sim(#[source] io::Error),
    /// The brain's listener cannot start.
    #[error("cannot start the demo's brain: {0}")]
    Brain(#[source] io::Error),
    /// The folder of the store cannot be created.
    #[error("cannot create a temporary folder for the store: {0}; set TMPDIR to a writable folder")]
    Folder(#[source] io::Error),
    /// The daemon's address is not available.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The daemon's process cannot be started or killed.
    #[error("cannot start or stop the daemon process: {0}")]
    Process(#[source] io::Error),
    /// The daemon exited unexpectedly.
    #[error("the daemon exited unexpectedly ({0}); see its output above")]
    Ended(ExitStatus),
    /// The daemon did not stop in time.
    #[error("the daemon did not stop within shutdown.timeout_ms = {} and was killed", .0.as_millis())]
    Unfinished(Duration),
    /// The API of the daemon or the simulator does not respond.
    #[error(transparent)]
    NoResponse(#[from] DemoHttpError),
    /// The daemon's API rejected a request.
    #[error("the API rejected {request} with status {status}: {body}")]
    Refused {
        /// What was requested.
        request: String,
        /// The status of the response.
        status: u16,
        /// The body of the response.
        body: String,
    },
    /// The simulator rejected a request.
    #[error("the simulator rejected the request: {0}")]
    Control(#[from] ControlError),
}

/// The settings of the demo; all except the demo's own are passed on to the daemon.
pub struct DemoSettings {
    /// The settings file, if one was given.
    pub file: Option<PathBuf>,
    /// Flags of the command line.
    pub flags: Vec<Flag>,
    /// The settings from the file, the flags and the environment.
    pub loaded: LoadedSettings,
}

/// A running demo.
#[derive(Debug)]
pub struct Demo {
    sim: SimHandle,
    /// The simulator's HTTP interface, for state that only it provides.
    sim_http: DemoHttpClient,
    daemon: DaemonProcess,
    /// Receives commands and messages from the daemon.
    brain: DemoBrain,
    api: ApiClient,
    key: SecretValue,
    table: StepTable,
    started: Instant,
    /// The folder of the store. Last, so that it is deleted when nothing uses it any more.
    _folder: TempDir,
}

impl Demo {
    /// Starts a simulator with guilds in it, and a daemon that is connected to it.
    ///
    /// # Errors
    ///
    /// When either cannot start.
    pub async fn start(settings: DemoSettings) -> Result<Self, DemoError> {
        let started = Instant::now();
        let address = daemon_process::free_address(bind_address(&settings.loaded))?;
        let token = format!("{}.demo.{}", STANDARD_NO_PAD.encode(BOT.to_string()), random_text());
        let mut config = SimConfig { guilds: GUILDS, ..SimConfig::default() };
        config.bots = vec![BotConfig { token: token.clone(), ..BotConfig::default() }];
        config.gateway.shards = SHARDS;
        config.gateway.max_concurrency = SHARDS;
        // So that the daemon need not wait for its second start.
        config.gateway.identify_window = Duration::from_millis(500);
        let sim = Sim::start(config).await.map_err(DemoError::Sim)?;
        println!("The simulated Discord is at http://{} (REST under /api/v10, gateway, GET /sim).", sim.address());

        let folder = private_files::temporary_folder("guildhall-demo-").map_err(DemoError::Folder)?;
        let brain = DemoBrain::start().await.map_err(DemoError::Brain)?;
        let handlers = folder.path().join("handlers.toml");
        let mut file = private_files::create_new(&handlers).map_err(DemoError::Folder)?;
        file.write_all(brain.handlers().as_bytes()).map_err(DemoError::Folder)?;
        let key = SecretValue::new(format!("gh_demo_{}", random_text()));
        let mut command = daemon_command(settings, folder.path()).map_err(DemoError::Process)?;
        command.set("discord.token", token);
        command.set("discord.api_url", sim.api_url());
        command.set("discord.gateway_url", sim.gateway_url());
        command.set("store.url", format!("sqlite:{}", folder.path().join("guildhall.db").display()));
        command.set("handlers.file", handlers.display().to_string());
        command.set("handlers.shadow", "false");
        command.set("interactions.defer", "auto");
        // A slow machine must not add operations that wait for minutes.
        command.set("interactions.fallback.unavailable", "");
        command.set("interactions.fallback.unanswered", "");
        command.set("api.bind", address.to_string());
        command.set("api.admin_key", key.expose());
        let daemon = DaemonProcess::start(command).map_err(DemoError::Process)?;
        let address = daemon_process::reachable_address(address);
        println!(
            "Guildhall is at http://{address} (/v1, /livez, /readyz, /metrics), running as process {}.",
            daemon.id()
        );
        let sim_http = DemoHttpClient::new(sim.address(), None);
        let api = ApiClient::new(DemoHttpClient::new(address, Some(key.clone())));
        Ok(Self { sim, sim_http, daemon, brain, api, key, table: StepTable::default(), started, _folder: folder })
    }

    /// The results as a table.
    #[must_use]
    pub fn summary(&self) -> String {
        self.table.to_string()
    }

    /// Commands to try while the demo is running.
    #[must_use]
    pub fn hints(&self) -> String {
        let (sim, api, key) = (self.sim.address(), self.api.http().address(), self.key.expose());
        let (guild, program) = (self.sim.guilds()[0], program_name());
        format!(
            "The demo runs until Ctrl-C. Try in another terminal:\n\
             \n  KEY='Authorization: Bearer {key}'\
             \n  curl -s -X POST http://{api}/v1/guilds/{guild}/operations \\\
             \n    -H \"$KEY\" -H 'Content-Type: application/json' -H 'Idempotency-Key: mine-1' \\\
             \n    -d '{{\"kind\": \"create_role\", \"payload\": {{\"key\": \"mine\", \"name\": \"Mine\"}}}}'\
             \n  curl -s -H \"$KEY\" 'http://{api}/v1/operations?limit=3'\
             \n  curl -s -H \"$KEY\" 'http://{api}/v1/guilds/{guild}'\
             \n  curl -s http://{api}/readyz\
             \n  curl -s http://{api}/metrics | grep guildhall_operations\
             \n  curl -s http://{sim}/sim\
             \n  curl -s -X POST http://{sim}/sim/commands -d '{{\"guild_id\": \"{guild}\", \"name\": \"hello\"}}'\
             \n  curl -s -X POST http://{sim}/sim/faults -d '{{\"do\": {{\"kind\": \"drop_after\"}}, \"probability\": 0.2}}'\
             \n  curl -s 'http://{sim}/sim/score?brief=true'\n\
             \nThe same with the guildhall command:\n\
             \n  export GUILDHALL_API=http://{api} GUILDHALL_KEY={key}\
             \n  {program} ops submit --guild {guild} --kind create_role \\\
             \n    --payload '{{\"key\": \"mine\", \"name\": \"Mine\"}}' --idempotency-key mine-1 --wait\
             \n  {program} ops list --limit 3\
             \n  {program} guilds show {guild}\
             \n  {program} dlq list\
             \n  {program} keys create --name mine --scope operations:read --expires 1d\
             \n  {program} instances\n"
        )
    }

    /// Waits until the daemon exits unexpectedly.
    pub async fn ended(&self) -> DemoError {
        DemoError::Ended(self.daemon.exit_status().await)
    }

    /// Stops the daemon in order, then the simulator.
    ///
    /// # Errors
    ///
    /// When the daemon does not stop in time, or exits with an error.
    pub async fn shutdown(self, timeout: Duration) -> Result<(), DemoError> {
        match self.daemon.stop(timeout).await {
            Some(status) if status.success() => {}
            Some(status) => return Err(DemoError::Ended(status)),
            None => return Err(DemoError::Unfinished(timeout)),
        }
        self.sim.stop().await;
        Ok(())
    }
}

/// The address of the daemon. Port 8080 may be in use; unless it was set, any free port is used.
fn bind_address(loaded: &LoadedSettings) -> std::net::SocketAddr {
    let mut bind = loaded.settings.api.bind;
    if loaded.is_default("api.bind") {
        bind.set_port(0);
    }
    bind
}

/// The daemon's command, with everything that was given to the demo, and with short waits where none were set.
fn daemon_command(DemoSettings { file, flags, loaded }: DemoSettings, folder: &Path) -> io::Result<DaemonCommand> {
    let mut command = DaemonCommand::new(file)?;
    for flag in flags.iter().filter(|flag| !flag.path.ends_with("_file")) {
        command.set(flag.path, &flag.value);
    }
    let overrides = [
        ("log.filter", DEFAULT_LOG_FILTER),
        // The timeout of a call is how long the next process waits before it checks the outcome of the call.
        ("rest.request_timeout_ms", "2000"),
        ("operations.backoff_base_ms", "200"),
        ("operations.max_attempts", "6"),
    ];
    for (path, value) in overrides.into_iter().filter(|(path, _)| loaded.is_default(path)) {
        command.set(path, value);
    }
    // A longer timeout for Redis, since two processes share a busy machine; it has to fit the other waits.
    if ["redis.timeout_ms", "redis.heartbeat_ms", "redis.newcomer_ms"].iter().all(|path| loaded.is_default(path)) {
        command.set("redis.timeout_ms", "1500");
    }
    // Every demo has the same bot: another demo on this machine, with another Redis, must not take the process lock of
    // a daemon that this one has killed, or this one's Redis is not notified that the lock is free.
    if loaded.is_default("redis.seat_dir") {
        command.set("redis.seat_dir", folder.join("seats").display().to_string());
    }
    // The demo and its hints use plain HTTP; the daemon has nothing confidential.
    for file in ["api.tls.cert_file", "api.tls.key_file"] {
        command.set(file, "");
    }
    command.set("api.allow_plaintext", "true");
    command.set("gateway.shards", SHARDS.to_string());
    // No queue of our own: each shard has its own identify bucket in the simulator, which rejects those that come too
    // soon, while twilight's queue makes even those wait for a common round of five seconds.
    command.set("gateway.max_concurrency", "0");
    let required_intents = Intents::GUILDS | Intents::GUILD_MEMBERS | Intents::GUILD_MESSAGES;
    let intents = loaded.settings.gateway.intents | required_intents;
    let names: Vec<String> = intents.iter_names().map(|(name, _)| name.to_lowercase()).collect();
    command.set("gateway.intents", names.join(","));
    Ok(command)
}

/// The name of this program, quoted for a shell.
fn program_name() -> String {
    let name = std::env::args().next().unwrap_or_else(|| "guildhall".to_owned());
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '-' | '_');
    if name.chars().all(plain) { name } else { format!("'{}'", name.replace('\'', r"'\''")) }
}

/// A random string that cannot be guessed.
fn random_text() -> String {
    std::iter::repeat_with(fastrand::alphanumeric).take(32).collect()
}
