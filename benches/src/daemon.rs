//! A daemon in its own process: this program, started again as `guildhall serve`.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use clap::Parser as _;
use http::Method;
use serde_json::Value;
use tokio::time::sleep;

use crate::cpu;
use crate::load::Connection;
use crate::metrics::Metrics;

/// Hidden subcommand that the child process runs.
pub(crate) const SUBCOMMAND: &str = "serve-daemon";

/// API key of the callers.
pub(crate) const KEY: &str = "the-key-of-those-who-measure";

/// Time limit for the start of a daemon.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running daemon. Dropping it shuts it down gracefully.
pub(crate) struct Daemon {
    process: Child,
    pub(crate) address: SocketAddr,
}

impl Daemon {
    /// Starts a daemon with these settings and the common ones, and waits until it listens.
    pub(crate) fn start(settings: &[(&str, &str)], folder: &Path) -> anyhow::Result<Self> {
        let common = [
            ("API__BIND", "127.0.0.1:0"),
            ("API__ADMIN_KEY", KEY),
            // One caller sends all requests.
            ("API__POLICIES__HEAVY_PER_SECOND", "0"),
            ("API__POLICIES__LIGHT_PER_SECOND", "0"),
            ("STORE__MAX_QUEUED_OPERATOR", "0"),
            ("STORE__MAX_BYTES_OPERATOR", "0"),
            ("LOG__FORMAT", "json"),
            // Effectively no limit.
            ("LIMITS__GLOBAL", "10000"),
            ("LIMITS__MARGIN_MS", "0"),
            ("LIMITS__SETTLING_MS", "0"),
        ];
        let settings = common.iter().chain(settings);
        let mut process = Command::new(std::env::current_exe()?)
            .arg(SUBCOMMAND)
            .env_clear()
            .envs(settings.map(|(name, value)| (format!("GUILDHALL__{name}"), *value)))
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start a daemon")?;
        let lines = BufReader::new(process.stderr.take().context("the daemon has no stderr")?).lines();
        let (tell, told) = mpsc::channel();
        // Reads to the end: a daemon whose log pipe is full blocks.
        thread::spawn(move || {
            let mut last = String::new();
            for line in lines.map_while(Result::ok) {
                if let Some(address) = listening(&line) {
                    let _ = tell.send(Ok(address));
                }
                last = line;
            }
            let _ = tell.send(Err(last));
        });
        let address = told.recv_timeout(PATIENCE).context("a daemon did not start in time")?;
        let address = address.map_err(|last| anyhow::anyhow!("a daemon exited during its start: {last}"))?;
        Ok(Self { process, address })
    }

    /// Resident memory in bytes.
    pub(crate) fn resident(&self) -> anyhow::Result<u64> {
        let path = format!("/proc/{}/status", self.process.id());
        let status = std::fs::read_to_string(&path).context(
            "cannot read the memory of the daemon; this benchmark \
            needs Linux",
        )?;
        let kb = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB"));
        Ok(kb.with_context(|| format!("cannot parse {path}"))?.trim().parse::<u64>()? * 1_024)
    }

    /// Processor time used so far.
    pub(crate) fn used(&self) -> anyhow::Result<Duration> {
        cpu::of_threads(self.process.id())
    }

    /// Scrapes its metrics.
    pub(crate) async fn metrics(&self) -> anyhow::Result<Metrics> {
        let mut connection = Connection::open(self.address).await?;
        let (status, told) = connection.call(Method::GET, "/metrics", &format!("Bearer {KEY}"), Bytes::new()).await?;
        ensure!(status == 200, "a daemon returned {status} for /metrics");
        Ok(Metrics::read(&String::from_utf8_lossy(&told)))
    }

    /// Waits until it reports that it is ready.
    pub(crate) async fn is_ready(&self) -> anyhow::Result<()> {
        let mut connection = Connection::open(self.address).await?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (status, told) = connection.call(Method::GET, "/readyz", "", Bytes::new()).await?;
            if status == 200 {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "a daemon did not become ready in time: {}",
                String::from_utf8_lossy(&told)
            );
            sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It exits when its standard input ends.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// Main function of the child process: runs `guildhall serve` until the parent process exits.
pub(crate) fn serve() -> ExitCode {
    let _ = rustls::crypto::ring::default_provider().install_default();
    guildhall::cli::run(guildhall::cli::Cli::parse_from(["guildhall", "serve", "--until-input-ends"]))
}

fn listening(line: &str) -> Option<SocketAddr> {
    let line: Value = serde_json::from_str(line).ok().filter(|line: &Value| line["address"].is_string())?;
    let is_so = line["message"] == "listening" || line["fields"]["message"] == "listening";
    is_so.then(|| line["address"].as_str()?.parse().ok()).flatten()
}
