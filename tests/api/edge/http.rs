//! A client that reuses its connection, and knows whether it got a response.

use std::{io, net::SocketAddr};

use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
};

use super::KEY;

/// A connection to the API.
pub(crate) struct Connection<S> {
    stream: S,
    read: Vec<u8>,
}

/// A complete response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Whether the server closes the connection after it.
    pub(crate) fn is_last(&self) -> bool {
        self.head.contains("connection: close")
    }
}

impl Connection<TcpStream> {
    pub(crate) async fn open(address: SocketAddr) -> io::Result<Self> {
        TcpStream::connect(address).await.map(Self::from_stream)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(crate) fn from_stream(stream: S) -> Self {
        Self { stream, read: Vec::new() }
    }

    /// Sends a request with the key, and waits for the response. Fails if there is none.
    pub(crate) async fn send_request(&mut self, method: &str, path: &str, body: &Value) -> io::Result<Response> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        self.send(format!("{head}{body}").as_bytes()).await?;
        self.read_response().await
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    pub(crate) async fn read_response(&mut self) -> io::Result<Response> {
        let (head, length) = loop {
            if let Some(end) = self.read.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&self.read[..end]).to_lowercase();
                self.read.drain(..end + 4);
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
                break (head, length.unwrap_or(0));
            }
            self.read_more().await?;
        };
        while self.read.len() < length {
            self.read_more().await?;
        }
        let body = String::from_utf8(self.read.drain(..length).collect()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Ok(Response { status, head, body })
    }

    async fn read_more(&mut self) -> io::Result<()> {
        match self.stream.read_buf(&mut self.read).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

/// Sends one request on its own connection.
pub(crate) async fn send_request(address: SocketAddr, method: &str, path: &str, body: &Value) -> io::Result<Response> {
    Connection::open(address).await?.send_request(method, path, body).await
}
