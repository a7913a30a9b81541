//! A scripted brain that records its requests.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A request that was received.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub line: String,
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl Request {
    pub fn header(&self, name: &str) -> &str {
        &self.headers[name]
    }
}

/// What a brain does with a request.
#[derive(Clone, Debug)]
pub enum Action {
    /// Writes this, and waits for the next request.
    Respond(String),
    /// Writes this, and closes the connection.
    RespondAndClose(String),
    /// Writes this, and then nothing, until the client disconnects.
    RespondAndHang(String),
    /// Responds with a body of this many bytes, without a Content-Length.
    Stream(usize),
}

/// A response with a body.
pub fn respond(status: u16, headers: &str, body: &str) -> Action {
    Action::Respond(format!("HTTP/1.1 {status} Whatever\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len()))
}

/// What a brain has received so far.
#[derive(Clone, Debug, Default)]
pub struct Received {
    pub connections: usize,
    pub requests: Vec<Request>,
    /// Server names (SNI) that clients sent.
    pub names: Vec<Option<String>>,
}

/// A brain that listens on its own port.
pub struct Brain {
    pub address: SocketAddr,
    received: watch::Receiver<Received>,
}

impl Brain {
    /// It does the same for every request.
    pub async fn always(action: Action) -> Self {
        Self::start(move |_| action.clone()).await
    }

    /// What it does depends on the number of earlier requests.
    pub async fn start(action: impl Fn(usize) -> Action + Send + Sync + 'static) -> Self {
        Self::listen(LOOPBACK, None, move |before, _: &Request| action(before)).await
    }

    /// What it does depends on the request.
    pub async fn replying(action: impl Fn(&Request) -> Action + Send + Sync + 'static) -> Self {
        Self::replying_at(LOOPBACK, action).await
    }

    /// The same at another address of this machine.
    pub async fn replying_at(address: IpAddr, action: impl Fn(&Request) -> Action + Send + Sync + 'static) -> Self {
        Self::listen(address, None, move |_, request: &Request| action(request)).await
    }

    /// It uses TLS.
    pub async fn secured(tls: TlsAcceptor, action: Action) -> Self {
        Self::listen(LOOPBACK, Some(tls), move |_, _: &Request| action.clone()).await
    }

    async fn listen(
        address: IpAddr,
        tls: Option<TlsAcceptor>,
        respond_to: impl Fn(usize, &Request) -> Action + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, received) = watch::channel(Received::default());
        let (sender, respond_to) = (Arc::new(sender), Arc::new(respond_to));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                sender.send_modify(|received| received.connections += 1);
                let (sender, respond_to, tls) = (sender.clone(), respond_to.clone(), tls.clone());
                tokio::spawn(async move {
                    let Some(tls) = tls else { return serve(stream, &sender, &*respond_to).await };
                    let Ok(stream) = tls.accept(stream).await else { return };
                    let name = stream.get_ref().1.server_name().map(ToOwned::to_owned);
                    sender.send_modify(|received| received.names.push(name));
                    serve(stream, &sender, &*respond_to).await;
                });
            }
        });
        Self { address, received }
    }

    /// Its webhook URL.
    pub fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    pub fn received(&self) -> Received {
        self.received.borrow().clone()
    }

    /// Waits until it has received this many requests.
    pub async fn wait_for_requests(&self, requests: usize) {
        self.received.clone().wait_for(|received| received.requests.len() >= requests).await.unwrap();
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    sender: &watch::Sender<Received>,
    respond_to: &(impl Fn(usize, &Request) -> Action + ?Sized),
) {
    while let Some(request) = read(&mut stream).await {
        let mut before = 0;
        sender.send_modify(|received| {
            before = received.requests.len();
            received.requests.push(request.clone());
        });
        // The client may have disconnected.
        match respond_to(before, &request) {
            Action::Respond(text) => drop(stream.write_all(text.as_bytes()).await),
            Action::RespondAndClose(text) => {
                drop(stream.write_all(text.as_bytes()).await);
                drop(stream.shutdown().await);
                return;
            }
            Action::RespondAndHang(text) => {
                drop(stream.write_all(text.as_bytes()).await);
                drop(stream.read_u8().await);
                return;
            }
            Action::Stream(bytes) => {
                let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
                let chunk = format!("1000\r\n{}\r\n", " ".repeat(0x1000));
                let mut is_open = stream.write_all(head.as_bytes()).await.is_ok();
                for _ in 0..bytes / 0x1000 {
                    is_open = is_open && stream.write_all(chunk.as_bytes()).await.is_ok();
                }
                drop(stream.write_all(b"0\r\n\r\n").await);
            }
        }
    }
}

/// The next request, or `None` if the connection has ended.
async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Option<Request> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.trim_end().split("\r\n");
    let line = lines.next().unwrap().to_owned();
    let split =
        |line: &str| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned())).unwrap();
    let headers: BTreeMap<String, String> = lines.map(split).collect();
    let mut body = vec![0; headers.get("content-length")?.parse().unwrap()];
    stream.read_exact(&mut body).await.ok()?;
    Some(Request { line, headers, body: String::from_utf8(body).unwrap() })
}
