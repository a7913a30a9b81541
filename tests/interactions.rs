//! Interactions that Discord posts: the real program, a simulated Discord, and whoever else finds the port.

#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::{
    net::SocketAddr,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use ed25519_dalek::{Signer as _, SigningKey};
use guildhall_sim::{FireSpec, Sim, SimConfig, SimHandle};
use serde_json::{Value, json};
use support::{Answer, Guildhall, Running, STUCK, get, request};

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

/// The program, which trusts this key; and where it takes interactions.
fn start(sim: &SimHandle, key: &str) -> (Running, SocketAddr) {
    let running = Guildhall::serve(&sim.gateway_url())
        .env("GUILDHALL__DISCORD__TOKEN", "sim-bot-token")
        .env("GUILDHALL__DISCORD__API_URL", &sim.api_url())
        .env("GUILDHALL__INTERACTIONS__PUBLIC_KEY", key)
        .env("GUILDHALL__INTERACTIONS__BIND", "127.0.0.1:0")
        .file("handlers.toml", HANDLERS)
        .env("GUILDHALL__HANDLERS__FILE", "handlers.toml")
        .spawn();
    let line: Value = serde_json::from_str(&running.line_with("interactions are taken over HTTP")).unwrap();
    let address = line["address"].as_str().unwrap().parse().unwrap();
    (running, address)
}

fn stop(running: Running) {
    running.signal("TERM");
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

/// What the simulator holds as the answer to an interaction, once there is one.
async fn original(sim: &SimHandle, token: &str) -> Value {
    let application = sim.application("sim-bot-token").unwrap();
    let url = sim.api_url();
    let (host, base) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let path = format!("/{base}/webhooks/{application}/{token}/messages/@original");
    let host = host.parse().unwrap();
    let deadline = Instant::now() + STUCK;
    loop {
        let answer = tokio::task::block_in_place(|| get(host, &path));
        if answer.status == 200 && answer.json()["content"] != "" {
            return answer.json();
        }
        assert!(Instant::now() < deadline, "never answered: {} {}", answer.status, answer.body);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_discord_posts_is_deferred_and_then_answered_and_a_forged_one_is_refused() {
    let sim = sim().await;
    let (running, address) = start(&sim, &sim.verify_key());
    let guild = sim.guilds()[0];
    let posts = |name| {
        let mut command = FireSpec::command(guild, name);
        command.url = Some(format!("http://{address}/interactions"));
        command
    };

    let mut forged = posts("hello");
    forged.forged = true;
    assert_eq!(sim.fire(forged).await.unwrap().posted.unwrap().status, 401);

    let fired = sim.fire(posts("hello")).await.unwrap();
    let posted = fired.posted.unwrap();
    assert_eq!((posted.status, posted.body), (200, json!({ "type": 5, "data": { "flags": 64 } })));
    assert!(posted.taken.is_some_and(|status| status < 300), "Discord took it: {:?}", posted.taken);
    let answered = original(&sim, &fired.token.unwrap()).await;
    assert!(answered["content"].as_str().unwrap().starts_with("hi "), "{answered}");
    assert_eq!(answered["flags"], 64);

    let at_once = sim.fire(posts("now")).await.unwrap();
    let posted = at_once.posted.unwrap();
    assert_eq!((&posted.body["type"], &posted.body["data"]["content"]), (&json!(4), &json!("at once")));
    assert!(posted.taken.is_some_and(|status| status < 300), "Discord took it: {:?}", posted.taken);

    let nobody = sim.fire(posts("other")).await.unwrap();
    assert_eq!(nobody.posted.unwrap().status, 404);
    assert_eq!((sim.score().interactions.fired, sim.score().interactions.doubled), (4, 0));
    stop(running);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Posts this, signed at this time.
fn post(address: SocketAddr, key: &SigningKey, at: u64, body: &str) -> Answer {
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
    let whole = json!({
        "id": id.to_string(), "application_id": "9", "type": kind, "token": "token", "data": data, "member": user,
    });
    whole.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_the_key_signed_lately_is_heard_of() {
    let sim = sim().await;
    let key = SigningKey::from_bytes(&[7; 32]);
    let (running, address) = start(&sim, &hex(key.verifying_key().as_bytes()));
    let ping = r#"{"type":1,"id":"8","application_id":"9","token":"x","version":1}"#;
    let pong = post(address, &key, now(), ping);
    assert_eq!((pong.status, pong.json()), (200, json!({ "type": 1 })));
    assert!(pong.head.contains("content-type: application/json"), "{}", pong.head);

    let other = SigningKey::from_bytes(&[8; 32]);
    assert_eq!(post(address, &other, now(), ping).status, 401, "somebody else's signature");
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

    // The same request again, as somebody would send it who has overheard it.
    let (at, command) = (now(), interaction(2, 22));
    for _ in 0..2 {
        let deferred = post(address, &key, at, &command);
        assert_eq!((deferred.status, deferred.json()["type"].clone()), (200, json!(5)));
    }
    stop(running);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_taken_is_told_with_the_setting_to_change() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let ended = Guildhall::serve("ws://127.0.0.1:9")
        .env("GUILDHALL__INTERACTIONS__PUBLIC_KEY", &hex(SigningKey::from_bytes(&[7; 32]).verifying_key().as_bytes()))
        .env("GUILDHALL__INTERACTIONS__BIND", &taken.local_addr().unwrap().to_string())
        .spawn()
        .end();
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("interactions.bind (GUILDHALL__INTERACTIONS__BIND)"), "{}", ended.stderr);
}
