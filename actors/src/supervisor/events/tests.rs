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
use crate::testing::events::{Mood, SESSION, World, begin, begin_of, command, message, posted, says};

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
fn asks() -> Value {
    let webhook = json!({ "url": "https://brain.example/", "secrets": ["whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"] });
    json!([{ "name": "brain", "on": "message.create", "webhook": webhook }])
}

#[test]
fn what_rules_give_is_kept_in_order_and_the_session_is_confirmed() {
    paused(async {
        let world = World::new(&echo());
        let (events, feeds) = world.start().await;
        begin(&feeds[&0], SESSION);
        feeds[&0].tell(ShardMessage::Events((2..=40).map(|seq| message(SESSION, seq, seq % 3 + 1)).collect())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        let mut said = world.store.said();
        for guild in 1..=3_u64 {
            let of: Vec<u64> =
                said.iter().map(|text| text.parse().unwrap()).filter(|seq| seq % 3 + 1 == guild).collect();
            assert!(of.is_sorted(), "{of:?}");
        }
        said.sort_by_key(|text| text.parse::<u64>().unwrap());
        assert_eq!(said, (2..=40).map(|seq| seq.to_string()).collect::<Vec<_>>());
        assert_eq!(world.store.confirmed(0), Some(40));
        assert_eq!(feeds[&0].credit().used(), FlowLimit { events: 0, bytes: 0 });
    });
}

#[test]
fn what_nobody_wants_is_confirmed_at_once_and_writes_nothing_but_the_session() {
    paused(async {
        let world = World::new(&json!([{ "name": "idle", "on": "message.create", "do": [] }]));
        let (events, feeds) = world.start().await;
        begin(&feeds[&0], SESSION);
        feeds[&0].tell(ShardMessage::Events((2..=9).map(|seq| message(SESSION, seq, 1)).collect())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        assert_eq!((world.store.confirmed(0), world.store.operations().len()), (Some(9), 0));
    });
}

#[test]
fn sessions_that_begin_together_are_all_kept_at_once() {
    paused(async {
        let mut world = World::new(&echo());
        world.config.shards = 3;
        let (events, mut feeds) = world.start().await;
        let claims = [1, 2].map(|shard| ShardClaim { shards: 3, shard, fence: 1 });
        for taken in events.take(claims.to_vec()).await {
            feeds.insert(taken.claim.shard, taken.feed);
        }
        let began = tokio::time::Instant::now();
        (0..3).for_each(|shard| begin_of(shard, &feeds[&shard], &format!("s{shard}")));
        let all_kept = || (0..3).all(|shard| world.store.session(shard).is_some());
        // Time does not advance while tasks are ready.
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
        assert!(all_kept() && began.elapsed().is_zero(), "no session waits for the next interval");
    });
}

/// Runs processes one after the other, each until it is killed, and sends each the rest of the session's events.
fn live(world: &World, last: u64) {
    let runtime = runtime();
    for _ in 0..50 {
        let local = LocalSet::new();
        let over = local.block_on(&runtime, async {
            let lives = async {
                let (events, feeds) = world.start().await;
                let from = match world.store.confirmed(0) {
                    Some(confirmed) => confirmed + 1,
                    None => {
                        begin(&feeds[&0], SESSION);
                        2
                    }
                };
                if from <= last {
                    feeds[&0]
                        .tell(ShardMessage::Events(
                            (from..=last).map(|seq| message(SESSION, seq, seq % 2 + 1)).collect(),
                        ))
                        .unwrap();
                }
                let drained = events.drain(Duration::from_secs(600)).await;
                let emptied = async {
                    while !world.store.inbox_now().is_empty() {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                };
                drained && tokio::time::timeout(Duration::from_secs(600), emptied).await.is_ok()
            };
            tokio::select! {
                done = lives => done,
                () = world.store.killed() => false,
            }
        });
        drop(local);
        if over {
            return;
        }
    }
    panic!("events do not finish");
}

#[test]
fn fails_at_each_step_and_nothing_is_lost_doubled_or_out_of_order() {
    for handlers in [echo(), asks()] {
        for (call, after) in (1..40).flat_map(|call| [(call, false), (call, true)]) {
            let world = World::new(&handlers);
            // One call hangs, and one fails at first.
            world.brain.mood(4, [Mood::Fails(WebhookCallError::Later { why: "later".to_owned(), retry_after: None })]);
            world.brain.mood(7, [Mood::Hangs]);
            world.store.kill_at(call, after);
            live(&world, 12);
            let said: Vec<u64> = world.store.said().iter().map(|text| text.parse().unwrap()).collect();
            for guild in [0, 1] {
                let of: Vec<u64> = said.iter().copied().filter(|seq| seq % 2 == guild).collect();
                let expected: Vec<u64> = (2..=12).filter(|seq| seq % 2 == guild).collect();
                assert_eq!(of, expected, "killed at {call}, after: {after}");
            }
            assert_eq!(world.store.confirmed(0), Some(12));
        }
    }
}

#[test]
fn a_brain_that_hangs_holds_back_its_own_guild_and_no_session() {
    paused(async {
        let world = World::new(&asks());
        let (events, feeds) = world.start().await;
        begin(&feeds[&0], SESSION);
        world.brain.mood(2, [Mood::Hangs]);
        let batch =
            vec![message(SESSION, 2, 1), message(SESSION, 3, 2), message(SESSION, 4, 1), message(SESSION, 5, 2)];
        feeds[&0].tell(ShardMessage::Events(batch.into())).unwrap();
        world.until("the other guild continues", || world.store.said() == ["3", "5"]).await;
        assert!(events.drain(Duration::from_secs(5)).await, "the session does not wait for the brain");
        assert_eq!(world.store.confirmed(0), Some(5));
        assert_eq!(world.brain.asked(), [2, 3, 5], "later events wait behind it");
        world.brain.go_on();
        world.until("it continues in order", || world.store.said() == ["3", "5", "2", "4"]).await;
        world.until("the inbox is empty", || world.store.inbox_now().is_empty()).await;
        assert_eq!(world.brain.asked(), [2, 3, 5, 4], "the slow call is not repeated");
    });
}

#[test]
fn an_event_whose_brain_fails_is_tried_again_with_the_same_id_and_given_up_at_last() {
    paused(async {
        let world = World { config: EventsConfig { attempts: 3, ..EventsConfig::default() }, ..World::new(&asks()) };
        let (_events, feeds) = world.start().await;
        begin(&feeds[&0], SESSION);
        let later = || Mood::Fails(WebhookCallError::Later { why: "it answered 500".to_owned(), retry_after: None });
        let never = Mood::Fails(WebhookCallError::Never { why: "it answered 302".to_owned() });
        world.brain.mood(2, [later(), Mood::Says(says("2"))]);
        world.brain.mood(3, [later(), later(), later()]);
        world.brain.mood(4, [never]);
        feeds[&0].tell(ShardMessage::Events((2..=5).map(|seq| message(SESSION, seq, 1)).collect())).unwrap();
        world.until("all possible events are handled", || world.store.said() == ["2", "5"]).await;
        assert_eq!(world.brain.asked(), [2, 2, 3, 3, 3, 4, 5]);
        let ids = world.brain.ids();
        assert!(ids[0] == ids[1] && ids[1] != ids[2]);
        let dead: Vec<_> =
            world.store.inbox_now().into_iter().map(|entry| (entry.key.seq, entry.dead.unwrap())).collect();
        assert_eq!(dead, [(3, "it answered 500".to_owned()), (4, "it answered 302".to_owned())]);
    });
}

#[test]
fn what_is_missing_is_told_exactly_and_once() {
    paused(async {
        let gaps = json!([{ "name": "gaps", "on": "gateway.gap", "set": [{ "key": "gap:{data.session}:{data.first}", "value": "{data.last}" }], "do": [] }]);
        let world = World::new(&gaps);
        let (events, feeds) = world.start().await;
        begin(&feeds[&0], SESSION);
        feeds[&0].tell(ShardMessage::Events(vec![message(SESSION, 2, 1), message(SESSION, 6, 1)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        assert_eq!(world.store.state("gap:s1:3").as_deref(), Some("5"));
        assert_eq!(world.store.confirmed(0), Some(6));
        // Discord has dropped the session: it is unknown what else it would have sent.
        begin(&feeds[&0], "s2");
        assert!(events.drain(Duration::from_secs(60)).await);
        assert!(world.store.state("gap:s1:7").is_none(), "null deletes a value");
        let kept = world.store.session(0).unwrap();
        assert_eq!((&*kept.session, kept.confirmed), ("s2", 1));
    });
}

#[test]
fn an_interaction_is_deferred_first_and_then_answered() {
    paused(async {
        let hello = json!([{ "name": "hello", "on": "interaction.command.hello", "do": [], "reply": "hi {user_id}" }]);
        let world = World::new(&hello);
        let (events, feeds) = world.start().await;
        begin(&feeds[&0], SESSION);
        world.phone.answers.lock().unwrap().extend([
            ResponseResult::Now,
            ResponseResult::TooLate,
            ResponseResult::Before,
        ]);
        feeds[&0].tell(ShardMessage::Events((2..=4).map(|seq| command(seq, 1, 2)).collect())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        let told: Vec<u64> = world.phone.told.lock().unwrap().iter().map(|(id, _)| *id).collect();
        assert_eq!(told, [1_002, 1_003, 1_004]);
        let answered = world.store.operations();
        assert_eq!(world.store.said(), ["hi 77", "hi 77"], "the second interaction has expired");
        assert!(answered.iter().all(|operation| operation.kind.name() == "edit_original"));
        assert!(answered[1].payload.contains("token-4"));
    });
}

#[test]
fn what_cannot_be_deferred_is_answered_at_once() {
    paused(async {
        let webhook = json!({ "url": "https://brain.example/", "secrets": ["whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"] });
        let fills = json!([{ "name": "fill", "on": "interaction.autocomplete.#", "webhook": webhook }]);
        let world = World::new(&fills);
        let choices = json!([{ "name": "a", "value": "a" }]);
        world.brain.mood(2, [Mood::Says(WebhookResponse { reply: Some(choices), ..WebhookResponse::default() })]);
        let (events, feeds) = world.start().await;
        begin(&feeds[&0], SESSION);
        feeds[&0].tell(ShardMessage::Events(vec![command(2, 1, 4)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        let told = world.phone.told.lock().unwrap().clone();
        let whole = json!({ "type": 8, "data": { "choices": [{ "name": "a", "value": "a" }] } });
        assert_eq!(told, [(1_002, InitialResponse::Whole(whole))]);
        assert!(world.store.operations().is_empty());
    });
}

#[test]
fn an_event_that_breaks_its_guild_becomes_a_dead_letter_and_the_others_go_on() {
    paused(async {
        let both = json!([
            { "name": "breaks", "on": "interaction.command.hello", "defer": "never", "do": [], "reply": "x" },
            { "name": "other", "on": "interaction.command.hello", "set": [{ "key": "heard:{interaction_id}", "value": true }], "do": [] },
        ]);
        let mut world = World::new(&both);
        world.phone.panics = true;
        let (events, feeds) = world.start().await;
        begin(&feeds[&0], SESSION);
        feeds[&0].tell(ShardMessage::Events(vec![command(2, 1, 2), command(3, 1, 2)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        let dead = world.store.inbox_now();
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
fn a_handler_in_the_shadow_does_nothing() {
    paused(async {
        let mut world = World::new(&echo());
        world.handlers = world.handlers.in_shadow();
        let (events, feeds) = world.start().await;
        begin(&feeds[&0], SESSION);
        feeds[&0].tell(ShardMessage::Events(vec![message(SESSION, 2, 1)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        assert_eq!((world.store.operations().len(), world.store.confirmed(0)), (0, Some(2)));
    });
}

#[test]
fn a_handler_hears_what_it_needs_and_rests_after_it() {
    paused(async {
        let payload = json!({ "channel_id": "5", "content": "{state.sess:profile:{user_id}}" });
        let greets = json!([{
            "name": "greet", "on": "message.create", "needs": ["sess:profile:{user_id}"],
            "cooldown": { "key": "{user_id}", "for_ms": 60_000 },
            "do": [{ "kind": "send_message", "payload": payload }],
        }]);
        let world = World::new(&greets);
        world.store.put_state("sess:profile:77", &json!("Ada"));
        let (events, feeds) = world.start().await;
        begin(&feeds[&0], SESSION);
        feeds[&0].tell(ShardMessage::Events(vec![message(SESSION, 2, 1), message(SESSION, 3, 1)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        assert_eq!(world.store.said(), ["Ada"]);
    });
}

#[test]
fn an_answer_that_sets_a_reserved_key_has_no_effect() {
    paused(async {
        let sets = |key: &str| {
            let set = vec![("fine".to_owned(), json!(1), None), (key.to_owned(), json!({}), None)];
            Mood::Says(WebhookResponse { set, reply: Some(json!("hi")), ..says("beside") })
        };
        // Over HTTP and not deferred: its reply must not be sent either.
        let world = World::new(&hears("interaction.command.hello", "never"));
        world.brain.mood(1_002, [sets("gate:1")]);
        let (events, _feeds) = world.start().await;
        assert_eq!(events.interaction(posted(2, 1, 2)).await, HttpInteractionResponse::Nobody);
        let dead =
            |world: &World| world.store.inbox_now().iter().filter_map(|entry| entry.dead.clone()).collect::<Vec<_>>();
        world.until("the event is dead", || dead(&world).len() == 1).await;
        assert!(dead(&world)[0].contains("set.gate:1: a key must not start with `gate:`"), "{:?}", dead(&world));
        assert!(world.store.said().is_empty() && world.store.state("fine").is_none());

        let world = World::new(&asks());
        world.brain.mood(2, [sets("COOLDOWN:brain:1")]);
        let (events, feeds) = world.start().await;
        begin(&feeds[&0], SESSION);
        feeds[&0].tell(ShardMessage::Events(vec![message(SESSION, 2, 1), message(SESSION, 3, 1)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(60)).await);
        assert_eq!(world.store.said(), ["3"], "the next event is not delayed");
        assert_eq!(dead(&world).len(), 1);
        assert!(world.store.state("fine").is_none() && world.store.state("COOLDOWN:brain:1").is_none());
    });
}

/// A webhook for commands, deferred or not.
fn hears(on: &str, defer: &str) -> Value {
    let webhook = json!({ "url": "https://brain.example/", "secrets": ["whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"] });
    json!([{ "name": "brain", "on": on, "defer": defer, "ephemeral": true, "webhook": webhook }])
}

fn replies(reply: Value) -> Mood {
    Mood::Says(WebhookResponse { reply: Some(reply), ..says("beside") })
}

#[test]
fn an_interaction_over_http_is_kept_before_it_is_deferred_and_then_answered_once_however_often_it_comes() {
    paused(async {
        let world = World::new(&hears("interaction.command.hello", "auto"));
        world.brain.mood(1_002, [replies(json!("hi"))]);
        let (events, _feeds) = world.start().await;
        let deferred = HttpInteractionResponse::Answer(InitialResponse::Deferred { ephemeral: true });
        assert_eq!(events.interaction(posted(2, 1, 2)).await, deferred);
        assert!(world.phone.told.lock().unwrap().is_empty(), "the response is the HTTP response");
        world.until("it is answered", || world.store.said() == ["beside", "hi"]).await;
        assert_eq!(events.interaction(posted(2, 1, 2)).await, deferred, "a replay gets the same response");
        assert_eq!(events.interaction(posted(3, 1, 2)).await, deferred);
        world.until("the next one is called", || world.brain.asked() == [1_002, 1_003]).await;
        world.until("the inbox is empty", || world.store.inbox_now().is_empty()).await;
        assert_eq!(world.store.said(), ["beside", "hi", "1003"]);
        assert_eq!(events.observe().await.map(|seen| seen.inbox), Some(0));
    });
}

#[test]
fn a_crash_after_an_interaction_over_http_was_deferred_loses_nothing() {
    let world = World::new(&hears("interaction.command.hello", "auto"));
    let runtime = runtime();
    LocalSet::new().block_on(&runtime, async {
        world.brain.mood(1_002, [Mood::Hangs]);
        let (events, _feeds) = world.start().await;
        assert!(matches!(
            events.interaction(posted(2, 1, 2)).await,
            HttpInteractionResponse::Answer(InitialResponse::Deferred { .. })
        ));
    });
    assert_eq!(world.store.inbox_now().len(), 1);
    world.brain.mood(1_002, [replies(json!("hi"))]);
    LocalSet::new().block_on(&runtime, async {
        let (_events, _feeds) = world.start().await;
        world.until("it is answered", || world.store.said() == ["beside", "hi"]).await;
    });
}

#[test]
fn an_interaction_over_http_that_cannot_be_deferred_is_answered_with_the_reply_and_told_once() {
    paused(async {
        for (on, defer, kind) in
            [("interaction.autocomplete.hello", "auto", 4), ("interaction.command.hello", "never", 2)]
        {
            let world = World::new(&hears(on, defer));
            let whole = json!({ "type": if kind == 4 { 8 } else { 4 }, "data": { "choices": [] } });
            world.brain.mood(1_002, [replies(whole.clone())]);
            let (events, _feeds) = world.start().await;
            assert_eq!(
                events.interaction(posted(2, 1, kind)).await,
                HttpInteractionResponse::Answer(InitialResponse::Whole(whole))
            );
            assert_eq!(world.store.said(), ["beside"], "it is stored before it is answered");
            let again = events.interaction(posted(2, 1, kind)).await;
            assert_eq!(again, HttpInteractionResponse::Answer(InitialResponse::Deferred { ephemeral: false }));
            assert_eq!((world.brain.asked(), world.store.said().len()), (vec![1_002], 1));
        }
    });
}

#[test]
fn an_interaction_over_http_that_nobody_wants_or_answers_in_time_has_no_answer() {
    paused(async {
        let world = World::new(&hears("interaction.autocomplete.hello", "auto"));
        world.brain.mood(1_002, [Mood::Hangs]);
        let (events, _feeds) = world.start().await;
        assert_eq!(events.interaction(posted(3, 1, 2)).await, HttpInteractionResponse::Nobody);
        assert_eq!(events.interaction(posted(2, 1, 4)).await, HttpInteractionResponse::Nobody);
        world.until("it is dead", || world.store.inbox_now().iter().any(|entry| entry.dead.is_some())).await;
        assert_eq!(world.brain.asked(), [1_002]);
    });
}

#[test]
fn an_interaction_over_http_is_refused_while_the_inbox_is_full() {
    paused(async {
        let config = EventsConfig { inbox_most: 1, ..EventsConfig::default() };
        let world = World { config, ..World::new(&hears("interaction.command.hello", "auto")) };
        world.brain.mood(1_002, [Mood::Hangs]);
        let (events, _feeds) = world.start().await;
        assert!(matches!(events.interaction(posted(2, 1, 2)).await, HttpInteractionResponse::Answer(_)));
        assert_eq!(events.interaction(posted(3, 1, 2)).await, HttpInteractionResponse::Busy);
        assert_eq!(world.store.inbox_now().len(), 1);
    });
}

#[test]
fn what_a_handler_needs_it_hears_although_the_event_waited_in_the_inbox() {
    paused(async {
        let payload = json!({ "channel_id": "5", "content": "{state.sess:profile:{user_id}}" });
        let greets = json!([{
            "name": "greet", "on": "interaction.command.hello", "needs": ["sess:profile:{user_id}"],
            "cooldown": { "key": "{user_id}", "for_ms": 60_000 },
            "do": [{ "kind": "send_message", "payload": payload }],
        }]);
        let world = World::new(&greets);
        world.store.put_state("sess:profile:77", &json!("Ada"));
        let (events, _feeds) = world.start().await;
        assert!(matches!(events.interaction(posted(2, 1, 2)).await, HttpInteractionResponse::Answer(_)));
        world.until("it is handled", || world.store.said() == ["Ada"]).await;
        assert!(matches!(events.interaction(posted(3, 1, 2)).await, HttpInteractionResponse::Answer(_)));
        world.until("the inbox is empty", || world.store.inbox_now().is_empty()).await;
        assert_eq!(world.store.said(), ["Ada"], "the cooldown applies");
    });
}

#[test]
fn an_event_that_a_person_revives_is_handled_and_what_comes_after_it_waits_behind_it() {
    paused(async {
        let world = World::new(&asks());
        let (events, feeds) = world.start().await;
        begin(&feeds[&0], SESSION);
        let never = Mood::Fails(WebhookCallError::Never { why: "it answered 302".to_owned() });
        world.brain.mood(2, [never, Mood::Hangs]);
        feeds[&0].tell(ShardMessage::Events(vec![message(SESSION, 2, 1), message(SESSION, 3, 1)].into())).unwrap();
        world.until("the other is handled", || world.store.said() == ["3"]).await;
        let dead = world.store.inbox_now()[0].place;
        let note = Caller::operator().note(AuditAction::EventsRevive, UnixMs::new(0));
        assert!(EventStore::revive(&world.store, dead, note).await.unwrap());
        events.revived();
        world.until("the webhook is called again", || world.brain.asked() == [2, 3, 2]).await;
        feeds[&0].tell(ShardMessage::Events(vec![message(SESSION, 4, 1)].into())).unwrap();
        assert!(events.drain(Duration::from_secs(5)).await);
        assert_eq!(events.observe().await.map(|seen| seen.inbox), Some(2));
        world.brain.go_on();
        world.until("both are handled", || world.store.said() == ["3", "2", "4"]).await;
        world.until("the inbox is empty", || world.store.inbox_now().is_empty()).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(events.observe().await.map(|seen| seen.inbox), Some(0));
    });
}
