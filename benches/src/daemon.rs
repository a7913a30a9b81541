//! A daemon in its own process: this program, started again as `guildhall serve`.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use clap::Parser as _;
use http::Method;
use serde_json::Value;
use tokio::time::sleep;

use crate::cpu;
use crate::http_client::Connection;
use crate::metrics::Metrics;

/// Hidden subcommand that the child process runs.
pub(crate) const SUBCOMMAND: &str = "serve-daemon";

/// API key of the callers.
pub(crate) const API_KEY: &str = "the-key-of-those-who-measure";

/// Time limit for the start of a daemon.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running daemon. Dropping it shuts it down gracefully.
pub(crate) struct Daemon {
    process: Child,
    pub(crate) address: SocketAddr,
    log: mpsc::Receiver<LogLine>,
}

/// A line of its log that a test waits for.
enum LogLine {
    /// The API listens.
    Api(SocketAddr),
    /// The REST proxy listens.
    Egress(SocketAddr),
    /// The last line before the end.
    Last(String),
}

impl Daemon {
    /// Starts a daemon with these settings and the common ones, and waits until it listens.
    pub(crate) fn start(settings: &[(&str, &str)], folder: &Path) -> anyhow::Result<Self> {
        let common = [
            ("API__BIND", "127.0.0.1:0"),
            ("API__ADMIN_KEY", API_KEY),
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
        let (sender, receiver) = mpsc::channel();
        // Reads to the end: a daemon whose log pipe is full blocks.
        thread::spawn(move || {
            let mut last = String::new();
            for line in lines.map_while(Result::ok) {
                if let Some(known) = parse_log_line(&line) {
                    let _ = sender.send(known);
                }
                last = line;
            }
            let _ = sender.send(LogLine::Last(last));
        });
        let address =
            wait_for_address(&receiver, |line| if let LogLine::Api(address) = line { Some(*address) } else { None })?;
        Ok(Self { process, address, log: receiver })
    }

    /// Waits until the REST proxy listens, which must be enabled, and returns its address.
    pub(crate) fn wait_for_egress(&self) -> anyhow::Result<SocketAddr> {
        wait_for_address(&self.log, |line| if let LogLine::Egress(address) = line { Some(*address) } else { None })
    }

    /// Resident memory in bytes.
    pub(crate) fn resident_bytes(&self) -> anyhow::Result<u64> {
        let path = format!("/proc/{}/status", self.process.id());
        let status = std::fs::read_to_string(&path).context(
            "cannot read the memory of the daemon; this benchmark \
            needs Linux",
        )?;
        let kb = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB"));
        Ok(kb.with_context(|| format!("cannot parse {path}"))?.trim().parse::<u64>()? * 1_024)
    }

    /// Processor time used so far.
    pub(crate) fn cpu_time(&self) -> anyhow::Result<Duration> {
        cpu::other_process_time(self.process.id())
    }

    /// Scrapes its metrics.
    pub(crate) async fn metrics(&self) -> anyhow::Result<Metrics> {
        let mut connection = Connection::open(self.address).await?;
        let (status, body) =
            connection.call(Method::GET, "/metrics", &format!("Bearer {API_KEY}"), Bytes::new()).await?;
        ensure!(status == 200, "a daemon returned {status} for /metrics");
        Ok(Metrics::parse(&String::from_utf8_lossy(&body)))
    }

    /// Waits until it reports that it is ready.
    pub(crate) async fn wait_until_ready(&self) -> anyhow::Result<()> {
        let mut connection = Connection::open(self.address).await?;
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let (status, body) = connection.call(Method::GET, "/readyz", "", Bytes::new()).await?;
            if status == 200 {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "a daemon did not become ready in time: {}",
                String::from_utf8_lossy(&body)
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

/// Waits for a line that has the address.
fn wait_for_address(
    log: &mpsc::Receiver<LogLine>,
    find: impl Fn(&LogLine) -> Option<SocketAddr>,
) -> anyhow::Result<SocketAddr> {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        let line = log.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        match line.context("a daemon did not start in time")? {
            LogLine::Last(last) => bail!("a daemon exited during its start: {last}"),
            line => {
                if let Some(address) = find(&line) {
                    return Ok(address);
                }
            }
        }
    }
}

fn parse_log_line(line: &str) -> Option<LogLine> {
    let line: Value = serde_json::from_str(line).ok()?;
    let address = line["address"].as_str()?.parse().ok()?;
    match line["message"].as_str().or_else(|| line["fields"]["message"].as_str())? {
        "listening" => Some(LogLine::Api(address)),
        "egress listening" => Some(LogLine::Egress(address)),
        _ => None,
    }
}
