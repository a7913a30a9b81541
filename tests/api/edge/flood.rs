//! A flood of connections from another process.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::SocketAddr,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use guildhall_testkit::{
    gateway::{FakeGateway, GatewayBehavior},
    program::{Guildhall, TEST_TIMEOUT},
};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, sleep},
};

use super::{
    KEY,
    http::{Response, send_request},
};

const FLOOD: usize = 5_000;
const MAX_CONNECTIONS: usize = 200;
/// Connections for health checks beyond the limit, and those that are being rejected.
const EXTRA_FILES: usize = 16 + 1_024;

/// Another process with many connections.
struct FloodProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl FloodProcess {
    /// Runs this test binary with [`opens_many_connections`] only.
    fn start(address: SocketAddr) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "edge::flood::opens_many_connections", "--ignored", "--nocapture"])
            .env("EDGE_FLOODS", address.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    /// Counts of its connections: held, rejected, closed.
    fn report(&mut self) -> [usize; 3] {
        self.input.write_all(b"\n").unwrap();
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the process has ended");
            if let Some(counts) = line.trim().strip_prefix("counts ") {
                let counts: Vec<_> = counts.split(' ').map(|count| count.parse().unwrap()).collect();
                return counts.try_into().unwrap();
            }
        }
    }
}

impl Drop for FloodProcess {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Opens connections with an incomplete request, and holds them. Prints their counts for each line of input.
#[test]
#[ignore = "runs in the other process"]
fn opens_many_connections() {
    let Ok(address) = std::env::var("EDGE_FLOODS") else { return };
    let address: SocketAddr = address.parse().unwrap();
    rlimit::increase_nofile_limit(FLOOD as u64 + 1_000).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let counts: Arc<[AtomicUsize; 3]> = Arc::default();
    for n in 0..FLOOD {
        let counts = Arc::clone(&counts);
        runtime.spawn(async move {
            let Ok(mut stream) = TcpStream::connect(address).await else {
                counts[2].fetch_add(1, Ordering::SeqCst);
                return;
            };
            if n % 2 == 0 {
                drop(stream.write_all(b"GET /livez HT").await);
            }
            counts[0].fetch_add(1, Ordering::SeqCst);
            let mut received = Vec::new();
            drop(stream.read_to_end(&mut received).await);
            let rejected = String::from_utf8_lossy(&received).contains("urn:guildhall:problem:too-many-connections");
            counts[0].fetch_sub(1, Ordering::SeqCst);
            counts[if rejected { 1 } else { 2 }].fetch_add(1, Ordering::SeqCst);
        });
    }
    for _ in std::io::stdin().lines().map_while(Result::ok) {
        let [held, rejected, cut] = [0, 1, 2].map(|kind| counts[kind].load(Ordering::SeqCst));
        println!("counts {held} {rejected} {cut}");
    }
}

fn metric(metrics: &str, name: &str) -> usize {
    let line = metrics.lines().find(|line| line.starts_with(name) && !line.starts_with('#'));
    let value: f64 = line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
    let value = value as usize;
    value
}

/// Repeats a request until it has this status.
async fn wait_for_status(address: SocketAddr, path: &str, status: u16) -> Response {
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let response = send_request(address, "GET", path, &Value::Null).await;
        match response {
            Ok(response) if response.status == status => return response,
            response => assert!(Instant::now() < deadline, "{path} never returned {status}: {response:?}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn flood_of_connections_is_limited_and_health_is_served() {
    let gateway = FakeGateway::start(GatewayBehavior::Normal).await;
    let daemon = Guildhall::serve(&gateway.url)
        .env("GUILDHALL__API__ADMIN_KEY", KEY)
        .env("GUILDHALL__API__MAX_CONNECTIONS", &MAX_CONNECTIONS.to_string())
        // They stay open for the whole test.
        .env("GUILDHALL__API__HEADER_TIMEOUT_MS", "600000")
        .spawn();
    let address = daemon.address();
    daemon.wait_for_log_line("\"part is ready\",\"part\":\"gateway\"");
    let before = metric(&wait_for_status(address, "/metrics", 200).await.body, "process_open_fds");

    let mut flooder = FloodProcess::start(address);
    let deadline = Instant::now() + TEST_TIMEOUT;
    let counts = loop {
        let counts = tokio::task::block_in_place(|| flooder.report());
        let [held, rejected, cut] = counts;
        if rejected + cut + MAX_CONNECTIONS >= FLOOD && held <= MAX_CONNECTIONS {
            break counts;
        }
        assert!(Instant::now() < deadline, "not all of them are finished: {counts:?}");
        sleep(Duration::from_millis(50)).await;
    };
    let [held, rejected, cut] = counts;
    println!("of {FLOOD} connections {held} are held, {rejected} were rejected, {cut} closed");
    assert!(held >= MAX_CONNECTIONS / 2, "{counts:?}");
    assert!(rejected > FLOOD / 2, "most of them should be rejected with a response: {counts:?}");

    // New connections are rejected now, except for health and metrics.
    let refused = wait_for_status(address, "/v1/operations", 503).await;
    assert_eq!(refused.json()["type"], "urn:guildhall:problem:too-many-connections", "{refused:?}");
    for path in ["/livez", "/readyz"] {
        wait_for_status(address, path, 200).await;
    }
    let metrics = wait_for_status(address, "/metrics", 200).await.body;
    let (open, fds) = (metric(&metrics, "guildhall_api_connections "), metric(&metrics, "process_open_fds"));
    assert!(open <= MAX_CONNECTIONS + 16, "{open} connections");
    assert!(fds <= before + MAX_CONNECTIONS + EXTRA_FILES, "{fds} files, {before} before");
    let refused = ["full", "flood"]
        .map(|reason| metric(&metrics, &format!("guildhall_api_connections_refused_total{{why=\"{reason}\"}}")));
    assert!(refused.iter().sum::<usize>() >= rejected, "{refused:?}");

    drop(flooder);
    let listed = wait_for_status(address, "/v1/operations", 200).await;
    assert_eq!(listed.json()["operations"], Value::Array(Vec::new()));
    daemon.signal("TERM");
    assert_eq!(tokio::task::block_in_place(|| daemon.wait_for_exit()).code, Some(0));
}
