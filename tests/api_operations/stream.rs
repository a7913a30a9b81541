//! The stream of operation changes, with reconnects.

use std::{collections::HashMap, sync::Arc, time::Duration};

use guildhall::api::{ControlConfig, StreamsConfig};
use guildhall_actors::ports::{OperationStore as _, Retention};
use guildhall_core::{
    operation::{OperationState, Queue},
    time::UnixMs,
};
use serde_json::{Value, json};

use super::{
    BEGIN, GUILD, KEY, call, postgres,
    real::{Place, Real, carry_out, guild_number},
    role, run,
    sse::{STUCK, Stream},
};

/// A guild of another tenant.
const OTHER: &str = "1571715189416398850";

fn streams(streams: StreamsConfig) -> ControlConfig {
    ControlConfig { streams, ..ControlConfig::default() }
}

fn told(id: &str, state: &str) -> (String, String) {
    (id.to_owned(), state.to_owned())
}

#[test]
fn a_stream_tells_of_operations_as_they_change_in_the_words_of_the_list() {
    run(async {
        let api = Real::open(&Place::file()).await;
        let before = api.create_role(GUILD, "before").await;
        let mut stream = Stream::open(api.address(), "").await;
        let first = stream.next().await.unwrap();
        assert!(first.id.is_some() && first.event.is_none(), "{first:?}");
        let id = api.create_role(GUILD, "Pilots").await;
        let event = stream.event().await;
        let mut listed = api.ask("GET", "/v1/operations?limit=1", Value::Null).await.json();
        // Only lists look up what a queued operation waits for.
        assert_eq!(listed["operations"][0]["waits_for"]["operation"], json!(before), "{listed}");
        listed["operations"][0]["waits_for"] = Value::Null;
        assert_eq!(
            (event.operation().unwrap(), event.data.unwrap()),
            (told(&id, "queued"), listed["operations"][0].clone())
        );
        api.becomes(&before, OperationState::Succeeded).await;
        assert_eq!(stream.operation().await, told(&before, "succeeded"));
        assert_eq!(api.ask("POST", &format!("/v1/operations/{id}/cancel"), Value::Null).await.status, 200);
        assert_eq!(stream.operation().await, told(&id, "cancelled"));
        api.store.close().await;
    });
}

#[test]
fn whoever_was_cut_off_goes_on_after_the_last_event_also_over_a_restart() {
    run(async {
        let place = Place::file();
        let api = Real::open(&place).await;
        let mut stream = Stream::open(api.address(), "").await;
        // Disconnected before any event.
        let greeted = stream.next().await.unwrap().id.unwrap();
        drop(stream);
        let (one, two) = (api.create_role(GUILD, "one").await, api.create_role(GUILD, "two").await);
        let mut stream = Stream::open_after(api.address(), "", &greeted).await;
        assert_eq!(stream.operation().await, told(&one, "queued"));
        let last = stream.last.clone().unwrap();
        drop(stream);
        api.becomes(&one, OperationState::Succeeded).await;
        api.store.close().await;

        let api = Real::open(&place).await;
        let mut stream = Stream::open_after(api.address(), "", &last).await;
        assert_eq!(stream.operation().await, told(&two, "queued"));
        assert_eq!(stream.operation().await, told(&one, "succeeded"));
        // The query parameter is for clients that cannot set headers. If both are set, the header wins.
        let query = format!("?last_event_id={greeted}");
        let mut stream = Stream::open(api.address(), &query).await;
        assert_eq!(stream.operation().await, told(&two, "queued"));
        let mut stream = Stream::open_after(api.address(), &query, &last).await;
        assert_eq!(stream.operation().await, told(&two, "queued"));
        api.store.close().await;
    });
}

