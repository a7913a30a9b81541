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

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, sleep},
};

use crate::{
    KEY,
    http::{Answer, ask},
    support::{
        Guildhall, STUCK,
        gateway::{Gateway, Manner},
    },
};

const FLOOD: usize = 5_000;
const MOST: usize = 200;
/// Connections for health checks beyond the limit, and those that are being rejected.
const BESIDE: usize = 16 + 1_024;

/// Another process with many connections.
struct Flooder {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Flooder {
    /// Runs this test binary with [`opens_many_connections`] only.
    fn start(address: SocketAddr) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "flood::opens_many_connections", "--ignored", "--nocapture"])
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

impl Drop for Flooder {
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
            let mut words = Vec::new();
            drop(stream.read_to_end(&mut words).await);
            let told = String::from_utf8_lossy(&words).contains("urn:guildhall:problem:too-many-connections");
            counts[0].fetch_sub(1, Ordering::SeqCst);
            counts[if told { 1 } else { 2 }].fetch_add(1, Ordering::SeqCst);
        });
    }
    for _ in std::io::stdin().lines().map_while(Result::ok) {
        let [held, told, cut] = [0, 1, 2].map(|kind| counts[kind].load(Ordering::SeqCst));
        println!("counts {held} {told} {cut}");
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
async fn until(address: SocketAddr, path: &str, status: u16) -> Answer {
    let deadline = Instant::now() + STUCK;
    loop {
        let answer = ask(address, "GET", path, &Value::Null).await;
        match answer {
            Ok(answer) if answer.status == status => return answer,
            answer => assert!(Instant::now() < deadline, "{path} never returned {status}: {answer:?}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn five_thousand_connections_are_bounded_told_and_gone_and_health_is_answered_meanwhile() {
    let gateway = Gateway::start(Manner::Kind).await;
    let daemon = Guildhall::serve(&gateway.url)
        .env("GUILDHALL__API__ADMIN_KEY", KEY)
        .env("GUILDHALL__API__MAX_CONNECTIONS", &MOST.to_string())
        // They stay open for the whole test.
        .env("GUILDHALL__API__HEADER_TIMEOUT_MS", "600000")
        .spawn();
    let address = daemon.address();
    daemon.line_with("\"part is ready\",\"part\":\"gateway\"");
    let before = metric(&until(address, "/metrics", 200).await.body, "process_open_fds");

    let mut flooder = Flooder::start(address);
    let deadline = Instant::now() + STUCK;
    let counts = loop {
        let counts = tokio::task::block_in_place(|| flooder.report());
        let [held, told, cut] = counts;
        if told + cut + MOST >= FLOOD && held <= MOST {
            break counts;
        }
        assert!(Instant::now() < deadline, "not all of them are finished: {counts:?}");
        sleep(Duration::from_millis(50)).await;
    };
    let [held, told, cut] = counts;
    println!("of {FLOOD} connections {held} are held, {told} were rejected, {cut} closed");
    assert!(held >= MOST / 2, "{counts:?}");
    assert!(told > FLOOD / 2, "most of them should be rejected with a response: {counts:?}");

    // New connections are rejected now, except for health and metrics.
    let refused = until(address, "/v1/operations", 503).await;
    assert_eq!(refused.json()["type"], "urn:guildhall:problem:too-many-connections", "{refused:?}");
    for path in ["/livez", "/readyz"] {
        until(address, path, 200).await;
    }
    let metrics = until(address, "/metrics", 200).await.body;
    let (open, fds) = (metric(&metrics, "guildhall_api_connections "), metric(&metrics, "process_open_fds"));
    assert!(open <= MOST + 16, "{open} connections");
    assert!(fds <= before + MOST + BESIDE, "{fds} files, {before} before");
    let refused = ["full", "flood"]
        .map(|why| metric(&metrics, &format!("guildhall_api_connections_refused_total{{why=\"{why}\"}}")));
    assert!(refused.iter().sum::<usize>() >= told, "{refused:?}");

    drop(flooder);
    let listed = until(address, "/v1/operations", 200).await;
    assert_eq!(listed.json()["operations"], Value::Array(Vec::new()));
    daemon.signal("TERM");
    assert_eq!(tokio::task::block_in_place(|| daemon.end()).code, Some(0));
}
