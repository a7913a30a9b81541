//! A daemon on a simulated Discord, and a command line for it.

use std::{
    io::Write as _,
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
};

use guildhall_sim::{Sim, SimConfig, SimHandle};
use guildhall_testkit::program::{Guildhall, RunningGuildhall, TEST_TIMEOUT};
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Result of a command.
#[derive(Debug)]
pub(crate) struct CommandResult {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl CommandResult {
    /// Asserts success. Returns its output.
    #[track_caller]
    pub(crate) fn expect_success(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.out
    }

    /// Asserts success. Returns its output as JSON.
    #[track_caller]
    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.expect_success()).unwrap()
    }

    /// Asserts failure. Returns its error output.
    #[track_caller]
    pub(crate) fn expect_failure(self) -> String {
        assert_eq!(self.code, 1, "{self:?}");
        self.err
    }

    /// Asserts a usage error. Returns its error output.
    #[track_caller]
    pub(crate) fn expect_usage_error(self) -> String {
        assert_eq!(self.code, 2, "{self:?}");
        self.err
    }
}

/// The program with its own environment and working directory.
pub(crate) struct Cli {
    folder: TempDir,
    environment: Vec<(String, String)>,
}

impl Cli {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), environment: Vec::new() }
    }

    /// Uses this URL and a test key.
    pub(crate) fn at(url: &str) -> Self {
        Self::new().env("GUILDHALL_API", url).env("GUILDHALL_KEY", "gh_test_0123456789")
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn file(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_guildhall"));
        command.args(args).current_dir(self.folder.path()).env_clear().envs(self.environment.iter().cloned());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> CommandResult {
        self.run_with(args, "")
    }

    /// Runs it with this standard input.
    pub(crate) fn run_with(&self, args: &[&str], input: &str) -> CommandResult {
        let mut command = self.command(args);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It may exit before it has read it.
        drop(child.stdin.take().unwrap().write_all(input.as_bytes()));
        let output = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        CommandResult { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
    }
}

/// A daemon with a generated key, and a command line with the same settings.
pub(crate) struct DaemonFixture {
    pub(crate) cli: Cli,
    pub(crate) address: SocketAddr,
    pub(crate) sim: SimHandle,
    _running: RunningGuildhall,
    folder: TempDir,
    // Last, because it runs the simulator.
    _runtime: Runtime,
}

impl DaemonFixture {
    pub(crate) fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let sim = runtime.block_on(Sim::start(SimConfig { guilds: 3, ..SimConfig::default() })).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let store = format!("sqlite:{}/guildhall.db", folder.path().display());
        let running = Guildhall::serve(&sim.gateway_url())
            .env("GUILDHALL__DISCORD__TOKEN", "sim-bot-token")
            .env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
            .env("GUILDHALL__STORE__URL", &store)
            .spawn();
        let address = running.address();
        running.wait_for_log_line("\"part is ready\",\"part\":\"operations\"");
        // The environment of a user who runs both with the same settings.
        let cli = Cli::new().env("GUILDHALL__STORE__URL", &store).env("GUILDHALL__API__BIND", &address.to_string());
        Self { cli, address, sim, _running: running, folder, _runtime: runtime }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn guild(&self, number: usize) -> String {
        self.sim.guilds()[number].to_string()
    }

    pub(crate) fn run(&self, args: &[&str]) -> CommandResult {
        self.cli.run(args)
    }

    /// Waits until the gateway has reported all guilds. Returns their names, in the order of the simulator.
    pub(crate) fn wait_for_guild_names(&self) -> Vec<String> {
        let listed = || self.run(&["guilds", "list", "-o", "json"]).json()["guilds"].as_array().unwrap().clone();
        self.wait_until(|| {
            let guilds = listed();
            guilds.len() == 3 && guilds.iter().all(|guild| guild["name"].is_string())
        });
        let guilds = listed();
        let name =
            |id: &str| guilds.iter().find(|guild| guild["id"] == *id).unwrap()["name"].as_str().unwrap().to_owned();
        (0..3).map(|number| name(&self.guild(number))).collect()
    }

    /// Waits for a condition. Nothing depends on how long that takes.
    pub(crate) fn wait_until(&self, is_satisfied: impl Fn() -> bool) {
        let deadline = std::time::Instant::now() + TEST_TIMEOUT;
        while !is_satisfied() {
            assert!(std::time::Instant::now() < deadline, "timed out waiting for the condition");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    /// Submits an operation that fails. Returns its id.
    pub(crate) fn submit_dead(&self, guild: &str) -> String {
        let payload = r#"{"user_id": "42", "role_id": "43"}"#;
        let args =
            ["ops", "submit", "--guild", guild, "--kind", "assign_role", "--payload", payload, "--wait", "-o", "json"];
        let result = self.run(&args);
        assert_eq!(result.code, 1, "{result:?}");
        let output: Value = serde_json::from_str(&result.out).unwrap();
        assert_eq!(output["operations"][0]["state"], "dead", "{output}");
        output["operations"][0]["id"].as_str().unwrap().to_owned()
    }
}
