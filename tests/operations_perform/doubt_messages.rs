//! Messages with an unknown outcome.

use guildhall_actors::ports::{Execution, ReconcileResult};
use guildhall_core::operation::payload::{EnsureMessage, MessageBody, SendDm, SendMessage};
use guildhall_core::operation::{ManagedKind, Payload, Reference};
use guildhall_sim::{FaultAction, FireSpec, MessageSpec, Snowflake};
use http::Method;
use serde_json::json;

use crate::gate::run;
use crate::stage::{PLAIN, Stage, VIEW_CHANNEL, number, says, send_message, skewed};

const SEND: &str = "POST /channels/*/messages";

async fn count(stage: &Stage, channel: u64, content: &str) -> usize {
    let messages = stage.get(&format!("/channels/{channel}/messages?limit=100")).await;
    messages.as_array().unwrap().iter().filter(|message| message["content"] == content).count()
}

#[test]
fn a_message_that_was_sent_is_found_and_one_that_was_not_is_absent_whatever_the_clock_says() {
    run(async {
        let stage = Stage::with_permissions(PLAIN).await;
        let channel = stage.place.channel;
        for seconds in [-30, 0, 30] {
            let never = format!("never {seconds}");
            let work = skewed(stage.work(send_message(channel, &never)), seconds);
            stage.lost(&work, SEND, FaultAction::DropBefore).await;
            assert_eq!(stage.reconcile(&work).await, ReconcileResult::Absent);
            stage.done(&work).await;
            assert_eq!(count(&stage, channel, &never).await, 1);

            let sent = format!("sent {seconds}");
            let work = skewed(stage.work(send_message(channel, &format!("  {sent} "))), seconds);
            stage.lost(&work, SEND, FaultAction::DropAfter).await;
            let found = stage.found(&work).await;
            assert_eq!((found.bind[0].kind, found.bind[0].channel), (ManagedKind::Message, Some(channel)));
            assert_eq!(count(&stage, channel, &sent).await, 1);
            let held = stage.get(&format!("/channels/{channel}/messages/{}", found.made.unwrap())).await;
            assert_eq!(held["content"], json!(sent));
        }
    });
}

#[test]
fn messages_of_others_and_of_interactions_are_never_taken_for_it() {
    run(async {
        let stage = Stage::new().await;
        let (channel, guild) = (stage.place.channel, Snowflake::new(stage.place.guild));
        let member = MessageSpec {
            channel_id: Snowflake::new(channel),
            guild_id: None,
            content: "same".into(),
            user_id: None,
            count: 1,
            per_second: 0.0,
        };
        stage.world.sim.write(member).await.unwrap();
        let fired = stage.world.sim.fire(FireSpec::command(guild, "x")).await.unwrap();
        let callback = format!("/interactions/{}/{}/callback", fired.id.unwrap(), fired.token.unwrap());
        stage.aside(Method::POST, &callback, &json!({ "type": 4, "data": { "content": "same" } })).await;
        let other = stage.done(&stage.work(send_message(channel, "same"))).await.made.unwrap();
        let reply = SendMessage {
            channel: Reference::Id(channel),
            key: None,
            reply_to: Some(Reference::Id(other)),
            body: says("same"),
        };
        let reply = stage.work(Payload::SendMessage(reply));
        let work = stage.work(send_message(channel, "same"));
        stage.lost(&work, SEND, FaultAction::DropBefore).await;
        assert_eq!(
            stage.reconcile(&work).await,
            ReconcileResult::Absent,
            "the message of the other operation is bound"
        );
        stage.lost(&work, SEND, FaultAction::DropAfter).await;
        let found = stage.found(&work).await.made.unwrap();
        assert_ne!(found, other);
        assert_eq!(stage.reconcile(&reply).await, ReconcileResult::Absent, "a reply does not match a plain message");
        stage.lost(&reply, SEND, FaultAction::DropAfter).await;
        assert_ne!(stage.found(&reply).await.made, Some(found));
    });
}

#[test]
fn several_that_say_the_same_or_one_that_is_merely_alike_are_unclear() {
    run(async {
        let stage = Stage::new().await;
        let channel = stage.place.channel;
        let path = format!("/channels/{channel}/messages");
        for _ in 0..2 {
            stage.aside(Method::POST, &path, &json!({ "content": "twin" })).await;
        }
        let work = stage.work(send_message(channel, "twin"));
        assert!(stage.unclear(&work).await.contains("several"));

        stage.aside(Method::POST, &path, &json!({ "content": "card", "embeds": [{ "title": "a" }] })).await;
        let with = |title: &str| {
            let body = MessageBody { embeds: Some(vec![json!({ "title": title })]), ..says("card") };
            let message = SendMessage { channel: Reference::Id(channel), key: None, reply_to: None, body };
            stage.work(Payload::SendMessage(message))
        };
        assert!(stage.unclear(&with("b")).await.contains("are similar"));
        assert!(stage.found(&with("a")).await.made.is_some());
    });
}

