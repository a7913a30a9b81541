//! A private PostgreSQL server on a free port with its own data directory, removed at the end. Its commits are durable:
//! `fsync` and `synchronous_commit` stay on.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// Time limit for the server to accept connections.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Directory in which Debian installs the programs of each version.
const INSTALL_DIR: &str = "/usr/lib/postgresql";

/// A running server. Dropping it stops the server.
pub(crate) struct PostgresServer {
    process: Child,
    programs: PathBuf,
    port: u16,
    _folder: tempfile::TempDir,
}

impl PostgresServer {
    /// Creates a cluster, starts a server on it, and waits until it accepts connections.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let programs =
            newest_programs().context("cannot find PostgreSQL; install it with: apt-get install postgresql")?;
        let folder = tempfile::tempdir()?;
        let data = folder.path().join("data");
        // The server refuses to run as root.
        let user = server_user(folder.path())?;
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
        let exit_status = as_user("initdb")
            .args(["--no-sync", "--auth=trust", "--username=bench", "--encoding=UTF8", "--pgdata"])
            .arg(&data)
            .stderr(Stdio::null())
            .status()?;
        if !exit_status.success() {
            bail!("initdb exited with {exit_status}");
        }
        // Another process could take the port before the server does. Then the server exits at once with an error.
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let process = as_user("postgres")
            .arg("-D")
            .arg(&data)
            .args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="])
            .stderr(Stdio::null())
            .spawn()?;
        let mut server = Self { process, programs, port, _folder: folder };
        let deadline = Instant::now() + START_TIMEOUT;
        while !server.accepts_connections()? {
            if let Some(status) = server.process.try_wait()? {
                bail!("postgres exited during its start: {status}");
            }
            if Instant::now() > deadline {
                bail!("postgres did not accept connections in time");
            }
        }
        Ok(server)
    }

    /// Creates a database and returns its URL.
    pub(crate) fn create_database(&self, name: &str) -> anyhow::Result<String> {
        let status = Command::new(self.programs.join("createdb"))
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "bench", name])
            .status()?;
        if !status.success() {
            bail!("createdb exited with {status}");
        }
        Ok(format!("postgres://bench@127.0.0.1:{}/{name}", self.port))
    }

    fn accepts_connections(&self) -> anyhow::Result<bool> {
        let status = Command::new(self.programs.join("pg_isready"))
            .args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()])
            .status()?;
        Ok(status.success())
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Programs of the newest installed version.
fn newest_programs() -> Option<PathBuf> {
    let version = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let versions = fs::read_dir(INSTALL_DIR).ok()?.flatten().map(|entry| entry.path());
    let newest = versions.filter(|path| version(path).is_some()).max_by_key(|path| version(path))?;
    Some(newest.join("bin"))
}

/// User to run the server as: `None` if this process is not root, else the user `postgres`.
fn server_user(directory: &Path) -> anyhow::Result<Option<(u32, u32)>> {
    if fs::metadata(directory)?.uid() != 0 {
        return Ok(None);
    }
    let passwd = fs::read_to_string("/etc/passwd")?;
    let line = passwd.lines().find(|line| line.starts_with("postgres:")).context(
        "there is no user postgres; install \
        PostgreSQL with: apt-get install postgresql",
    )?;
    let mut fields = line.split(':').skip(2);
    let mut next_id = || {
        fields.next().and_then(|field| field.parse().ok()).context(
            "the entry of user postgres in \
        /etc/passwd has no numeric ids",
        )
    };
    Ok(Some((next_id()?, next_id()?)))
}
