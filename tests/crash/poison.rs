//! An input on which a part always panics ends the process twice. The third start sets it aside and handles the rest.

use std::time::Duration;

use guildhall_actors::supervision::Part;
use guildhall_sim::{MessageSpec, Snowflake};
use guildhall_testkit::crash::{
    client::TEST_TIMEOUT,
    daemon_process::{DaemonProcess, was_killed},
    fixture::{DaemonFixture, Engine, FixtureSize},
};
use http::Method;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    time::timeout,
};

const FIXTURE_SIZE: FixtureSize = FixtureSize { guilds: 1, roles: 0, to_delete: 0, permissions: None };
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum number of starts until two crashes are counted.
const MAX_STARTS: u32 = 6;
const POISON: &str = "poisoned";

const ECHO: &str = r#"[[handlers]]
name = "echo"
on = "message.create"
when = { bot = false }
do = [{ kind = "send_message", payload = { channel_id = "{channel_id}", content = "{data.content}" } }]
"#;

/// Starts a daemon in which a part panics on certain inputs.
fn start_daemon(fixture: &DaemonFixture, failpoint: Option<&str>) -> DaemonProcess {
    let mut environment = vec![
        ("GUILDHALL__HANDLERS__FILE", "handlers.toml"),
        ("GUILDHALL__GATEWAY__INTENTS", "guilds,guild_messages,message_content"),
        ("GUILDHALL__GATEWAY__RECONNECT_BASE_MS", "10"),
    ];
    environment.extend(failpoint.map(|failpoint| ("GUILDHALL_FAILPOINT", failpoint)));
    fixture.start_daemon_with(&environment)
}

fn poison(part: Part, text: &str) -> String {
    format!("poison:{}:{text}", part.name())
}

/// Starts processes until the input has ended two of them and both crashes are counted. If a process is too slow to
/// record its crash within the second that it has for that, the input is tried once more, by design.
async fn wait_for_two_crashes(fixture: &DaemonFixture, failpoint: &str, first: Option<DaemonProcess>) {
    let mut crash_count = 0;
    let mut next = first;
    for _ in 0..MAX_STARTS {
        let mut daemon = next.take().unwrap_or_else(|| start_daemon(fixture, Some(failpoint)));
        let exited = timeout(TEST_TIMEOUT, daemon.wait_for_exit()).await;
        assert!(exited.is_ok(), "the input did not end the process\n{}", daemon.log_tail());
        assert_eq!(daemon.kill().code(), Some(1), "{}", daemon.log_tail());
        let lines = daemon.log_lines_with("input ended the process");
        assert!(lines.len() <= 1, "{}", daemon.log_tail());
        if let Some(crashes) = lines.first().and_then(|line| line["crashes"].as_u64()) {
            assert_eq!(crashes, crash_count + 1, "{}", daemon.log_tail());
            crash_count = crashes;
        }
        if crash_count == 2 {
            return;
        }
    }
    panic!("{crash_count} of {MAX_STARTS} crashes were counted");
}

/// Writes a message as a user.
async fn write_message(fixture: &DaemonFixture, content: &str) {
    let channel = fixture.guilds[0].channel;
    let spec = json!({ "channel_id": channel.to_string(), "content": content });
    let spec: MessageSpec = serde_json::from_value(spec).unwrap();
    assert_eq!(spec.channel_id, Snowflake::new(channel));
    fixture.sim.send_messages(spec).await.unwrap();
}

/// The messages of the bot, in order.
async fn bot_messages(fixture: &DaemonFixture) -> Vec<String> {
    let path = format!("/channels/{}/messages?limit=100", fixture.guilds[0].channel);
    let messages = fixture.call_discord(Method::GET, &path, None).await;
    let own = messages.as_array().unwrap().iter().rev().filter(|message| message["author"]["bot"] == true);
    own.map(|message| message["content"].as_str().unwrap().to_owned()).collect()
}

