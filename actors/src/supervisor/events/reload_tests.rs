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

use crate::testing::events::{Fake, Mood, SESSION, World, begin, message};

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

fn replace(events: &EventsHandle, brain: &Fake, handlers: &Value) {
    let handlers = EventHandlers::parse(&json!({ "handlers": handlers })).unwrap();
    let brain: Arc<dyn WebhookClient> = Arc::new(brain.clone());
    events.replace_handlers(handlers, &brain).unwrap();
}

#[test]
fn events_go_to_the_handlers_of_the_time_they_came() {
    paused(async {
        let world = World::new(&json!([echo("echo", "old ")]));
        let (events, feeds) = world.start().await;
        begin(&feeds[&0], SESSION);
        feeds[&0].tell(ShardMessage::Events(vec![message(SESSION, 2, 1)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        // More often than a mask has bits.
        for n in 0..100 {
            replace(&events, &world.brain, &json!([echo("other", "no "), echo("echo", &format!("{n} "))]));
        }
        replace(&events, &world.brain, &json!([echo("added", "added "), echo("echo", "new ")]));
        feeds[&0].tell(ShardMessage::Events(vec![message(SESSION, 3, 1), message(SESSION, 4, 2)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        let mut said = world.store.said();
        said.sort();
        assert_eq!(said, ["added 3", "added 4", "new 3", "new 4", "old 2"]);
        replace(&events, &world.brain, &json!([]));
        feeds[&0].tell(ShardMessage::Events(vec![message(SESSION, 5, 1)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        assert_eq!((world.store.said().len(), world.store.confirmed(0)), (5, Some(5)));
    });
}

#[test]
fn a_call_under_way_finishes_with_its_old_handler() {
    paused(async {
        let world = World::new(&json!([webhook()]));
        let (events, feeds) = world.start().await;
        begin(&feeds[&0], SESSION);
        world.brain.mood(2, [Mood::Hangs]);
        feeds[&0].tell(ShardMessage::Events(vec![message(SESSION, 2, 1)].into())).unwrap();
        world.until("it waits in the inbox", || world.store.inbox_now().len() == 1).await;
        // First it is replaced by a rule with the same name, then it is removed.
        let new = Fake::default();
        replace(&events, &new, &json!([echo("brain", "rule ")]));
        replace(&events, &new, &json!([]));
        feeds[&0].tell(ShardMessage::Events(vec![message(SESSION, 3, 1)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(5)).await);
        world.brain.go_on();
        world.until("its response counts", || world.store.said() == ["2"]).await;
        world.until("it is finished", || world.store.inbox_now().is_empty()).await;
        assert_eq!((world.brain.asked(), new.asked()), (vec![2], vec![]));
    });
}

#[test]
fn what_waits_goes_to_the_handler_with_the_same_name_in_order() {
    paused(async {
        let world = World::new(&json!([webhook()]));
        let (events, feeds) = world.start().await;
        begin(&feeds[&0], SESSION);
        let later = || Mood::Fails(WebhookCallError::Later { why: "it answered 500".to_owned(), retry_after: None });
        world.brain.mood(2, (0..100).map(|_| later()).collect::<Vec<_>>());
        feeds[&0].tell(ShardMessage::Events(vec![message(SESSION, 2, 1), message(SESSION, 3, 1)].into())).unwrap();
        world.until("both wait in the inbox", || world.store.inbox_now().len() == 2).await;
        replace(&events, &world.brain, &json!([echo("brain", "rule ")]));
        // It must not pass the entries that wait for the handler with this name.
        feeds[&0].tell(ShardMessage::Events(vec![message(SESSION, 4, 1)].into())).unwrap();
        world.until("all are handled", || world.store.said().len() == 3).await;
        assert_eq!(world.store.said(), ["rule 2", "rule 3", "rule 4"]);
        world.until("the inbox is empty", || world.store.inbox_now().is_empty()).await;
    });
}

#[test]
fn what_waits_for_a_removed_handler_waits_until_it_is_back() {
    paused(async {
        let world = World::new(&json!([webhook(), echo("echo", "")]));
        let (events, feeds) = world.start().await;
        begin(&feeds[&0], SESSION);
        let later = || Mood::Fails(WebhookCallError::Later { why: "it answered 500".to_owned(), retry_after: None });
        world.brain.mood(2, [later()]);
        feeds[&0].tell(ShardMessage::Events(vec![message(SESSION, 2, 1)].into())).unwrap();
        world.until("it waits in the inbox", || world.store.inbox_now().len() == 1).await;
        replace(&events, &world.brain, &json!([echo("echo", "")]));
        feeds[&0].tell(ShardMessage::Events(vec![message(SESSION, 3, 1)].into())).unwrap();
        world.until("the other handler continues", || world.store.said() == ["2", "3"]).await;
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        let waiting: Vec<_> = world.store.inbox_now().into_iter().map(|entry| entry.dead).collect();
        assert_eq!((waiting, world.brain.asked().len()), (vec![None], 1), "it is neither retried nor dead");
        assert_eq!(events.observe().await.unwrap().inbox, 0, "nothing waits behind it");
        replace(&events, &world.brain, &json!([webhook(), echo("echo", "")]));
        world.until("it is handled", || world.store.inbox_now().is_empty()).await;
        assert_eq!((world.brain.asked().len(), world.store.said().len()), (2, 3));
    });
}

#[test]
fn a_handler_that_was_done_before_a_restart_is_not_called_after_a_reload() {
    paused(async {
        let world = World::new(&json!([webhook()]));
        let (events, feeds) = world.start().await;
        begin(&feeds[&0], SESSION);
        feeds[&0].tell(ShardMessage::Events(vec![message(SESSION, 2, 1)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        // The next process knows which unconfirmed events were handled. Its handlers are replaced before those events
        // come again.
        world.store.was_handled(SESSION, 3, "brain");
        let (events, feeds) = world.start().await;
        replace(&events, &world.brain, &json!([echo("first", "first "), webhook()]));
        feeds[&0].tell(ShardMessage::Events(vec![message(SESSION, 3, 1), message(SESSION, 4, 1)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        assert_eq!(world.brain.asked(), [2, 4]);
        assert_eq!(world.store.said(), ["2", "first 3", "first 4", "4"]);
    });
}
