//! Events reach their handlers in order, once each, whatever fails.

use std::time::Duration;

use crate::guild::HttpInteractionResponse;
use crate::ports::{EventStore, InitialResponse, ResponseResult, WebhookCallError, WebhookResponse};
use crate::shard::{FlowLimit, ShardClaim, ShardMessage};
use crate::supervisor::EventsConfig;
use guildhall_core::time::UnixMs;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;

use crate::access::{AuditAction, Caller};
use crate::testing::events::{
    BrainScript, EventFixture, SESSION, command, http_command, message, message_response, start_session,
    start_session_of,
};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

fn paused(test: impl Future<Output = ()>) {
    LocalSet::new().block_on(&runtime(), test);
}

/// A rule that repeats every message.
fn echo() -> Value {
    let payload = json!({ "channel_id": "{channel_id}", "content": "{data.content}" });
    json!([{ "name": "echo", "on": "message.create", "do": [{ "kind": "send_message", "payload": payload }] }])
}

/// A webhook for every message.
fn message_webhook() -> Value {
    let webhook = json!({ "url": "https://brain.example/", "secrets": ["whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"] });
    json!([{ "name": "brain", "on": "message.create", "webhook": webhook }])
}

#[test]
fn output_of_rules_is_stored_in_order_and_the_session_confirmed() {
    paused(async {
        let world = EventFixture::new(&echo());
        let (events, senders) = world.start().await;
        start_session(&senders[&0], SESSION);
        senders[&0]
            .send(ShardMessage::Events((2..=40).map(|seq| message(SESSION, seq, seq % 3 + 1)).collect()))
            .unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        let mut contents = world.store.contents();
        for guild in 1..=3_u64 {
            let guild_events: Vec<u64> =
                contents.iter().map(|text| text.parse().unwrap()).filter(|seq| seq % 3 + 1 == guild).collect();
            assert!(guild_events.is_sorted(), "{guild_events:?}");
        }
        contents.sort_by_key(|text| text.parse::<u64>().unwrap());
        assert_eq!(contents, (2..=40).map(|seq| seq.to_string()).collect::<Vec<_>>());
        assert_eq!(world.store.confirmed(0), Some(40));
        assert_eq!(senders[&0].credit().used(), FlowLimit { events: 0, bytes: 0 });
    });
}

