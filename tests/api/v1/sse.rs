//! A minimal client of the event stream.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::{KEY, Response};

/// Upper bound for operations that end only when something is broken. No test waits for it.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// One frame: an event, or a keep-alive comment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Frame {
    pub(crate) id: Option<String>,
    pub(crate) event: Option<String>,
    pub(crate) data: Option<Value>,
    pub(crate) comment: Option<String>,
}

impl Frame {
    fn parse(text: &str) -> Self {
        let mut frame = Self::default();
        for line in text.lines() {
            match line.split_once(": ").unwrap_or((line, "")) {
                ("id", id) => frame.id = Some(id.to_owned()),
                ("event", event) => frame.event = Some(event.to_owned()),
                ("data", data) => frame.data = Some(serde_json::from_str(data).unwrap()),
                ("", comment) => frame.comment = Some(comment.to_owned()),
                ("retry", _) => {}
                other => panic!("{other:?} in {text:?}"),
            }
        }
        frame
    }

    /// Id and state of the operation, if the frame has one.
    pub(crate) fn operation(&self) -> Option<(String, String)> {
        let data = self.data.as_ref().filter(|_| self.event.as_deref() == Some("operation"))?;
        Some((data["id"].as_str()?.to_owned(), data["state"].as_str()?.to_owned()))
    }
}

/// An open stream.
pub(crate) struct EventStream {
    socket: TcpStream,
    /// Bytes that were read, with HTTP chunk framing.
    raw: Vec<u8>,
    text: String,
    /// The last `id` that was received.
    pub(crate) last: Option<String>,
    pub(crate) finished: bool,
}

/// Requests a stream.
async fn request_stream(address: SocketAddr, key: &str, query: &str, last: Option<&str>) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    // A small buffer, so that it fills soon if the client does not read.
    socket.set_recv_buffer_size(16 * 1024).unwrap();
    let mut socket = socket.connect(address).await.unwrap();
    let last = last.map_or_else(String::new, |last| format!("Last-Event-ID: {last}\r\n"));
    let request = format!(
        "GET /v1/operations/stream{query} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n\
         {last}\r\n"
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    socket
}

impl EventStream {
    pub(crate) async fn open(address: SocketAddr, query: &str) -> Self {
        Self::open_as(address, KEY, query, None).await
    }

    pub(crate) async fn open_after(address: SocketAddr, query: &str, last: &str) -> Self {
        Self::open_as(address, KEY, query, Some(last)).await
    }

    pub(crate) async fn open_as(address: SocketAddr, key: &str, query: &str, last: Option<&str>) -> Self {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            match Self::try_open(address, key, query, last).await {
                Ok(stream) => return stream,
                // Streams that were closed a moment ago still count. Retry, as the response says.
                Err(response) if response.status == 503 && Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(response) => panic!("{response:?}"),
            }
        }
    }

    /// Opens a stream. Returns the response if it is rejected.
    pub(crate) async fn try_open(
        address: SocketAddr,
        key: &str,
        query: &str,
        last: Option<&str>,
    ) -> Result<Self, Response> {
        let socket = request_stream(address, key, query, last).await;
        let mut stream = Self { socket, raw: Vec::new(), text: String::new(), last: None, finished: false };
        let end = loop {
            if let Some(end) = stream.raw.windows(4).position(|four| four == b"\r\n\r\n") {
                break end;
            }
            assert!(stream.read().await, "the connection ended before the response");
        };
        let head = String::from_utf8(stream.raw.drain(..end + 4).collect()).unwrap();
        let status: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
        if status != 200 {
            while stream.read().await {}
            let body = String::from_utf8(stream.raw).unwrap();
            return Err(Response { status, head: head.trim_end().to_owned(), body });
        }
        assert!(head.to_ascii_lowercase().contains("content-type: text/event-stream"), "{head}");
        Ok(stream)
    }

    /// Reads more bytes. Returns `false` at the end.
    async fn read(&mut self) -> bool {
        let read =
            timeout(TEST_TIMEOUT, self.socket.read_buf(&mut self.raw)).await.expect("timed out waiting for data");
        read.is_ok_and(|count| count > 0)
    }

    /// Decodes the next chunk of the bytes that were read.
    fn unpack(&mut self) -> bool {
        let Some(line) = self.raw.windows(2).position(|two| two == b"\r\n") else { return false };
        let size = usize::from_str_radix(std::str::from_utf8(&self.raw[..line]).unwrap(), 16).unwrap();
        if self.raw.len() < line + 2 + size + 2 {
            return false;
        }
        let chunk: Vec<u8> = self.raw.drain(..line + 2 + size + 2).collect();
        self.text += std::str::from_utf8(&chunk[line + 2..line + 2 + size]).unwrap();
        self.finished |= size == 0;
        true
    }

    /// The next frame, or `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(end) = self.text.find("\n\n") {
                let frame = Frame::parse(&self.text[..end]);
                self.text.drain(..end + 2);
                if frame.id.is_some() {
                    self.last.clone_from(&frame.id);
                }
                return Some(frame);
            }
            if !self.finished && self.unpack() {
                continue;
            }
            if self.finished || !self.read().await {
                return None;
            }
        }
    }

    /// The next event. Skips keep-alive comments.
    pub(crate) async fn event(&mut self) -> Frame {
        loop {
            let frame = self.next().await.expect("the stream has ended");
            if frame.event.is_some() {
                return frame;
            }
        }
    }

    /// Id and state of the next operation.
    pub(crate) async fn operation(&mut self) -> (String, String) {
        let frame = self.event().await;
        frame.operation().unwrap_or_else(|| panic!("{frame:?}"))
    }

    /// Reads until an operation reaches this state.
    pub(crate) async fn until_state(&mut self, id: &str, state: &str) {
        while self.operation().await != (id.to_owned(), state.to_owned()) {}
    }
}
