//! A Redis of the benchmark's own: a free port, a folder of its own, and gone at the end.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::disk;

/// How long the server may take to listen.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running server. It ends when this is dropped.
pub(crate) struct RedisServer {
    process: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl RedisServer {
    /// Starts a server that keeps nothing, and waits until it answers.
    pub(crate) fn start() -> anyhow::Result<Self> {
        Self::with(tempfile::tempdir()?, &["--appendonly", "no"])
    }

    /// Starts a server that writes what it is told to a disk, and sees once a second that it is there.
    pub(crate) fn keeping() -> anyhow::Result<Self> {
        Self::with(disk::folder()?, &["--appendonly", "yes", "--appendfsync", "everysec"])
    }

    fn with(folder: tempfile::TempDir, keeps: &[&str]) -> anyhow::Result<Self> {
        // Somebody else could take the port before the server does; then it ends at once, and says so.
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let process = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""])
            .args(keeps)
            .arg("--dir")
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start redis-server; install it with: apt-get install redis-server")?;
        let mut server = Self { process, port, _folder: folder };
        let deadline = Instant::now() + PATIENCE;
        while server.ask("PING").is_err() {
            if let Some(status) = server.process.try_wait()? {
                bail!("redis-server ended at once: {status}");
            }
            if Instant::now() > deadline {
                bail!("redis-server does not answer");
            }
            std::thread::yield_now();
        }
        Ok(server)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Scripts that were run so far, by the server's own count.
    pub(crate) fn scripts_run(&self) -> anyhow::Result<u64> {
        let stats = self.ask("INFO commandstats")?;
        let calls = |name: &str| {
            let line = stats.lines().find_map(|line| line.strip_prefix(name))?;
            line.strip_prefix(":calls=")?.split(',').next()?.parse::<u64>().ok()
        };
        Ok(["cmdstat_evalsha", "cmdstat_eval"].into_iter().filter_map(calls).sum())
    }

    /// Asks something whose answer is one line, or one text of a known length.
    fn ask(&self, command: &str) -> anyhow::Result<String> {
        let mut socket = TcpStream::connect(("127.0.0.1", self.port))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.write_all(format!("{command}\r\n").as_bytes())?;
        let mut answer = BufReader::new(socket);
        let mut head = String::new();
        answer.read_line(&mut head)?;
        let head = head.trim_end();
        match (head.strip_prefix('$'), head.strip_prefix('+')) {
            (Some(length), _) => {
                let mut text = vec![0; length.parse()?];
                answer.read_exact(&mut text)?;
                Ok(String::from_utf8(text)?)
            }
            (None, Some(line)) => Ok(line.to_owned()),
            (None, None) => bail!("redis-server answered {head}"),
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
