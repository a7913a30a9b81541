//! A private Redis server on a free port with its own directory, removed at the end.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::disk;

/// Time limit for the server to accept connections.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// A running server. Dropping it stops the server.
pub(crate) struct RedisServer {
    process: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl RedisServer {
    /// Starts a server without persistence, and waits until it responds.
    pub(crate) fn start() -> anyhow::Result<Self> {
        Self::start_with(tempfile::tempdir()?, &["--appendonly", "no"])
    }

    /// Starts a server with an append-only file on a disk, which is synced once a second.
    pub(crate) fn start_persistent() -> anyhow::Result<Self> {
        Self::start_with(disk::temp_dir()?, &["--appendonly", "yes", "--appendfsync", "everysec"])
    }

    fn start_with(folder: tempfile::TempDir, persistence_args: &[&str]) -> anyhow::Result<Self> {
        // Another process could take the port before the server does. Then the server exits at once with an error.
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let process = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""])
            .args(persistence_args)
            .arg("--dir")
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start redis-server; install it with: apt-get install redis-server")?;
        let mut server = Self { process, port, _folder: folder };
        let deadline = Instant::now() + START_TIMEOUT;
        while server.query("PING").is_err() {
            if let Some(status) = server.process.try_wait()? {
                bail!("redis-server exited during its start: {status}");
            }
            if Instant::now() > deadline {
                bail!("redis-server did not respond in time");
            }
            std::thread::yield_now();
        }
        Ok(server)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Number of scripts run so far, from the statistics of the server.
    pub(crate) fn script_calls(&self) -> anyhow::Result<u64> {
        let stats = self.query("INFO commandstats")?;
        let calls = |name: &str| {
            let line = stats.lines().find_map(|line| line.strip_prefix(name))?;
            line.strip_prefix(":calls=")?.split(',').next()?.parse::<u64>().ok()
        };
        Ok(["cmdstat_evalsha", "cmdstat_eval"].into_iter().filter_map(calls).sum())
    }

    /// Sends a command whose reply is a simple string or a bulk string.
    fn query(&self, command: &str) -> anyhow::Result<String> {
        let mut socket = TcpStream::connect(("127.0.0.1", self.port))?;
        socket.set_read_timeout(Some(START_TIMEOUT))?;
        socket.write_all(format!("{command}\r\n").as_bytes())?;
        let mut reply = BufReader::new(socket);
        let mut head = String::new();
        reply.read_line(&mut head)?;
        let head = head.trim_end();
        match (head.strip_prefix('$'), head.strip_prefix('+')) {
            (Some(length), _) => {
                let mut text = vec![0; length.parse()?];
                reply.read_exact(&mut text)?;
                Ok(String::from_utf8(text)?)
            }
            (None, Some(line)) => Ok(line.to_owned()),
            (None, None) => bail!("redis-server returned {head}"),
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
