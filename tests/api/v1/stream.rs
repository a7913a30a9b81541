//! The stream of operation changes, with reconnects.

use std::{collections::HashMap, sync::Arc, time::Duration};

use guildhall::api::{ControlConfig, StreamsConfig};
use guildhall_actors::ports::{OperationStore as _, Retention};
use guildhall_core::{
    operation::{OperationState, Queue},
    time::UnixMs,
};
use guildhall_testkit::postgres;
use serde_json::{Value, json};

use super::{
    GUILD, KEY, START_MS, call,
    process_fixture::{ApiProcess, StoreLocation, execute_queue, guild_number},
    role, run,
    sse::{EventStream, TEST_TIMEOUT},
};

/// A guild of another tenant.
const OTHER_GUILD: &str = "1571715189416398850";

fn config_with_streams(streams: StreamsConfig) -> ControlConfig {
    ControlConfig { streams, ..ControlConfig::default() }
}

fn id_and_state(id: &str, state: &str) -> (String, String) {
    (id.to_owned(), state.to_owned())
}

#[test]
fn stream_sends_operations_as_the_list_shows_them() {
    run(async {
        let api = ApiProcess::open(&StoreLocation::file()).await;
        let before = api.create_role(GUILD, "before").await;
        let mut stream = EventStream::open(api.address(), "").await;
        let first = stream.next().await.unwrap();
        assert!(first.id.is_some() && first.event.is_none(), "{first:?}");
        let id = api.create_role(GUILD, "Pilots").await;
        let event = stream.event().await;
        let mut listed = api.request("GET", "/v1/operations?limit=1", Value::Null).await.json();
        // Only lists look up what a queued operation waits for.
        assert_eq!(listed["operations"][0]["waits_for"]["operation"], json!(before), "{listed}");
        listed["operations"][0]["waits_for"] = Value::Null;
        assert_eq!(
            (event.operation().unwrap(), event.data.unwrap()),
            (id_and_state(&id, "queued"), listed["operations"][0].clone())
        );
        api.set_state(&before, OperationState::Succeeded).await;
        assert_eq!(stream.operation().await, id_and_state(&before, "succeeded"));
        assert_eq!(api.request("POST", &format!("/v1/operations/{id}/cancel"), Value::Null).await.status, 200);
        assert_eq!(stream.operation().await, id_and_state(&id, "cancelled"));
        api.store.close().await;
    });
}

#[test]
fn stream_resumes_after_the_last_event() {
    run(async {
        let location = StoreLocation::file();
        let api = ApiProcess::open(&location).await;
        let mut stream = EventStream::open(api.address(), "").await;
        // Disconnected before any event.
        let first_cursor = stream.next().await.unwrap().id.unwrap();
        drop(stream);
        let (one, two) = (api.create_role(GUILD, "one").await, api.create_role(GUILD, "two").await);
        let mut stream = EventStream::open_after(api.address(), "", &first_cursor).await;
        assert_eq!(stream.operation().await, id_and_state(&one, "queued"));
        let last = stream.last.clone().unwrap();
        drop(stream);
        api.set_state(&one, OperationState::Succeeded).await;
        api.store.close().await;

        let api = ApiProcess::open(&location).await;
        let mut stream = EventStream::open_after(api.address(), "", &last).await;
        assert_eq!(stream.operation().await, id_and_state(&two, "queued"));
        assert_eq!(stream.operation().await, id_and_state(&one, "succeeded"));
        // The query parameter is for clients that cannot set headers. If both are set, the header wins.
        let query = format!("?last_event_id={first_cursor}");
        let mut stream = EventStream::open(api.address(), &query).await;
        assert_eq!(stream.operation().await, id_and_state(&two, "queued"));
        let mut stream = EventStream::open_after(api.address(), &query, &last).await;
        assert_eq!(stream.operation().await, id_and_state(&two, "queued"));
        api.store.close().await;
    });
}