/// Submits and executes operations, in two processes if there are two, while a client reads them over streams. The
/// streams are cut at random, and reconnect to a random process.
async fn nothing_is_missed(processes: Vec<Real>) {
    const EACH: usize = 60;
    let processes = Arc::new(processes);
    let guilds: Vec<u64> = (1..=6).map(|n| guild_number() + n).collect();
    let mut stream = Stream::open(processes[0].address(), "").await;
    let mut last = stream.next().await.unwrap().id.unwrap();
    let carriers: Vec<_> = guilds
        .iter()
        .flat_map(|guild| processes.iter().map(|process| (*guild, process.store.clone())).collect::<Vec<_>>())
        .map(|(guild, store)| tokio::spawn(carry_out(store, Queue::Guild(guild))))
        .collect();
    let callers: Vec<_> = guilds
        .iter()
        .map(|guild| {
            let (processes, guild) = (Arc::clone(&processes), *guild);
            actix_rt::spawn(async move {
                let mut ids = Vec::new();
                for n in 0..EACH {
                    let process = &processes[n % processes.len()];
                    ids.push(process.create_role(&guild.to_string(), &format!("role {n}")).await);
                }
                ids
            })
        })
        .collect();
    let mut seen: HashMap<String, String> = HashMap::new();
    let mut reconnects = 0;
    let expected = EACH * guilds.len();
    let done = |seen: &HashMap<String, String>| seen.values().filter(|state| *state == "succeeded").count() >= expected;
    while !done(&seen) {
        if fastrand::u8(..) < 20 {
            drop(stream);
            let process = &processes[fastrand::usize(..processes.len())];
            stream = Stream::open_after(process.address(), "", &last).await;
            reconnects += 1;
        }
        let frame = stream.next().await.expect("the stream has ended");
        assert_ne!(frame.event.as_deref(), Some("gap"));
        last = frame.id.clone().unwrap_or(last);
        if let Some((id, state)) = frame.operation() {
            seen.insert(id, state);
        }
    }
    let mut accepted = Vec::new();
    for caller in callers {
        accepted.extend(caller.await.unwrap());
    }
    assert_eq!(accepted.len(), expected);
    let missed: Vec<_> = accepted.iter().filter(|id| seen.get(*id).is_none_or(|state| state != "succeeded")).collect();
    assert!(missed.is_empty() && reconnects > 10, "{missed:?} missed over {reconnects} reconnects");
    carriers.iter().for_each(tokio::task::JoinHandle::abort);
    for process in processes.iter() {
        process.store.close().await;
    }
}

#[test]
fn a_client_that_is_cut_off_at_random_misses_nothing_on_sqlite() {
    run(async {
        let api = Real::open(&Place::file()).await;
        tokio::time::timeout(STUCK * 2, nothing_is_missed(vec![api])).await.unwrap();
    });
}

#[test]
fn a_client_that_is_cut_off_at_random_misses_nothing_of_two_processes_on_postgres() {
    run(async {
        let place = Place::postgres().await;
        let processes = vec![Real::open(&place).await, Real::open(&place).await];
        tokio::time::timeout(STUCK * 2, nothing_is_missed(processes)).await.unwrap();
    });
}

#[test]
fn a_stream_tells_what_was_asked_for_and_what_the_key_may_see_and_nothing_else() {
    run(async {
        let api = Real::open(&Place::file()).await;
        let (acme, _) = api.key("acme", &["operations:read", "operations:write", &format!("guild:{OTHER}")]).await;
        let (all_of_acme, _) = api.key("acme", &["operations:read"]).await;
        let (bound, _) = api.key("default", &["operations:read", &format!("guild:{GUILD}")]).await;
        let (writer, _) = api.key("default", &["guilds:read"]).await;
        let open = async |key: &str, query: &str| Stream::open_as(api.address(), key, query, None).await;
        let mut admins = open(KEY, "").await;
        let mut theirs = open(&acme, "").await;
        let mut tenants = open(&all_of_acme, "").await;
        let mut bounds = open(&bound, "").await;
        let mut strangers = open(&bound, &format!("?guild_id={OTHER}")).await;
        let mut ended = open(KEY, &format!("?state=succeeded&kind=create_role&guild_id={GUILD}")).await;
        let refused = Stream::try_open(api.address(), &writer, "", None).await;
        let refused = refused.err().expect("the key has no scope for it");
        assert_eq!(refused.is_problem(403, "forbidden").text("needs"), "operations:read");
        let nobody = Stream::try_open(api.address(), "x", "", None).await.err().expect("the key is unknown");
        nobody.is_problem(401, "unauthorized");

        let ours = api.create_role(GUILD, "ours").await;
        let path = format!("/v1/guilds/{OTHER}/operations");
        let other = api.ask_as(&acme, "POST", &path, role("other")).await.text("id");
        let last = api.create_role(GUILD, "last").await;
        // A stream may skip a state that is soon replaced by the next one.
        for id in [&ours, &other, &last] {
            admins.until(id, "queued").await;
        }
        api.becomes(&ours, OperationState::Succeeded).await;
        admins.until(&ours, "succeeded").await;
        assert_eq!(theirs.operation().await, told(&other, "queued"));
        assert_eq!(tenants.operation().await, told(&other, "queued"));
        let mut of_ours = vec![bounds.operation().await];
        while of_ours.last().unwrap() != &told(&ours, "succeeded") {
            of_ours.push(bounds.operation().await);
        }
        assert!(of_ours.iter().all(|(id, _)| *id != other), "{of_ours:?}");
        assert_eq!(ended.operation().await, told(&ours, "succeeded"));
        // Unauthorized streams get no event. The next frame they get is the end of the stream.
        api.control.drain();
        for silent in [&mut theirs, &mut tenants, &mut strangers] {
            while let Some(frame) = silent.next().await {
                assert_eq!(frame.event, None, "{frame:?}");
            }
        }
        api.store.close().await;
    });
}

