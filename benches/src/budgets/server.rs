//! A Redis of the benchmark's own.

use std::io::{BufRead as _, BufReader, ErrorKind};
use std::net::TcpListener;
use std::ops::{Add, Sub};
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context as _, bail};
use tempfile::TempDir;

/// How often a free port may be somebody else's by the time that the server binds it.
const TRIES: usize = 5;

/// A `redis-server` on 127.0.0.1 with a folder of its own, which keeps nothing and ends with this.
pub(super) struct Server {
    port: u16,
    child: Child,
    _folder: TempDir,
}

/// How a script reaches the server.
#[derive(Clone, Copy)]
pub(super) enum Script {
    /// By its hash.
    Known,
    /// As text, every time.
    SentWhole,
}

/// What scripts have used.
#[derive(Clone, Copy, Default)]
pub(super) struct Used {
    /// How often one was called.
    pub(super) calls: u64,
    /// How long the server was busy with them.
    pub(super) micros: u64,
}

impl Server {
    pub(super) fn start() -> anyhow::Result<Self> {
        for _ in 0..TRIES {
            if let Some(server) = Self::try_start()? {
                return Ok(server);
            }
        }
        bail!("redis-server ends as soon as it is started")
    }

    /// `None` when it ends before it serves.
    fn try_start() -> anyhow::Result<Option<Self>> {
        let folder = tempfile::tempdir().context("cannot make a folder for redis-server")?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let started = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"])
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut child = match started {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                bail!("there is no redis-server on the PATH, and this needs one; apt-get install redis-server")
            }
            started => started.context("cannot run redis-server")?,
        };
        let mut lines = BufReader::new(child.stdout.take().context("its output is piped")?).lines();
        let server = Self { port, child, _folder: folder };
        let serves = lines.by_ref().map_while(Result::ok).any(|line| line.contains("Ready to accept connections"));
        // Read to its end: a server that nobody listens to stops at a full pipe.
        thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Ok(serves.then_some(server))
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// What scripts of this kind have used so far, by the server's own count.
    pub(super) fn used_by(&self, script: Script) -> anyhow::Result<Used> {
        let mut connection = redis::Client::open(("127.0.0.1", self.port))?.get_connection()?;
        let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut connection)?;
        let command = match script {
            Script::Known => "cmdstat_evalsha:",
            Script::SentWhole => "cmdstat_eval:",
        };
        let Some(line) = stats.lines().find_map(|line| line.strip_prefix(command)) else {
            return Ok(Used::default());
        };
        let field = |name: &str| {
            let value = line.split(',').find_map(|field| field.strip_prefix(name));
            value.and_then(|value| value.parse().ok()).with_context(|| format!("redis-server does not tell {name}"))
        };
        Ok(Used { calls: field("calls=")?, micros: field("usec=")? })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Add for Used {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { calls: self.calls + other.calls, micros: self.micros + other.micros }
    }
}

impl Sub for Used {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self { calls: self.calls - earlier.calls, micros: self.micros - earlier.micros }
    }
}