/// Submits and executes operations, in two processes if there are two, while a client reads them over streams. The
/// streams are cut at random, and reconnect to a random process.
async fn assert_no_event_is_missed(processes: Vec<ApiProcess>) {
    const EACH: usize = 60;
    let processes = Arc::new(processes);
    let guilds: Vec<u64> = (1..=6).map(|n| guild_number() + n).collect();
    let mut stream = EventStream::open(processes[0].address(), "").await;
    let mut last = stream.next().await.unwrap().id.unwrap();
    let executors: Vec<_> = guilds
        .iter()
        .flat_map(|guild| processes.iter().map(|process| (*guild, process.store.clone())).collect::<Vec<_>>())
        .map(|(guild, store)| tokio::spawn(execute_queue(store, Queue::Guild(guild))))
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
    let is_done =
        |seen: &HashMap<String, String>| seen.values().filter(|state| *state == "succeeded").count() >= expected;
    while !is_done(&seen) {
        if fastrand::u8(..) < 20 {
            drop(stream);
            let process = &processes[fastrand::usize(..processes.len())];
            stream = EventStream::open_after(process.address(), "", &last).await;
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
    executors.iter().for_each(tokio::task::JoinHandle::abort);
    for process in processes.iter() {
        process.store.close().await;
    }
}

#[test]
fn reconnecting_client_misses_nothing_on_sqlite() {
    run(async {
        let api = ApiProcess::open(&StoreLocation::file()).await;
        tokio::time::timeout(TEST_TIMEOUT * 2, assert_no_event_is_missed(vec![api])).await.unwrap();
    });
}

#[test]
fn reconnecting_client_misses_nothing_on_postgres() {
    run(async {
        let location = StoreLocation::postgres().await;
        let processes = vec![ApiProcess::open(&location).await, ApiProcess::open(&location).await];
        tokio::time::timeout(TEST_TIMEOUT * 2, assert_no_event_is_missed(processes)).await.unwrap();
    });
}

#[test]
fn stream_is_limited_to_its_filter_and_key() {
    run(async {
        let api = ApiProcess::open(&StoreLocation::file()).await;
        let (acme, _) =
            api.create_key("acme", &["operations:read", "operations:write", &format!("guild:{OTHER_GUILD}")]).await;
        let (all_of_acme, _) = api.create_key("acme", &["operations:read"]).await;
        let (guild_key, _) = api.create_key("default", &["operations:read", &format!("guild:{GUILD}")]).await;
        let (writer, _) = api.create_key("default", &["guilds:read"]).await;
        let open = async |key: &str, query: &str| EventStream::open_as(api.address(), key, query, None).await;
        let mut admin_stream = open(KEY, "").await;
        let mut acme_guild_stream = open(&acme, "").await;
        let mut acme_stream = open(&all_of_acme, "").await;
        let mut guild_stream = open(&guild_key, "").await;
        let mut other_guild_stream = open(&guild_key, &format!("?guild_id={OTHER_GUILD}")).await;
        let mut succeeded_stream = open(KEY, &format!("?state=succeeded&kind=create_role&guild_id={GUILD}")).await;
        let refused = EventStream::try_open(api.address(), &writer, "", None).await;
        let refused = refused.err().expect("the key has no scope for it");
        assert_eq!(refused.assert_problem(403, "forbidden").text("needs"), "operations:read");
        let unauthorized = EventStream::try_open(api.address(), "x", "", None).await.err().expect("the key is unknown");
        unauthorized.assert_problem(401, "key-invalid");

        let own_operation = api.create_role(GUILD, "ours").await;
        let path = format!("/v1/guilds/{OTHER_GUILD}/operations");
        let other = api.request_as(&acme, "POST", &path, role("other")).await.text("id");
        let last = api.create_role(GUILD, "last").await;
        // A stream may skip a state that is soon replaced by the next one.
        for id in [&own_operation, &other, &last] {
            admin_stream.until_state(id, "queued").await;
        }
        api.set_state(&own_operation, OperationState::Succeeded).await;
        admin_stream.until_state(&own_operation, "succeeded").await;
        assert_eq!(acme_guild_stream.operation().await, id_and_state(&other, "queued"));
        assert_eq!(acme_stream.operation().await, id_and_state(&other, "queued"));
        let mut received = vec![guild_stream.operation().await];
        while received.last().unwrap() != &id_and_state(&own_operation, "succeeded") {
            received.push(guild_stream.operation().await);
        }
        assert!(received.iter().all(|(id, _)| *id != other), "{received:?}");
        assert_eq!(succeeded_stream.operation().await, id_and_state(&own_operation, "succeeded"));
        // Unauthorized streams get no event. The next frame they get is the end of the stream.
        api.control.drain();
        for silent in [&mut acme_guild_stream, &mut acme_stream, &mut other_guild_stream] {
            while let Some(frame) = silent.next().await {
                assert_eq!(frame.event, None, "{frame:?}");
            }
        }
        api.store.close().await;
    });
}

#[test]
fn stream_of_a_revoked_key_ends() {
    run(async {
        let check_key_every = Duration::from_millis(50);
        let api = ApiProcess::with(
            &StoreLocation::file(),
            config_with_streams(StreamsConfig { key_check_interval: check_key_every, ..StreamsConfig::default() }),
        )
        .await;
        let (key, id) = api.create_key("default", &["operations:read"]).await;
        let mut stream = EventStream::open_as(api.address(), &key, "", None).await;
        let visible = api.create_role(GUILD, "shown").await;
        assert_eq!(stream.operation().await, id_and_state(&visible, "queued"));
        assert_eq!(api.request("DELETE", &format!("/v1/keys/{id}"), Value::Null).await.status, 204);
        let mut last_comment = None;
        while let Some(frame) = stream.next().await {
            last_comment = frame.comment.or(last_comment);
        }
        assert!(stream.finished, "the stream ends with a final chunk");
        assert_eq!(last_comment.as_deref(), Some("the key is no longer valid"));
        let refused = EventStream::try_open(api.address(), &key, "", None).await.err().expect("the key was revoked");
        refused.assert_problem(401, "key-revoked");
        api.store.close().await;
    });
}

#[test]
fn client_that_does_not_read_is_disconnected() {
    run(async {
        let config = StreamsConfig { max: 1, stall_timeout: Duration::from_millis(200), ..StreamsConfig::default() };
        let api = ApiProcess::with(&StoreLocation::file(), config_with_streams(config)).await;
        let mut silent = EventStream::open(api.address(), "").await;
        silent.next().await.unwrap();
        // From here on it does not read.
        let long = json!({"kind": "send_message", "payload": {"channel_id": "5", "content": "x".repeat(1_900)}});
        let batch = json!({"operations": vec![long; 500]});
        let path = format!("/v1/guilds/{GUILD}/operations");
        let another = loop {
            assert_eq!(api.request("POST", &path, batch.clone()).await.status, 202);
            if let Ok(another) = EventStream::try_open(api.address(), KEY, "", None).await {
                break another;
            }
        };
        drop(another);
        // Data in flight arrives; then the connection is reset without a final chunk.
        while silent.next().await.is_some() {}
        assert!(!silent.finished, "the stream was not cut off");
        api.store.close().await;
    });
}

#[test]
fn late_client_gets_a_gap_and_the_stored_operations() {
    run(async {
        let api = ApiProcess::open(&StoreLocation::file()).await;
        let mut stream = EventStream::open(api.address(), "").await;
        let first_cursor = stream.next().await.unwrap().id.unwrap();
        let deleted = api.create_role(GUILD, "gone").await;
        stream.until_state(&deleted, "queued").await;
        api.set_state(&deleted, OperationState::Succeeded).await;
        stream.until_state(&deleted, "succeeded").await;
        let last_cursor = stream.last.clone().unwrap();
        let none = Duration::ZERO;
        let retention = Retention { completed: none, failed: none, dead_letters: none, idempotency: none };
        assert_eq!(api.store.sweep(retention, UnixMs::new(START_MS + 1_000)).await.unwrap().operations, 1);
        let stored = api.create_role(GUILD, "kept").await;

        let mut late = EventStream::open_after(api.address(), "", &first_cursor).await;
        let gap = late.event().await;
        assert_eq!((gap.event.as_deref(), &gap.data.unwrap()["why"]), (Some("gap"), &json!("forgotten")));
        assert_eq!(late.operation().await, id_and_state(&stored, "queued"));
        let mut in_time = EventStream::open_after(api.address(), "", &last_cursor).await;
        assert_eq!(
            in_time.operation().await,
            id_and_state(&stored, "queued"),
            "a client that is up to date has missed nothing"
        );
        api.store.close().await;
    });
}

#[test]
fn cursor_of_another_store_is_a_gap() {
    run(async {
        let other = ApiProcess::open(&StoreLocation::file()).await;
        let api = ApiProcess::open(&StoreLocation::file()).await;
        let stored = api.create_role(GUILD, "kept").await;
        other.create_role(GUILD, "elsewhere").await;
        let foreign = EventStream::open(other.address(), "").await.next().await.unwrap().id.unwrap();
        let mut stream = EventStream::open_after(api.address(), "", &foreign).await;
        let gap = stream.event().await;
        assert_eq!((gap.event.as_deref(), &gap.data.unwrap()["why"]), (Some("gap"), &json!("ahead")));
        assert_eq!(stream.operation().await, id_and_state(&stored, "queued"));
        for store in [api.store, other.store] {
            store.close().await;
        }
    });
}

#[test]
fn streams_are_limited_in_total_and_by_key() {
    run(async {
        let config = StreamsConfig { max: 3, max_per_key: 2, ..StreamsConfig::default() };
        let api = ApiProcess::with(&StoreLocation::file(), config_with_streams(config)).await;
        let (key, _) = api.create_key("default", &["operations:read"]).await;
        let mut open = Vec::new();
        for _ in 0..2 {
            open.push(EventStream::open_as(api.address(), &key, "", None).await);
        }
        let full = EventStream::try_open(api.address(), &key, "", None).await.err().expect("the key has two streams");
        assert!(full.assert_problem(503, "busy").text("detail").contains("2 streams"), "{full:?}");
        open.push(EventStream::open(api.address(), "").await);
        let full = EventStream::try_open(api.address(), KEY, "", None).await.err().expect("there are three streams");
        assert_eq!(full.assert_problem(503, "busy").header("retry-after").as_deref(), Some("1"));
        open.clear();
        // A closed connection frees its slot.
        let reconnect = async {
            while EventStream::try_open(api.address(), &key, "", None).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, reconnect).await.unwrap();
        api.store.close().await;
    });
}

#[test]
fn idle_stream_sends_keep_alives_with_its_position() {
    run(async {
        let config = StreamsConfig { keep_alive: Duration::from_millis(20), ..StreamsConfig::default() };
        let api = ApiProcess::with(&StoreLocation::file(), config_with_streams(config)).await;
        let mut stream = EventStream::open(api.address(), &format!("?guild_id={OTHER_GUILD}")).await;
        let first = stream.next().await.unwrap().id.unwrap();
        api.create_role(GUILD, "none of its business").await;
        let wait_for_progress = async {
            loop {
                let frame = stream.next().await.expect("the stream has ended");
                assert!(frame.event.is_none() && frame.comment.is_some(), "{frame:?}");
                if frame.id.as_ref() != Some(&first) {
                    break;
                }
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, wait_for_progress).await.unwrap();
        api.store.close().await;
    });
}

#[test]
fn streams_end_at_shutdown_and_resume_elsewhere() {
    run(async {
        let location = StoreLocation::postgres().await;
        let (leaving, staying) = (ApiProcess::open(&location).await, ApiProcess::open(&location).await);
        let mut stream = EventStream::open(leaving.address(), "").await;
        let seen = leaving.create_role(GUILD, "seen").await;
        assert_eq!(stream.operation().await, id_and_state(&seen, "queued"));
        leaving.control.drain();
        while stream.next().await.is_some() {}
        assert!(stream.finished, "the stream ends with a final chunk");
        let refused =
            EventStream::try_open(leaving.address(), KEY, "", None).await.err().expect("the process is draining");
        refused.assert_problem(503, "draining");
        let missed = staying.create_role(GUILD, "missed").await;
        let mut stream = EventStream::open_after(staying.address(), "", &stream.last.unwrap()).await;
        assert_eq!(stream.operation().await, id_and_state(&missed, "queued"));
        for process in [leaving, staying] {
            process.store.close().await;
        }
    });
}

#[test]
fn invalid_stream_requests_are_rejected() {
    run(async {
        let api = ApiProcess::open(&StoreLocation::file()).await;
        let path = "/v1/operations/stream";
        for query in ["?last_event_id=7", "?state=done", "?guild_id=x", "?limit=5"] {
            let response = api.request("GET", &format!("{path}{query}"), Value::Null).await;
            assert_eq!(response.assert_problem(400, "bad-request").invalid_fields().len(), 1, "{query}");
        }
        let rejected =
            EventStream::try_open(api.address(), KEY, "", Some("nonsense")).await.err().expect("the cursor is invalid");
        assert_eq!(rejected.assert_problem(400, "bad-request").invalid_fields(), ["Last-Event-ID"]);
        let head = call(api.address(), "HEAD", path, &[], "").await;
        assert_eq!((head.status, head.body.as_str()), (200, ""));
        assert!(head.header("content-type").unwrap().starts_with("text/event-stream"));
        call(api.address(), "POST", path, &[], "{}").await.assert_problem(405, "method-not-allowed");
        api.store.close().await;
    });
}

#[test]
fn stream_survives_an_unavailable_store() {
    run(async {
        let mut server = postgres::PostgresServer::start();
        let location = StoreLocation::new_at(server.create_database().await).with_timeout(Duration::from_secs(2));
        let config = StreamsConfig { poll_interval: Duration::from_millis(50), ..StreamsConfig::default() };
        let api = ApiProcess::with(&location, config_with_streams(config)).await;
        let mut stream = EventStream::open(api.address(), "").await;
        let before = api.create_role(GUILD, "before").await;
        assert_eq!(stream.operation().await, id_and_state(&before, "queued"));
        server.kill();
        api.request("GET", "/v1/operations", Value::Null).await.assert_problem(503, "store-unavailable");
        server.start_again();
        let path = format!("/v1/guilds/{GUILD}/operations");
        let after = loop {
            let response = api.request("POST", &path, role("after")).await;
            if response.status == 202 {
                break response.text("id");
            }
        };
        stream.until_state(&after, "queued").await;
        api.store.close().await;
    });
}
