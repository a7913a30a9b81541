//! An input on which a part always panics ends the process twice. The third start sets it aside and handles the rest.

use std::time::Duration;

use guildhall_actors::supervision::Part;
use guildhall_sim::{MessageSpec, Snowflake};
use http::Method;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    time::timeout,
};

use crate::{
    caller::STUCK,
    life::{Life, was_killed},
    stage::{Engine, Furniture, Stage},
};

const ROOM: Furniture = Furniture { guilds: 1, roles: 0, doomed: 0, permissions: None };
const LOOK: Duration = Duration::from_millis(10);
/// Maximum number of starts until two crashes are counted.
const STARTS: u32 = 6;
const POISON: &str = "poisoned";

const ECHO: &str = r#"[[handlers]]
name = "echo"
on = "message.create"
when = { bot = false }
do = [{ kind = "send_message", payload = { channel_id = "{channel_id}", content = "{data.content}" } }]
"#;

/// Starts a daemon in which a part panics on certain inputs.
fn begin(stage: &Stage, failpoint: Option<&str>) -> Life {
    let mut environment = vec![
        ("GUILDHALL__HANDLERS__FILE", "handlers.toml"),
        ("GUILDHALL__GATEWAY__INTENTS", "guilds,guild_messages,message_content"),
        ("GUILDHALL__GATEWAY__RECONNECT_BASE_MS", "10"),
    ];
    environment.extend(failpoint.map(|failpoint| ("GUILDHALL_FAILPOINT", failpoint)));
    stage.begin_with(&environment)
}

fn poison(part: Part, text: &str) -> String {
    format!("poison:{}:{text}", part.name())
}

/// Starts processes until the input has ended two of them and both crashes are counted. If a process is too slow to
/// record its crash within the second that it has for that, the input is tried once more, by design.
async fn ended_by_input_twice(stage: &Stage, failpoint: &str, first: Option<Life>) {
    let mut counted = 0;
    let mut next = first;
    for _ in 0..STARTS {
        let mut life = next.take().unwrap_or_else(|| begin(stage, Some(failpoint)));
        let ended = timeout(STUCK, life.ends()).await;
        assert!(ended.is_ok(), "the input did not end the process\n{}", life.last_words());
        assert_eq!(life.kill().code(), Some(1), "{}", life.last_words());
        let lines = life.lines_with("input ended the process");
        assert!(lines.len() <= 1, "{}", life.last_words());
        if let Some(crashes) = lines.first().and_then(|line| line["crashes"].as_u64()) {
            assert_eq!(crashes, counted + 1, "{}", life.last_words());
            counted = crashes;
        }
        if counted == 2 {
            return;
        }
    }
    panic!("{counted} of {STARTS} crashes were counted");
}

/// Writes a message as a user.
async fn write(stage: &Stage, content: &str) {
    let channel = stage.places[0].channel;
    let spec = json!({ "channel_id": channel.to_string(), "content": content });
    let spec: MessageSpec = serde_json::from_value(spec).unwrap();
    assert_eq!(spec.channel_id, Snowflake::new(channel));
    stage.sim.write(spec).await.unwrap();
}

/// The messages of the bot, in order.
async fn said(stage: &Stage) -> Vec<String> {
    let path = format!("/channels/{}/messages?limit=100", stage.places[0].channel);
    let messages = stage.discord(Method::GET, &path, None).await;
    let own = messages.as_array().unwrap().iter().rev().filter(|message| message["author"]["bot"] == true);
    own.map(|message| message["content"].as_str().unwrap().to_owned()).collect()
}

async fn until_said(stage: &Stage, life: &Life, expected: &[&str]) {
    let heard = async {
        while said(stage).await != expected {
            tokio::time::sleep(LOOK).await;
        }
    };
    if timeout(STUCK, heard).await.is_err() {
        panic!("{:?}, not {expected:?}\n{}", said(stage).await, life.last_words());
    }
}

/// Repeats a request until it succeeds.
async fn ask(stage: &Stage, method: Method, path: &str, body: Option<&Value>) -> Value {
    let asked = async {
        loop {
            match stage.ask(method.clone(), path, None, body).await {
                Ok((status, answer)) if status < 300 => return answer,
                Ok(_) | Err(_) => tokio::time::sleep(LOOK).await,
            }
        }
    };
    timeout(STUCK, asked).await.unwrap()
}

