//! The queues beside which ours is measured, each in a process of its own.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

/// How long a peer may take.
const PATIENCE: Duration = Duration::from_secs(180);
/// How often a peer is looked after.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A peer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Peer {
    /// One named queue a guild.
    Graphile,
    /// One queue that keeps the jobs of each key in order.
    PgBoss,
}

/// What a peer is asked to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Jobs {
    pub(crate) guilds: u32,
    pub(crate) per_guild: u32,
    pub(crate) workers: u32,
}

/// What a peer did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) per_s: f64,
    pub(crate) order_violations: u64,
}

impl Peer {
    /// What it is called, also in the figures.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Graphile => "graphile",
            Self::PgBoss => "pgboss",
        }
    }

    /// Has it do jobs in a database of its own; `None` if the peers are not installed.
    pub(crate) fn measure(self, url: &str, jobs: Jobs) -> anyhow::Result<Option<Done>> {
        let folder = folder();
        let node = folder.join("node_modules/.bin/node");
        if !node.exists() {
            return Ok(None);
        }
        let Jobs { guilds, per_guild, workers } = jobs;
        let numbers = [guilds, per_guild, workers].map(|number| number.to_string());
        let mut command = Command::new(node);
        command.arg(format!("{}.mjs", self.name())).arg(url).args(numbers).current_dir(&folder);
        let told = run(command).with_context(|| format!("{} failed", self.name()))?;
        let line = told.lines().last().unwrap_or_default();
        let figures: Value = serde_json::from_str(line).with_context(|| format!("{} told no figures", self.name()))?;
        let per_s = figures["per_s"].as_f64().context("a peer told no rate")?;
        let order_violations = figures["order_violations"].as_u64().context("a peer did not tell about the order")?;
        Ok(Some(Done { per_s, order_violations }))
    }
}

/// Where `scripts/bench-peers` installs them.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers")
}

/// What a program writes, if it ends in time.
fn run(mut command: Command) -> anyhow::Result<String> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            bail!("it was not done within {PATIENCE:?}");
        }
        std::thread::sleep(LOOK_EVERY);
    };
    ensure!(status.success(), "it ended with {status}");
    let mut told = String::new();
    child.stdout.take().context("it has no output")?.read_to_string(&mut told)?;
    Ok(told)
}
