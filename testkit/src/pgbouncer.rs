//! A PgBouncer for a test, in front of the tests' PostgreSQL.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::TcpListener,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
};

use tempfile::TempDir;

use crate::postgres::postgres_user;

/// Outside the system's range of ephemeral ports, and apart from the ports of the other servers.
const PORTS: std::ops::Range<u16> = 30_000..32_000;

/// A `pgbouncer` on 127.0.0.1 with its own directory. It stops on drop.
///
/// It uses transaction pooling, and has only the settings that the documentation requires.
pub struct PgBouncer {
    port: u16,
    postgres_port: u16,
    folder: TempDir,
    child: Option<Child>,
}

impl PgBouncer {
    /// Starts it in front of the PostgreSQL at this port.
    pub fn start(postgres_port: u16) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut bouncer = Self { port: 0, postgres_port, folder, child: None };
        for _ in 0..100 {
            bouncer.port = fastrand::u16(PORTS);
            if TcpListener::bind(("127.0.0.1", bouncer.port)).is_ok() && bouncer.launch() {
                return bouncer;
            }
        }
        panic!("pgbouncer did not start");
    }

    fn settings(&self) -> String {
        format!(
            "[databases]\n\
             * = host=127.0.0.1 port={} user=guildhall\n\
             [pgbouncer]\n\
             listen_addr = 127.0.0.1\n\
             listen_port = {}\n\
             unix_socket_dir =\n\
             auth_type = any\n\
             pool_mode = transaction\n\
             server_reset_query = DEALLOCATE ALL\n\
             server_reset_query_always = 1\n\
             default_pool_size = 20\n\
             server_login_retry = 1\n",
            self.postgres_port, self.port
        )
    }

    /// Runs it until it is ready. Returns `false` if it exits before that, as it does if its port is in use.
    fn launch(&mut self) -> bool {
        let file = self.folder.path().join("pgbouncer.ini");
        fs::write(&file, self.settings()).unwrap();
        let mut command = Command::new(program_path());
        if let Some((uid, gid)) = postgres_user() {
            command.uid(uid).gid(gid);
        }
        let mut child = command
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run pgbouncer ({error}); apt-get install pgbouncer"));
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (sender, ready) = mpsc::channel();
        // Reads to the end: a server whose output is not read blocks when the pipe is full.
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if line.contains("process up") {
                    sender.send(()).unwrap_or_default();
                }
            }
        });
        let is_ready = ready.recv().is_ok();
        if is_ready {
            self.child = Some(child);
        } else {
            child.wait().unwrap();
        }
        is_ready
    }

    /// URL of a database through this PgBouncer.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://guildhall@127.0.0.1:{}/{database}", self.port)
    }

    /// Kills it.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Kills it if it runs, and starts it again at the same port.
    pub fn restart(&mut self) {
        self.kill();
        assert!(self.launch(), "pgbouncer did not restart");
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Path of the program. Debian installs it outside the usual `PATH`.
fn program_path() -> PathBuf {
    let usual = Path::new("/usr/sbin/pgbouncer");
    if usual.exists() { usual.to_owned() } else { "pgbouncer".into() }
}