async fn event_ends_two_processes(engine: Engine, part: Part) {
    let stage = Stage::new(engine, ROOM).await;
    std::fs::write(stage.file("handlers.toml"), ECHO).unwrap();
    let mut life = begin(&stage, None);
    timeout(STUCK, life.listens()).await.unwrap().unwrap();
    let connected = async {
        while life.lines_with("shard connected").is_empty() && stage.sim.gateway_score().sessions.is_empty() {
            tokio::time::sleep(LOOK).await;
        }
    };
    timeout(STUCK, connected).await.unwrap();
    write(&stage, "first").await;
    until_said(&stage, &life, &["first"]).await;
    assert!(was_killed(life.kill()));
    for content in ["before", POISON, "after"] {
        write(&stage, content).await;
    }
    let failpoint = poison(part, POISON);
    ended_by_input_twice(&stage, &failpoint, None).await;
    let mut life = begin(&stage, Some(&failpoint));
    until_said(&stage, &life, &["first", "before", "after"]).await;
    write(&stage, "later").await;
    until_said(&stage, &life, &["first", "before", "after", "later"]).await;
    let dead = ask(&stage, Method::GET, "/v1/events/dead", None).await;
    let dead = dead["events"].as_array().unwrap();
    assert_eq!(dead.len(), 1, "{dead:?}");
    assert_eq!((&dead[0]["handler"], &dead[0]["event_type"]), (&json!("echo"), &json!("message.create")));
    assert_eq!(dead[0]["event"]["data"]["content"], POISON);
    let why = dead[0]["why"].as_str().unwrap();
    assert!(why.contains("ended the process 2 times") && why.contains(part.name()), "{why}");
    assert_eq!(life.lines_with("input set aside").len(), 1, "{}", life.last_words());
    assert_eq!(life.ended(), None, "{}", life.last_words());
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
async fn waiting_operations(stage: &Stage) -> Vec<String> {
    std::fs::write(stage.file("handlers.toml"), ECHO).unwrap();
    let (guild, channel) = (stage.places[0].guild, stage.places[0].channel);
    let mut life = begin(stage, None);
    ask(stage, Method::POST, &format!("/v1/guilds/{guild}/pause"), None).await;
    let mut ids = Vec::new();
    for content in ["one", "two", "three"] {
        let payload = json!({ "channel_id": channel.to_string(), "content": content });
        let body = json!({ "kind": "send_message", "payload": payload });
        let answer = ask(stage, Method::POST, &format!("/v1/guilds/{guild}/operations"), Some(&body)).await;
        ids.push(answer["id"].as_str().unwrap().to_owned());
    }
    life.kill();
    ids
}

async fn operation_ends_two_processes(engine: Engine, part: Part, of: impl Fn(&str) -> String, states: &[&str]) {
    let stage = Stage::new(engine, ROOM).await;
    let ids = waiting_operations(&stage).await;
    let guild = stage.places[0].guild;
    let failpoint = poison(part, &of(&ids[1]));
    let life = begin(&stage, Some(&failpoint));
    let resume = format!("/v1/guilds/{guild}/resume");
    // It may end before it responds.
    tokio::select! {
        _ = ask(&stage, Method::POST, &resume, None) => {}
        () = life.ends() => {}
    }
    ended_by_input_twice(&stage, &failpoint, Some(life)).await;
    let mut life = begin(&stage, Some(&failpoint));
    until_said(&stage, &life, &["one", "three"]).await;
    for (id, expected) in ids.iter().zip([&["succeeded"], states, &["succeeded"]]) {
        let ended = async {
            loop {
                let shown = ask(&stage, Method::GET, &format!("/v1/operations/{id}"), None).await;
                if shown["finished_at"].is_string() {
                    return shown;
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        let shown = timeout(STUCK, ended).await.unwrap_or_else(|_| panic!("{}", life.last_words()));
        assert!(expected.contains(&shown["state"].as_str().unwrap()), "{shown}");
        if expected == states {
            let error = shown["error"].to_string();
            assert!(error.contains("poison") && error.contains(part.name()), "{error}");
        }
    }
    assert_eq!(life.lines_with("input set aside").len(), 1, "{}", life.last_words());
    assert_eq!(life.ended(), None, "{}", life.last_words());
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
    let stage = Stage::new(Engine::Sqlite, ROOM).await;
    let ids = waiting_operations(&stage).await;
    let failpoint = poison(Part::OperationGuild, &format!("load {}", ids[1]));
    let mut life = begin(&stage, Some(&failpoint));
    ask(&stage, Method::POST, &format!("/v1/guilds/{}/resume", stage.places[0].guild), None).await;
    until_said(&stage, &life, &["one", "three"]).await;
    let letters = ask(&stage, Method::GET, "/v1/dead-letters", None).await;
    let letter = &letters["dead_letters"][0];
    assert_eq!(letter["id"], ids[1].as_str(), "{letters}");
    let error = letter["error"].to_string();
    assert!(error.contains("poison") && error.contains("reading it panicked"), "{error}");
    assert_eq!(life.lines_with("input set aside").len(), 1, "{}", life.last_words());
    assert_eq!(life.ended(), None, "{}", life.last_words());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_that_was_being_handled_at_two_kills_is_not_set_aside() {
    let stage = Stage::new(Engine::Sqlite, ROOM).await;
    let brain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let handler = format!(
        "[[handlers]]\nname = \"brain\"\non = \"message.create\"\n\
         webhook = {{ url = \"http://{}/\", secrets = [\"whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz\"], allow_private = true }}\n",
        brain.local_addr().unwrap()
    );
    std::fs::write(stage.file("handlers.toml"), handler).unwrap();
    let mut life = begin(&stage, None);
    let connected = async {
        while stage.sim.gateway_score().sessions.is_empty() {
            tokio::time::sleep(LOOK).await;
        }
    };
    timeout(STUCK, connected).await.unwrap();
    write(&stage, "slow").await;
    for _ in 0..2 {
        // The brain receives the request, and does not respond.
        let (_asked, _) = timeout(STUCK, brain.accept()).await.unwrap().unwrap();
        assert!(was_killed(life.kill()));
        life = begin(&stage, None);
    }
    let (mut asked, _) = timeout(STUCK, brain.accept()).await.unwrap().unwrap();
    let mut read = [0; 4096];
    assert!(asked.read(&mut read).await.unwrap() > 0);
    asked.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").await.unwrap();
    drop(asked);
    let handled = async {
        loop {
            let shards = ask(&stage, Method::GET, "/v1/shards", None).await;
            let shard = &shards["shards"][0];
            if shard["lag"] == 0 && shard["sequence"].as_u64().is_some_and(|sequence| sequence > 1) {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    timeout(STUCK, handled).await.unwrap_or_else(|_| panic!("{}", life.last_words()));
    let dead = ask(&stage, Method::GET, "/v1/events/dead", None).await;
    assert_eq!(dead["events"], json!([]), "{}", life.last_words());
    assert!(life.lines_with("input set aside").is_empty(), "{}", life.last_words());
}
