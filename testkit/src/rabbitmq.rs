//! A RabbitMQ for tests, as Debian packages it.
//!
//! ```text
//!  test ─stdin─▶ sh ─▶ epmd             the shells end what they started when the test process ends,
//!       └─stdin─▶ sh ─▶ rabbitmq-server  whatever ends it
//! ```

use std::{
    io::{BufRead as _, BufReader},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Output, Stdio},
    sync::mpsc,
    thread,
};

/// Outside the system's range of ephemeral ports, so that the ports of a server that restarts are still free.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// Log message of a server that is ready.
const READY: &str = "Server startup complete";

/// Runs a program until standard input closes, and prints its process id first.
const GUARD: &str = "\"$@\" & pid=$!; echo \"pid $pid\"; exec >&-; read -r _; kill -9 $pid; wait $pid";

/// A `rabbitmq-server` on 127.0.0.1 with its own node name, ports and directory. It stops when the test process ends.
pub struct RabbitServer {
    port: u16,
    epmd_port: u16,
    dist_port: u16,
    folder: PathBuf,
    _epmd: GuardedProcess,
    server: Option<GuardedProcess>,
}

/// A process that ends when this is dropped, or when the test process ends.
struct GuardedProcess {
    guard: Child,
    stdin: Option<ChildStdin>,
    pid: u32,
}

impl RabbitServer {
    pub fn start() -> Self {
        for _ in 0..20 {
            let [port, epmd_port, dist_port] = [(); 3].map(|()| free_port());
            let folder = tempfile::tempdir().unwrap().keep();
            std::fs::create_dir(folder.join("log")).unwrap();
            std::fs::write(folder.join("enabled_plugins"), "[].").unwrap();
            let config = format!(
                "listeners.tcp.local = 127.0.0.1:{port}\ndisk_free_limit.absolute = 1MB\nlog.console = true\n\
                 log.console.level = info\nlog.file = false\nvm_memory_high_watermark.absolute = 2GB\n"
            );
            std::fs::write(folder.join("rabbitmq.conf"), config).unwrap();
            let mut epmd = Command::new("epmd");
            epmd.args(["-port", &epmd_port.to_string(), "-address", "127.0.0.1"]);
            let (epmd, _) = GuardedProcess::start(&epmd, &folder, Some(&folder));
            let mut server = Self { port, epmd_port, dist_port, folder, _epmd: epmd, server: None };
            if server.launch() {
                return server;
            }
        }
        panic!("rabbitmq-server did not start");
    }

    /// Runs it until it is ready. Returns `false` if it exits before that, as it does if a port is in use.
    fn launch(&mut self) -> bool {
        let (process, lines) = GuardedProcess::start(&self.command("rabbitmq-server"), &self.folder, None);
        let (sender, ready) = mpsc::channel();
        // Reads to the end: a server whose output is not read blocks when the pipe is full.
        thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok).filter(|line| line.contains(READY)) {
                sender.send(line).unwrap_or_default();
            }
        });
        let is_ready = ready.recv().is_ok();
        self.server = is_ready.then_some(process);
        is_ready
    }

    /// One of its programs, with its environment.
    fn command(&self, program: &str) -> Command {
        let text = |path: &str| self.folder.join(path).display().to_string();
        let mut command = Command::new(sbin().join(program));
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.envs([
            ("HOME", self.folder.display().to_string()),
            ("LC_ALL", "C.UTF-8".to_owned()),
            // The script then becomes the server, instead of its parent.
            ("RUNNING_UNDER_SYSTEMD", "true".to_owned()),
            ("ERL_EPMD_PORT", self.epmd_port.to_string()),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
            ("RABBITMQ_NODENAME", self.node()),
            ("RABBITMQ_DIST_PORT", self.dist_port.to_string()),
            ("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1".to_owned()),
            ("RABBITMQ_NODE_PORT", self.port.to_string()),
            ("RABBITMQ_CONFIG_FILE", text("rabbitmq.conf")),
            ("RABBITMQ_CONF_ENV_FILE", text("none")),
            ("RABBITMQ_MNESIA_BASE", text("mnesia")),
            ("RABBITMQ_LOG_BASE", text("log")),
            ("RABBITMQ_LOGS", "-".to_owned()),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", text("enabled_plugins")),
            (
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none".to_owned(),
            ),
        ]);
        command
    }

    fn node(&self) -> String {
        format!("test{}@localhost", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its URL, with the default user and vhost.
    pub fn url(&self) -> String {
        self.url_of("guest:guest", "%2F")
    }

    pub fn url_of(&self, login: &str, vhost: &str) -> String {
        format!("amqp://{login}@127.0.0.1:{}/{vhost}", self.port)
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.server = None;
    }

    /// Kills it if it runs, and starts it again. It keeps its durable queues and persistent messages.
    pub fn restart(&mut self) {
        self.kill();
        assert!(self.launch(), "rabbitmq-server did not restart");
    }

    /// Suspends it: its connections stay open, and it does not respond.
    pub fn stop(&self) {
        self.signal("STOP");
    }

    /// Resumes it.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.server.as_ref().unwrap().pid);
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// Runs `rabbitmqctl` with these arguments.
    pub fn ctl(&self, args: &[&str]) -> Output {
        let output = self.command("rabbitmqctl").args(["--node", &self.node()]).args(args).output().unwrap();
        assert!(
            output.status.success(),
            "rabbitmqctl {args:?}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        output
    }
}

impl GuardedProcess {
    /// Starts a program. `remove` is a directory to delete at the end. Returns what it prints.
    fn start(command: &Command, folder: &Path, remove: Option<&Path>) -> (Self, BufReader<std::process::ChildStdout>) {
        let script = if remove.is_some() { format!("{GUARD}; sleep 1; rm -rf \"$FOLDER\"") } else { GUARD.to_owned() };
        let mut guarded = Command::new("sh");
        guarded.args(["-c", &script, "sh"]).arg(command.get_program()).args(command.get_args());
        guarded.env("FOLDER", folder).current_dir(folder);
        for (name, value) in command.get_envs() {
            guarded.env(name, value.unwrap_or_default());
        }
        let mut guard = guarded.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let stdin = guard.stdin.take();
        let mut lines = BufReader::new(guard.stdout.take().unwrap());
        let mut first = String::new();
        lines.read_line(&mut first).unwrap();
        let pid = first.trim().strip_prefix("pid ").and_then(|pid| pid.parse().ok()).unwrap();
        (Self { guard, stdin, pid }, lines)
    }
}

impl Drop for GuardedProcess {
    fn drop(&mut self) {
        drop(self.stdin.take());
        drop(self.guard.wait());
    }
}

/// The scripts of the server itself: those in the path switch to another user.
fn sbin() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib/rabbitmq/lib").into_iter().flatten();
    let found = folders.filter_map(|entry| Some(entry.ok()?.path().join("sbin"))).find(|sbin| sbin.is_dir());
    found.unwrap_or_else(|| panic!("no RabbitMQ in /usr/lib/rabbitmq/lib; apt-get install rabbitmq-server"))
}

fn free_port() -> u16 {
    loop {
        let port = fastrand::u16(PORTS);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
