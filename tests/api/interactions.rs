//! Interactions that Discord posts: the real program, a simulated Discord, and unauthorized senders.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener},
    path::Path,
    sync::mpsc::{Receiver, Sender, channel},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use ed25519_dalek::{Signer as _, SigningKey};
use guildhall_sim::{FireSpec, Sim, SimConfig, SimHandle, Snowflake};
use guildhall_testkit::program::{Guildhall, HttpResponse, RunningGuildhall, TEST_TIMEOUT, get, request};
use serde_json::{Value, json};

const HANDLERS: &str = r#"
[[handlers]]
name = "hello"
on = "interaction.command.hello"
ephemeral = true
reply = "hi {user_id}"

[[handlers]]
name = "fill"
on = "interaction.autocomplete.hello"
reply = { choices = [{ name = "Ada", value = "ada" }] }

[[handlers]]
name = "now"
on = "interaction.command.now"
defer = "never"
reply = "at once"
"#;

async fn sim() -> SimHandle {
    Sim::start(SimConfig { guilds: 1, members: 1, channels: 1, ..SimConfig::default() }).await.unwrap()
}

/// The program with this public key, and the address of its interactions endpoint.
fn start(sim: &SimHandle, key: &str) -> (RunningGuildhall, SocketAddr) {
    let running = Guildhall::serve(&sim.gateway_url())
        .env("GUILDHALL__DISCORD__TOKEN", "sim-bot-token")
        .env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
        .env("GUILDHALL__INTERACTIONS__PUBLIC_KEY", key)
        .env("GUILDHALL__INTERACTIONS__BIND", "127.0.0.1:0")
        .file("handlers.toml", HANDLERS)
        .env("GUILDHALL__HANDLERS__FILE", "handlers.toml")
        .spawn();
    let line: Value = serde_json::from_str(&running.wait_for_log_line("listening for interactions over HTTP")).unwrap();
    let address = line["address"].as_str().unwrap().parse().unwrap();
    (running, address)
}

pub(crate) fn stop(running: RunningGuildhall) {
    running.signal("TERM");
    let exited = running.wait_for_exit();
    assert_eq!(exited.code, Some(0), "{}", exited.stderr);
}

