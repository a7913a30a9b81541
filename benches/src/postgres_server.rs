//! A PostgreSQL of the benchmark's own: a free port, a folder of its own, and gone at the end. It keeps what it says it
//! has kept: `fsync` and `synchronous_commit` stay on.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// How long the server may take to listen.
const PATIENCE: Duration = Duration::from_secs(20);
/// Where Debian keeps the programs of each version.
const INSTALLED: &str = "/usr/lib/postgresql";

/// A running server. It ends when this is dropped.
pub(crate) struct PostgresServer {
    process: Child,
    programs: PathBuf,
    port: u16,
    _folder: tempfile::TempDir,
}

impl PostgresServer {
    /// Makes a cluster, starts a server on it, and waits until it answers.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let programs = newest().context("cannot find PostgreSQL; install it with: apt-get install postgresql")?;
        let folder = tempfile::tempdir()?;
        let data = folder.path().join("data");
        // The server refuses to run as root.
        let user = user(folder.path())?;
        if let Some((uid, gid)) = user {
            std::os::unix::fs::chown(folder.path(), Some(uid), Some(gid))?;
        }
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        let as_user = |program: &str| {
            let mut command = Command::new(programs.join(program));
            command.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null());
            if let Some((uid, gid)) = user {
                command.uid(uid).gid(gid);
            }
            command
        };
        let made = as_user("initdb")
            .args(["--no-sync", "--auth=trust", "--username=bench", "--encoding=UTF8", "--pgdata"])
            .arg(&data)
            .stderr(Stdio::null())
            .status()?;
        if !made.success() {
            bail!("initdb ended with {made}");
        }
        // Somebody else could take the port before the server does; then it ends at once, and says so.
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let process = as_user("postgres")
            .arg("-D")
            .arg(&data)
            .args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="])
            .stderr(Stdio::null())
            .spawn()?;
        let mut server = Self { process, programs, port, _folder: folder };
        let deadline = Instant::now() + PATIENCE;
        while !server.answers()? {
            if let Some(status) = server.process.try_wait()? {
                bail!("postgres ended at once: {status}");
            }
            if Instant::now() > deadline {
                bail!("postgres does not answer");
            }
        }
        Ok(server)
    }

    /// A database of its own.
    pub(crate) fn database(&self, name: &str) -> anyhow::Result<String> {
        let made = Command::new(self.programs.join("createdb"))
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "bench", name])
            .status()?;
        if !made.success() {
            bail!("createdb ended with {made}");
        }
        Ok(format!("postgres://bench@127.0.0.1:{}/{name}", self.port))
    }

    fn answers(&self) -> anyhow::Result<bool> {
        let asked = Command::new(self.programs.join("pg_isready"))
            .args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()])
            .status()?;
        Ok(asked.success())
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The programs of the newest version there is.
fn newest() -> Option<PathBuf> {
    let version = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let versions = fs::read_dir(INSTALLED).ok()?.flatten().map(|entry| entry.path());
    let newest = versions.filter(|path| version(path).is_some()).max_by_key(|path| version(path))?;
    Some(newest.join("bin"))
}

/// Whom to run the server as: nobody else if this is no root, else the user that came with it.
fn user(own: &Path) -> anyhow::Result<Option<(u32, u32)>> {
    if fs::metadata(own)?.uid() != 0 {
        return Ok(None);
    }
    let passwd = fs::read_to_string("/etc/passwd")?;
    let line = passwd.lines().find(|line| line.starts_with("postgres:")).context("there is no user postgres")?;
    let mut fields = line.split(':').skip(2);
    let mut number = || fields.next().and_then(|field| field.parse().ok()).context("the user postgres has no number");
    Ok(Some((number()?, number()?)))
}
