//! An HTTP connection for nearly identical requests. The client's share of the work is small compared with the
//! daemon's.

use std::net::SocketAddr;

use anyhow::{Context as _, bail, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// End of the response head.
const HEAD_END: &[u8] = b"\r\n\r\n";

/// A keep-alive connection.
pub(super) struct ApiConnection {
    socket: TcpStream,
    /// Headers that are the same in each request.
    headers: String,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl ApiConnection {
    pub(super) async fn open(address: SocketAddr, key: &str) -> anyhow::Result<Self> {
        let socket = TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
        socket.set_nodelay(true)?;
        let headers = format!("host: {address}\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n");
        Ok(Self { socket, headers, request: Vec::new(), answer: Vec::new() })
    }

    /// Sends a body, reads the whole response, and returns its status and body.
    pub(super) async fn post(&mut self, path: &str, body: &str) -> anyhow::Result<(u16, &[u8])> {
        self.request.clear();
        let length = body.len().to_string();
        let parts = ["POST ", path, " HTTP/1.1\r\n", &self.headers, "content-length: ", &length, "\r\n\r\n", body]
            .map(str::as_bytes);
        parts.iter().for_each(|part| self.request.extend_from_slice(part));
        self.socket.write_all(&self.request).await?;
        self.answer.clear();
        let head = loop {
            self.read().await?;
            if let Some(at) = self.answer.windows(HEAD_END.len()).position(|window| window == HEAD_END) {
                break at + HEAD_END.len();
            }
        };
        let (status, length) = read_head(&self.answer[..head])?;
        while self.answer.len() < head + length {
            self.read().await?;
        }
        ensure!(self.answer.len() == head + length, "the daemon sent more data than one response");
        Ok((status, &self.answer[head..]))
    }

    async fn read(&mut self) -> anyhow::Result<()> {
        ensure!(self.socket.read_buf(&mut self.answer).await? > 0, "the daemon closed the connection");
        Ok(())
    }
}

/// Returns the status and the content length.
fn read_head(head: &[u8]) -> anyhow::Result<(u16, usize)> {
    let head = std::str::from_utf8(head)?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).context("the response has no status")?.parse()?;
    for line in lines {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            return Ok((status, value.trim().parse()?));
        }
    }
    bail!("the response has no content-length: {head}")
}
