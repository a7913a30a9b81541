//! Handlers that publish their events to a broker.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::task::LocalSet;

use crate::ports::{AvailableFuture, BrokerEvent, EventBroker, PublishError, PublishFuture};
use crate::shard::ShardMessage;
use crate::testing::events::{EventFixture, SESSION, command, message, start_session};

/// A broker that can be unavailable, and that rejects events as told.
struct FakeBroker {
    is_up: watch::Sender<bool>,
    /// Events that were published, in order, each with its counter.
    published: Mutex<Vec<(u64, Option<u64>)>>,
    /// For the next publishes: whether they are confirmed.
    script: Mutex<VecDeque<bool>>,
}

impl FakeBroker {
    fn new(is_up: bool, script: impl IntoIterator<Item = bool>) -> Arc<Self> {
        let script = Mutex::new(script.into_iter().collect());
        Arc::new(Self { is_up: watch::Sender::new(is_up), published: Mutex::default(), script })
    }

    fn published(&self) -> Vec<(u64, Option<u64>)> {
        self.published.lock().unwrap().clone()
    }
}

impl EventBroker for FakeBroker {
    fn publish(&self, event: BrokerEvent) -> PublishFuture<'_> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            let counter = event.position.map(|position| position.counter);
            self.published.lock().unwrap().push((event.origin.seq, counter));
            match self.script.lock().unwrap().pop_front() {
                Some(false) => Err(PublishError { reason: "full".to_owned(), retry_after: Duration::ZERO }),
                Some(true) | None => Ok(()),
            }
        })
    }

    fn is_available(&self) -> bool {
        *self.is_up.borrow()
    }

    fn wait_until_available(&self) -> AvailableFuture<'_> {
        let mut is_up = self.is_up.subscribe();
        Box::pin(async move { drop(is_up.wait_for(|is_up| *is_up).await) })
    }
}

fn paused(test: impl Future<Output = ()>) {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

fn bus() -> Value {
    json!({ "name": "bus", "on": ["message.create", "interaction.#"], "broker": true })
}

fn fixture(handlers: &Value, broker: &Arc<FakeBroker>) -> EventFixture {
    let mut fixture = EventFixture::new(handlers);
    fixture.broker = Some(Arc::clone(broker) as Arc<dyn EventBroker>);
    fixture
}

#[test]
fn each_guild_has_its_own_count_and_interactions_have_none() {
    paused(async {
        let broker = FakeBroker::new(true, []);
        let world = fixture(&json!([bus()]), &broker);
        let (events, senders) = world.start().await;
        start_session(&senders[&0], SESSION);
        let sent = vec![message(SESSION, 2, 1), message(SESSION, 3, 1), command(4, 1, 2), message(SESSION, 5, 1)];
        senders[&0].send(ShardMessage::Events(sent.into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        senders[&0].send(ShardMessage::Events(vec![message(SESSION, 6, 2)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        let (mut ordered, mut other) = (broker.published(), broker.published());
        ordered.retain(|(seq, _)| *seq != 4);
        other.retain(|(seq, _)| *seq == 4);
        assert_eq!(ordered, [(2, Some(1)), (3, Some(2)), (5, Some(3)), (6, Some(1))]);
        assert_eq!(other, [(4, None)]);
        assert_eq!(world.store.confirmed(0), Some(6));
    });
}

#[test]
fn event_that_is_not_confirmed_keeps_its_place_and_holds_back_its_guild() {
    paused(async {
        // More often than a webhook could fail.
        let broker = FakeBroker::new(true, [false; 30]);
        let world = fixture(&json!([bus()]), &broker);
        let (_events, senders) = world.start().await;
        start_session(&senders[&0], SESSION);
        let sent = vec![message(SESSION, 2, 1), message(SESSION, 3, 1)];
        senders[&0].send(ShardMessage::Events(sent.into())).unwrap();
        world.until("both are published", || broker.published().last() == Some(&(3, Some(2)))).await;
        let published = broker.published();
        assert_eq!((published.len(), published[..31].iter().all(|one| *one == (2, Some(1)))), (32, true));
        world.until("the inbox is empty", || world.store.inbox_entries().is_empty()).await;
    });
}

#[test]
fn broker_that_is_down_is_not_tried_and_others_go_on() {
    paused(async {
        let broker = FakeBroker::new(false, []);
        let payload = json!({ "channel_id": "{channel_id}", "content": "{data.content}" });
        let rule =
            json!({ "name": "rule", "on": "message.create", "do": [{ "kind": "send_message", "payload": payload }] });
        let world = fixture(&json!([bus(), rule]), &broker);
        let (events, senders) = world.start().await;
        start_session(&senders[&0], SESSION);
        let sent: Vec<_> = (2..12).map(|seq| message(SESSION, seq, 1)).collect();
        senders[&0].send(ShardMessage::Events(sent.into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        assert_eq!((world.store.contents().len(), world.store.confirmed(0)), (10, Some(11)));
        tokio::time::sleep(Duration::from_secs(24 * 3_600)).await;
        assert_eq!((broker.published(), world.store.inbox_entries().len()), (vec![], 10));
        broker.is_up.send_replace(true);
        world.until("all are published", || broker.published().len() == 10).await;
        let expected: Vec<_> = (2..12).map(|seq| (seq, Some(seq - 1))).collect();
        assert_eq!(broker.published(), expected);
    });
}

#[test]
fn shadow_handler_publishes_nothing() {
    paused(async {
        let broker = FakeBroker::new(true, []);
        let mut handler = bus();
        handler["shadow"] = true.into();
        let world = fixture(&json!([handler]), &broker);
        let (events, senders) = world.start().await;
        start_session(&senders[&0], SESSION);
        senders[&0].send(ShardMessage::Events(vec![message(SESSION, 2, 1)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        assert_eq!((broker.published(), world.store.confirmed(0)), (vec![], Some(2)));
    });
}
