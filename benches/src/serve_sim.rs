//! A simulator in a process of its own, so that its work is not counted as its callers'.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{self, Command, Stdio};

use anyhow::Context as _;
use guildhall_sim::{LimitConfig, Sim, SimConfig};
use serde_json::{Value, json};

use crate::pipeline::TOKEN;

/// Guilds of the child's simulator.
const GUILDS: u32 = 100;

/// The hidden subcommand that a child runs.
pub(crate) const SUBCOMMAND: &str = "serve-sim";

/// A running child. It ends when this is dropped.
pub(crate) struct Child {
    process: process::Child,
    pub(crate) api_url: String,
    pub(crate) application: u64,
    pub(crate) guilds: Vec<String>,
}

impl Child {
    /// Starts this program anew, as a simulator without limits, and waits until it listens.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg(SUBCOMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the simulator's process")?;
        let mut line = String::new();
        let stdout = process.stdout.take().context("the simulator's process has no output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let told: Value = serde_json::from_str(&line).context("the simulator's process did not start")?;
        let guilds = told["guilds"].as_array().context("the simulator's process named no guilds")?;
        Ok(Self {
            process,
            api_url: told["api_url"].as_str().context("the simulator's process named no address")?.to_owned(),
            application: told["application"].as_u64().context("the simulator's process named no bot")?,
            guilds: guilds.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It ends when its input does.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// What the child does: serves, until whoever started it is gone.
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
