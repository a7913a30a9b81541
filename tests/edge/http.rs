//! A client that reuses its connection, and knows whether it got a response.

use std::{io, net::SocketAddr};

use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::KEY;

/// A connection to the API.
pub(crate) struct Connection<S> {
    stream: S,
    read: Vec<u8>,
}

/// A complete response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
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
        TcpStream::connect(address).await.map(Self::over)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(crate) fn over(stream: S) -> Self {
        Self { stream, read: Vec::new() }
    }

    /// Sends a request with the key, and waits for the response. Fails if there is none.
    pub(crate) async fn ask(&mut self, method: &str, path: &str, body: &Value) -> io::Result<Answer> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        self.send(format!("{head}{body}").as_bytes()).await?;
        self.answer().await
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    pub(crate) async fn answer(&mut self) -> io::Result<Answer> {
        let (head, length) = loop {
            if let Some(end) = self.read.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&self.read[..end]).to_lowercase();
                self.read.drain(..end + 4);
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
                break (head, length.unwrap_or(0));
            }
            self.more().await?;
        };
        while self.read.len() < length {
            self.more().await?;
        }
        let body = String::from_utf8(self.read.drain(..length).collect()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Ok(Answer { status, head, body })
    }

    async fn more(&mut self) -> io::Result<()> {
        match self.stream.read_buf(&mut self.read).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

/// Sends one request on its own connection.
pub(crate) async fn ask(address: SocketAddr, method: &str, path: &str, body: &Value) -> io::Result<Answer> {
    Connection::open(address).await?.ask(method, path, body).await
}