/// Waits for the response that the simulator has for an interaction.
pub(crate) async fn wait_for_response(sim: &SimHandle, token: &str) -> Value {
    let application = sim.application("sim-bot-token").unwrap();
    let url = sim.api_url();
    let (host, base) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let path = format!("/{base}/webhooks/{application}/{token}/messages/@original");
    let host = host.parse().unwrap();
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let response = tokio::task::block_in_place(|| get(host, &path));
        if response.status == 200 && response.json()["content"] != "" {
            return response.json();
        }
        assert!(Instant::now() < deadline, "no response: {} {}", response.status, response.body);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn posted_command_is_deferred_and_answered_and_a_forged_one_refused() {
    let sim = sim().await;
    let (running, address) = start(&sim, &sim.verify_key());
    let guild = sim.guilds()[0];
    let posted_command = |name| {
        let mut command = FireSpec::command(guild, name);
        command.url = Some(format!("http://{address}/interactions"));
        command
    };

    let mut forged = posted_command("hello");
    forged.forged = true;
    assert_eq!(sim.fire(forged).await.unwrap().posted.unwrap().status, 401);

    let fired = sim.fire(posted_command("hello")).await.unwrap();
    let posted = fired.posted.unwrap();
    assert_eq!((posted.status, posted.body), (200, json!({ "type": 5, "data": { "flags": 64 } })));
    assert!(posted.taken.is_some_and(|status| status < 300), "Discord accepted it: {:?}", posted.taken);
    let response = wait_for_response(&sim, &fired.token.unwrap()).await;
    assert!(response["content"].as_str().unwrap().starts_with("hi "), "{response}");
    assert_eq!(response["flags"], 64);

    let at_once = sim.fire(posted_command("now")).await.unwrap();
    let posted = at_once.posted.unwrap();
    assert_eq!((&posted.body["type"], &posted.body["data"]["content"]), (&json!(4), &json!("at once")));
    assert!(posted.taken.is_some_and(|status| status < 300), "Discord accepted it: {:?}", posted.taken);

    let unhandled = sim.fire(posted_command("other")).await.unwrap();
    assert_eq!(unhandled.posted.unwrap().status, 404);
    assert_eq!((sim.score().interactions.fired, sim.score().interactions.doubled), (4, 0));
    stop(running);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Posts a body, signed with this timestamp.
fn post(address: SocketAddr, key: &SigningKey, at: u64, body: &str) -> HttpResponse {
    let signature = hex(&key.sign(format!("{at}{body}").as_bytes()).to_bytes());
    let length = body.len();
    let head = format!(
        "POST /anywhere HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Type: application/json\r\n\
         X-Signature-Ed25519: {signature}\r\nX-Signature-Timestamp: {at}\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    request(address, &head)
}

fn interaction(kind: u8, id: u64) -> String {
    let user = json!({ "user": { "id": "77" } });
    let data = json!({ "name": "hello", "options": [] });
    let object = json!({
        "id": id.to_string(), "application_id": "9", "type": kind, "token": "token", "data": data, "member": user,
    });
    object.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_recently_signed_requests_are_accepted() {
    let sim = sim().await;
    let key = SigningKey::from_bytes(&[7; 32]);
    let (running, address) = start(&sim, &hex(key.verifying_key().as_bytes()));
    let ping = r#"{"type":1,"id":"8","application_id":"9","token":"x","version":1}"#;
    let pong = post(address, &key, now(), ping);
    assert_eq!((pong.status, pong.json()), (200, json!({ "type": 1 })));
    assert!(pong.head.contains("content-type: application/json"), "{}", pong.head);

    let other = SigningKey::from_bytes(&[8; 32]);
    assert_eq!(post(address, &other, now(), ping).status, 401, "signature of another key");
    assert_eq!(post(address, &key, now() - 330, ping).status, 401, "too old");
    assert_eq!(post(address, &key, now() + 330, ping).status, 401, "too new");
    assert_eq!(get(address, "/").status, 405);
    let unsigned = "POST / HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}";
    assert_eq!(request(address, unsigned).status, 401);
    assert_eq!(post(address, &key, now(), "{}").status, 400);
    let large = format!(
        "POST / HTTP/1.1\r\nHost: test\r\nConnection: close\r\nX-Signature-Ed25519: {}\r\n\
         X-Signature-Timestamp: {}\r\nContent-Length: 1048577\r\n\r\n",
        "0".repeat(128),
        now()
    );
    assert_eq!(request(address, &large).status, 413);

    let choices = post(address, &key, now(), &interaction(4, 21));
    let expected = json!({ "type": 8, "data": { "choices": [{ "name": "Ada", "value": "ada" }] } });
    assert_eq!((choices.status, choices.json()), (200, expected));

    // The same request again, as in a replay attack.
    let (at, command) = (now(), interaction(2, 22));
    for _ in 0..2 {
        let deferred = post(address, &key, at, &command);
        assert_eq!((deferred.status, deferred.json()["type"].clone()), (200, json!(5)));
    }
    stop(running);
}

#[tokio::test(flavor = "multi_thread")]
async fn port_in_use_is_reported_with_its_setting() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let exited = Guildhall::serve("ws://127.0.0.1:9")
        .env("GUILDHALL__INTERACTIONS__PUBLIC_KEY", &hex(SigningKey::from_bytes(&[7; 32]).verifying_key().as_bytes()))
        .env("GUILDHALL__INTERACTIONS__BIND", &taken.local_addr().unwrap().to_string())
        .spawn()
        .wait_for_exit();
    assert_eq!(exited.code, Some(1), "{}", exited.stderr);
    assert!(exited.stderr.contains("interactions.bind (GUILDHALL__INTERACTIONS__BIND)"), "{}", exited.stderr);
}

pub(crate) const ADMIN: &str = "gh_test_0123456789";

/// The program with a store that outlives it, and the addresses of its API and its interactions endpoint.
pub(crate) struct InteractionDaemon {
    pub(crate) running: RunningGuildhall,
    pub(crate) api: SocketAddr,
    pub(crate) interactions: SocketAddr,
}

impl InteractionDaemon {
    fn start(sim: &SimHandle, key: &str, store: &Path, handlers: &str) -> Self {
        Self::start_with(sim, key, store, handlers, &[])
    }

    /// The same, with these settings.
    pub(crate) fn start_with(
        sim: &SimHandle,
        key: &str,
        store: &Path,
        handlers: &str,
        settings: &[(&str, &str)],
    ) -> Self {
        let program = Guildhall::serve(&sim.gateway_url())
            .env("GUILDHALL__DISCORD__TOKEN", "sim-bot-token")
            .env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
            .env("GUILDHALL__STORE__URL", &format!("sqlite:{}/guildhall.db", store.display()))
            .env("GUILDHALL__API__ADMIN_KEY", ADMIN)
            .env("GUILDHALL__INTERACTIONS__PUBLIC_KEY", key)
            .env("GUILDHALL__INTERACTIONS__BIND", "127.0.0.1:0")
            .file("handlers.toml", handlers)
            .env("GUILDHALL__HANDLERS__FILE", "handlers.toml");
        let running = settings.iter().fold(program, |program, (name, value)| program.env(name, value)).spawn();
        let api = running.address();
        let line: Value =
            serde_json::from_str(&running.wait_for_log_line("listening for interactions over HTTP")).unwrap();
        let interactions = line["address"].as_str().unwrap().parse().unwrap();
        running.wait_for_log_line("\"part is ready\",\"part\":\"gateway\"");
        Self { running, api, interactions }
    }

    /// A key of the default tenant for one guild.
    fn key_for(&self, guild: Snowflake) -> String {
        let body = json!({ "name": "test", "scopes": ["operations:write", format!("guild:{guild}")] });
        let made = call(self.api, ADMIN, "/v1/keys", &body);
        assert_eq!(made.status, 201, "{}", made.body);
        made.json()["key"].as_str().unwrap().to_owned()
    }

    fn follow_up(&self, key: &str, guild: Snowflake, id: u64, token: &str) -> HttpResponse {
        follow_up(self.api, key, &guild.to_string(), &id.to_string(), token)
    }
}

pub(crate) fn call(api: SocketAddr, key: &str, path: &str, body: &Value) -> HttpResponse {
    let body = body.to_string();
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    request(api, &head)
}

fn follow_up(api: SocketAddr, key: &str, guild: &str, id: &str, token: &str) -> HttpResponse {
    let payload = json!({ "interaction_id": id, "interaction_token": token, "content": "more" });
    call(api, key, &format!("/v1/guilds/{guild}/operations"), &json!({ "kind": "send_followup", "payload": payload }))
}

#[tokio::test(flavor = "multi_thread")]
async fn posted_interaction_takes_responses_at_once_and_after_a_restart() {
    let sim = Sim::start(SimConfig { guilds: 2, members: 1, channels: 1, ..SimConfig::default() }).await.unwrap();
    let (guild, other) = (sim.guilds()[0], sim.guilds()[1]);
    let store = tempfile::tempdir().unwrap();
    let daemon = InteractionDaemon::start(&sim, &sim.verify_key(), store.path(), HANDLERS);
    let (own, others) = (daemon.key_for(guild), daemon.key_for(other));
    let mut tokens = Vec::new();
    for name in ["hello", "now"] {
        let mut command = FireSpec::command(guild, name);
        command.url = Some(format!("http://{}/interactions", daemon.interactions));
        let fired = sim.fire(command).await.unwrap();
        let (id, token) = (fired.id.unwrap().get(), fired.token.unwrap());
        // It was recorded before Discord got its response.
        let accepted = daemon.follow_up(&own, guild, id, &token);
        assert_eq!(accepted.status, 202, "{name}: {}", accepted.body);
        assert_eq!(daemon.follow_up(&own, guild, id, "made-up").status, 422);
        assert_eq!(daemon.follow_up(&others, other, id, &token).status, 422);
        assert_eq!(daemon.follow_up(&others, guild, id, &token).status, 404);
        tokens.push((id, token));
    }
    stop(daemon.running);
    let daemon = InteractionDaemon::start(&sim, &sim.verify_key(), store.path(), HANDLERS);
    for (id, token) in &tokens {
        let accepted = daemon.follow_up(&own, guild, *id, token);
        assert_eq!(accepted.status, 202, "{}", accepted.body);
    }
    stop(daemon.running);
}

/// An interaction id that was created so long ago.
fn id_from(ago: Duration) -> u64 {
    let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() - ago;
    (u64::try_from(created.as_millis()).unwrap() - 1_420_070_400_000) << 22
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_interaction_takes_no_response() {
    let sim = sim().await;
    let (guild, store) = (sim.guilds()[0], tempfile::tempdir().unwrap());
    let signer = SigningKey::from_bytes(&[7; 32]);
    let daemon = InteractionDaemon::start(&sim, &hex(signer.verifying_key().as_bytes()), store.path(), HANDLERS);
    let own = daemon.key_for(guild);
    let posted = |ago: Duration, token: &str| {
        let id = id_from(ago);
        let mut object: Value = serde_json::from_str(&interaction(2, id)).unwrap();
        object["guild_id"] = guild.to_string().into();
        object["token"] = token.into();
        let deferred = post(daemon.interactions, &signer, now(), &object.to_string());
        assert_eq!(deferred.status, 200, "{}", deferred.body);
        daemon.follow_up(&own, guild, id, token)
    };
    let expired = posted(Duration::from_secs(15 * 60), "old");
    assert_eq!(expired.status, 422, "{}", expired.body);
    let made_up = daemon.follow_up(&own, guild, 77, "made-up");
    assert_eq!(expired.json()["errors"], made_up.json()["errors"], "both cases have the same error");
    let accepted = posted(Duration::from_secs(60), "recent");
    assert_eq!(accepted.status, 202, "{}", accepted.body);
    stop(daemon.running);
}

/// A brain that responds through the API before it responds to the webhook. Sends the status of each API response.
fn brain(listener: &TcpListener, api: &Receiver<(SocketAddr, String)>, statuses: &Sender<u16>) {
    let (api, key) = api.recv().unwrap();
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap() == 0 || line == "\r\n" {
                break;
            }
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let event: Value = serde_json::from_slice(&body).unwrap();
        let text = |name: &str| event[name].as_str().unwrap().to_owned();
        let response = follow_up(api, &key, &text("guild_id"), &text("interaction_id"), &text("interaction_token"));
        drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"));
        if statuses.send(response.status).is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn brain_may_respond_through_the_api_as_soon_as_it_is_called() {
    let sim = sim().await;
    let (guild, store) = (sim.guilds()[0], tempfile::tempdir().unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let handlers = format!(
        "[[handlers]]\nname = \"brain\"\non = \"interaction.command.ask\"\n\
         [handlers.webhook]\nurl = \"http://{}/\"\nsecrets = [\"whsec_ZXhhbXBsZS1vbmx5LW1ha2UteW91ci1vd24tc2VjcmV0\"]\n\
         allow_private = true\n",
        listener.local_addr().unwrap()
    );
    let ((address_sender, addresses), (statuses, received_statuses)) = (channel(), channel());
    std::thread::spawn(move || brain(&listener, &addresses, &statuses));
    let daemon = InteractionDaemon::start(&sim, &sim.verify_key(), store.path(), &handlers);
    address_sender.send((daemon.api, daemon.key_for(guild))).unwrap();
    for round in 0..20 {
        let mut command = FireSpec::command(guild, "ask");
        // Half of them over HTTP, half over the gateway.
        command.url = (round % 2 == 0).then(|| format!("http://{}/interactions", daemon.interactions));
        sim.fire(command).await.unwrap();
        let status = tokio::task::block_in_place(|| received_statuses.recv_timeout(TEST_TIMEOUT)).unwrap();
        assert_eq!(status, 202, "round {round}");
    }
    stop(daemon.running);
}
