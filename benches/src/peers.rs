//! Other programs that Guildhall is compared with: Node.js scripts, each in its own process.

use std::ffi::OsStr;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

/// Time limit of a peer.
const PEER_TIMEOUT: Duration = Duration::from_secs(180);
/// Interval at which a peer's exit is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Returns whether `scripts/bench-peers` has installed a package.
pub(crate) fn is_installed(package: &str) -> bool {
    node().exists() && folder().join("node_modules").join(package).exists()
}

/// Runs a script of the peers' directory to its end, and returns the JSON value of its last line.
pub(crate) fn run_script<S: AsRef<OsStr>>(
    script: &str,
    arguments: impl IntoIterator<Item = S>,
) -> anyhow::Result<Value> {
    let mut command = Command::new(node());
    command.arg(format!("{script}.mjs")).args(arguments).current_dir(folder());
    let output = capture_output(command).with_context(|| format!("{script} failed"))?;
    let line = output.lines().last().unwrap_or_default();
    serde_json::from_str(line).with_context(|| format!("{script} printed no figures"))
}

/// Directory in which `scripts/bench-peers` installs them.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers")
}

fn node() -> PathBuf {
    folder().join("node_modules/.bin/node")
}

/// Returns the output of a program that exits in time.
fn capture_output(mut command: Command) -> anyhow::Result<String> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let deadline = Instant::now() + PEER_TIMEOUT;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            bail!("it did not exit within {PEER_TIMEOUT:?}");
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    ensure!(status.success(), "it exited with {status}");
    let mut output = String::new();
    child.stdout.take().context("it has no stdout")?.read_to_string(&mut output)?;
    Ok(output)
}
