//! State values and dead events, over the API of the real program with a simulated Discord.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, UdpSocket},
    time::{Duration, Instant},
};

use guildhall_sim::{FireSpec, Sim, SimConfig, SimHandle};
use guildhall_testkit::program::{Guildhall, HttpResponse, RunningGuildhall, TEST_TIMEOUT, request};
use serde_json::{Value, json};

const KEY: &str = "gh_test_0123456789";

const HANDLERS: &str = r#"
[[handlers]]
name = "greet"
on = "interaction.command.hello"
needs = ["sess:profile"]
set = [{ key = "greeted", value = "{state.sess:profile}" }]

[[handlers]]
name = "broken"
on = "interaction.command.broken"
reply = "{data.nowhere}"
"#;

struct StateDaemon {
    running: RunningGuildhall,
    address: SocketAddr,
}

impl StateDaemon {
    fn start(sim: &SimHandle) -> Self {
        Self::with_handlers(sim, HANDLERS, |_| {})
    }

    /// `starts` gets the program before it listens.
    fn with_handlers(sim: &SimHandle, handlers: &str, on_start: impl FnOnce(&RunningGuildhall)) -> Self {
        let running = Guildhall::serve(&sim.gateway_url())
            .env("GUILDHALL__DISCORD__TOKEN", "sim-bot-token")
            .env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
            .env("GUILDHALL__API__ADMIN_KEY", KEY)
            .file("handlers.toml", handlers)
            .env("GUILDHALL__HANDLERS__FILE", "handlers.toml")
            .spawn();
        on_start(&running);
        let address = running.address();
        running.wait_for_log_line("\"part is ready\",\"part\":\"gateway\"");
        Self { running, address }
    }

    fn request(&self, method: &str, path: &str, body: &str) -> HttpResponse {
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer {KEY}\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        tokio::task::block_in_place(|| request(self.address, &head))
    }

    /// Waits until the metrics have this line.
    async fn wait_for_metric(&self, line: &str) {
        self.wait_for_response("/metrics", |response| response.body.lines().any(|found| found == line)).await;
    }

    /// The only dead event.
    async fn dead_event(&self) -> Value {
        let has_one =
            |response: &HttpResponse| response.json()["events"].as_array().is_some_and(|events| events.len() == 1);
        self.wait_for_response("/v1/events/dead", has_one).await.json()["events"][0].clone()
    }

