//! The baseline: hyper's server and its client, and nothing between them that reads or decides.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{self, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use http::uri::{Authority, Scheme};
use http::{Request, Uri, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpListener;

use crate::cpu;

/// Hidden subcommand that the child process runs.
pub(crate) const SUBCOMMAND: &str = "serve-passthrough";

/// Where requests go.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Host and port of the upstream.
    #[arg(long)]
    upstream: Authority,
}

/// A running child process. Dropping it ends the process.
pub(super) struct Passthrough {
    process: process::Child,
    pub(super) address: SocketAddr,
}

impl Passthrough {
    pub(super) fn start(upstream: &Authority) -> anyhow::Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args([SUBCOMMAND, "--upstream", upstream.as_str()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the pass-through")?;
        let mut line = String::new();
        let stdout = process.stdout.take().context("the pass-through has no stdout")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let address = line.trim().parse().context("the pass-through did not start")?;
        Ok(Self { process, address })
    }

    /// Processor time used so far.
    pub(super) fn cpu_time(&self) -> anyhow::Result<Duration> {
        cpu::other_process_time(self.process.id())
    }
}

impl Drop for Passthrough {
    fn drop(&mut self) {
        // It exits when its standard input ends.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// Main function of the child process: serves until the parent process exits.
pub(crate) async fn serve(Arguments { upstream }: &Arguments) -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    // The connector of the daemon, so that the clients do not differ.
    let connector = HttpsConnectorBuilder::new()
        .with_provider_and_webpki_roots(Arc::new(rustls::crypto::ring::default_provider()))?
        .https_or_http()
        .enable_http1()
        .wrap_connector(tcp);
    let client = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
    let ends = tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    tokio::select! {
        failed = accept(listener, client, upstream) => failed,
        ended = ends => Ok(ended?.map(drop)?),
    }
}

/// Passes all requests on.
async fn accept(
    listener: TcpListener,
    client: Client<HttpsConnector<HttpConnector>, Incoming>,
    upstream: &Authority,
) -> anyhow::Result<()> {
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let (client, upstream) = (client.clone(), upstream.clone());
        let service = service_fn(move |mut request: Request<Incoming>| {
            let mut parts = std::mem::take(request.uri_mut()).into_parts();
            (parts.scheme, parts.authority) = (Some(Scheme::HTTP), Some(upstream.clone()));
            let uri = Uri::from_parts(parts);
            let client = client.clone();
            async move {
                *request.uri_mut() = uri?;
                request.headers_mut().remove(header::HOST);
                Ok::<_, anyhow::Error>(client.request(request).await?)
            }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(socket), service));
    }
}