#[test]
fn a_key_that_is_taken_back_loses_its_stream() {
    run(async {
        let check_key_every = Duration::from_millis(50);
        let api =
            Real::with(&Place::file(), streams(StreamsConfig { check_key_every, ..StreamsConfig::default() })).await;
        let (key, id) = api.key("default", &["operations:read"]).await;
        let mut stream = Stream::open_as(api.address(), &key, "", None).await;
        let shown = api.create_role(GUILD, "shown").await;
        assert_eq!(stream.operation().await, told(&shown, "queued"));
        assert_eq!(api.ask("DELETE", &format!("/v1/keys/{id}"), Value::Null).await.status, 204);
        let mut last_words = None;
        while let Some(frame) = stream.next().await {
            last_words = frame.comment.or(last_words);
        }
        assert!(stream.over, "the stream ends with a final chunk");
        assert_eq!(last_words.as_deref(), Some("the key is no longer valid"));
        let again = Stream::try_open(api.address(), &key, "", None).await.err().expect("the key was revoked");
        again.is_problem(401, "unauthorized");
        api.store.close().await;
    });
}

#[test]
fn a_client_that_does_not_read_is_cut_off_and_makes_room() {
    run(async {
        let config = StreamsConfig { most: 1, stall: Duration::from_millis(200), ..StreamsConfig::default() };
        let api = Real::with(&Place::file(), streams(config)).await;
        let mut silent = Stream::open(api.address(), "").await;
        silent.next().await.unwrap();
        // From here on it does not read.
        let long = json!({"kind": "send_message", "payload": {"channel_id": "5", "content": "x".repeat(1_900)}});
        let batch = json!({"operations": vec![long; 500]});
        let path = format!("/v1/guilds/{GUILD}/operations");
        let another = loop {
            assert_eq!(api.ask("POST", &path, batch.clone()).await.status, 202);
            if let Ok(another) = Stream::try_open(api.address(), KEY, "", None).await {
                break another;
            }
        };
        drop(another);
        // Data in flight arrives; then the connection is reset without a final chunk.
        while silent.next().await.is_some() {}
        assert!(!silent.over, "the stream was not cut off");
        api.store.close().await;
    });
}

#[test]
fn whoever_comes_too_late_is_told_of_a_gap_and_then_of_what_is_kept() {
    run(async {
        let api = Real::open(&Place::file()).await;
        let mut stream = Stream::open(api.address(), "").await;
        let greeted = stream.next().await.unwrap().id.unwrap();
        let gone = api.create_role(GUILD, "gone").await;
        stream.until(&gone, "queued").await;
        api.becomes(&gone, OperationState::Succeeded).await;
        stream.until(&gone, "succeeded").await;
        let told_all = stream.last.clone().unwrap();
        let none = Duration::ZERO;
        let keep = Retention { completed: none, failed: none, dead_letters: none, idempotency: none };
        assert_eq!(api.store.sweep(keep, UnixMs::new(BEGIN + 1_000)).await.unwrap().operations, 1);
        let kept = api.create_role(GUILD, "kept").await;

        let mut late = Stream::open_after(api.address(), "", &greeted).await;
        let gap = late.event().await;
        assert_eq!((gap.event.as_deref(), &gap.data.unwrap()["why"]), (Some("gap"), &json!("forgotten")));
        assert_eq!(late.operation().await, told(&kept, "queued"));
        let mut in_time = Stream::open_after(api.address(), "", &told_all).await;
        assert_eq!(in_time.operation().await, told(&kept, "queued"), "a client that is up to date has missed nothing");
        api.store.close().await;
    });
}

#[test]
fn a_cursor_of_another_store_is_a_gap_and_all_that_is_kept_follows() {
    run(async {
        let other = Real::open(&Place::file()).await;
        let here = Real::open(&Place::file()).await;
        let kept = here.create_role(GUILD, "kept").await;
        other.create_role(GUILD, "elsewhere").await;
        let foreign = Stream::open(other.address(), "").await.next().await.unwrap().id.unwrap();
        let mut stream = Stream::open_after(here.address(), "", &foreign).await;
        let gap = stream.event().await;
        assert_eq!((gap.event.as_deref(), &gap.data.unwrap()["why"]), (Some("gap"), &json!("ahead")));
        assert_eq!(stream.operation().await, told(&kept, "queued"));
        for store in [here.store, other.store] {
            store.close().await;
        }
    });
}

