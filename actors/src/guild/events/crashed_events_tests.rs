//! Events that ended processes become dead events, and later events are handled.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::guild::unread_event;
use crate::ports::{EventStore, HandlerCommit, InboxEntry, InboxKey, WebhookCallError};
use crate::shard::{FlowLimit, ShardClaim, ShardMessage};
use guildhall_core::event::{Event, EventOrigin};
use guildhall_core::time::UnixMs;
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::task::LocalSet;

use super::crashed_events::UNREAD;
use crate::access::{AuditAction, Caller};
use crate::crash::Input;
use crate::testing::events::{BrainScript, EventFixture, SESSION, message, start_session};

fn paused(test: impl Future<Output = ()>) {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

/// Two rules that repeat every message, and one that does nothing with other events.
fn rules() -> Value {
    let payload = json!({ "channel_id": "{channel_id}", "content": "{data.content}" });
    let echo = json!([{ "kind": "send_message", "payload": payload }]);
    json!([
        { "name": "first", "on": "message.create", "do": echo },
        { "name": "second", "on": "message.create", "do": echo },
    ])
}

/// A message frame as forwarded by a shard that must not read it.
fn unread(seq: u64) -> Event {
    let d = json!({ "id": "1", "guild_id": "1", "channel_id": "5", "content": "bad", "author": { "id": "77" } });
    unread_text(seq, json!({ "t": "MESSAGE_CREATE", "s": seq, "op": 0, "d": d }).to_string())
}

fn unread_text(seq: u64, text: String) -> Event {
    let origin = EventOrigin { session: Arc::from(SESSION), shard: 0, seq };
    unread_event(text, origin, UnixMs::new(1_700_000_000_000))
}

fn event(seq: u64) -> Input {
    Input::Event { session: Arc::from(SESSION), seq }
}

/// Runs a process whose session is confirmed up to its first event.
async fn run_first_process(world: &EventFixture) {
    let (events, senders) = world.start().await;
    start_session(&senders[&0], SESSION);
    senders[&0].send(ShardMessage::Events([message(SESSION, 2, 1)].into_iter().collect())).unwrap();
    assert!(events.drain(Duration::from_secs(60)).await);
    assert_eq!(world.store.confirmed(0), Some(2));
}

#[test]
fn shard_receives_the_events_that_it_must_not_read() {
    paused(async {
        let world = EventFixture::new(&rules());
        run_first_process(&world).await;
        for (seq, crashes) in [(2, 2), (4, 2), (6, 3)] {
            world.store.add_crash(event(seq), crashes);
        }
        world.store.add_crash(Input::Event { session: "another".into(), seq: 3 }, 2);
        let (events, _) = world.start().await;
        let taken = events.attach(vec![ShardClaim { shards: 1, shard: 0, fence: 2 }]).await;
        // 2 is confirmed, so Discord does not send it again.
        assert_eq!(taken[0].unread, BTreeSet::from([4, 6]));
    });
}

#[test]
fn event_that_ended_processes_is_dead_for_each_handler_and_confirmed() {
    paused(async {
        let world = EventFixture::new(&rules());
        run_first_process(&world).await;
        world.store.add_crash(event(3), 2);
        let (events, senders) = world.start().await;
        senders[&0].send(ShardMessage::Events([unread(3), message(SESSION, 4, 1)].into_iter().collect())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        assert_eq!(world.store.contents(), ["2", "2", "4", "4"], "the next event is handled");
        assert_eq!(world.store.confirmed(0), Some(4));
        let dead = world.store.inbox_entries();
        let handlers: Vec<&str> = dead.iter().map(|entry| &*entry.key.handler).collect();
        assert_eq!(handlers, ["first", "second"]);
        for entry in &dead {
            assert_eq!((entry.key.seq, entry.name.as_str(), entry.attempts), (3, "message.create", 2));
            assert!(entry.event.contains(r#""content":"bad""#), "{}", entry.event);
            let reason = entry.dead.as_deref().unwrap();
            assert!(
                reason.contains("ended the process 2 times") && reason.contains("event_router panicked at x.rs:1;")
            );
        }
        world.until("the crash is forgotten", || world.store.crashed().is_empty()).await;
        assert_eq!(senders[&0].credit().used(), FlowLimit { events: 0, bytes: 0 });
    });
}

#[test]
fn handler_that_finished_before_the_crash_gets_no_dead_event() {
    paused(async {
        let world = EventFixture::new(&rules());
        run_first_process(&world).await;
        let done = HandlerCommit {
            key: InboxKey { session: SESSION.into(), seq: 3, handler: "first".into() },
            operations: Vec::new(),
            fallback: None,
            set: Vec::new(),
            inbox: None,
            from_inbox: false,
            at: UnixMs::new(1),
            claim: None,
        };
        world.store.commit(vec![done]).await.unwrap();
        world.store.add_crash(event(3), 2);
        let (events, senders) = world.start().await;
        senders[&0].send(ShardMessage::Events([unread(3)].into_iter().collect())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        let handlers: Vec<_> = world.store.inbox_entries().into_iter().map(|entry| entry.key.handler).collect();
        assert_eq!(handlers, [Arc::from("second")]);
        assert_eq!(world.store.confirmed(0), Some(3));
    });
}

#[test]
fn frame_that_cannot_be_read_is_stored_as_it_came() {
    for (text, crashes, stored) in [
        ("not a frame \u{1}", 2, json!("not a frame \u{1}")),
        // No handler matches.
        (r#"{"t":"TYPING_START","s":3,"op":0,"d":{}}"#, 2, json!(r#"{"t":"TYPING_START","s":3,"op":0,"d":{}}"#)),
        // Setting it aside ended a process too.
        ("not a frame", 3, Value::Null),
    ] {
        paused(async {
            let world = EventFixture::new(&rules());
            run_first_process(&world).await;
            world.store.add_crash(event(3), crashes);
            let (events, senders) = world.start().await;
            senders[&0].send(ShardMessage::Events([unread_text(3, text.to_owned())].into_iter().collect())).unwrap();
            assert!(events.drain(Duration::from_secs(60)).await);
            assert_eq!(world.store.confirmed(0), Some(3));
            let [entry]: [InboxEntry; 1] = world.store.inbox_entries().try_into().unwrap();
            let body: Value = serde_json::from_str(&entry.event).unwrap();
            assert_eq!((&*entry.key.handler, &body["data"]), (UNREAD, &stored));
            // Reviving it does not help, but is harmless.
            let record = Caller::operator().audit_record(AuditAction::EventsRevive, UnixMs::new(5));
            assert!(EventStore::revive(&world.store, entry.position, record).await.unwrap());
            events.wake_inbox();
            let is_dead = || world.store.inbox_entries().iter().all(|entry| entry.dead.is_some());
            world.until("it is dead again", is_dead).await;
        });
    }
}

#[test]
fn inbox_entry_that_ended_processes_is_dead_and_later_ones_are_handled() {
    let webhook = json!({ "url": "https://brain.example/", "secrets": ["whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"] });
    let world = EventFixture::new(&json!([{ "name": "brain", "on": "message.create", "webhook": webhook }]));
    let fails = || BrainScript::Fails(WebhookCallError::Retryable { reason: "down".to_owned(), retry_after: None });
    world.brain.script(2, [fails()]);
    paused(async {
        let (events, senders) = world.start().await;
        start_session(&senders[&0], SESSION);
        senders[&0].send(ShardMessage::Events((2..=4).map(|seq| message(SESSION, seq, 1)).collect())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        assert_eq!(world.store.inbox_entries().len(), 3, "the others wait behind the first");
    });
    let key = InboxKey { session: SESSION.into(), seq: 2, handler: "brain".into() };
    world.store.add_crash(Input::InboxEntry(key), 2);
    paused(async {
        let (_events, _feeds) = world.start().await;
        world.until("the others are handled", || world.store.inbox_entries().len() == 1).await;
        let [entry]: [InboxEntry; 1] = world.store.inbox_entries().try_into().unwrap();
        assert_eq!(entry.key.seq, 2);
        assert!(entry.dead.unwrap().contains("ended the process 2 times"));
        assert_eq!(world.brain.calls(), [2, 3, 4], "it is not retried");
        world.until("the crash is forgotten", || world.store.crashed().is_empty()).await;
    });
}
