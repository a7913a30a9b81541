//! A daemon with the REST proxy, and requests to it.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use guildhall_sim::{BotConfig, LimitConfig, Sim, SimConfig, SimHandle};
use guildhall_testkit::program::{CANARY, Guildhall, HttpResponse, RunningGuildhall, TEST_TIMEOUT, request};
use serde_json::{Value, json};
use tokio::task::block_in_place;

use crate::upstream::Upstream;

/// The admin key of the settings.
pub(crate) const ADMIN: &str = "the-admin-key-of-the-tests";

/// A daemon with the REST proxy, and its Discord.
pub(crate) struct EgressFixture {
    pub(crate) sim: SimHandle,
    pub(crate) upstream: Upstream,
    pub(crate) running: RunningGuildhall,
    pub(crate) api: SocketAddr,
    pub(crate) egress: SocketAddr,
}

/// A request to the proxy.
#[derive(Clone, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    /// Value of `Authorization`; empty for none.
    pub(crate) authorization: &'a str,
    /// Further lines of the head.
    pub(crate) headers: &'a str,
    pub(crate) content_type: &'a str,
    pub(crate) body: &'a str,
}

impl Default for Call<'_> {
    fn default() -> Self {
        Self {
            method: "GET",
            path: "/users/@me",
            authorization: "",
            headers: "",
            content_type: "application/json",
            body: "",
        }
    }
}

impl Call<'_> {
    /// The request as it is sent. A path without the API is below version 10.
    pub(crate) fn text(&self) -> String {
        let Call { method, path, authorization, headers, content_type, body } = self;
        let path = if path.starts_with("/api") { (*path).to_owned() } else { format!("/api/v10{path}") };
        let line = |name: &str, value: &str| {
            if value.is_empty() { String::new() } else { format!("{name}: {value}\r\n") }
        };
        let kind = if body.is_empty() { "" } else { content_type };
        format!(
            "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{}{}{headers}Content-Length: {}\r\n\r\n{body}",
            line("Authorization", authorization),
            line("Content-Type", kind),
            body.len()
        )
    }
}

/// The authorization with the bot token.
pub(crate) fn bot() -> String {
    format!("Bot {CANARY}")
}

impl EgressFixture {
    /// Starts without limits in Discord.
    pub(crate) async fn start() -> Self {
        Self::start_with(LimitConfig::off(), &[]).await
    }

    /// Starts with these limits, and more settings as environment variables.
    pub(crate) async fn start_with(limits: LimitConfig, settings: &[(&str, &str)]) -> Self {
        Self::start_with_bots(limits, settings, &[]).await
    }

    /// The same with more bots at Discord, which have these tokens.
    pub(crate) async fn start_with_bots(limits: LimitConfig, settings: &[(&str, &str)], others: &[&str]) -> Self {
        let sim = start_sim(limits, others).await;
        let upstream = Upstream::start(sim.address());
        let api_url = format!("http://{}/api/v10", upstream.address);
        let running = daemon(&sim, settings).env("GUILDHALL__DISCORD__API_URL", &api_url).spawn();
        Self::of(sim, upstream, running)
    }

    /// The same for long loads: no call is recorded.
    pub(crate) async fn start_unrecorded(limits: LimitConfig, settings: &[(&str, &str)]) -> Self {
        let sim = start_sim(limits, &[]).await;
        let upstream = Upstream::start(sim.address());
        let running = daemon(&sim, settings).spawn();
        Self::of(sim, upstream, running)
    }

    fn of(sim: SimHandle, upstream: Upstream, running: RunningGuildhall) -> Self {
        let (api, egress) = block_in_place(|| {
            let addresses = wait_until_listening(&running);
            running.wait_for_log_line("\"part is ready\",\"part\":\"gateway\"");
            addresses
        });
        Self { sim, upstream, running, api, egress }
    }

    /// Sends this text to the proxy, and reads until it closes the connection.
    pub(crate) fn raw(&self, text: &str) -> HttpResponse {
        block_in_place(|| request(self.egress, text))
    }

    pub(crate) fn send(&self, call: &Call<'_>) -> HttpResponse {
        self.raw(&call.text())
    }

    /// Sends a GET request with the bot token.
    pub(crate) fn get(&self, path: &str) -> HttpResponse {
        self.send(&Call { path, authorization: &bot(), ..Call::default() })
    }

    /// Sends a request to the API with the admin key.
    pub(crate) fn api(&self, method: &str, path: &str, body: &Value) -> HttpResponse {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer {ADMIN}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        block_in_place(|| request(self.api, &head))
    }

    /// Creates a key, and returns its authorization.
    pub(crate) fn create_key(&self, scopes: &[&str]) -> String {
        let created = self.api("POST", "/v1/keys", &json!({"name": "a test", "scopes": scopes}));
        assert_eq!(created.status, 201, "{}", created.body);
        format!("Bot {}", created.json()["key"].as_str().unwrap())
    }

