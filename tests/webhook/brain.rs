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
pub(crate) struct Request {
    pub(crate) line: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> &str {
        &self.headers[name]
    }
}

/// What a brain does with a request.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Writes this, and waits for the next request.
    Says(String),
    /// Writes this, and closes the connection.
    SaysAndCloses(String),
    /// Writes this, and then nothing, until the client disconnects.
    SaysAndHangs(String),
    /// Responds with a body of this many bytes, without a Content-Length.
    Pours(usize),
}

/// A response with a body.
pub(crate) fn says(status: u16, headers: &str, body: &str) -> Act {
    Act::Says(format!("HTTP/1.1 {status} Whatever\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len()))
}

/// What a brain has received so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) connections: usize,
    pub(crate) requests: Vec<Request>,
    /// Server names (SNI) that clients sent.
    pub(crate) names: Vec<Option<String>>,
}

/// A brain that listens on its own port.
pub(crate) struct Brain {
    pub(crate) address: SocketAddr,
    seen: watch::Receiver<Seen>,
}

impl Brain {
    /// It does the same for every request.
    pub(crate) async fn always(act: Act) -> Self {
        Self::start(move |_| act.clone()).await
    }

    /// What it does depends on the number of earlier requests.
    pub(crate) async fn start(act: impl Fn(usize) -> Act + Send + Sync + 'static) -> Self {
        Self::listen(LOOPBACK, None, move |before, _: &Request| act(before)).await
    }

    /// What it does depends on the request.
    pub(crate) async fn replying(act: impl Fn(&Request) -> Act + Send + Sync + 'static) -> Self {
        Self::replying_at(LOOPBACK, act).await
    }

    /// The same at another address of this machine.
    pub(crate) async fn replying_at(address: IpAddr, act: impl Fn(&Request) -> Act + Send + Sync + 'static) -> Self {
        Self::listen(address, None, move |_, request: &Request| act(request)).await
    }

    /// It uses TLS.
    pub(crate) async fn secured(tls: TlsAcceptor, act: Act) -> Self {
        Self::listen(LOOPBACK, Some(tls), move |_, _: &Request| act.clone()).await
    }

    async fn listen(
        address: IpAddr,
        tls: Option<TlsAcceptor>,
        act: impl Fn(usize, &Request) -> Act + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, seen) = watch::channel(Seen::default());
        let (tell, act) = (Arc::new(tell), Arc::new(act));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tell.send_modify(|seen| seen.connections += 1);
                let (tell, act, tls) = (tell.clone(), act.clone(), tls.clone());
                tokio::spawn(async move {
                    let Some(tls) = tls else { return serve(stream, &tell, &*act).await };
                    let Ok(stream) = tls.accept(stream).await else { return };
                    let name = stream.get_ref().1.server_name().map(ToOwned::to_owned);
                    tell.send_modify(|seen| seen.names.push(name));
                    serve(stream, &tell, &*act).await;
                });
            }
        });
        Self { address, seen }
    }

    /// Its webhook URL.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    pub(crate) fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// Waits until it has received this many requests.
    pub(crate) async fn saw(&self, requests: usize) {
        self.seen.clone().wait_for(|seen| seen.requests.len() >= requests).await.unwrap();
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    tell: &watch::Sender<Seen>,
    act: &(impl Fn(usize, &Request) -> Act + ?Sized),
) {
    while let Some(request) = read(&mut stream).await {
        let mut before = 0;
        tell.send_modify(|seen| {
            before = seen.requests.len();
            seen.requests.push(request.clone());
        });
        // The client may have disconnected.
        match act(before, &request) {
            Act::Says(text) => drop(stream.write_all(text.as_bytes()).await),
            Act::SaysAndCloses(text) => {
                drop(stream.write_all(text.as_bytes()).await);
                drop(stream.shutdown().await);
                return;
            }
            Act::SaysAndHangs(text) => {
                drop(stream.write_all(text.as_bytes()).await);
                drop(stream.read_u8().await);
                return;
            }
            Act::Pours(bytes) => {
                let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
                let chunk = format!("1000\r\n{}\r\n", " ".repeat(0x1000));
                let mut going = stream.write_all(head.as_bytes()).await.is_ok();
                for _ in 0..bytes / 0x1000 {
                    going = going && stream.write_all(chunk.as_bytes()).await.is_ok();
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