#[test]
fn streams_are_bounded_and_a_key_does_not_take_them_all() {
    run(async {
        let config = StreamsConfig { most: 3, most_per_key: 2, ..StreamsConfig::default() };
        let api = Real::with(&Place::file(), streams(config)).await;
        let (key, _) = api.key("default", &["operations:read"]).await;
        let mut open = Vec::new();
        for _ in 0..2 {
            open.push(Stream::open_as(api.address(), &key, "", None).await);
        }
        let full = Stream::try_open(api.address(), &key, "", None).await.err().expect("the key has two streams");
        assert!(full.is_problem(503, "busy").text("detail").contains("2 streams"), "{full:?}");
        open.push(Stream::open(api.address(), "").await);
        let full = Stream::try_open(api.address(), KEY, "", None).await.err().expect("there are three streams");
        assert_eq!(full.is_problem(503, "busy").header("retry-after").as_deref(), Some("1"));
        open.clear();
        // A closed connection frees its slot.
        let again = async {
            while Stream::try_open(api.address(), &key, "", None).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(STUCK, again).await.unwrap();
        api.store.close().await;
    });
}

#[test]
fn a_stream_that_has_nothing_to_tell_says_that_it_is_there_and_how_far_it_is() {
    run(async {
        let config = StreamsConfig { keep_alive: Duration::from_millis(20), ..StreamsConfig::default() };
        let api = Real::with(&Place::file(), streams(config)).await;
        let mut stream = Stream::open(api.address(), &format!("?guild_id={OTHER}")).await;
        let first = stream.next().await.unwrap().id.unwrap();
        api.create_role(GUILD, "none of its business").await;
        let moved = async {
            loop {
                let frame = stream.next().await.expect("the stream has ended");
                assert!(frame.event.is_none() && frame.comment.is_some(), "{frame:?}");
                if frame.id.as_ref() != Some(&first) {
                    break;
                }
            }
        };
        tokio::time::timeout(STUCK, moved).await.unwrap();
        api.store.close().await;
    });
}

#[test]
fn streams_end_when_the_process_is_about_to_and_go_on_elsewhere() {
    run(async {
        let place = Place::postgres().await;
        let (leaving, staying) = (Real::open(&place).await, Real::open(&place).await);
        let mut stream = Stream::open(leaving.address(), "").await;
        let seen = leaving.create_role(GUILD, "seen").await;
        assert_eq!(stream.operation().await, told(&seen, "queued"));
        leaving.control.drain();
        while stream.next().await.is_some() {}
        assert!(stream.over, "the stream ends with a final chunk");
        let refused = Stream::try_open(leaving.address(), KEY, "", None).await.err().expect("the process is draining");
        refused.is_problem(503, "draining");
        let missed = staying.create_role(GUILD, "missed").await;
        let mut stream = Stream::open_after(staying.address(), "", &stream.last.unwrap()).await;
        assert_eq!(stream.operation().await, told(&missed, "queued"));
        for process in [leaving, staying] {
            process.store.close().await;
        }
    });
}

#[test]
fn what_makes_no_sense_is_told_and_a_head_is_only_a_head() {
    run(async {
        let api = Real::open(&Place::file()).await;
        let path = "/v1/operations/stream";
        for query in ["?last_event_id=7", "?state=done", "?guild_id=x", "?limit=5"] {
            let answer = api.ask("GET", &format!("{path}{query}"), Value::Null).await;
            assert_eq!(answer.is_problem(400, "bad-request").wrong().len(), 1, "{query}");
        }
        let wrong =
            Stream::try_open(api.address(), KEY, "", Some("nonsense")).await.err().expect("the cursor is invalid");
        assert_eq!(wrong.is_problem(400, "bad-request").wrong(), ["Last-Event-ID"]);
        let head = call(api.address(), "HEAD", path, &[], "").await;
        assert_eq!((head.status, head.body.as_str()), (200, ""));
        assert!(head.header("content-type").unwrap().starts_with("text/event-stream"));
        call(api.address(), "POST", path, &[], "{}").await.is_problem(405, "method-not-allowed");
        api.store.close().await;
    });
}

#[test]
fn a_store_that_is_away_for_a_while_costs_a_stream_nothing() {
    run(async {
        let mut server = postgres::PostgresServer::start();
        let place = Place::at(server.database().await).waiting(Duration::from_secs(2));
        let config = StreamsConfig { look_every: Duration::from_millis(50), ..StreamsConfig::default() };
        let api = Real::with(&place, streams(config)).await;
        let mut stream = Stream::open(api.address(), "").await;
        let before = api.create_role(GUILD, "before").await;
        assert_eq!(stream.operation().await, told(&before, "queued"));
        server.kill();
        api.ask("GET", "/v1/operations", Value::Null).await.is_problem(503, "store-unavailable");
        server.start_again();
        let path = format!("/v1/guilds/{GUILD}/operations");
        let after = loop {
            let answer = api.ask("POST", &path, role("after")).await;
            if answer.status == 202 {
                break answer.text("id");
            }
        };
        stream.until(&after, "queued").await;
        api.store.close().await;
    });
}