async fn wait_for_bot_messages(fixture: &DaemonFixture, daemon: &DaemonProcess, expected: &[&str]) {
    let waiting = async {
        while bot_messages(fixture).await != expected {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    if timeout(TEST_TIMEOUT, waiting).await.is_err() {
        panic!("{:?}, not {expected:?}\n{}", bot_messages(fixture).await, daemon.log_tail());
    }
}

/// Repeats a request until it succeeds.
async fn request_until_ok(fixture: &DaemonFixture, method: Method, path: &str, body: Option<&Value>) -> Value {
    let requesting = async {
        loop {
            match fixture.request(method.clone(), path, None, body).await {
                Ok((status, answer)) if status < 300 => return answer,
                Ok(_) | Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    };
    timeout(TEST_TIMEOUT, requesting).await.unwrap()
}

async fn event_ends_two_processes(engine: Engine, part: Part) {
    let fixture = DaemonFixture::new(engine, FIXTURE_SIZE).await;
    std::fs::write(fixture.file("handlers.toml"), ECHO).unwrap();
    let mut daemon = start_daemon(&fixture, None);
    timeout(TEST_TIMEOUT, daemon.wait_until_listening()).await.unwrap().unwrap();
    let connected = async {
        while daemon.log_lines_with("shard connected").is_empty() && fixture.sim.gateway_score().sessions.is_empty() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    timeout(TEST_TIMEOUT, connected).await.unwrap();
    write_message(&fixture, "first").await;
    wait_for_bot_messages(&fixture, &daemon, &["first"]).await;
    assert!(was_killed(daemon.kill()));
    for content in ["before", POISON, "after"] {
        write_message(&fixture, content).await;
    }
    let failpoint = poison(part, POISON);
    wait_for_two_crashes(&fixture, &failpoint, None).await;
    let mut daemon = start_daemon(&fixture, Some(&failpoint));
    wait_for_bot_messages(&fixture, &daemon, &["first", "before", "after"]).await;
    write_message(&fixture, "later").await;
    wait_for_bot_messages(&fixture, &daemon, &["first", "before", "after", "later"]).await;
    let dead = request_until_ok(&fixture, Method::GET, "/v1/events/dead", None).await;
    let dead = dead["events"].as_array().unwrap();
    assert_eq!(dead.len(), 1, "{dead:?}");
    assert_eq!((&dead[0]["handler"], &dead[0]["event_type"]), (&json!("echo"), &json!("message.create")));
    assert_eq!(dead[0]["event"]["data"]["content"], POISON);
    let reason = dead[0]["why"].as_str().unwrap();
    assert!(reason.contains("ended the process 2 times") && reason.contains(part.name()), "{reason}");
    assert_eq!(daemon.log_lines_with("input set aside").len(), 1, "{}", daemon.log_tail());
    assert_eq!(daemon.exit_status(), None, "{}", daemon.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frame_that_ends_its_shard_is_a_dead_event_at_the_third_start() {
    event_ends_two_processes(Engine::Sqlite, Part::Shard).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_that_ends_the_router_is_a_dead_event_at_the_third_start() {
    event_ends_two_processes(Engine::Postgres, Part::EventRouter).await;
}

/// Submits three operations to a paused guild. Returns their ids.
async fn submit_paused_operations(fixture: &DaemonFixture) -> Vec<String> {
    std::fs::write(fixture.file("handlers.toml"), ECHO).unwrap();
    let (guild, channel) = (fixture.guilds[0].guild, fixture.guilds[0].channel);
    let mut daemon = start_daemon(fixture, None);
    request_until_ok(fixture, Method::POST, &format!("/v1/guilds/{guild}/pause"), None).await;
    let mut ids = Vec::new();
    for content in ["one", "two", "three"] {
        let payload = json!({ "channel_id": channel.to_string(), "content": content });
        let body = json!({ "kind": "send_message", "payload": payload });
        let response =
            request_until_ok(fixture, Method::POST, &format!("/v1/guilds/{guild}/operations"), Some(&body)).await;
        ids.push(response["id"].as_str().unwrap().to_owned());
    }
    daemon.kill();
    ids
}

async fn operation_ends_two_processes(
    engine: Engine,
    part: Part,
    poison_text: impl Fn(&str) -> String,
    states: &[&str],
) {
    let fixture = DaemonFixture::new(engine, FIXTURE_SIZE).await;
    let ids = submit_paused_operations(&fixture).await;
    let guild = fixture.guilds[0].guild;
    let failpoint = poison(part, &poison_text(&ids[1]));
    let daemon = start_daemon(&fixture, Some(&failpoint));
    let resume = format!("/v1/guilds/{guild}/resume");
    // It may end before it responds.
    tokio::select! {
        _ = request_until_ok(&fixture, Method::POST, &resume, None) => {}
        () = daemon.wait_for_exit() => {}
    }
    wait_for_two_crashes(&fixture, &failpoint, Some(daemon)).await;
    let mut daemon = start_daemon(&fixture, Some(&failpoint));
    wait_for_bot_messages(&fixture, &daemon, &["one", "three"]).await;
    for (id, expected) in ids.iter().zip([&["succeeded"], states, &["succeeded"]]) {
        let finished = async {
            loop {
                let operation = request_until_ok(&fixture, Method::GET, &format!("/v1/operations/{id}"), None).await;
                if operation["finished_at"].is_string() {
                    return operation;
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        let operation = timeout(TEST_TIMEOUT, finished).await.unwrap_or_else(|_| panic!("{}", daemon.log_tail()));
        assert!(expected.contains(&operation["state"].as_str().unwrap()), "{operation}");
        if expected == states {
            let error = operation["error"].to_string();
            assert!(error.contains("poison") && error.contains(part.name()), "{error}");
        }
    }
    assert_eq!(daemon.log_lines_with("input set aside").len(), 1, "{}", daemon.log_tail());
    assert_eq!(daemon.exit_status(), None, "{}", daemon.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operation_that_ends_the_gate_is_set_aside_at_the_third_start() {
    // Its guild may notice that the gate is gone before the process ends. Then it is known that no call was sent.
    let states = ["dead", "needs_review"];
    operation_ends_two_processes(Engine::Postgres, Part::TokenBucket, str::to_owned, &states).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_that_ends_the_writer_is_a_dead_letter_at_the_third_start() {
    let start = |id: &str| format!("{id} running");
    operation_ends_two_processes(Engine::Sqlite, Part::StoreWriter, start, &["dead"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_whose_reading_panics_is_set_aside_and_its_queue_continues() {
    let fixture = DaemonFixture::new(Engine::Sqlite, FIXTURE_SIZE).await;
    let ids = submit_paused_operations(&fixture).await;
    let failpoint = poison(Part::OperationGuild, &format!("load {}", ids[1]));
    let mut daemon = start_daemon(&fixture, Some(&failpoint));
    request_until_ok(&fixture, Method::POST, &format!("/v1/guilds/{}/resume", fixture.guilds[0].guild), None).await;
    wait_for_bot_messages(&fixture, &daemon, &["one", "three"]).await;
    let dead_letters = request_until_ok(&fixture, Method::GET, "/v1/dead-letters", None).await;
    let dead_letter = &dead_letters["dead_letters"][0];
    assert_eq!(dead_letter["id"], ids[1].as_str(), "{dead_letters}");
    let error = dead_letter["error"].to_string();
    assert!(error.contains("poison") && error.contains("reading it panicked"), "{error}");
    assert_eq!(daemon.log_lines_with("input set aside").len(), 1, "{}", daemon.log_tail());
    assert_eq!(daemon.exit_status(), None, "{}", daemon.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_that_was_being_handled_at_two_kills_is_not_set_aside() {
    let fixture = DaemonFixture::new(Engine::Sqlite, FIXTURE_SIZE).await;
    let brain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let handler = format!(
        "[[handlers]]\nname = \"brain\"\non = \"message.create\"\n\
         webhook = {{ url = \"http://{}/\", secrets = [\"whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz\"], allow_private = true }}\n",
        brain.local_addr().unwrap()
    );
    std::fs::write(fixture.file("handlers.toml"), handler).unwrap();
    let mut daemon = start_daemon(&fixture, None);
    let connected = async {
        while fixture.sim.gateway_score().sessions.is_empty() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    timeout(TEST_TIMEOUT, connected).await.unwrap();
    write_message(&fixture, "slow").await;
    for _ in 0..2 {
        // The brain receives the request, and does not respond.
        let (_connection, _) = timeout(TEST_TIMEOUT, brain.accept()).await.unwrap().unwrap();
        assert!(was_killed(daemon.kill()));
        daemon = start_daemon(&fixture, None);
    }
    let (mut connection, _) = timeout(TEST_TIMEOUT, brain.accept()).await.unwrap().unwrap();
    let mut read = [0; 4096];
    assert!(connection.read(&mut read).await.unwrap() > 0);
    connection.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").await.unwrap();
    drop(connection);
    let handled = async {
        loop {
            let shards = request_until_ok(&fixture, Method::GET, "/v1/shards", None).await;
            let shard = &shards["shards"][0];
            if shard["lag"] == 0 && shard["sequence"].as_u64().is_some_and(|sequence| sequence > 1) {
                return;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    timeout(TEST_TIMEOUT, handled).await.unwrap_or_else(|_| panic!("{}", daemon.log_tail()));
    let dead = request_until_ok(&fixture, Method::GET, "/v1/events/dead", None).await;
    assert_eq!(dead["events"], json!([]), "{}", daemon.log_tail());
    assert!(daemon.log_lines_with("input set aside").is_empty(), "{}", daemon.log_tail());
}
