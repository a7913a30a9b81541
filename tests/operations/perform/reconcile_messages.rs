//! Messages with an unknown outcome.

use guildhall_actors::ports::{Execution, ReconcileResult};
use guildhall_core::operation::payload::{EnsureMessage, MessageBody, SendDm, SendMessage};
use guildhall_core::operation::{ManagedKind, Payload, Reference};
use guildhall_sim::{FaultAction, FireSpec, MessageSpec, Snowflake};
use guildhall_testkit::gate::run;
use http::Method;
use serde_json::json;

use super::fixture::{
    BASIC_PERMISSIONS, ExecutorFixture, VIEW_CHANNEL, message_body, parse_id, send_message, with_clock_skew,
};

const SEND_ROUTE: &str = "POST /channels/*/messages";

async fn count_messages(fixture: &ExecutorFixture, channel: u64, content: &str) -> usize {
    let messages = fixture.get(&format!("/channels/{channel}/messages?limit=100")).await;
    messages.as_array().unwrap().iter().filter(|message| message["content"] == content).count()
}

#[test]
fn sent_message_is_found_with_any_clock_skew() {
    run(async {
        let fixture = ExecutorFixture::with_permissions(BASIC_PERMISSIONS).await;
        let channel = fixture.create_guild_fixture.channel;
        for seconds in [-30, 0, 30] {
            let never = format!("never {seconds}");
            let execution = with_clock_skew(fixture.execution(send_message(channel, &never)), seconds);
            fixture.execute_lost(&execution, SEND_ROUTE, FaultAction::DropBefore).await;
            assert_eq!(fixture.reconcile(&execution).await, ReconcileResult::Absent);
            fixture.execute(&execution).await;
            assert_eq!(count_messages(&fixture, channel, &never).await, 1);

            let sent = format!("sent {seconds}");
            let execution = with_clock_skew(fixture.execution(send_message(channel, &format!("  {sent} "))), seconds);
            fixture.execute_lost(&execution, SEND_ROUTE, FaultAction::DropAfter).await;
            let found = fixture.reconcile_found(&execution).await;
            assert_eq!((found.bind[0].kind, found.bind[0].channel), (ManagedKind::Message, Some(channel)));
            assert_eq!(count_messages(&fixture, channel, &sent).await, 1);
            let stored = fixture.get(&format!("/channels/{channel}/messages/{}", found.created.unwrap())).await;
            assert_eq!(stored["content"], json!(sent));
        }
    });
}

#[test]
fn messages_of_others_and_of_interactions_do_not_match() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let (channel, guild) =
            (fixture.create_guild_fixture.channel, Snowflake::new(fixture.create_guild_fixture.guild));
        let member = MessageSpec {
            channel_id: Snowflake::new(channel),
            guild_id: None,
            content: "same".into(),
            user_id: None,
            count: 1,
            per_second: 0.0,
        };
        fixture.world.sim.send_messages(member).await.unwrap();
        let fired = fixture.world.sim.fire(FireSpec::command(guild, "x")).await.unwrap();
        let callback = format!("/interactions/{}/{}/callback", fired.id.unwrap(), fired.token.unwrap());
        fixture.call_discord(Method::POST, &callback, &json!({ "type": 4, "data": { "content": "same" } })).await;
        let other = fixture.execute(&fixture.execution(send_message(channel, "same"))).await.created.unwrap();
        let reply = SendMessage {
            channel: Reference::Id(channel),
            key: None,
            reply_to: Some(Reference::Id(other)),
            body: message_body("same"),
        };
        let reply = fixture.execution(Payload::SendMessage(reply));
        let execution = fixture.execution(send_message(channel, "same"));
        fixture.execute_lost(&execution, SEND_ROUTE, FaultAction::DropBefore).await;
        assert_eq!(
            fixture.reconcile(&execution).await,
            ReconcileResult::Absent,
            "the message of the other operation is bound"
        );
        fixture.execute_lost(&execution, SEND_ROUTE, FaultAction::DropAfter).await;
        let found = fixture.reconcile_found(&execution).await.created.unwrap();
        assert_ne!(found, other);
        assert_eq!(fixture.reconcile(&reply).await, ReconcileResult::Absent, "a reply does not match a plain message");
        fixture.execute_lost(&reply, SEND_ROUTE, FaultAction::DropAfter).await;
        assert_ne!(fixture.reconcile_found(&reply).await.created, Some(found));
    });
}

#[test]
fn identical_or_similar_messages_are_unclear() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let channel = fixture.create_guild_fixture.channel;
        let path = format!("/channels/{channel}/messages");
        for _ in 0..2 {
            fixture.call_discord(Method::POST, &path, &json!({ "content": "twin" })).await;
        }
        let execution = fixture.execution(send_message(channel, "twin"));
        assert!(fixture.reconcile_unclear(&execution).await.contains("several"));

        fixture.call_discord(Method::POST, &path, &json!({ "content": "card", "embeds": [{ "title": "a" }] })).await;
        let with_embed = |title: &str| {
            let body = MessageBody { embeds: Some(vec![json!({ "title": title })]), ..message_body("card") };
            let message = SendMessage { channel: Reference::Id(channel), key: None, reply_to: None, body };
            fixture.execution(Payload::SendMessage(message))
        };
        assert!(fixture.reconcile_unclear(&with_embed("b")).await.contains("are similar"));
        assert!(fixture.reconcile_found(&with_embed("a")).await.created.is_some());
    });
}

