//! An HTTP/1.1 client for load: one connection, one request at a time.

use std::net::SocketAddr;

use anyhow::Context as _;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// A keep-alive connection.
pub(crate) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: String,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let socket = TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
        socket.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(socket)).await?;
        tokio::spawn(connection);
        Ok(Self { sender, host: address.to_string() })
    }

    /// Sends a request, reads the whole response, and returns its status and body.
    pub(crate) async fn call(
        &mut self,
        method: Method,
        path: &str,
        authorization: &str,
        body: Bytes,
    ) -> anyhow::Result<(u16, Bytes)> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::HOST, &self.host)
            .header(http::header::USER_AGENT, "DiscordBot (https://example.invalid/guildhall-bench, 0.1)")
            .header(http::header::AUTHORIZATION, authorization);
        if !body.is_empty() {
            request = request.header(http::header::CONTENT_TYPE, "application/json");
        }
        self.sender.ready().await?;
        let response: Response<Incoming> = self.sender.send_request(request.body(Full::new(body))?).await?;
        let status = response.status().as_u16();
        Ok((status, response.into_body().collect().await?.to_bytes()))
    }
}
