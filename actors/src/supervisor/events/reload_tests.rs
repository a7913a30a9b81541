//! Handlers are replaced while events are in progress.

use std::sync::Arc;
use std::time::Duration;

use crate::ports::{WebhookCallError, WebhookClient};
use crate::shard::ShardMessage;
use crate::supervisor::EventsHandle;
use guildhall_core::event::handler::EventHandlers;
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::task::LocalSet;

use crate::testing::events::{BrainScript, EventFixture, FakeBrain, SESSION, message, start_session};

fn paused(test: impl Future<Output = ()>) {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

/// A rule that repeats every message with this prefix.
fn echo(name: &str, front: &str) -> Value {
    let payload = json!({ "channel_id": "{channel_id}", "content": format!("{front}{{data.content}}") });
    json!({ "name": name, "on": "message.create", "do": [{ "kind": "send_message", "payload": payload }] })
}

fn webhook() -> Value {
    let webhook = json!({ "url": "https://brain.example/", "secrets": ["whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"] });
    json!({ "name": "brain", "on": "message.create", "webhook": webhook })
}

fn replace(events: &EventsHandle, brain: &FakeBrain, handlers: &Value) {
    let handlers = EventHandlers::parse(&json!({ "handlers": handlers })).unwrap();
    let brain: Arc<dyn WebhookClient> = Arc::new(brain.clone());
    events.replace_handlers(handlers, &brain).unwrap();
}

#[test]
fn events_go_to_the_handlers_that_were_current_on_receipt() {
    paused(async {
        let world = EventFixture::new(&json!([echo("echo", "old ")]));
        let (events, senders) = world.start().await;
        start_session(&senders[&0], SESSION);
        senders[&0].send(ShardMessage::Events(vec![message(SESSION, 2, 1)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        // More often than a mask has bits.
        for n in 0..100 {
            replace(&events, &world.brain, &json!([echo("other", "no "), echo("echo", &format!("{n} "))]));
        }
        replace(&events, &world.brain, &json!([echo("added", "added "), echo("echo", "new ")]));
        senders[&0].send(ShardMessage::Events(vec![message(SESSION, 3, 1), message(SESSION, 4, 2)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        let mut contents = world.store.contents();
        contents.sort();
        assert_eq!(contents, ["added 3", "added 4", "new 3", "new 4", "old 2"]);
        replace(&events, &world.brain, &json!([]));
        senders[&0].send(ShardMessage::Events(vec![message(SESSION, 5, 1)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        assert_eq!((world.store.contents().len(), world.store.confirmed(0)), (5, Some(5)));
    });
}

#[test]
fn call_in_flight_finishes_with_its_old_handler() {
    paused(async {
        let world = EventFixture::new(&json!([webhook()]));
        let (events, senders) = world.start().await;
        start_session(&senders[&0], SESSION);
        world.brain.script(2, [BrainScript::Hangs]);
        senders[&0].send(ShardMessage::Events(vec![message(SESSION, 2, 1)].into())).unwrap();
        world.until("it waits in the inbox", || world.store.inbox_entries().len() == 1).await;
        // First it is replaced by a rule with the same name, then it is removed.
        let new = FakeBrain::default();
        replace(&events, &new, &json!([echo("brain", "rule ")]));
        replace(&events, &new, &json!([]));
        senders[&0].send(ShardMessage::Events(vec![message(SESSION, 3, 1)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(5)).await);
        world.brain.resume();
        world.until("its response counts", || world.store.contents() == ["2"]).await;
        world.until("it is finished", || world.store.inbox_entries().is_empty()).await;
        assert_eq!((world.brain.calls(), new.calls()), (vec![2], vec![]));
    });
}

#[test]
fn inbox_entries_go_to_the_handler_with_the_same_name_in_order() {
    paused(async {
        let world = EventFixture::new(&json!([webhook()]));
        let (events, senders) = world.start().await;
        start_session(&senders[&0], SESSION);
        let retryable = || {
            BrainScript::Fails(WebhookCallError::Retryable { reason: "it answered 500".to_owned(), retry_after: None })
        };
        world.brain.script(2, (0..100).map(|_| retryable()).collect::<Vec<_>>());
        senders[&0].send(ShardMessage::Events(vec![message(SESSION, 2, 1), message(SESSION, 3, 1)].into())).unwrap();
        world.until("both wait in the inbox", || world.store.inbox_entries().len() == 2).await;
        replace(&events, &world.brain, &json!([echo("brain", "rule ")]));
        // It must not pass the entries that wait for the handler with this name.
        senders[&0].send(ShardMessage::Events(vec![message(SESSION, 4, 1)].into())).unwrap();
        world.until("all are handled", || world.store.contents().len() == 3).await;
        assert_eq!(world.store.contents(), ["rule 2", "rule 3", "rule 4"]);
        world.until("the inbox is empty", || world.store.inbox_entries().is_empty()).await;
    });
}

#[test]
fn inbox_entry_of_a_removed_handler_waits_until_it_is_back() {
    paused(async {
        let world = EventFixture::new(&json!([webhook(), echo("echo", "")]));
        let (events, senders) = world.start().await;
        start_session(&senders[&0], SESSION);
        let retryable = || {
            BrainScript::Fails(WebhookCallError::Retryable { reason: "it answered 500".to_owned(), retry_after: None })
        };
        world.brain.script(2, [retryable()]);
        senders[&0].send(ShardMessage::Events(vec![message(SESSION, 2, 1)].into())).unwrap();
        world.until("it waits in the inbox", || world.store.inbox_entries().len() == 1).await;
        replace(&events, &world.brain, &json!([echo("echo", "")]));
        senders[&0].send(ShardMessage::Events(vec![message(SESSION, 3, 1)].into())).unwrap();
        world.until("the other handler continues", || world.store.contents() == ["2", "3"]).await;
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        let waiting: Vec<_> = world.store.inbox_entries().into_iter().map(|entry| entry.dead).collect();
        assert_eq!((waiting, world.brain.calls().len()), (vec![None], 1), "it is neither retried nor dead");
        assert_eq!(events.observe().await.unwrap().inbox, 0, "nothing waits behind it");
        replace(&events, &world.brain, &json!([webhook(), echo("echo", "")]));
        world.until("it is handled", || world.store.inbox_entries().is_empty()).await;
        assert_eq!((world.brain.calls().len(), world.store.contents().len()), (2, 3));
    });
}

#[test]
fn handler_that_finished_before_a_restart_is_not_called_again() {
    paused(async {
        let world = EventFixture::new(&json!([webhook()]));
        let (events, senders) = world.start().await;
        start_session(&senders[&0], SESSION);
        senders[&0].send(ShardMessage::Events(vec![message(SESSION, 2, 1)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        // The next process knows which unconfirmed events were handled. Its handlers are replaced before those events
        // come again.
        world.store.mark_handled(SESSION, 3, "brain");
        let (events, senders) = world.start().await;
        replace(&events, &world.brain, &json!([echo("first", "first "), webhook()]));
        senders[&0].send(ShardMessage::Events(vec![message(SESSION, 3, 1), message(SESSION, 4, 1)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        assert_eq!(world.brain.calls(), [2, 4]);
        assert_eq!(world.store.contents(), ["2", "first 3", "first 4", "4"]);
    });
}
