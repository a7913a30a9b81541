//! An OpenTelemetry collector: it accepts OTLP as JSON over HTTP, and records every span.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use guildhall_testkit::program::TEST_TIMEOUT;
use serde_json::Value;

/// What it has received.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReceivedSpans {
    pub(crate) spans: Vec<Value>,
    pub(crate) resources: Vec<Value>,
    /// The heads of requests, in lower case.
    pub(crate) heads: Vec<String>,
}

pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    received: Arc<(Mutex<ReceivedSpans>, Condvar)>,
}

impl Collector {
    /// Responds to the first requests with these statuses, and accepts the others.
    pub(crate) fn start(first_statuses: &'static [u16]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, received) = (listener.local_addr().unwrap(), Arc::<(Mutex<ReceivedSpans>, Condvar)>::default());
        let shared = Arc::clone(&received);
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || serve(&stream, &shared, first_statuses));
            }
        });
        Self { address, received }
    }

    pub(crate) fn received(&self) -> ReceivedSpans {
        self.received.0.lock().unwrap().clone()
    }

    /// Waits until what it has received is enough.
    pub(crate) fn until(&self, what: &str, is_enough: impl Fn(&ReceivedSpans) -> bool) -> ReceivedSpans {
        let deadline = Instant::now() + TEST_TIMEOUT;
        let mut received = self.received.0.lock().unwrap();
        while !is_enough(&received) {
            let remaining = deadline.saturating_duration_since(Instant::now());
            assert!(remaining > Duration::ZERO, "never received {what}, but {:?}", received.spans);
            received = self.received.1.wait_timeout(received, remaining).unwrap().0;
        }
        received.clone()
    }
}

fn serve(stream: &TcpStream, shared: &(Mutex<ReceivedSpans>, Condvar), first_statuses: &[u16]) {
    let (mut reader, mut writer) = (BufReader::new(stream), stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
        }
        let head = head.to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        let mut received = shared.0.lock().unwrap();
        let status = first_statuses.get(received.heads.len()).copied().unwrap_or(200);
        received.heads.push(head);
        if status == 200 {
            let body: Value = serde_json::from_slice(&body).unwrap();
            for resource in body["resourceSpans"].as_array().unwrap() {
                received.resources.push(resource["resource"].clone());
                for scope in resource["scopeSpans"].as_array().unwrap() {
                    received.spans.extend(scope["spans"].as_array().unwrap().iter().cloned());
                }
            }
        }
        drop(received);
        shared.1.notify_all();
        let response =
            format!("HTTP/1.1 {status} Whatever\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}");
        if writer.write_all(response.as_bytes()).is_err() {
            return;
        }
    }
}