#[test]
fn event_without_effect_is_confirmed_and_writes_only_the_session() {
    paused(async {
        let world = EventFixture::new(&json!([{ "name": "idle", "on": "message.create", "do": [] }]));
        let (events, senders) = world.start().await;
        start_session(&senders[&0], SESSION);
        senders[&0].send(ShardMessage::Events((2..=9).map(|seq| message(SESSION, seq, 1)).collect())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        assert_eq!((world.store.confirmed(0), world.store.operations().len()), (Some(9), 0));
    });
}

#[test]
fn sessions_that_start_together_are_all_stored_at_once() {
    paused(async {
        let mut world = EventFixture::new(&echo());
        world.config.shards = 3;
        let (events, mut senders) = world.start().await;
        let claims = [1, 2].map(|shard| ShardClaim { shards: 3, shard, fence: 1 });
        for attached in events.attach(claims.to_vec()).await {
            senders.insert(attached.claim.shard, attached.sender);
        }
        let started = tokio::time::Instant::now();
        (0..3).for_each(|shard| start_session_of(shard, &senders[&shard], &format!("s{shard}")));
        let all_kept = || (0..3).all(|shard| world.store.session(shard).is_some());
        // Time does not advance while tasks are ready.
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
        assert!(all_kept() && started.elapsed().is_zero(), "no session waits for the next interval");
    });
}

/// Runs processes one after the other, each until it is killed, and sends each the rest of the session's events.
fn run_to_end(world: &EventFixture, last: u64) {
    let runtime = runtime();
    for _ in 0..50 {
        let local = LocalSet::new();
        let finished = local.block_on(&runtime, async {
            let process = async {
                let (events, senders) = world.start().await;
                let from = match world.store.confirmed(0) {
                    Some(confirmed) => confirmed + 1,
                    None => {
                        start_session(&senders[&0], SESSION);
                        2
                    }
                };
                if from <= last {
                    senders[&0]
                        .send(ShardMessage::Events(
                            (from..=last).map(|seq| message(SESSION, seq, seq % 2 + 1)).collect(),
                        ))
                        .unwrap();
                }
                let drained = events.drain(Duration::from_secs(600)).await;
                let emptied = async {
                    while !world.store.inbox_entries().is_empty() {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                };
                drained && tokio::time::timeout(Duration::from_secs(600), emptied).await.is_ok()
            };
            tokio::select! {
                done = process => done,
                () = world.store.killed() => false,
            }
        });
        drop(local);
        if finished {
            return;
        }
    }
    panic!("events do not finish");
}

#[test]
fn crash_at_any_step_loses_doubles_and_reorders_nothing() {
    for handlers in [echo(), message_webhook()] {
        for (call, after) in (1..40).flat_map(|call| [(call, false), (call, true)]) {
            let world = EventFixture::new(&handlers);
            // One call hangs, and one fails at first.
            world.brain.script(
                4,
                [BrainScript::Fails(WebhookCallError::Retryable { reason: "later".to_owned(), retry_after: None })],
            );
            world.brain.script(7, [BrainScript::Hangs]);
            world.store.kill_at(call, after);
            run_to_end(&world, 12);
            let contents: Vec<u64> = world.store.contents().iter().map(|text| text.parse().unwrap()).collect();
            for guild in [0, 1] {
                let guild_events: Vec<u64> = contents.iter().copied().filter(|seq| seq % 2 == guild).collect();
                let expected: Vec<u64> = (2..=12).filter(|seq| seq % 2 == guild).collect();
                assert_eq!(guild_events, expected, "killed at {call}, after: {after}");
            }
            assert_eq!(world.store.confirmed(0), Some(12));
        }
    }
}

#[test]
fn hanging_brain_delays_its_guild_but_no_session() {
    paused(async {
        let world = EventFixture::new(&message_webhook());
        let (events, senders) = world.start().await;
        start_session(&senders[&0], SESSION);
        world.brain.script(2, [BrainScript::Hangs]);
        let batch =
            vec![message(SESSION, 2, 1), message(SESSION, 3, 2), message(SESSION, 4, 1), message(SESSION, 5, 2)];
        senders[&0].send(ShardMessage::Events(batch.into())).unwrap();
        world.until("the other guild continues", || world.store.contents() == ["3", "5"]).await;
        assert!(events.drain(Duration::from_secs(5)).await, "the session does not wait for the brain");
        assert_eq!(world.store.confirmed(0), Some(5));
        assert_eq!(world.brain.calls(), [2, 3, 5], "later events wait behind it");
        world.brain.resume();
        world.until("it continues in order", || world.store.contents() == ["3", "5", "2", "4"]).await;
        world.until("the inbox is empty", || world.store.inbox_entries().is_empty()).await;
        assert_eq!(world.brain.calls(), [2, 3, 5, 4], "the slow call is not repeated");
    });
}

#[test]
fn failing_webhook_is_retried_with_the_same_id_until_the_event_is_dead() {
    paused(async {
        let world = EventFixture {
            config: EventsConfig { max_attempts: 3, ..EventsConfig::default() },
            ..EventFixture::new(&message_webhook())
        };
        let (_events, senders) = world.start().await;
        start_session(&senders[&0], SESSION);
        let retryable = || {
            BrainScript::Fails(WebhookCallError::Retryable { reason: "it answered 500".to_owned(), retry_after: None })
        };
        let permanent = BrainScript::Fails(WebhookCallError::Permanent { reason: "it answered 302".to_owned() });
        world.brain.script(2, [retryable(), BrainScript::Responds(message_response("2"))]);
        world.brain.script(3, [retryable(), retryable(), retryable()]);
        world.brain.script(4, [permanent]);
        senders[&0].send(ShardMessage::Events((2..=5).map(|seq| message(SESSION, seq, 1)).collect())).unwrap();
        world.until("all possible events are handled", || world.store.contents() == ["2", "5"]).await;
        assert_eq!(world.brain.calls(), [2, 2, 3, 3, 3, 4, 5]);
        let ids = world.brain.ids();
        assert!(ids[0] == ids[1] && ids[1] != ids[2]);
        let dead: Vec<_> =
            world.store.inbox_entries().into_iter().map(|entry| (entry.key.seq, entry.dead.unwrap())).collect();
        assert_eq!(dead, [(3, "it answered 500".to_owned()), (4, "it answered 302".to_owned())]);
    });
}

#[test]
fn gap_is_reported_exactly_and_once() {
    paused(async {
        let gaps = json!([{ "name": "gaps", "on": "gateway.gap", "set": [{ "key": "gap:{data.session}:{data.first}", "value": "{data.last}" }], "do": [] }]);
        let world = EventFixture::new(&gaps);
        let (events, senders) = world.start().await;
        start_session(&senders[&0], SESSION);
        senders[&0].send(ShardMessage::Events(vec![message(SESSION, 2, 1), message(SESSION, 6, 1)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        assert_eq!(world.store.state("gap:s1:3").as_deref(), Some("5"));
        assert_eq!(world.store.confirmed(0), Some(6));
        // Discord has dropped the session: it is unknown what else it would have sent.
        start_session(&senders[&0], "s2");
        assert!(events.drain(Duration::from_secs(60)).await);
        assert!(world.store.state("gap:s1:7").is_none(), "null deletes a value");
        let stored = world.store.session(0).unwrap();
        assert_eq!((&*stored.session, stored.confirmed), ("s2", 1));
    });
}

#[test]
fn interaction_is_deferred_first_and_then_answered() {
    paused(async {
        let hello = json!([{ "name": "hello", "on": "interaction.command.hello", "do": [], "reply": "hi {user_id}" }]);
        let world = EventFixture::new(&hello);
        let (events, senders) = world.start().await;
        start_session(&senders[&0], SESSION);
        world.responder.results.lock().unwrap().extend([
            ResponseResult::Sent,
            ResponseResult::Expired,
            ResponseResult::AlreadySent,
        ]);
        senders[&0].send(ShardMessage::Events((2..=4).map(|seq| command(seq, 1, 2)).collect())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        let sent: Vec<u64> = world.responder.sent.lock().unwrap().iter().map(|(id, _)| *id).collect();
        assert_eq!(sent, [1_002, 1_003, 1_004]);
        let answered = world.store.operations();
        assert_eq!(world.store.contents(), ["hi 77", "hi 77"], "the second interaction has expired");
        assert!(answered.iter().all(|operation| operation.kind.name() == "edit_original"));
        assert!(answered[1].payload.contains("token-4"));
    });
}

#[test]
fn autocomplete_is_answered_without_a_deferral() {
    paused(async {
        let webhook = json!({ "url": "https://brain.example/", "secrets": ["whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"] });
        let handlers = json!([{ "name": "fill", "on": "interaction.autocomplete.#", "webhook": webhook }]);
        let world = EventFixture::new(&handlers);
        let choices = json!([{ "name": "a", "value": "a" }]);
        world
            .brain
            .script(2, [BrainScript::Responds(WebhookResponse { reply: Some(choices), ..WebhookResponse::default() })]);
        let (events, senders) = world.start().await;
        start_session(&senders[&0], SESSION);
        senders[&0].send(ShardMessage::Events(vec![command(2, 1, 4)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        let sent = world.responder.sent.lock().unwrap().clone();
        let whole = json!({ "type": 8, "data": { "choices": [{ "name": "a", "value": "a" }] } });
        assert_eq!(sent, [(1_002, InitialResponse::Immediate(whole))]);
        assert!(world.store.operations().is_empty());
    });
}

#[test]
fn event_that_crashes_its_guild_is_dead_and_the_others_continue() {
    paused(async {
        let both = json!([
            { "name": "breaks", "on": "interaction.command.hello", "defer": "never", "do": [], "reply": "x" },
            { "name": "other", "on": "interaction.command.hello", "set": [{ "key": "heard:{interaction_id}", "value": true }], "do": [] },
        ]);
        let mut world = EventFixture::new(&both);
        world.responder.panics = true;
        let (events, senders) = world.start().await;
        start_session(&senders[&0], SESSION);
        senders[&0].send(ShardMessage::Events(vec![command(2, 1, 2), command(3, 1, 2)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        let dead = world.store.inbox_entries();
        assert_eq!(
            dead.iter().map(|entry| (entry.key.seq, &*entry.key.handler)).collect::<Vec<_>>(),
            [(2, "breaks"), (3, "breaks")]
        );
        assert!(dead.iter().all(|entry| entry.dead.is_some()));
        assert!(world.store.state("heard:1002").is_some() && world.store.state("heard:1003").is_some());
        assert_eq!(world.store.confirmed(0), Some(3));
    });
}

#[test]
fn shadow_handler_has_no_effect() {
    paused(async {
        let mut world = EventFixture::new(&echo());
        world.handlers = world.handlers.in_shadow();
        let (events, senders) = world.start().await;
        start_session(&senders[&0], SESSION);
        senders[&0].send(ShardMessage::Events(vec![message(SESSION, 2, 1)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        assert_eq!((world.store.operations().len(), world.store.confirmed(0)), (0, Some(2)));
    });
}

#[test]
fn handler_receives_its_state_and_has_a_cooldown() {
    paused(async {
        let payload = json!({ "channel_id": "5", "content": "{state.sess:profile:{user_id}}" });
        let handlers = json!([{
            "name": "greet", "on": "message.create", "needs": ["sess:profile:{user_id}"],
            "cooldown": { "key": "{user_id}", "for_ms": 60_000 },
            "do": [{ "kind": "send_message", "payload": payload }],
        }]);
        let world = EventFixture::new(&handlers);
        world.store.put_state("sess:profile:77", &json!("Ada"));
        let (events, senders) = world.start().await;
        start_session(&senders[&0], SESSION);
        senders[&0].send(ShardMessage::Events(vec![message(SESSION, 2, 1), message(SESSION, 3, 1)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        assert_eq!(world.store.contents(), ["Ada"]);
    });
}

#[test]
fn response_starts_a_cooldown_only_with_a_declared_key() {
    paused(async {
        let quiet = |seq: u64| {
            let cooldown = Some(("77".to_owned(), Duration::from_secs(60)));
            BrainScript::Responds(WebhookResponse { cooldown, ..message_response(&seq.to_string()) })
        };
        for (cooldown, contents, dead) in [
            (json!({ "key": "{user_id}" }), vec!["2", "3"], 0),
            // The response replaces the declared duration.
            (json!({ "key": "{user_id}", "for_ms": 1 }), vec!["2"], 0),
            (Value::Null, vec!["2", "4"], 1),
        ] {
            let mut handlers = message_webhook();
            handlers[0]["cooldown"] = cooldown.clone();
            let world = EventFixture::new(&handlers);
            world.brain.script(3, [quiet(3)]);
            let (events, senders) = world.start().await;
            start_session(&senders[&0], SESSION);
            for seq in 2..=4 {
                senders[&0].send(ShardMessage::Events(vec![message(SESSION, seq, 1)].into())).unwrap();
                assert!(events.drain(Duration::from_secs(60)).await);
            }
            assert_eq!(world.store.contents(), contents, "{cooldown}");
            let reasons: Vec<_> = world.store.inbox_entries().into_iter().filter_map(|entry| entry.dead).collect();
            assert_eq!(reasons.len(), dead, "{reasons:?}");
            assert!(reasons.iter().all(|reason| reason.contains("add `cooldown = { key")), "{reasons:?}");
        }
    });
}

#[test]
fn response_that_sets_a_reserved_key_has_no_effect() {
    paused(async {
        let sets = |key: &str| {
            let set = vec![("fine".to_owned(), json!(1), None), (key.to_owned(), json!({}), None)];
            BrainScript::Responds(WebhookResponse { set, reply: Some(json!("hi")), ..message_response("beside") })
        };
        // Over HTTP and not deferred: its reply must not be sent either.
        let world = EventFixture::new(&interaction_webhook("interaction.command.hello", "never"));
        world.brain.script(1_002, [sets("gate:1")]);
        let (events, _feeds) = world.start().await;
        assert_eq!(events.handle_interaction(http_command(2, 1, 2)).await, HttpInteractionResponse::NoResponse);
        let dead = |world: &EventFixture| {
            world.store.inbox_entries().iter().filter_map(|entry| entry.dead.clone()).collect::<Vec<_>>()
        };
        world.until("the event is dead", || dead(&world).len() == 1).await;
        assert!(dead(&world)[0].contains("set.gate:1: a key must not start with `gate:`"), "{:?}", dead(&world));
        assert!(world.store.contents().is_empty() && world.store.state("fine").is_none());

        let world = EventFixture::new(&message_webhook());
        world.brain.script(2, [sets("COOLDOWN:brain:1")]);
        let (events, senders) = world.start().await;
        start_session(&senders[&0], SESSION);
        senders[&0].send(ShardMessage::Events(vec![message(SESSION, 2, 1), message(SESSION, 3, 1)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        assert_eq!(world.store.contents(), ["3"], "the next event is not delayed");
        assert_eq!(dead(&world).len(), 1);
        assert!(world.store.state("fine").is_none() && world.store.state("COOLDOWN:brain:1").is_none());
    });
}

/// A webhook for commands, deferred or not.
fn interaction_webhook(on: &str, defer: &str) -> Value {
    let webhook = json!({ "url": "https://brain.example/", "secrets": ["whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"] });
    json!([{ "name": "brain", "on": on, "defer": defer, "ephemeral": true, "webhook": webhook }])
}

fn reply_with(reply: Value) -> BrainScript {
    BrainScript::Responds(WebhookResponse { reply: Some(reply), ..message_response("beside") })
}

#[test]
fn http_interaction_is_stored_before_it_is_deferred_and_answered_once() {
    paused(async {
        let world = EventFixture::new(&interaction_webhook("interaction.command.hello", "auto"));
        world.brain.script(1_002, [reply_with(json!("hi"))]);
        let (events, _feeds) = world.start().await;
        let deferred = HttpInteractionResponse::Respond(InitialResponse::Deferred { ephemeral: true });
        assert_eq!(events.handle_interaction(http_command(2, 1, 2)).await, deferred);
        assert!(world.responder.sent.lock().unwrap().is_empty(), "the response is the HTTP response");
        world.until("it is answered", || world.store.contents() == ["beside", "hi"]).await;
        assert_eq!(events.handle_interaction(http_command(2, 1, 2)).await, deferred, "a replay gets the same response");
        assert_eq!(events.handle_interaction(http_command(3, 1, 2)).await, deferred);
        world.until("the next one is called", || world.brain.calls() == [1_002, 1_003]).await;
        world.until("the inbox is empty", || world.store.inbox_entries().is_empty()).await;
        assert_eq!(world.store.contents(), ["beside", "hi", "1003"]);
        assert_eq!(events.observe().await.map(|snapshot| snapshot.inbox), Some(0));
    });
}

#[test]
fn crash_after_a_deferred_http_interaction_loses_nothing() {
    let world = EventFixture::new(&interaction_webhook("interaction.command.hello", "auto"));
    let runtime = runtime();
    LocalSet::new().block_on(&runtime, async {
        world.brain.script(1_002, [BrainScript::Hangs]);
        let (events, _feeds) = world.start().await;
        assert!(matches!(
            events.handle_interaction(http_command(2, 1, 2)).await,
            HttpInteractionResponse::Respond(InitialResponse::Deferred { .. })
        ));
    });
    assert_eq!(world.store.inbox_entries().len(), 1);
    world.brain.script(1_002, [reply_with(json!("hi"))]);
    LocalSet::new().block_on(&runtime, async {
        let (_events, _feeds) = world.start().await;
        world.until("it is answered", || world.store.contents() == ["beside", "hi"]).await;
    });
}

#[test]
fn undeferred_http_interaction_is_answered_with_the_reply_once() {
    paused(async {
        for (on, defer, kind) in
            [("interaction.autocomplete.hello", "auto", 4), ("interaction.command.hello", "never", 2)]
        {
            let world = EventFixture::new(&interaction_webhook(on, defer));
            let whole = json!({ "type": if kind == 4 { 8 } else { 4 }, "data": { "choices": [] } });
            world.brain.script(1_002, [reply_with(whole.clone())]);
            let (events, _feeds) = world.start().await;
            assert_eq!(
                events.handle_interaction(http_command(2, 1, kind)).await,
                HttpInteractionResponse::Respond(InitialResponse::Immediate(whole))
            );
            assert_eq!(world.store.contents(), ["beside"], "it is stored before it is answered");
            let again = events.handle_interaction(http_command(2, 1, kind)).await;
            let nothing = json!({ "type": 8, "data": { "choices": [] } });
            let expected = match kind {
                4 => HttpInteractionResponse::Respond(InitialResponse::Immediate(nothing)),
                _ => HttpInteractionResponse::NoResponse,
            };
            assert_eq!(again, expected, "a deferral would never be followed by a response");
            assert_eq!((world.brain.calls(), world.store.contents().len()), (vec![1_002], 1));
        }
    });
}

#[test]
fn http_interaction_without_handler_or_timely_reply_has_no_response() {
    paused(async {
        let world = EventFixture::new(&interaction_webhook("interaction.autocomplete.hello", "auto"));
        world.brain.script(1_002, [BrainScript::Hangs]);
        let (events, _feeds) = world.start().await;
        assert_eq!(events.handle_interaction(http_command(3, 1, 2)).await, HttpInteractionResponse::NoResponse);
        assert_eq!(events.handle_interaction(http_command(2, 1, 4)).await, HttpInteractionResponse::NoResponse);
        world.until("it is dead", || world.store.inbox_entries().iter().any(|entry| entry.dead.is_some())).await;
        assert_eq!(world.brain.calls(), [1_002]);
    });
}

#[test]
fn http_interaction_is_refused_while_the_inbox_is_full() {
    paused(async {
        let config = EventsConfig { max_inbox: 1, ..EventsConfig::default() };
        let world =
            EventFixture { config, ..EventFixture::new(&interaction_webhook("interaction.command.hello", "auto")) };
        world.brain.script(1_002, [BrainScript::Hangs]);
        let (events, _feeds) = world.start().await;
        assert!(matches!(events.handle_interaction(http_command(2, 1, 2)).await, HttpInteractionResponse::Respond(_)));
        assert_eq!(events.handle_interaction(http_command(3, 1, 2)).await, HttpInteractionResponse::Busy);
        assert_eq!(world.store.inbox_entries().len(), 1);
    });
}

#[test]
fn handler_receives_its_state_for_an_event_from_the_inbox() {
    paused(async {
        let payload = json!({ "channel_id": "5", "content": "{state.sess:profile:{user_id}}" });
        let handlers = json!([{
            "name": "greet", "on": "interaction.command.hello", "needs": ["sess:profile:{user_id}"],
            "cooldown": { "key": "{user_id}", "for_ms": 60_000 },
            "do": [{ "kind": "send_message", "payload": payload }],
        }]);
        let world = EventFixture::new(&handlers);
        world.store.put_state("sess:profile:77", &json!("Ada"));
        let (events, _feeds) = world.start().await;
        assert!(matches!(events.handle_interaction(http_command(2, 1, 2)).await, HttpInteractionResponse::Respond(_)));
        world.until("it is handled", || world.store.contents() == ["Ada"]).await;
        assert!(matches!(events.handle_interaction(http_command(3, 1, 2)).await, HttpInteractionResponse::Respond(_)));
        world.until("the inbox is empty", || world.store.inbox_entries().is_empty()).await;
        assert_eq!(world.store.contents(), ["Ada"], "the cooldown applies");
    });
}

#[test]
fn revived_event_is_handled_and_later_events_wait_behind_it() {
    paused(async {
        let world = EventFixture::new(&message_webhook());
        let (events, senders) = world.start().await;
        start_session(&senders[&0], SESSION);
        let permanent = BrainScript::Fails(WebhookCallError::Permanent { reason: "it answered 302".to_owned() });
        world.brain.script(2, [permanent, BrainScript::Hangs]);
        senders[&0].send(ShardMessage::Events(vec![message(SESSION, 2, 1), message(SESSION, 3, 1)].into())).unwrap();
        world.until("the other is handled", || world.store.contents() == ["3"]).await;
        let dead = world.store.inbox_entries()[0].position;
        let record = Caller::operator().audit_record(AuditAction::EventsRevive, UnixMs::new(0));
        assert!(EventStore::revive(&world.store, dead, record).await.unwrap());
        events.wake_inbox();
        world.until("the webhook is called again", || world.brain.calls() == [2, 3, 2]).await;
        senders[&0].send(ShardMessage::Events(vec![message(SESSION, 4, 1)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(5)).await);
        assert_eq!(events.observe().await.map(|snapshot| snapshot.inbox), Some(2));
        world.brain.resume();
        world.until("both are handled", || world.store.contents() == ["3", "2", "4"]).await;
        world.until("the inbox is empty", || world.store.inbox_entries().is_empty()).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(events.observe().await.map(|snapshot| snapshot.inbox), Some(0));
    });
}
