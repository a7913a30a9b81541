//! State values and dead events, over the API of the real program with a simulated Discord.

#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, UdpSocket},
    time::{Duration, Instant},
};

use guildhall_sim::{FireSpec, Sim, SimConfig, SimHandle};
use serde_json::{Value, json};
use support::{Answer, Guildhall, Running, STUCK, request};

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

struct Daemon {
    running: Running,
    address: SocketAddr,
}

impl Daemon {
    fn start(sim: &SimHandle) -> Self {
        Self::with_handlers(sim, HANDLERS, |_| {})
    }

    /// `starts` gets the program before it listens.
    fn with_handlers(sim: &SimHandle, handlers: &str, starts: impl FnOnce(&Running)) -> Self {
        let running = Guildhall::serve(&sim.gateway_url())
            .env("GUILDHALL__DISCORD__TOKEN", "sim-bot-token")
            .env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
            .env("GUILDHALL__API__ADMIN_KEY", KEY)
            .file("handlers.toml", handlers)
            .env("GUILDHALL__HANDLERS__FILE", "handlers.toml")
            .spawn();
        starts(&running);
        let address = running.address();
        running.line_with("\"part is ready\",\"part\":\"gateway\"");
        Self { running, address }
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer {KEY}\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        tokio::task::block_in_place(|| request(self.address, &head))
    }

    /// Waits until the metrics have this line.
    async fn until_counted(&self, line: &str) {
        self.until("/metrics", |answer| answer.body.lines().any(|found| found == line)).await;
    }

    /// The only dead event.
    async fn dead_event(&self) -> Value {
        let one = |answer: &Answer| answer.json()["events"].as_array().is_some_and(|events| events.len() == 1);
        self.until("/v1/events/dead", one).await.json()["events"][0].clone()
    }

