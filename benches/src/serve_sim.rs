//! A simulator in its own process, so that its work is not counted as work of its callers.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{self, Command, Stdio};

use anyhow::Context as _;
use clap::Args;
use guildhall_sim::{BotConfig, LimitConfig, Sim, SimConfig};
use serde_json::{Value, json};

use crate::pipeline::TOKEN;

/// Number of guilds of the simulator.
const GUILDS: u32 = 100;

/// Hidden subcommand that the child process runs.
pub(crate) const SUBCOMMAND: &str = "serve-sim";

/// The bot of the simulator.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Its token.
    #[arg(long)]
    token: String,
}

/// A running child process. Dropping it ends the process.
pub(crate) struct SimProcess {
    process: process::Child,
    pub(crate) api_url: String,
    pub(crate) gateway_url: String,
    pub(crate) application: u64,
    pub(crate) guilds: Vec<String>,
}

impl SimProcess {
    /// Starts this program again as a simulator without limits, and waits until it listens.
    pub(crate) fn start() -> anyhow::Result<Self> {
        Self::start_with_token(TOKEN)
    }

    /// The same, with this token of the bot.
    pub(crate) fn start_with_token(token: &str) -> anyhow::Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args([SUBCOMMAND, "--token", token])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the simulator process")?;
        let mut line = String::new();
        let stdout = process.stdout.take().context("the simulator process has no stdout")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let report: Value = serde_json::from_str(&line).context("the simulator process did not start")?;
        let guilds = report["guilds"].as_array().context("the simulator process reported no guilds")?;
        let url = |name: &str| {
            let url = report[name].as_str().map(str::to_owned);
            url.with_context(|| format!("the simulator process reported no {name}"))
        };
        Ok(Self {
            process,
            api_url: url("api_url")?,
            gateway_url: url("gateway_url")?,
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
pub(crate) async fn serve(Arguments { token }: &Arguments) -> anyhow::Result<()> {
    let bots = vec![BotConfig { token: token.clone(), ..BotConfig::default() }];
    let config = SimConfig { bots, guilds: GUILDS, limits: LimitConfig::off(), ..SimConfig::default() };
    let sim = Sim::start(config).await.context("cannot start the simulator")?;
    let application = sim.application(token).context("the simulator does not know its own bot")?.get();
    let guilds: Vec<String> = sim.guilds().iter().map(ToString::to_string).collect();
    let (api_url, gateway_url) = (sim.api_url(), sim.gateway_url());
    let report =
        json!({ "api_url": api_url, "gateway_url": gateway_url, "application": application, "guilds": guilds });
    println!("{report}");
    std::io::stdout().flush()?;
    tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink())).await??;
    sim.stop().await;
    Ok(())
}