#[test]
fn a_message_is_found_behind_a_hundred_others() {
    run(async {
        let stage = Stage::new().await;
        let channel = stage.place.channel;
        let noise = |count| MessageSpec {
            channel_id: Snowflake::new(channel),
            guild_id: None,
            content: "noise".into(),
            user_id: None,
            count,
            per_second: 0.0,
        };
        stage.world.sim.write(noise(150)).await.unwrap();
        let work = stage.work(send_message(channel, "needle"));
        stage.lost(&work, SEND, FaultAction::DropAfter).await;
        stage.world.sim.write(noise(150)).await.unwrap();
        assert!(stage.found(&work).await.made.is_some());
        stage.world.sim.write(noise(900)).await.unwrap();
        let never = stage.work(send_message(channel, "never"));
        assert!(stage.unclear(&never).await.contains("too many"), "the history could not be read completely");
    });
}

#[test]
fn a_history_that_the_bot_may_not_read_proves_nothing() {
    run(async {
        let stage = Stage::new().await;
        let channel = stage.place.channel;
        let quiet = stage.work(send_message(channel, "hush"));
        assert_eq!(
            stage.reconcile(&quiet).await,
            ReconcileResult::Absent,
            "an empty history that can be read is proof"
        );

        let stage = Stage::with_permissions(PLAIN).await;
        let (channel, guild) = (stage.place.channel, stage.place.guild);
        let path = format!("/channels/{channel}/permissions/{guild}");
        stage.aside(Method::PUT, &path, &json!({ "type": 0, "deny": (1_u64 << 16).to_string() })).await;
        let work = stage.work(send_message(channel, "hush"));
        stage.lost(&work, SEND, FaultAction::DropAfter).await;
        assert!(stage.unclear(&work).await.contains("READ_MESSAGE_HISTORY"));
        stage.aside(Method::PUT, &path, &json!({ "type": 0, "deny": VIEW_CHANNEL.to_string() })).await;
        assert!(stage.unclear(&work).await.contains("the search failed"));
    });
}

#[test]
fn a_direct_message_is_found_in_its_own_channel() {
    run(async {
        let stage = Stage::new().await;
        let dm = |content: &str| Payload::SendDm(SendDm { user: stage.place.member, body: says(content) });
        let never = Execution { guild: None, ..stage.work(dm("never")) };
        stage.lost(&never, SEND, FaultAction::DropBefore).await;
        assert_eq!(stage.reconcile(&never).await, ReconcileResult::Absent);
        let work = Execution { guild: None, ..stage.work(dm("psst")) };
        stage.lost(&work, SEND, FaultAction::DropAfter).await;
        let found = stage.found(&work).await;
        assert_eq!(count(&stage, number(&found.result["channel_id"]), "psst").await, 1);
        // Opening the channel is idempotent: an unknown outcome of it is not one of the message.
        let opening = Execution { guild: None, ..stage.work(dm("third")) };
        stage.world.fault_once("POST /users/@me/channels", FaultAction::DropAfter);
        let failure = stage.failed(&opening).await;
        assert_eq!(failure.class, guildhall_core::operation::FailureClass::Transient);
    });
}

#[test]
fn an_ensured_message_that_is_yet_to_be_pinned_is_finished_by_doing_it_again() {
    run(async {
        let stage = Stage::new().await;
        let channel = stage.place.channel;
        let ensure = |pin| {
            let (key, channel) = ("rules".to_owned(), Reference::Id(channel));
            stage.work(Payload::EnsureMessage(EnsureMessage { key, channel, body: says("rules"), pin }))
        };
        let work = ensure(Some(true));
        stage.lost(&work, SEND, FaultAction::DropAfter).await;
        assert_eq!(stage.reconcile(&work).await, ReconcileResult::Absent);
        let done = stage.done(&work).await;
        assert_eq!((&done.result["outcome"], count(&stage, channel, "rules").await), (&json!("found"), 1));
        let pinned = stage.get(&format!("/channels/{channel}/messages/{}", done.made.unwrap())).await;
        assert_eq!(pinned["pinned"], true);

        let other = ensure(None);
        stage.lost(&other, SEND, FaultAction::DropAfter).await;
        let found = stage.found(&other).await;
        assert_eq!(found.bind[0].key, "rules");
        let bound = Some((found.made.unwrap(), Some(channel)));
        assert_eq!(
            stage.reconcile(&Execution { bound, ..other }).await,
            ReconcileResult::Absent,
            "the existing message was not sent by it"
        );
    });
}