    /// Requests until the response is as expected.
    async fn until(&self, path: &str, is_so: impl Fn(&Answer) -> bool) -> Answer {
        let deadline = Instant::now() + STUCK;
        loop {
            let answer = self.ask("GET", path, "");
            if is_so(&answer) {
                return answer;
            }
            assert!(Instant::now() < deadline, "timed out: {path}: {} {}", answer.status, answer.body);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn stop(self) {
        self.running.signal("TERM");
        assert_eq!(self.running.end().code, Some(0));
    }
}

async fn sim() -> SimHandle {
    Sim::start(SimConfig { guilds: 1, members: 1, channels: 1, ..SimConfig::default() }).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_is_put_is_what_handlers_need_and_what_they_set_can_be_read() {
    let sim = sim().await;
    let daemon = Daemon::start(&sim);
    let absent = daemon.ask("GET", "/v1/state/sess:profile:1", "");
    assert_eq!((absent.status, absent.json()["type"].clone()), (404, json!("urn:guildhall:problem:not-found")));
    let put = |key: &str, body: &str| daemon.ask("PUT", &format!("/v1/state/{key}"), body).status;
    let get = |key: &str| daemon.ask("GET", &format!("/v1/state/{key}"), "").json()["value"].clone();
    assert_eq!(put("sess:profile:1", r#"{"value": {"name": "Ada"}}"#), 204);
    assert_eq!(get("sess:profile:1"), json!({ "name": "Ada" }));
    assert_eq!(put("sess:profile:1", r#"{"value": [1, "two"], "ttl_ms": 600000}"#), 204);
    assert_eq!(get("sess:profile:1"), json!([1, "two"]));
    assert_eq!(put("a%2Fb%20%C3%BC%25", r#"{"value": false}"#), 204);
    assert_eq!(get("a/b%20%C3%BC%25"), json!(false));
    assert_eq!(daemon.ask("DELETE", "/v1/state/sess:profile:1", "").status, 204);
    assert_eq!(daemon.ask("DELETE", "/v1/state/sess:profile:1", "").status, 204, "DELETE is idempotent");
    assert_eq!(daemon.ask("GET", "/v1/state/sess:profile:1", "").status, 404);
    assert_eq!(put("short", r#"{"value": 1, "ttl_ms": 1}"#), 204);
    daemon.until("/v1/state/short", |answer| answer.status == 404).await;

    assert_eq!(put("sess:profile", r#"{"value": "Ada"}"#), 204);
    sim.fire(FireSpec::command(sim.guilds()[0], "hello")).await.unwrap();
    let greeted = daemon.until("/v1/state/greeted", |answer| answer.status == 200).await;
    assert_eq!(greeted.json(), json!({ "key": "greeted", "value": "Ada" }));
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_key_or_no_value_is_refused_with_what_is_wrong() {
    let sim = sim().await;
    let daemon = Daemon::start(&sim);
    let long = "k".repeat(256);
    let large = format!(r#"{{"value": "{}"}}"#, "v".repeat(64 * 1024));
    for (key, body, says) in [
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
        let answer = daemon.ask("PUT", &format!("/v1/state/{key}"), body);
        assert_eq!(answer.status, 400, "{key}: {}", answer.body);
        assert!(answer.json()["detail"].as_str().unwrap().contains(says), "{says}: {}", answer.body);
    }
    assert_eq!(daemon.ask("GET", "/v1/state/k", "").status, 404, "nothing was stored");
    assert_eq!(daemon.ask("POST", "/v1/state/k", "{}").status, 405);
    let unknown = "GET /v1/state/k HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
    assert_eq!(tokio::task::block_in_place(|| request(daemon.address, unknown)).status, 401);
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_was_given_up_is_listed_without_its_token_and_handled_again_when_revived() {
    let sim = sim().await;
    let daemon = Daemon::start(&sim);
    let fired = sim.fire(FireSpec::command(sim.guilds()[0], "broken")).await.unwrap();
    let dead = |answer: &Answer| answer.json()["events"].as_array().is_some_and(|events| events.len() == 1);
    let listed = daemon.until("/v1/events/dead", dead).await;
    assert!(!listed.body.contains(&fired.token.unwrap()), "{}", listed.body);
    let (listed, next) = (listed.json()["events"][0].clone(), listed.json()["next"].clone());
    assert_eq!((&listed["handler"], &listed["event_type"]), (&json!("broken"), &json!("interaction.command.broken")));
    assert!(listed["why"].as_str().unwrap().contains("nowhere"), "{listed}");
    assert_eq!(next, Value::Null);
    let place = listed["place"].as_str().unwrap().to_owned();
    let before = daemon.ask("GET", &format!("/v1/events/dead?before={place}&limit=1"), "");
    assert_eq!(before.json()["events"], json!([]));

    let revive = |place: &str| daemon.ask("POST", &format!("/v1/events/dead/{place}/revive"), "").status;
    assert_eq!(revive(&place), 202);
    // It fails again: it was retried when it is dead at another position.
    let again = |answer: &Answer| dead(answer) && answer.json()["events"][0]["place"] != json!(place);
    daemon.until("/v1/events/dead", again).await;
    assert_eq!((revive(&place), revive("999999"), revive("x")), (404, 404, 400));
    assert_eq!(daemon.ask("GET", "/v1/events/dead?limit=0", "").status, 400);
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn reserved_keys_are_refused_in_every_spelling_and_by_every_method() {
    let sim = sim().await;
    let daemon = Daemon::start(&sim);
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
            let answer = daemon.ask(method, &format!("/v1/state/{key}"), r#"{"value": 1}"#);
            assert_eq!(answer.status, 400, "{method} {key}: {}", answer.body);
            let detail = answer.json()["detail"].as_str().unwrap().to_owned();
            assert!(detail.contains("must not start with `"), "{method} {key}: {detail}");
        }
    }
    // Decoded once, this is another key.
    assert_eq!(daemon.ask("PUT", "/v1/state/gate%253A1", r#"{"value": 1}"#).status, 204);
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
async fn an_idempotency_key_of_the_api_does_not_hold_back_a_handler() {
    let sim = sim().await;
    let guild = sim.guilds()[0];
    let daemon = Daemon::with_handlers(&sim, WITH_KEY, |_| {});
    let body = r#"{"kind": "create_role", "payload": {"name": "by-api"}, "key": "event:same"}"#;
    assert_eq!(daemon.ask("POST", &format!("/v1/guilds/{guild}/operations"), body).status, 202);
    sim.fire(FireSpec::command(guild, "make")).await.unwrap();
    let both = |answer: &Answer| answer.json()["operations"].as_array().is_some_and(|listed| listed.len() == 2);
    daemon.until("/v1/operations?kind=create_role&state=succeeded", both).await;
    assert_eq!(daemon.ask("GET", "/v1/events/dead", "").json()["events"], json!([]));
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
async fn a_key_that_a_user_makes_reserved_is_refused_counted_and_listed() {
    for (custom_id, handler, source) in [("gate:1", "writes", "set"), ("cooldown:reads:1", "reads", "needs")] {
        let sim = sim().await;
        let daemon = Daemon::with_handlers(&sim, BY_CUSTOM_ID, |_| {});
        sim.fire(FireSpec::modal(sim.guilds()[0], custom_id)).await.unwrap();
        let dead = daemon.dead_event().await;
        assert_eq!(dead["handler"], handler);
        assert!(dead["why"].as_str().unwrap().contains("reserved for the daemon"), "{dead}");
        let counter = "guildhall_reserved_state_keys_refused_total";
        daemon.until_counted(&format!("{counter}{{handler=\"{handler}\",source=\"{source}\"}} 1")).await;
        assert_eq!(daemon.ask("GET", "/v1/state/seen", "").status, 404, "no effect was committed");
        daemon.running.lines_with("reserved state key refused", 1);
        daemon.stop();
    }
}

#[test]
fn a_handlers_file_with_a_reserved_key_is_refused_before_anything_starts() {
    let handlers = BY_CUSTOM_ID.replace("{data.data.custom_id}", "gate:{user_id}");
    for command in [&["serve"][..], &["handlers", "check"]] {
        let running = Guildhall::new(command)
            .env("GUILDHALL__DISCORD__TOKEN", "sim-bot-token")
            .env("GUILDHALL__HANDLERS__FILE", "handlers.toml")
            .file("handlers.toml", &handlers)
            .spawn();
        // Bounded, in case it starts after all.
        running.line_with("`handlers[0].set[1].key` must not start with `gate:`");
        running.line_with("`handlers[1].needs[0]` must not start with `gate:`");
        assert_eq!(running.end().code, Some(1), "{command:?}");
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
async fn an_unsigned_answer_over_plain_http_is_refused_unless_the_handler_allows_it() {
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
    let warns =
        |part: &'static str| move |running: &Running| assert!(running.line_with("handler warning").contains(part));
    let daemon = Daemon::with_handlers(&sim, &handlers(""), warns("rejected unless they are signed"));
    sim.fire(FireSpec::command(sim.guilds()[0], "ask")).await.unwrap();
    let dead = daemon.dead_event().await;
    let why = dead["why"].as_str().unwrap();
    assert!(why.contains(&format!("plain http from {address}")) && why.contains("not signed"), "{why}");
    daemon.until_counted("guildhall_webhook_requests_total{handler=\"brain\",outcome=\"untrusted\"} 1").await;
    assert_eq!(daemon.ask("GET", "/v1/state/answered", "").status, 404);
    let listed = daemon.ask("GET", "/v1/operations", "");
    assert_eq!(listed.json()["operations"], json!([]), "{}", listed.body);
    daemon.stop();

    let daemon = Daemon::with_handlers(&sim, &handlers("answers = \"any\"\n"), warns("answers = \\\"any\\\" accepts"));
    sim.fire(FireSpec::command(sim.guilds()[0], "ask")).await.unwrap();
    daemon.until("/v1/state/answered", |answer| answer.status == 200).await;
    let listed = daemon.ask("GET", "/v1/operations?kind=edit_original", "");
    assert_eq!(listed.json()["operations"].as_array().map(Vec::len), Some(1), "{}", listed.body);
    daemon.stop();
}
