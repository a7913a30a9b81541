//! An OpenTelemetry collector: it accepts OTLP as JSON over HTTP, and records every span.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::STUCK;

/// What it has received.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    pub(crate) spans: Vec<Value>,
    pub(crate) resources: Vec<Value>,
    /// The heads of requests, in lower case.
    pub(crate) heads: Vec<String>,
}

pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    told: Arc<(Mutex<Told>, Condvar)>,
}

impl Collector {
    /// Responds to the first requests with these statuses, and accepts the others.
    pub(crate) fn start(first: &'static [u16]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, told) = (listener.local_addr().unwrap(), Arc::<(Mutex<Told>, Condvar)>::default());
        let memory = Arc::clone(&told);
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let memory = Arc::clone(&memory);
                std::thread::spawn(move || serve(&stream, &memory, first));
            }
        });
        Self { address, told }
    }

    pub(crate) fn told(&self) -> Told {
        self.told.0.lock().unwrap().clone()
    }

    /// Waits until what it has received is enough.
    pub(crate) fn until(&self, what: &str, enough: impl Fn(&Told) -> bool) -> Told {
        let deadline = Instant::now() + STUCK;
        let mut told = self.told.0.lock().unwrap();
        while !enough(&told) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(left > Duration::ZERO, "never received {what}, but {:?}", told.spans);
            told = self.told.1.wait_timeout(told, left).unwrap().0;
        }
        told.clone()
    }
}

fn serve(stream: &TcpStream, memory: &(Mutex<Told>, Condvar), first: &[u16]) {
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
        let mut told = memory.0.lock().unwrap();
        let status = first.get(told.heads.len()).copied().unwrap_or(200);
        told.heads.push(head);
        if status == 200 {
            let body: Value = serde_json::from_slice(&body).unwrap();
            for resource in body["resourceSpans"].as_array().unwrap() {
                told.resources.push(resource["resource"].clone());
                for scope in resource["scopeSpans"].as_array().unwrap() {
                    told.spans.extend(scope["spans"].as_array().unwrap().iter().cloned());
                }
            }
        }
        drop(told);
        memory.1.notify_all();
        let answer =
            format!("HTTP/1.1 {status} Whatever\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}");
        if writer.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}
