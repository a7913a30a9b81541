//! A PostgreSQL for a test binary, with a database for each test.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::TcpListener,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _, chown},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    thread,
};

use sea_orm::{ConnectionTrait as _, Database, DatabaseConnection};
use tempfile::TempDir;

/// Outside the system's range of ephemeral ports, so that the port of a server that restarts is still free.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// A `postgres` on 127.0.0.1 with its own directory. It stops on drop.
pub struct PostgresServer {
    port: u16,
    folder: TempDir,
    child: Option<Child>,
    databases: AtomicU32,
}

impl PostgresServer {
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let data = folder.path().join("data");
        fs::create_dir(&data).unwrap();
        if let Some((uid, gid)) = postgres_user() {
            chown(&data, Some(uid), Some(gid)).unwrap();
        }
        let initdb = command("initdb", &data)
            .args(["--no-sync", "--auth=trust", "--username=guildhall", "--encoding=UTF8", "--locale=C"])
            .stdout(Stdio::null())
            .status();
        assert!(initdb.unwrap().success(), "initdb failed");
        let mut server = Self { port: 0, folder, child: None, databases: AtomicU32::new(0) };
        for _ in 0..100 {
            server.port = fastrand::u16(PORTS);
            if TcpListener::bind(("127.0.0.1", server.port)).is_ok() && server.launch() {
                return server;
            }
        }
        panic!("postgres did not start");
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Runs it until it is ready. Returns `false` if it exits before that, as it does if its port is in use.
    fn launch(&mut self) -> bool {
        let port = self.port.to_string();
        let data = self.data();
        let mut child = command("postgres", &data)
            .args(["-p", &port, "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="])
            .args(["-c", "max_connections=200", "-c", "shared_buffers=64MB"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (sender, ready) = mpsc::channel();
        // Reads to the end: a server whose output is not read blocks when the pipe is full.
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if line.contains("database system is ready to accept connections") {
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

    /// Statics are never dropped, so a separate process waits for the end of this one and cleans up.
    fn stop_at_process_exit(&self) {
        const CLEAN_UP: &str = r#"read -r _; kill -QUIT "$1"; while kill -0 "$1"; do sleep 0.05; done; rm -rf "$2""#;
        let pid = self.child.as_ref().unwrap().id().to_string();
        let cleaner = Command::new("sh")
            .args(["-c", CLEAN_UP, "sh", &pid, self.folder.path().to_str().unwrap()])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The other end of the pipe is closed when this process ends.
        std::mem::forget(cleaner);
    }

    /// Creates an empty database and returns its URL.
    pub async fn create_database(&self) -> String {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let connection = self.connect("postgres").await;
        connection.execute_unprepared(&format!("CREATE DATABASE {name}")).await.unwrap();
        connection.close().await.unwrap();
        self.url(&name)
    }

    /// Creates an empty database whose owner is a new role with only these options of `CREATE ROLE`, as in production.
    /// Returns its URL and the name of the role.
    pub async fn create_database_with_owner(&self, role_options: &str) -> (String, String) {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        let (name, user) = (format!("test_{number}"), format!("owner_{number}"));
        let connection = self.connect("postgres").await;
        for sql in [format!("CREATE ROLE {user} LOGIN {role_options}"), format!("CREATE DATABASE {name} OWNER {user}")]
        {
            connection.execute_unprepared(&sql).await.unwrap();
        }
        connection.close().await.unwrap();
        (self.url(&name).replace("guildhall@", &format!("{user}@")), user)
    }

    /// Writes a dump of a database to a file, as its owner makes a backup.
    pub fn dump(&self, url: &str, to: &Path) {
        let mut command = Command::new(bin_dir().join("pg_dump"));
        run(command.args(["--format=custom", "--enable-row-security", "--file"]).arg(to).arg(url));
    }

    /// Replaces a database, which nothing uses any more, by the content of a dump, as its owner.
    pub async fn restore_dump(&self, url: &str, from: &Path) {
        let (owner, name) = (url.split(['/', '@']).nth(2).unwrap(), url.rsplit('/').next().unwrap());
        let connection = self.connect("postgres").await;
        for sql in [format!("DROP DATABASE {name} WITH (FORCE)"), format!("CREATE DATABASE {name} OWNER {owner}")] {
            connection.execute_unprepared(&sql).await.unwrap();
        }
        connection.close().await.unwrap();
        let mut command = Command::new(bin_dir().join("pg_restore"));
        run(command.args(["--exit-on-error", "--dbname", url]).arg(from));
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self, database: &str) -> String {
        format!("postgres://guildhall@127.0.0.1:{}/{database}", self.port)
    }

    /// A separate connection, to inspect the data and to do what a process must not do.
    pub async fn connect(&self, database: &str) -> DatabaseConnection {
        Database::connect(self.url(database)).await.unwrap()
    }

    /// Stops it without a clean shutdown.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // To the first process only, which stops the others. `kill -9` would leave them behind.
            let quit = format!("kill -QUIT {}", child.id());
            assert!(Command::new("sh").args(["-c", &quit]).status().unwrap().success());
            child.wait().unwrap();
        }
    }

    /// Starts it again at the same port, with the same data.
    pub fn start_again(&mut self) {
        assert!(self.launch(), "postgres did not restart");
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The server that all tests of a binary share. It stops with the process, however that ends.
pub fn shared() -> &'static PostgresServer {
    static SERVER: OnceLock<PostgresServer> = OnceLock::new();
    SERVER.get_or_init(|| {
        let server = PostgresServer::start();
        server.stop_at_process_exit();
        server
    })
}

/// Runs a program until it exits successfully.
fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A PostgreSQL program, run as a user that it accepts.
fn command(program: &str, data: &Path) -> Command {
    let mut command = Command::new(bin_dir().join(program));
    if let Some((uid, gid)) = postgres_user() {
        command.uid(uid).gid(gid);
    }
    command.arg("-D").arg(data).stdin(Stdio::null());
    command
}

/// Ids of the `postgres` user if this process is root: PostgreSQL does not run as root.
pub fn postgres_user() -> Option<(u32, u32)> {
    let root = fs::metadata("/proc/self").unwrap().uid() == 0;
    root.then(|| {
        let users = fs::read_to_string("/etc/passwd").unwrap();
        let line = users.lines().find(|line| line.starts_with("postgres:")).expect("no user `postgres` in /etc/passwd");
        let fields: Vec<_> = line.split(':').collect();
        (fields[2].parse().unwrap(), fields[3].parse().unwrap())
    })
}

/// Directory of Debian's PostgreSQL programs, of the newest version.
fn bin_dir() -> PathBuf {
    static FOUND: Mutex<Option<PathBuf>> = Mutex::new(None);
    let mut found = FOUND.lock().unwrap();
    let newest = || {
        let versions = fs::read_dir("/usr/lib/postgresql").expect("apt-get install postgresql");
        let versions = versions.map(|entry| entry.unwrap().path().join("bin"));
        versions.filter(|bin| bin.join("initdb").exists()).max().expect("apt-get install postgresql")
    };
    found.get_or_insert_with(newest).clone()
}