#[test]
fn message_is_found_behind_a_hundred_others() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let channel = fixture.create_guild_fixture.channel;
        let noise = |count| MessageSpec {
            channel_id: Snowflake::new(channel),
            guild_id: None,
            content: "noise".into(),
            user_id: None,
            count,
            per_second: 0.0,
        };
        fixture.world.sim.send_messages(noise(150)).await.unwrap();
        let execution = fixture.execution(send_message(channel, "needle"));
        fixture.execute_lost(&execution, SEND_ROUTE, FaultAction::DropAfter).await;
        fixture.world.sim.send_messages(noise(150)).await.unwrap();
        assert!(fixture.reconcile_found(&execution).await.created.is_some());
        fixture.world.sim.send_messages(noise(900)).await.unwrap();
        let never = fixture.execution(send_message(channel, "never"));
        assert!(
            fixture.reconcile_unclear(&never).await.contains("too many"),
            "the history could not be read completely"
        );
    });
}

#[test]
fn unreadable_history_is_unclear() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let channel = fixture.create_guild_fixture.channel;
        let execution_in_empty_channel = fixture.execution(send_message(channel, "hush"));
        assert_eq!(
            fixture.reconcile(&execution_in_empty_channel).await,
            ReconcileResult::Absent,
            "an empty history that can be read is proof"
        );

        let fixture = ExecutorFixture::with_permissions(BASIC_PERMISSIONS).await;
        let (channel, guild) = (fixture.create_guild_fixture.channel, fixture.create_guild_fixture.guild);
        let path = format!("/channels/{channel}/permissions/{guild}");
        fixture.call_discord(Method::PUT, &path, &json!({ "type": 0, "deny": (1_u64 << 16).to_string() })).await;
        let execution = fixture.execution(send_message(channel, "hush"));
        fixture.execute_lost(&execution, SEND_ROUTE, FaultAction::DropAfter).await;
        assert!(fixture.reconcile_unclear(&execution).await.contains("READ_MESSAGE_HISTORY"));
        fixture.call_discord(Method::PUT, &path, &json!({ "type": 0, "deny": VIEW_CHANNEL.to_string() })).await;
        assert!(fixture.reconcile_unclear(&execution).await.contains("the search failed"));
    });
}

#[test]
fn direct_message_is_found_in_its_own_channel() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let dm = |content: &str| {
            Payload::SendDm(SendDm { user: fixture.create_guild_fixture.member, body: message_body(content) })
        };
        let never = Execution { guild: None, ..fixture.execution(dm("never")) };
        fixture.execute_lost(&never, SEND_ROUTE, FaultAction::DropBefore).await;
        assert_eq!(fixture.reconcile(&never).await, ReconcileResult::Absent);
        let execution = Execution { guild: None, ..fixture.execution(dm("psst")) };
        fixture.execute_lost(&execution, SEND_ROUTE, FaultAction::DropAfter).await;
        let found = fixture.reconcile_found(&execution).await;
        assert_eq!(count_messages(&fixture, parse_id(&found.result["channel_id"]), "psst").await, 1);
        // Opening the channel is idempotent: an unknown outcome of it is not one of the message.
        let opening = Execution { guild: None, ..fixture.execution(dm("third")) };
        fixture.world.fault_once("POST /users/@me/channels", FaultAction::DropAfter);
        let failure = fixture.execute_failing(&opening).await;
        assert_eq!(failure.class, guildhall_core::operation::FailureClass::Transient);
    });
}

#[test]
fn unpinned_ensured_message_is_pinned_by_a_retry() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let channel = fixture.create_guild_fixture.channel;
        let ensure = |pin| {
            let (key, channel) = ("rules".to_owned(), Reference::Id(channel));
            fixture.execution(Payload::EnsureMessage(EnsureMessage { key, channel, body: message_body("rules"), pin }))
        };
        let execution = ensure(Some(true));
        fixture.execute_lost(&execution, SEND_ROUTE, FaultAction::DropAfter).await;
        assert_eq!(fixture.reconcile(&execution).await, ReconcileResult::Absent);
        let done = fixture.execute(&execution).await;
        assert_eq!((&done.result["outcome"], count_messages(&fixture, channel, "rules").await), (&json!("found"), 1));
        let pinned = fixture.get(&format!("/channels/{channel}/messages/{}", done.created.unwrap())).await;
        assert_eq!(pinned["pinned"], true);

        let other = ensure(None);
        fixture.execute_lost(&other, SEND_ROUTE, FaultAction::DropAfter).await;
        let found = fixture.reconcile_found(&other).await;
        assert_eq!(found.bind[0].key, "rules");
        let bound = Some((found.created.unwrap(), Some(channel)));
        assert_eq!(
            fixture.reconcile(&Execution { existing: bound, ..other }).await,
            ReconcileResult::Absent,
            "the existing message was not sent by it"
        );
    });
}
