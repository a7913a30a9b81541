//! Interactions are recorded before handlers receive them.

use std::time::Duration;

use crate::guild::HttpInteractionResponse;
use crate::ports::InitialResponse;
use crate::shard::{FlowLimit, ShardMessage};
use guildhall_core::interaction::TokenDigest;
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::task::LocalSet;

use crate::testing::events::{EventFixture, SESSION, live_command, live_http_command, live_id, start_session};

const COMMAND: u8 = 2;
const AUTOCOMPLETE: u8 = 4;

fn paused(test: impl Future<Output = ()>) {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

fn brain(defer: &str) -> Value {
    let webhook = json!({ "url": "https://brain.example/", "secrets": ["whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"] });
    json!([{ "name": "brain", "on": "interaction.#", "webhook": webhook, "defer": defer }])
}

fn recorded(world: &EventFixture) -> Vec<u64> {
    world.store.received().iter().map(|received| received.id).collect()
}

#[test]
fn deferral_does_not_wait_for_the_record_but_handlers_do() {
    paused(async {
        let world = EventFixture::new(&brain("auto"));
        let (events, senders) = world.start().await;
        let held = world.store.recording.clone().write_owned().await;
        start_session(&senders[&0], SESSION);
        senders[&0].send(ShardMessage::Events([live_command(2, COMMAND)].into_iter().collect())).unwrap();
        world.until("it is deferred", || !world.responder.sent.lock().unwrap().is_empty()).await;
        // Time advances only when nothing else can happen.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!((world.brain.calls(), recorded(&world)), (vec![], vec![]));
        drop(held);
        assert!(events.drain(Duration::from_secs(600)).await);
        assert_eq!((world.brain.calls(), recorded(&world)), (vec![2], vec![live_id(2)]));
        let received = world.store.received()[0];
        assert_eq!((received.guild, received.application), (Some(1), 9));
        assert_eq!(received.token, TokenDigest::of("token-2"));
    });
}

#[test]
fn handler_that_discord_waits_for_is_not_delayed_by_the_store() {
    paused(async {
        let world = EventFixture::new(&brain("never"));
        let (events, senders) = world.start().await;
        let held = world.store.recording.clone().write_owned().await;
        start_session(&senders[&0], SESSION);
        senders[&0].send(ShardMessage::Events([live_command(2, COMMAND)].into_iter().collect())).unwrap();
        world.until("the brain is called", || world.brain.calls() == [2]).await;
        assert!(recorded(&world).is_empty());
        assert_ne!(events.handle_interaction(live_http_command(3, COMMAND)).await, HttpInteractionResponse::Busy);
        assert_eq!(world.brain.calls(), [2, live_id(3)]);
        drop(held);
        world.until("both are recorded", || recorded(&world).len() == 2).await;
    });
}

#[test]
fn interactions_without_handlers_are_confirmed_when_they_are_recorded() {
    paused(async {
        let world = EventFixture::new(&json!([{ "name": "idle", "on": "message.create", "do": [] }]));
        let (events, senders) = world.start().await;
        let held = world.store.recording.clone().write_owned().await;
        start_session(&senders[&0], SESSION);
        let commands = [live_command(2, COMMAND), live_command(3, AUTOCOMPLETE), live_command(4, COMMAND)];
        senders[&0].send(ShardMessage::Events(commands.into_iter().collect())).unwrap();
        assert!(!events.drain(Duration::from_secs(5)).await, "they are not recorded yet");
        assert_eq!(world.store.confirmed(0), Some(1));
        drop(held);
        assert!(events.drain(Duration::from_secs(600)).await);
        assert_eq!((world.store.confirmed(0), recorded(&world)), (Some(4), vec![live_id(2), live_id(4)]));
        assert_eq!(senders[&0].credit().used(), FlowLimit { events: 0, bytes: 0 });
    });
}

#[test]
fn interaction_over_http_is_recorded_before_its_handler_receives_it() {
    paused(async {
        let world = EventFixture::new(&brain("auto"));
        let (events, _feeds) = world.start().await;
        let deferred = HttpInteractionResponse::Respond(InitialResponse::Deferred { ephemeral: false });
        assert_eq!(events.handle_interaction(live_http_command(2, COMMAND)).await, deferred);
        assert_eq!(recorded(&world), [live_id(2)]);
        assert_eq!(
            events.handle_interaction(live_http_command(3, AUTOCOMPLETE)).await,
            HttpInteractionResponse::NoResponse
        );
        assert_eq!(recorded(&world), [live_id(2)]);
    });
}
