//! A Redis for a test, and a relay to it that can be cut.

use std::{
    io::{BufRead as _, BufReader},
    net::TcpListener as StdListener,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use guildhall::settings::RedisUrl;
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{mpsc as queue, watch},
    time::{Instant, sleep_until},
};

/// Outside the system's range of ephemeral ports, so that the port of a server that restarts is still free. Apart from
/// the ports of the cluster bus, which are these plus 10,000.
const PORTS: std::ops::Range<u16> = 10_000..20_000;

/// Arguments of every server.
const COMMON_ARGS: [&str; 6] = ["--port", "{port}", "--bind", "127.0.0.1", "--dir", "{folder}"];

/// Log messages of a server and of a sentinel that is ready.
const READY_MESSAGES: [&str; 2] = ["Ready to accept connections", "Sentinel ID is"];

/// A `redis-server` on 127.0.0.1 with its own directory. It persists nothing and stops on drop.
pub struct RedisServer {
    port: u16,
    args: Vec<String>,
    folder: TempDir,
    child: Option<Child>,
}

impl RedisServer {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts it with more arguments. In them, `{port}` and `{folder}` are replaced by its port and its directory.
    pub fn start_with(args: &[&str]) -> Self {
        Self::start_in_directory(tempfile::tempdir().unwrap(), args)
    }

    /// Starts it in a directory that contains files that it needs.
    pub fn start_in_directory(folder: TempDir, args: &[&str]) -> Self {
        let no_persistence = ["--save", "", "--appendonly", "no"];
        Self::start_on_free_port(folder, &[&COMMON_ARGS[..], &no_persistence, args].concat())
    }

    /// Starts a sentinel that monitors nothing yet.
    pub fn start_sentinel() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // A sentinel requires a configuration file that it can write to.
        std::fs::write(folder.path().join("sentinel.conf"), "").unwrap();
        Self::start_on_free_port(folder, &[&["{folder}/sentinel.conf", "--sentinel"], &COMMON_ARGS[..]].concat())
    }

    fn start_on_free_port(folder: TempDir, args: &[&str]) -> Self {
        let mut server = Self { port: 0, args: args.iter().map(ToString::to_string).collect(), folder, child: None };
        for _ in 0..100 {
            server.port = fastrand::u16(PORTS);
            if StdListener::bind(("127.0.0.1", server.port)).is_ok() && server.launch() {
                return server;
            }
        }
        panic!("redis-server did not start with {args:?}");
    }

    /// Runs it until it is ready. Returns `false` if it exits before that, as it does if its port is in use.
    fn launch(&mut self) -> bool {
        let port = self.port.to_string();
        let folder = self.folder.path().to_str().unwrap();
        let mut child = Command::new("redis-server")
            .args(self.args.iter().map(|arg| arg.replace("{port}", &port).replace("{folder}", folder)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run redis-server ({error}); apt-get install redis-server"));
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, ready) = mpsc::channel();
        // Reads to the end: a server whose output is not read blocks when the pipe is full.
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if READY_MESSAGES.iter().any(|text| line.contains(text)) {
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

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    pub fn url(&self) -> RedisUrl {
        format!("redis://127.0.0.1:{}", self.port).parse().unwrap()
    }

    /// A separate client, to inspect the data and to do what a process must not do.
    pub fn client(&self) -> redis::Client {
        redis::Client::open(("127.0.0.1", self.port)).unwrap()
    }

    /// Kills it.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Kills it if it runs, and starts it again at the same port. Its data is lost.
    pub fn restart_empty(&mut self) {
        self.kill();
        assert!(self.launch(), "redis-server did not restart");
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
        let kill = format!("kill -{name} {}", self.child.as_ref().unwrap().id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A TCP relay to a server that can be cut and delayed. It has its own thread and stops on drop.
pub struct Relay {
    port: u16,
    link: watch::Sender<LinkState>,
}

#[derive(Clone, Copy)]
struct LinkState {
    cut: bool,
    delay: Duration,
}

impl Relay {
    pub fn to(server: &RedisServer) -> Self {
        let target = server.port;
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (link, state) = watch::channel(LinkState { cut: false, delay: Duration::ZERO });
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(accept_connections(listener, target, state));
        });
        Self { port, link }
    }

    pub fn url(&self) -> RedisUrl {
        format!("redis://127.0.0.1:{}", self.port).parse().unwrap()
    }

    /// Closes all connections. New ones are closed at once.
    pub fn cut(&self) {
        self.link.send_modify(|link| link.cut = true);
    }

    /// Lets connections through again.
    pub fn restore(&self) {
        self.link.send_modify(|link| link.cut = false);
    }

    /// Delays what is sent to the server from now on.
    pub fn delay(&self, delay: Duration) {
        self.link.send_modify(|link| link.delay = delay);
    }
}

async fn accept_connections(listener: StdListener, target: u16, mut state: watch::Receiver<LinkState>) {
    let listener = TcpListener::from_std(listener).unwrap();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // An error means that the relay was dropped.
            Err(_) = async { state.wait_for(|_| false).await.map(drop) } => return,
        };
        let Ok((from, _)) = accepted else { continue };
        if !state.borrow().cut {
            tokio::spawn(forward(from, target, state.clone()));
        }
    }
}

/// Forwards one connection until either side or the relay closes it.
async fn forward(from: TcpStream, target: u16, mut state: watch::Receiver<LinkState>) {
    let Ok(to) = TcpStream::connect(("127.0.0.1", target)).await else { return };
    from.set_nodelay(true).unwrap();
    to.set_nodelay(true).unwrap();
    let (from_read, from_write) = from.into_split();
    let (to_read, to_write) = to.into_split();
    let delays = state.clone();
    tokio::select! {
        () = copy(from_read, to_write, move || delays.borrow().delay) => {}
        () = copy(to_read, from_write, || Duration::ZERO) => {}
        _ = state.wait_for(|link| link.cut) => {}
    }
}

/// Forwards bytes in one direction. Each chunk is delayed by the delay at its arrival, regardless of other chunks in
/// flight.
async fn copy(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, delay: impl Fn() -> Duration) {
    let (send, mut chunks) = queue::unbounded_channel::<(Instant, Vec<u8>)>();
    let read = async {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            drop(send.send((Instant::now() + delay(), buffer[..count].to_vec())));
        }
    };
    let write = async {
        while let Some((due, chunk)) = chunks.recv().await {
            sleep_until(due).await;
            if to.write_all(&chunk).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = read => {}
        () = write => {}
    }
}