    /// A text channel of a guild.
    pub(crate) fn channel_of(&self, guild: impl std::fmt::Display) -> String {
        let channels = self.get(&format!("/guilds/{guild}/channels"));
        assert_eq!(channels.status, 200, "{}", channels.body);
        let channels = channels.json();
        let text = channels.as_array().unwrap().iter().find(|channel| channel["type"] == 0).unwrap();
        text["id"].as_str().unwrap().to_owned()
    }

    /// Waits until the metrics have a line that starts with this.
    pub(crate) fn wait_for_metric(&self, line: &str) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let metrics = self.api("GET", "/metrics", &Value::Null).body;
            if metrics.lines().any(|found| found.starts_with(line)) {
                return;
            }
            assert!(Instant::now() < deadline, "no {line} in\n{metrics}");
            block_in_place(|| std::thread::sleep(Duration::from_millis(20)));
        }
    }

    /// Waits until the audit log has an action with this detail, and returns all records of the action.
    pub(crate) fn wait_for_audit(&self, action: &str, detail: &str) -> Vec<Value> {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let page = self.api("GET", &format!("/v1/audit?action={action}"), &Value::Null);
            let records = page.json()["audit"].as_array().unwrap_or_else(|| panic!("{}", page.body)).clone();
            if records.iter().any(|record| record["detail"] == detail) {
                return records;
            }
            assert!(Instant::now() < deadline, "no {detail} in {records:?}");
            block_in_place(|| std::thread::sleep(Duration::from_millis(20)));
        }
    }

    /// Requests that arrived at a route, by the simulator's name for it.
    pub(crate) fn arrived_at(&self, route: &str) -> u64 {
        self.sim.score().routes.get(route).map_or(0, |route| route.requests)
    }
}

/// Starts a simulator with three guilds of two channels each, these limits, and more bots with these tokens.
pub(crate) async fn start_sim(limits: LimitConfig, others: &[&str]) -> SimHandle {
    let named = |token: &&str| BotConfig { token: (*token).to_owned(), ..BotConfig::default() };
    let bots = [CANARY].iter().chain(others).map(named).collect();
    let config = SimConfig { bots, guilds: 3, members: 1, channels: 2, limits, ..SimConfig::default() };
    Sim::start(config).await.unwrap()
}

/// A daemon with the REST proxy in front of the simulator, and more settings as environment variables.
pub(crate) fn daemon(sim: &SimHandle, settings: &[(&str, &str)]) -> Guildhall {
    let guildhall = Guildhall::serve(&sim.gateway_url())
        .env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
        .env("GUILDHALL__API__ADMIN_KEY", ADMIN)
        .env("GUILDHALL__API__POLICIES__FAILED_PER_SECOND", "0")
        .env("GUILDHALL__API__POLICIES__LIGHT_PER_SECOND", "0")
        .env("GUILDHALL__EGRESS__ENABLED", "true")
        .env("GUILDHALL__EGRESS__BIND", "127.0.0.1:0");
    settings.iter().fold(guildhall, |guildhall, (name, value)| guildhall.env(name, value))
}

/// Waits until it listens. Returns the addresses of its API and of its REST proxy.
pub(crate) fn wait_until_listening(running: &RunningGuildhall) -> (SocketAddr, SocketAddr) {
    let api = running.address();
    let line = running.wait_for_log_line("egress listening");
    let line: Value = serde_json::from_str(&line).unwrap();
    (api, line["address"].as_str().unwrap().parse().unwrap())
}

/// Sends the text of a request and reads the response. Any failure of the connection is an error, also one during the
/// response.
pub(crate) fn try_request(address: SocketAddr, text: &str) -> io::Result<HttpResponse> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TEST_TIMEOUT))?;
    stream.write_all(text.as_bytes())?;
    let mut received = Vec::new();
    stream.read_to_end(&mut received)?;
    let is_cut = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let received = String::from_utf8(received).unwrap();
    let (head, body) = received.split_once("\r\n\r\n").ok_or_else(is_cut)?;
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let response = HttpResponse { status, head: head.to_lowercase(), body: body.to_owned() };
    let is_complete = match (header(&response, "content-length"), header(&response, "transfer-encoding")) {
        (Some(length), _) => length.parse() == Ok(body.len()),
        (None, Some(_)) => body.ends_with("0\r\n\r\n"),
        (None, None) => true,
    };
    if is_complete { Ok(response) } else { Err(is_cut()) }
}

/// Reads from a connection until it has sent this text.
pub(crate) fn read_until(stream: &mut impl io::Read, text: &str) -> String {
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains(text) {
        let mut piece = [0; 1024];
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "no {text} in {}", String::from_utf8_lossy(&read));
        read.extend_from_slice(&piece[..count]);
    }
    String::from_utf8(read).unwrap()
}

/// Sends the text of a request and returns the connection.
pub(crate) fn open(address: SocketAddr, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    stream
}

/// Reads until the server closes the connection.
pub(crate) fn read_all(mut stream: TcpStream) -> String {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    String::from_utf8(all).unwrap()
}

/// Value of a header, in lower case.
pub(crate) fn header<'a>(response: &'a HttpResponse, name: &str) -> Option<&'a str> {
    response.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}
