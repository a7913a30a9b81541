//! twilight's http-proxy, where `scripts/bench-peers` has built it.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use crate::cpu;
use crate::processes::TOKEN;

/// Time limit for its start.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The running program.
pub(super) struct TwilightProxy {
    process: Child,
    pub(super) address: SocketAddr,
}

impl TwilightProxy {
    /// Starts it in front of this upstream; `None` if it is not built.
    pub(super) fn start(upstream: &str) -> anyhow::Result<Option<Self>> {
        let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
        let program = peers.join("twilight-http-proxy/target/release/twilight-http-proxy");
        if !program.exists() {
            return Ok(None);
        }
        // It cannot choose a free port itself.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let process = Command::new(&program)
            .env_clear()
            .env("HOST", address.ip().to_string())
            .env("PORT", address.port().to_string())
            .env("DISCORD_TOKEN", TOKEN)
            .env("BENCH_UPSTREAM", format!("http://{upstream}"))
            .env("RUST_LOG", "error")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let proxy = Self { process, address };
        let deadline = Instant::now() + START_TIMEOUT;
        while TcpStream::connect(address).is_err() {
            ensure!(Instant::now() < deadline, "{} does not listen on {address}", program.display());
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(Some(proxy))
    }

    /// Processor time used so far.
    pub(super) fn cpu_time(&self) -> anyhow::Result<Duration> {
        cpu::other_process_time(self.process.id())
    }
}

impl Drop for TwilightProxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
