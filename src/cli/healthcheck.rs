//! `guildhall healthcheck`: health check for containers, so that the image needs no other program for it.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs as _},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use rustls::{ClientConfig, ClientConnection, StreamOwned, pki_types::ServerName};
use url::Url;

use super::setting_flags::{self, SettingFlags};
use crate::{api::dto::ReadinessReport, net};

/// Maximum size of a response of the health endpoints.
const MAX_RESPONSE_BYTES: u64 = 64 * 1024;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Check only that the process is alive, not that it is ready
    #[arg(long)]
    live: bool,
    /// URL of the daemon, such as http://127.0.0.1:8080 or https://guildhall.example:8443 [default: api.bind of the
    /// settings, without checking its certificate]
    #[arg(long)]
    url: Option<Url>,
    /// PEM file with certificate authorities to trust in addition to the public ones, for an https --url
    #[arg(long, value_name = "PATH", requires = "url")]
    ca_file: Option<PathBuf>,
    /// Timeout of the whole check
    #[arg(long, value_name = "MS", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    timeout_ms: u64,
}

/// Target of the check.
struct ProbeTarget {
    address: SocketAddr,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

pub(super) fn run(file: Option<PathBuf>, args: &Args) -> anyhow::Result<ExitCode> {
    let target = match &args.url {
        Some(url) => target_of_url(url, args.ca_file.as_deref())?,
        None => {
            let api = setting_flags::load(file, SettingFlags::default())?.settings.api;
            let address = reachable_address(api.bind)?;
            // Its certificate is for the name that other machines use. No secret is sent, so any certificate is
            // accepted.
            let tls = api.tls.map(|_| (Arc::new(net::tls::any_certificate()), ServerName::from(address.ip())));
            ProbeTarget { address, tls }
        }
    };
    let address = target.address;
    let path = if args.live { "/livez" } else { "/readyz" };
    let deadline = Instant::now() + Duration::from_millis(args.timeout_ms);
    let no_http = match &target.tls {
        Some(_) => "does not speak HTTP",
        None => "does not speak HTTP; if it uses TLS, pass --url https://HOST:PORT",
    };
    let response = request(target, path, deadline).map_err(|error| {
        let reason = match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!("no response within {} ms", args.timeout_ms),
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => format!("disconnected, and {no_http}"),
            _ => error.to_string(),
        };
        anyhow::anyhow!("{address}{path}: {reason}")
    })?;
    let (status, body) = parse(&response).with_context(|| format!("{address}{path} {no_http}"))?;
    if status == 200 {
        println!("{}", if args.live { "alive" } else { "ready" });
        return Ok(ExitCode::SUCCESS);
    }
    bail!("{address}{path} returned {status}{}", reasons(body));
}

fn target_of_url(url: &Url, ca_file: Option<&std::path::Path>) -> anyhow::Result<ProbeTarget> {
    let plain = matches!(url.scheme(), "http" | "https") && matches!(url.path(), "/" | "");
    let (true, Some(host), Some(port)) = (plain, url.host_str(), url.port_or_known_default()) else {
        bail!("--url must be http://HOST:PORT or https://HOST:PORT, not {url}");
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let mut found = (host, port).to_socket_addrs().with_context(|| format!("cannot resolve {host}"))?;
    let address = found.next().with_context(|| format!("cannot resolve {host}"))?;
    let tls = match url.scheme() {
        "https" => {
            let trusting = net::tls::authorities(ca_file);
            let trusting = trusting.map_err(|reason| anyhow::anyhow!("the file of --ca-file {reason}"))?;
            Some((Arc::new(trusting), ServerName::try_from(host.to_owned())?))
        }
        _ => None,
    };
    Ok(ProbeTarget { address, tls })
}

/// Calls a daemon that listens on all addresses on the loopback address.
fn reachable_address(bind: SocketAddr) -> anyhow::Result<SocketAddr> {
    if bind.port() == 0 {
        bail!("api.bind has port 0; find the real port in the daemon's log, and pass it with --url");
    }
    let ip = match bind.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    Ok(SocketAddr::new(ip, bind.port()))
}

/// A connection with a deadline. The timeout is set again before each step, so that a peer that sends a byte now and
/// then cannot extend it.
struct DeadlineStream {
    stream: TcpStream,
    deadline: Instant,
}

impl DeadlineStream {
    fn remaining(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::Error::from(io::ErrorKind::TimedOut)) } else { Ok(left) }
    }
}

impl Read for DeadlineStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.remaining()?))?;
        self.stream.read(buffer)
    }
}

impl Write for DeadlineStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.remaining()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn request(target: ProbeTarget, path: &str, deadline: Instant) -> io::Result<Vec<u8>> {
    let ProbeTarget { address, tls } = target;
    let remaining = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let stream = DeadlineStream { stream: TcpStream::connect_timeout(&address, remaining)?, deadline };
    match tls {
        None => exchange(stream, address, path),
        Some((config, name)) => {
            let connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
            exchange(StreamOwned::new(connection, stream), address, path)
        }
    }
}

fn exchange(mut stream: impl Read + Write, address: SocketAddr, path: &str) -> io::Result<Vec<u8>> {
    // In one write: a peer with another protocol disconnects after the first one.
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    stream.flush()?;
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return Ok(answer),
            // Some peers close a TLS connection without a close notification.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && !answer.is_empty() => return Ok(answer),
            Err(error) => return Err(error),
            Ok(read) if answer.len() as u64 + read as u64 > MAX_RESPONSE_BYTES => {
                return Err(io::Error::other("the response is too long"));
            }
            Ok(read) => answer.extend_from_slice(&piece[..read]),
        }
    }
}

fn parse(response: &[u8]) -> anyhow::Result<(u16, &str)> {
    let text = std::str::from_utf8(response)?;
    let (head, body) = text.split_once("\r\n\r\n").context("no end of headers")?;
    let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).context("no status line")?;
    Ok((status.parse()?, body))
}

/// Formats the reasons of `/readyz` for components that are not ready, on one line.
fn reasons(body: &str) -> String {
    let Ok(report) = serde_json::from_str::<ReadinessReport>(body) else { return String::new() };
    let mut reasons = Vec::new();
    if report.stopping {
        reasons.push("it is shutting down".to_owned());
    }
    reasons.extend(report.reasons().map(|(part, reason)| format!("{part}: {reason}")));
    if reasons.is_empty() { String::new() } else { format!("; {}", reasons.join("; ")) }
}
