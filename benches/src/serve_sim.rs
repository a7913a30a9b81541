//! A simulator in its own process, so that its work is not counted as work of its callers.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{self, Command, Stdio};

use anyhow::Context as _;
use guildhall_sim::{LimitConfig, Sim, SimConfig};
use serde_json::{Value, json};

use crate::pipeline::TOKEN;

/// Number of guilds of the simulator.
const GUILDS: u32 = 100;

/// Hidden subcommand that the child process runs.
pub(crate) const SUBCOMMAND: &str = "serve-sim";

/// A running child process. Dropping it ends the process.
pub(crate) struct SimProcess {
    process: process::Child,
    pub(crate) api_url: String,
    pub(crate) application: u64,
    pub(crate) guilds: Vec<String>,
}

impl SimProcess {
    /// Starts this program again as a simulator without limits, and waits until it listens.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg(SUBCOMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the simulator process")?;
        let mut line = String::new();
        let stdout = process.stdout.take().context("the simulator process has no stdout")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let report: Value = serde_json::from_str(&line).context("the simulator process did not start")?;
        let guilds = report["guilds"].as_array().context("the simulator process reported no guilds")?;
        Ok(Self {
            process,
            api_url: report["api_url"].as_str().context("the simulator process reported no API URL")?.to_owned(),
            application: report["application"].as_u64().context("the simulator process reported no application id")?,
            guilds: guilds.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        })
    }
}

impl Drop for SimProcess {
    fn drop(&mut self) {
        // It exits when its standard input ends.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// Main function of the child process: serves until the parent process exits.
pub(crate) async fn serve() -> anyhow::Result<()> {
    let config = SimConfig { guilds: GUILDS, limits: LimitConfig::off(), ..SimConfig::default() };
    let sim = Sim::start(config).await.context("cannot start the simulator")?;
    let application = sim.application(TOKEN).context("the simulator does not know its own bot")?.get();
    let guilds: Vec<String> = sim.guilds().iter().map(ToString::to_string).collect();
    println!("{}", json!({ "api_url": sim.api_url(), "application": application, "guilds": guilds }));
    std::io::stdout().flush()?;
    tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink())).await??;
    sim.stop().await;
    Ok(())
}