    /// Requests until the response is as expected.
    async fn wait_for_response(&self, path: &str, is_expected: impl Fn(&HttpResponse) -> bool) -> HttpResponse {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let response = self.request("GET", path, "");
            if is_expected(&response) {
                return response;
            }
            assert!(Instant::now() < deadline, "timed out: {path}: {} {}", response.status, response.body);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn stop(self) {
        self.running.signal("TERM");
        assert_eq!(self.running.wait_for_exit().code, Some(0));
    }
}

async fn sim() -> SimHandle {
    Sim::start(SimConfig { guilds: 1, members: 1, channels: 1, ..SimConfig::default() }).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn state_is_shared_between_the_api_and_handlers() {
    let sim = sim().await;
    let daemon = StateDaemon::start(&sim);
    let absent = daemon.request("GET", "/v1/state/sess:profile:1", "");
    assert_eq!((absent.status, absent.json()["type"].clone()), (404, json!("urn:guildhall:problem:not-found")));
    let put = |key: &str, body: &str| daemon.request("PUT", &format!("/v1/state/{key}"), body).status;
    let get = |key: &str| daemon.request("GET", &format!("/v1/state/{key}"), "").json()["value"].clone();
    assert_eq!(put("sess:profile:1", r#"{"value": {"name": "Ada"}}"#), 204);
    assert_eq!(get("sess:profile:1"), json!({ "name": "Ada" }));
    assert_eq!(put("sess:profile:1", r#"{"value": [1, "two"], "ttl_ms": 600000}"#), 204);
    assert_eq!(get("sess:profile:1"), json!([1, "two"]));
    assert_eq!(put("a%2Fb%20%C3%BC%25", r#"{"value": false}"#), 204);
    assert_eq!(get("a/b%20%C3%BC%25"), json!(false));
    assert_eq!(daemon.request("DELETE", "/v1/state/sess:profile:1", "").status, 204);
    assert_eq!(daemon.request("DELETE", "/v1/state/sess:profile:1", "").status, 204, "DELETE is idempotent");
    assert_eq!(daemon.request("GET", "/v1/state/sess:profile:1", "").status, 404);
    assert_eq!(put("short", r#"{"value": 1, "ttl_ms": 1}"#), 204);
    daemon.wait_for_response("/v1/state/short", |response| response.status == 404).await;

    assert_eq!(put("sess:profile", r#"{"value": "Ada"}"#), 204);
    sim.fire(FireSpec::command(sim.guilds()[0], "hello")).await.unwrap();
    let greeted = daemon.wait_for_response("/v1/state/greeted", |response| response.status == 200).await;
    assert_eq!(greeted.json(), json!({ "key": "greeted", "value": "Ada" }));
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_keys_and_values_are_refused_with_a_reason() {
    let sim = sim().await;
    let daemon = StateDaemon::start(&sim);
    let long = "k".repeat(256);
    let large = format!(r#"{{"value": "{}"}}"#, "v".repeat(64 * 1024));
    for (key, body, expected) in [
        (long.as_str(), r#"{"value": 1}"#, "1 to 255 bytes"),
        ("gate:1", r#"{"value": 1}"#, "must not start with `gate:`"),
        ("a%00b", r#"{"value": 1}"#, "control characters"),
        ("a%FFb", r#"{"value": 1}"#, "UTF-8"),
        ("k", &large, "at most 65536 bytes"),
        ("k", r#"{"value": null}"#, "DELETE removes"),
        ("k", r#"{"ttl_ms": 5}"#, "is required"),
        ("k", r#"{"value": 1, "ttl_ms": 0}"#, "ttl_ms must be a whole number"),
        ("k", r#"{"value": 1, "ttl_ms": "5"}"#, "ttl_ms must be a whole number"),
        ("k", r#"{"value": 1, "tll": 5}"#, "tll is unknown"),
        ("k", "[]", "must be a JSON object"),
        ("k", "{", "not valid JSON"),
    ] {
        let response = daemon.request("PUT", &format!("/v1/state/{key}"), body);
        assert_eq!(response.status, 400, "{key}: {}", response.body);
        assert!(response.json()["detail"].as_str().unwrap().contains(expected), "{expected}: {}", response.body);
    }
    assert_eq!(daemon.request("GET", "/v1/state/k", "").status, 404, "nothing was stored");
    assert_eq!(daemon.request("POST", "/v1/state/k", "{}").status, 405);
    let unknown = "GET /v1/state/k HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
    assert_eq!(tokio::task::block_in_place(|| request(daemon.address, unknown)).status, 401);
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_event_is_listed_without_its_token_and_can_be_revived() {
    let sim = sim().await;
    let daemon = StateDaemon::start(&sim);
    let fired = sim.fire(FireSpec::command(sim.guilds()[0], "broken")).await.unwrap();
    let dead = |response: &HttpResponse| response.json()["events"].as_array().is_some_and(|events| events.len() == 1);
    let listed = daemon.wait_for_response("/v1/events/dead", dead).await;
    assert!(!listed.body.contains(&fired.token.unwrap()), "{}", listed.body);
    let (listed, next) = (listed.json()["events"][0].clone(), listed.json()["next"].clone());
    assert_eq!((&listed["handler"], &listed["event_type"]), (&json!("broken"), &json!("interaction.command.broken")));
    assert!(listed["why"].as_str().unwrap().contains("nowhere"), "{listed}");
    assert_eq!(next, Value::Null);
    let position = listed["place"].as_str().unwrap().to_owned();
    let before = daemon.request("GET", &format!("/v1/events/dead?before={position}&limit=1"), "");
    assert_eq!(before.json()["events"], json!([]));

    let shown = daemon.request("GET", &format!("/v1/events/dead/{position}"), "");
    assert_eq!((shown.status, shown.json()), (200, listed), "{}", shown.body);
    for unknown in ["0", "99999"] {
        assert_eq!(daemon.request("GET", &format!("/v1/events/dead/{unknown}"), "").status, 404);
        assert_eq!(daemon.request("DELETE", &format!("/v1/events/dead/{unknown}"), "").status, 404);
    }
    let revive = |position: &str| daemon.request("POST", &format!("/v1/events/dead/{position}/revive"), "").status;
    assert_eq!(revive(&position), 202);
    // It fails again: it was retried when it is dead at another position.
    let dead_again =
        |response: &HttpResponse| dead(response) && response.json()["events"][0]["place"] != json!(position);
    let again = daemon.wait_for_response("/v1/events/dead", dead_again).await.json();
    let place = again["events"][0]["place"].as_str().unwrap();
    let discard = || daemon.request("DELETE", &format!("/v1/events/dead/{place}"), "").status;
    assert_eq!((discard(), discard()), (204, 404));
    assert_eq!(daemon.request("GET", "/v1/events/dead", "").json()["events"], json!([]));
    let audit = daemon.request("GET", "/v1/audit?action=events.discard", "").json();
    assert_eq!(audit["audit"][0]["target"], place);
    assert_eq!((revive(&position), revive("999999"), revive("x")), (404, 404, 400));
    assert_eq!(daemon.request("GET", "/v1/events/dead?limit=0", "").status, 400);
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn reserved_keys_are_refused_in_every_spelling_and_by_every_method() {
    let sim = sim().await;
    let daemon = StateDaemon::start(&sim);
    for key in [
        "gate:1",
        "gate%3A1",
        "%67ate:1",
        "GATE:1",
        "%20gate:1",
        "%C2%A0gate:1",
        "cooldown:greet:1",
        "guildhall:x",
        "gate:",
    ] {
        for method in ["GET", "PUT", "DELETE"] {
            let response = daemon.request(method, &format!("/v1/state/{key}"), r#"{"value": 1}"#);
            assert_eq!(response.status, 400, "{method} {key}: {}", response.body);
            let detail = response.json()["detail"].as_str().unwrap().to_owned();
            assert!(detail.contains("must not start with `"), "{method} {key}: {detail}");
        }
    }
    // Decoded once, this is another key.
    assert_eq!(daemon.request("PUT", "/v1/state/gate%253A1", r#"{"value": 1}"#).status, 204);
    daemon.stop();
}

const WITH_KEY: &str = r#"
[[handlers]]
name = "maker"
on = "interaction.command.make"
do = [{ kind = "create_role", payload = { name = "by-handler" }, key = "event:same" }]
"#;

/// Idempotency keys belong to their callers: no API caller can use a handler's key before the event arrives.
#[tokio::test(flavor = "multi_thread")]
async fn api_idempotency_key_does_not_block_a_handler() {
    let sim = sim().await;
    let guild = sim.guilds()[0];
    let daemon = StateDaemon::with_handlers(&sim, WITH_KEY, |_| {});
    let body = r#"{"kind": "create_role", "payload": {"name": "by-api"}, "key": "event:same"}"#;
    assert_eq!(daemon.request("POST", &format!("/v1/guilds/{guild}/operations"), body).status, 202);
    sim.fire(FireSpec::command(guild, "make")).await.unwrap();
    let both =
        |response: &HttpResponse| response.json()["operations"].as_array().is_some_and(|listed| listed.len() == 2);
    daemon.wait_for_response("/v1/operations?kind=create_role&state=succeeded", both).await;
    assert_eq!(daemon.request("GET", "/v1/events/dead", "").json()["events"], json!([]));
    daemon.stop();
}

const BY_CUSTOM_ID: &str = r#"
[[handlers]]
name = "writes"
on = "interaction.modal.gate"
set = [{ key = "seen", value = true }, { key = "{data.data.custom_id}", value = {} }]

[[handlers]]
name = "reads"
on = "interaction.modal.cooldown"
needs = ["{data.data.custom_id}"]
do = []
"#;

#[tokio::test(flavor = "multi_thread")]
async fn reserved_key_from_user_input_is_refused_counted_and_listed() {
    for (custom_id, handler, source) in [("gate:1", "writes", "set"), ("cooldown:reads:1", "reads", "needs")] {
        let sim = sim().await;
        let daemon = StateDaemon::with_handlers(&sim, BY_CUSTOM_ID, |_| {});
        sim.fire(FireSpec::modal(sim.guilds()[0], custom_id)).await.unwrap();
        let dead = daemon.dead_event().await;
        assert_eq!(dead["handler"], handler);
        assert!(dead["why"].as_str().unwrap().contains("reserved for the daemon"), "{dead}");
        let counter = "guildhall_reserved_state_keys_refused_total";
        daemon.wait_for_metric(&format!("{counter}{{handler=\"{handler}\",source=\"{source}\"}} 1")).await;
        assert_eq!(daemon.request("GET", "/v1/state/seen", "").status, 404, "no effect was committed");
        daemon.running.wait_for_log_lines("reserved state key refused", 1);
        daemon.stop();
    }
}

#[test]
fn handlers_file_with_a_reserved_key_is_refused_at_start() {
    let handlers = BY_CUSTOM_ID.replace("{data.data.custom_id}", "gate:{user_id}");
    for command in [&["serve"][..], &["handlers", "check"]] {
        let running = Guildhall::new(command)
            .env("GUILDHALL__DISCORD__TOKEN", "sim-bot-token")
            .env("GUILDHALL__DISCORD__API_URL", "http://127.0.0.1:1/api/v10")
            .env("GUILDHALL__HANDLERS__FILE", "handlers.toml")
            .file("handlers.toml", &handlers)
            .spawn();
        // Bounded, in case it starts after all.
        running.wait_for_log_line("`handlers[0].set[1].key` must not start with `gate:`");
        running.wait_for_log_line("`handlers[1].needs[0]` must not start with `gate:`");
        assert_eq!(running.wait_for_exit().code, Some(1), "{command:?}");
    }
}

/// An address of this machine that is not loopback. Nothing is sent to find it.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("198.51.100.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|address| !address.is_loopback() && !address.is_unspecified())
}

/// A server that responds to each request with this body, unsigned. It ends with the test's process.
fn unsigned_brain(address: IpAddr, body: &'static str) -> SocketAddr {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let (mut line, mut length) = (String::new(), 0);
            while reader.read_line(&mut line).unwrap() > 2 {
                let length_of = line.strip_prefix("content-length: ").map(|value| value.trim().parse().unwrap());
                length = length_of.unwrap_or(length);
                line.clear();
            }
            reader.read_exact(&mut vec![0; length]).unwrap();
            let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
            reader.get_mut().write_all(format!("{head}{body}").as_bytes()).unwrap();
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn unsigned_response_over_http_is_refused_unless_allowed() {
    let Some(address) = own_address() else { return eprintln!("skipped: this machine has only loopback addresses") };
    let brain = unsigned_brain(address, r#"{"set": {"answered": {"value": true}}, "reply": {"content": "hi"}}"#);
    let handlers = |answers: &str| {
        format!(
            "[[handlers]]\nname = \"brain\"\non = \"interaction.command.ask\"\n[handlers.webhook]\n\
             url = \"http://{brain}/\"\nsecrets = [\"whsec_ZXhhbXBsZS1vbmx5LW1ha2UteW91ci1vd24tc2VjcmV0\"]\n\
             allow_private = true\n{answers}"
        )
    };
    let sim = sim().await;
    let expect_warning = |part: &'static str| {
        move |running: &RunningGuildhall| assert!(running.wait_for_log_line("handler warning").contains(part))
    };
    let daemon = StateDaemon::with_handlers(&sim, &handlers(""), expect_warning("rejected unless they are signed"));
    sim.fire(FireSpec::command(sim.guilds()[0], "ask")).await.unwrap();
    let dead = daemon.dead_event().await;
    let reason = dead["why"].as_str().unwrap();
    assert!(reason.contains(&format!("plain http from {address}")) && reason.contains("not signed"), "{reason}");
    daemon.wait_for_metric("guildhall_webhook_requests_total{handler=\"brain\",outcome=\"untrusted\"} 1").await;
    assert_eq!(daemon.request("GET", "/v1/state/answered", "").status, 404);
    // The user is told that it failed; the response itself has no effect.
    let listed = daemon.request("GET", "/v1/operations", "");
    let operations = listed.json()["operations"].as_array().unwrap().clone();
    assert!(operations.iter().all(|one| one["payload"]["only_if_deferred"] == true), "{}", listed.body);
    assert_eq!(operations.len(), 1, "{}", listed.body);
    daemon.stop();

    let daemon = StateDaemon::with_handlers(
        &sim,
        &handlers("answers = \"any\"\n"),
        expect_warning("answers = \\\"any\\\" accepts"),
    );
    sim.fire(FireSpec::command(sim.guilds()[0], "ask")).await.unwrap();
    daemon.wait_for_response("/v1/state/answered", |response| response.status == 200).await;
    let listed = daemon.request("GET", "/v1/operations?kind=edit_original", "");
    assert_eq!(listed.json()["operations"].as_array().map(Vec::len), Some(1), "{}", listed.body);
    daemon.stop();
}
