//! Programs of others beside which ours is measured: scripts for Node, each in a process of its own.

use std::ffi::OsStr;
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

/// Whether `scripts/bench-peers` has installed a package.
pub(crate) fn has(package: &str) -> bool {
    node().exists() && folder().join("node_modules").join(package).exists()
}

/// Runs a script of the peers' folder to its end; what it told in its last line.
pub(crate) fn run<S: AsRef<OsStr>>(script: &str, arguments: impl IntoIterator<Item = S>) -> anyhow::Result<Value> {
    let mut command = Command::new(node());
    command.arg(format!("{script}.mjs")).args(arguments).current_dir(folder());
    let told = to_its_end(command).with_context(|| format!("{script} failed"))?;
    let line = told.lines().last().unwrap_or_default();
    serde_json::from_str(line).with_context(|| format!("{script} told no figures"))
}

/// Where `scripts/bench-peers` installs them.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers")
}

fn node() -> PathBuf {
    folder().join("node_modules/.bin/node")
}

/// What a program writes, if it ends in time.
fn to_its_end(mut command: Command) -> anyhow::Result<String> {
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
