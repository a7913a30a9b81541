//! Deferred interactions without a response get a fallback.

use std::sync::Arc;
use std::time::Duration;

use guildhall_core::event::{Event, EventOrigin};
use guildhall_core::interaction::TOKEN_LIFETIME;
use guildhall_core::time::UnixMs;
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::task::LocalSet;

use crate::crash::Input;
use crate::guild::{HttpInteractionResponse, unread_event};
use crate::ports::{InitialResponse, NewOperation, ResponseResult, WebhookCallError, WebhookResponse};
use crate::shard::ShardMessage;
use crate::supervisor::{EventsConfig, EventsHandle, FallbackConfig};
use crate::testing::events::{
    BrainScript, EventFixture, SESSION, live_command, live_http_command, live_id, start_session,
};

const STARTED: UnixMs = UnixMs::new(1_700_000_000_000);

fn paused(test: impl Future<Output = ()>) {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

fn fixture(handlers: &Value) -> EventFixture {
    let fallback = FallbackConfig {
        cooldown: Some("wait".to_owned()),
        failed: Some("broken".to_owned()),
        unavailable: Some("down".to_owned()),
        unanswered: Some("nothing yet".to_owned()),
        ..FallbackConfig::default()
    };
    let config = EventsConfig { fallback, max_attempts: 3, ..EventsConfig::default() };
    EventFixture { config, ..EventFixture::new(handlers) }
}

fn webhook() -> Value {
    json!({ "url": "https://brain.example/", "secrets": ["whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"] })
}

fn hello(fields: &Value) -> Value {
    let mut handler = json!({ "name": "hello", "on": "interaction.command.hello" });
    handler.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!([handler])
}

fn permanent() -> BrainScript {
    BrainScript::Fails(WebhookCallError::Permanent { reason: "set: must be an object".to_owned() })
}

fn unreachable() -> BrainScript {
    BrainScript::Fails(WebhookCallError::Retryable { reason: "refused".to_owned(), retry_after: None })
}

/// Handles these events, the first of a session.
async fn handle(world: &EventFixture, events: Vec<Event>) {
    let (handle, senders) = world.start().await;
    start_session(&senders[&0], SESSION);
    senders[&0].send(ShardMessage::Events(events.into())).unwrap();
    assert!(handle.drain(Duration::from_secs(60)).await);
}

/// Text and time of the fallbacks, in order.
fn fallbacks(world: &EventFixture) -> Vec<(String, Duration)> {
    let fallback = |operation: &NewOperation| {
        let payload: Value = serde_json::from_str(&operation.payload).unwrap();
        let text = payload["content"].as_str().unwrap().to_owned();
        (payload["only_if_deferred"] == true).then(|| {
            assert_eq!(operation.kind.name(), "edit_original");
            assert_eq!(operation.deadline_at.unwrap().since(STARTED), TOKEN_LIFETIME, "{text}");
            (text, operation.eligible_at.since(STARTED))
        })
    };
    world.store.operations().iter().filter_map(fallback).collect()
}

fn texts(world: &EventFixture) -> Vec<String> {
    fallbacks(world).into_iter().map(|(text, _)| text).collect()
}

/// A first response that only the user sees.
fn whisper(text: &str) -> InitialResponse {
    InitialResponse::Immediate(json!({ "type": 4, "data": { "content": text, "flags": 64 } }))
}

const DEFERRED: InitialResponse = InitialResponse::Deferred { ephemeral: false };

fn rule_with_cooldown() -> Value {
    json!({ "reply": "hi", "cooldown": { "key": "{user_id}", "for_ms": 30_000 } })
}

/// Handles these commands, one after the other.
async fn handle_each(world: &EventFixture, commands: impl IntoIterator<Item = u64>) -> EventsHandle {
    let (events, senders) = world.start().await;
    start_session(&senders[&0], SESSION);
    for seq in commands {
        senders[&0].send(ShardMessage::Events(vec![live_command(seq, 2)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
    }
    events
}

#[test]
fn cooldown_is_answered_instead_of_deferred_and_only_the_user_sees_it() {
    paused(async {
        let world = fixture(&hello(&rule_with_cooldown()));
        let events = handle_each(&world, [2, 3]).await;
        assert_eq!(*world.responder.sent.lock().unwrap(), [(live_id(2), DEFERRED), (live_id(3), whisper("wait"))]);
        assert_eq!(world.store.contents(), ["hi"], "nothing is left to do for the second one");
        assert_eq!(world.store.confirmed(0), Some(3));
        let posted = events.handle_interaction(live_http_command(4, 2)).await;
        assert_eq!(posted, HttpInteractionResponse::Respond(whisper("wait")));
        assert!(world.store.inbox_entries().is_empty());
        // The cooldown may be its own, if Discord posts one again.
        let repeated = events.handle_interaction(live_http_command(4, 2)).await;
        assert_eq!(repeated, HttpInteractionResponse::Respond(DEFERRED));
    });
}

#[test]
fn cooldown_of_an_interaction_with_another_response_edits_a_deferral() {
    paused(async {
        let world = fixture(&hello(&rule_with_cooldown()));
        // An earlier process may have deferred the second one.
        world.responder.results.lock().unwrap().extend([ResponseResult::Sent, ResponseResult::AlreadySent]);
        handle_each(&world, [2, 3]).await;
        assert_eq!(world.store.contents(), ["hi", "wait"]);
        let (_, at) = fallbacks(&world).pop().unwrap();
        assert!(at < Duration::from_secs(1), "{at:?}");
        assert!(world.store.operations()[1].payload.contains("token-3"));
    });
}

#[test]
fn cooldown_of_one_handler_does_not_stop_the_others() {
    paused(async {
        let seen = json!({
            "name": "seen", "on": "interaction.#", "set": [{ "key": "seen:{interaction_id}", "value": true }],
        });
        let mut handlers = hello(&rule_with_cooldown());
        handlers.as_array_mut().unwrap().push(seen);
        let world = fixture(&handlers);
        let events = handle_each(&world, [2, 3]).await;
        assert_eq!(world.responder.sent.lock().unwrap()[1], (live_id(3), whisper("wait")));
        assert_eq!(
            events.handle_interaction(live_http_command(4, 2)).await,
            HttpInteractionResponse::Respond(whisper("wait"))
        );
        let all = || (2..=4).all(|seq| world.store.state(&format!("seen:{}", live_id(seq))).is_some());
        world.until("the other handler has seen all of them", all).await;
        assert_eq!(world.store.contents(), ["hi"]);
        // A handler that may respond, and has no cooldown, needs the deferral.
        let brain = json!({ "name": "brain", "on": "interaction.command.hello", "webhook": webhook() });
        handlers.as_array_mut().unwrap().push(brain);
        let world = fixture(&handlers);
        handle_each(&world, [2, 3]).await;
        assert_eq!(*world.responder.sent.lock().unwrap(), [(live_id(2), DEFERRED), (live_id(3), DEFERRED)]);
    });
}

#[test]
fn invalid_response_gets_its_text_and_is_dead() {
    paused(async {
        let world = fixture(&hello(&json!({ "webhook": webhook() })));
        world.brain.script(2, [permanent()]);
        let operations = vec![json!({ "kind": "no_such_kind", "payload": {} })];
        let invalid = WebhookResponse { operations, ..WebhookResponse::default() };
        world.brain.script(3, [BrainScript::Responds(invalid)]);
        handle(&world, vec![live_command(2, 2), live_command(3, 2)]).await;
        assert_eq!(texts(&world), ["broken", "broken"]);
        assert!(world.store.inbox_entries().iter().all(|entry| entry.dead.is_some()));
    });
}

#[test]
fn unreachable_webhook_gets_its_text_once_and_is_called_again() {
    paused(async {
        let world = fixture(&hello(&json!({ "webhook": webhook() })));
        world.brain.script(2, [unreachable(), unreachable(), unreachable()]);
        let (events, senders) = world.start().await;
        start_session(&senders[&0], SESSION);
        senders[&0].send(ShardMessage::Events(vec![live_command(2, 2)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        assert_eq!(fallbacks(&world), [("down".to_owned(), Duration::from_secs(30))]);
        world.until("it is dead", || world.store.inbox_entries().iter().any(|entry| entry.dead.is_some())).await;
        let keys: Vec<_> = world.store.operations().into_iter().map(|operation| operation.idempotency).collect();
        assert_eq!(keys.len(), 2, "the last attempt has the text at once");
        assert!(keys[0].is_some() && keys[0] == keys[1], "the store accepts only one of them");
    });
}

#[test]
fn later_response_replaces_the_fallback() {
    paused(async {
        let world = fixture(&hello(&json!({ "webhook": webhook() })));
        let reply = WebhookResponse { reply: Some(json!("hi")), ..WebhookResponse::default() };
        world.brain.script(2, [unreachable(), BrainScript::Responds(reply)]);
        let (_events, senders) = world.start().await;
        start_session(&senders[&0], SESSION);
        senders[&0].send(ShardMessage::Events(vec![live_command(2, 2)].into())).unwrap();
        world.until("it is answered", || world.store.contents() == ["down", "hi"]).await;
        let reply: Value = serde_json::from_str(&world.store.operations()[1].payload).unwrap();
        assert_eq!((&reply["only_if_deferred"], &reply["if_rejected"]), (&json!(false), &json!("broken")));
    });
}

/// An operation of this kind with a text for an interaction, and these fields.
fn response_to(seq: u64, kind: &str, fields: &Value) -> Value {
    let (id, token) = (live_id(seq).to_string(), format!("token-{seq}"));
    let payload = json!({ "interaction_id": id, "interaction_token": token, "content": "done" });
    let mut operation = json!({ "kind": kind, "payload": payload });
    operation.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    operation
}

#[test]
fn handler_without_a_certain_response_gets_its_text_later() {
    paused(async {
        let world = fixture(&hello(&json!({ "webhook": webhook() })));
        let edit = |seq: u64, fields: &Value| response_to(seq, "edit_original", fields);
        let plain = json!({ "key": "mine" });
        let operations = [
            vec![],
            // A response to another interaction is none to this one.
            vec![edit(2, &json!({}))],
            // These may end without a response: Discord rejects a followup, or the time is over.
            vec![response_to(4, "send_followup", &json!({}))],
            vec![edit(5, &json!({ "deadline_ms": 60_000 }))],
            vec![edit(6, &json!({ "delay_ms": 60_000 }))],
            vec![edit(7, &json!({ "max_attempts": 1 }))],
            // Certain, also with others.
            vec![edit(8, &plain)],
            vec![response_to(9, "send_followup", &json!({})), edit(9, &plain)],
        ];
        let commands: Vec<u64> = (2..).take(operations.len()).collect();
        for (seq, operations) in commands.iter().zip(operations) {
            let response = WebhookResponse { operations, ..WebhookResponse::default() };
            world.brain.script(*seq, [BrainScript::Responds(response)]);
        }
        handle_each(&world, commands).await;
        let operations = world.store.operations();
        let payloads = operations.iter().map(|one| serde_json::from_str::<Value>(&one.payload).unwrap());
        let (fallbacks, own): (Vec<_>, Vec<_>) = payloads.partition(|payload| payload["only_if_deferred"] == true);
        let with_fallback: Vec<_> = fallbacks.iter().map(|payload| payload["interaction_token"].clone()).collect();
        assert_eq!(with_fallback, ["token-2", "token-3", "token-4", "token-5", "token-6", "token-7"]);
        let unanswered = ("nothing yet".to_owned(), Duration::from_secs(300));
        assert_eq!(self::fallbacks(&world), vec![unanswered; 6]);
        // Discord may reject an edit: then it leaves a text. That of another interaction is not touched.
        let leaves_text = |token: &str| {
            let edits = own.iter().filter(|payload| payload["interaction_token"] == token);
            edits.map(|payload| payload["if_rejected"].as_str().unwrap_or("none").to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(
            (leaves_text("token-2"), leaves_text("token-4")),
            (vec!["none".to_owned()], vec!["none".to_owned()])
        );
        assert_eq!(
            (leaves_text("token-8"), leaves_text("token-9")),
            (vec!["broken".to_owned()], vec!["none".to_owned(), "broken".to_owned()])
        );
    });
}

#[test]
fn brain_keeps_its_own_text_for_a_rejected_edit() {
    paused(async {
        let world = fixture(&hello(&json!({ "webhook": webhook() })));
        let mut own = response_to(2, "edit_original", &json!({}));
        own["payload"]["if_rejected"] = "mine".into();
        let response = WebhookResponse { operations: vec![own], ..WebhookResponse::default() };
        world.brain.script(2, [BrainScript::Responds(response)]);
        handle_each(&world, [2]).await;
        let operations = world.store.operations();
        let [edit] = &operations[..] else { panic!("one operation is enough: {operations:?}") };
        assert_eq!(serde_json::from_str::<Value>(&edit.payload).unwrap()["if_rejected"], "mine");
    });
}

#[test]
fn slow_webhook_gets_its_text_later() {
    paused(async {
        let world = fixture(&hello(&json!({ "webhook": webhook() })));
        world.brain.script(2, [BrainScript::Hangs]);
        handle(&world, vec![live_command(2, 2)]).await;
        assert_eq!(fallbacks(&world), [("nothing yet".to_owned(), Duration::from_secs(300))]);
    });
}

#[test]
fn text_is_queued_in_time_however_long_a_webhook_may_take() {
    paused(async {
        let mut world = fixture(&hello(&json!({ "webhook": webhook() })));
        (world.config.slow_after, world.config.webhook_timeout) = (Duration::from_secs(600), Duration::from_secs(600));
        for number in [2, live_id(3)] {
            world.brain.script(number, [BrainScript::Hangs]);
        }
        let (events, senders) = world.start().await;
        start_session(&senders[&0], SESSION);
        senders[&0].send(ShardMessage::Events(vec![live_command(2, 2)].into())).unwrap();
        events.handle_interaction(live_http_command(3, 2)).await;
        world.until("both are queued", || world.store.operations().len() == 2).await;
        assert_eq!(texts(&world), ["nothing yet", "nothing yet"]);
        assert_eq!(world.brain.calls().len(), 2, "the webhooks are still called");
    });
}

#[test]
fn http_interaction_gets_the_same_texts() {
    paused(async {
        let world = fixture(&hello(&json!({ "webhook": webhook() })));
        let reply = WebhookResponse { reply: Some(json!("hi")), ..WebhookResponse::default() };
        world.brain.script(live_id(2), [permanent()]);
        world.brain.script(live_id(3), [unreachable(), BrainScript::Responds(reply.clone())]);
        world.brain.script(live_id(4), [BrainScript::Hangs]);
        world.brain.script(live_id(5), [BrainScript::Responds(reply)]);
        let (events, _feeds) = world.start().await;
        let deferred = HttpInteractionResponse::Respond(InitialResponse::Deferred { ephemeral: false });
        for (number, text) in [(2, "broken"), (3, "down"), (4, "nothing yet"), (5, "hi")] {
            assert_eq!(events.handle_interaction(live_http_command(number, 2)).await, deferred);
            let token = format!("token-{number}");
            let is_answered = || {
                let operations = world.store.operations();
                operations.iter().any(|one| one.payload.contains(&token) && one.payload.contains(text))
            };
            world.until(text, is_answered).await;
        }
        assert_eq!(texts(&world), ["broken", "down", "nothing yet"], "a prompt response has no fallback");
    });
}

#[test]
fn interaction_of_a_lost_process_is_answered_by_the_next_one() {
    let world = fixture(&hello(&json!({ "webhook": webhook() })));
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    world.brain.script(live_id(2), [BrainScript::Hangs, permanent()]);
    LocalSet::new().block_on(&runtime, async {
        let (events, _feeds) = world.start().await;
        let deferred = events.handle_interaction(live_http_command(2, 2)).await;
        assert!(matches!(deferred, HttpInteractionResponse::Respond(InitialResponse::Deferred { .. })));
        world.until("the webhook is called", || !world.brain.calls().is_empty()).await;
    });
    assert_eq!(texts(&world), [""; 0], "the process ended before anything was stored");
    LocalSet::new().block_on(&runtime, async {
        let (_events, _feeds) = world.start().await;
        world.until("it is answered", || texts(&world) == ["broken"]).await;
    });
}

#[test]
fn interaction_that_ended_processes_gets_its_text() {
    paused(async {
        let world = fixture(&hello(&json!({ "reply": "hi" })));
        handle(&world, vec![live_command(2, 2)]).await;
        world.store.add_crash(Input::Event { session: Arc::from(SESSION), seq: 3 }, 2);
        let (events, senders) = world.start().await;
        let d = json!({
            "id": live_id(3).to_string(), "application_id": "9", "type": 2, "token": "token-3", "guild_id": "1",
            "channel_id": "5", "member": { "user": { "id": "77" } }, "data": { "name": "hello" },
        });
        let frame = json!({ "t": "INTERACTION_CREATE", "s": 3, "op": 0, "d": d }).to_string();
        let origin = EventOrigin { session: Arc::from(SESSION), shard: 0, seq: 3 };
        senders[&0].send(ShardMessage::Events(vec![unread_event(frame, origin, STARTED)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        assert_eq!(world.store.contents(), ["hi", "broken"]);
        assert_eq!(world.store.inbox_entries().len(), 1);
    });
}

#[test]
fn only_the_handlers_that_may_respond_have_fallbacks() {
    paused(async {
        let seen =
            json!({ "name": "seen", "on": "interaction.#", "set": [{ "key": "seen:{user_id}", "value": true }] });
        let shadow = json!({
            "name": "shadow", "on": "interaction.command.hello", "shadow": true, "webhook": webhook(),
        });
        let brain = json!({ "name": "brain", "on": "interaction.command.hello", "webhook": webhook() });
        let mut world = fixture(&json!([seen, shadow, brain]));
        let reply = || {
            let reply = WebhookResponse { reply: Some(json!("hi")), ..WebhookResponse::default() };
            BrainScript::Responds(reply)
        };
        world.brain.script(2, [permanent(), reply()]);
        world.brain.script(3, [reply()]);
        handle(&world, vec![live_command(2, 2), live_command(3, 4)]).await;
        assert_eq!(world.store.contents(), ["hi"], "autocompletion has no response of its own");
        // Without another handler, the rule leaves the user without a response.
        world = fixture(&json!([seen]));
        handle(&world, vec![live_command(2, 2), live_command(3, 4)]).await;
        assert_eq!(texts(&world), ["nothing yet"]);
    });
}

#[test]
fn interaction_that_no_condition_accepts_is_not_deferred() {
    paused(async {
        let world = fixture(&hello(&json!({ "reply": "hi", "when": { "user": "78" } })));
        handle(&world, vec![live_command(2, 2)]).await;
        assert!(world.responder.sent.lock().unwrap().is_empty());
        assert!(world.store.operations().is_empty());
    });
}

#[test]
fn handler_that_responds_at_once_responds_with_the_text() {
    paused(async {
        let world = fixture(&hello(&json!({ "defer": "never", "webhook": webhook() })));
        world.brain.script(2, [permanent()]);
        world.brain.script(live_id(3), [unreachable()]);
        let (events, senders) = world.start().await;
        start_session(&senders[&0], SESSION);
        senders[&0].send(ShardMessage::Events(vec![live_command(2, 2)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        assert_eq!(*world.responder.sent.lock().unwrap(), [(live_id(2), whisper("broken"))]);
        let posted = events.handle_interaction(live_http_command(3, 2)).await;
        assert_eq!(posted, HttpInteractionResponse::Respond(whisper("down")));
        let repeated = events.handle_interaction(live_http_command(3, 2)).await;
        assert_eq!(repeated, HttpInteractionResponse::Respond(whisper("broken")), "nothing would follow a deferral");
        assert!(world.store.operations().is_empty());
    });
}
