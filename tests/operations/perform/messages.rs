//! Messages: the effect of each kind.

use guildhall_actors::ports::{Execution, ExecutionResult};
use guildhall_core::operation::payload::{DeleteMessage, EditMessage, EnsureMessage, MessageBody, SendDm, SendMessage};
use guildhall_core::operation::{FailureClass, ManagedKind, Payload, Reference};
use guildhall_sim::FaultAction;
use guildhall_testkit::gate::run;
use serde_json::{Value, json};

use super::fixture::{ExecutorFixture, message_body, parse_id, send_message};

const PATCH_MESSAGE: &str = "PATCH /channels/{channel.id}/messages/{message.id}";
const POST_MESSAGE: &str = "POST /channels/{channel.id}/messages";

async fn messages(fixture: &ExecutorFixture, channel: u64) -> Vec<Value> {
    fixture.get(&format!("/channels/{channel}/messages")).await.as_array().unwrap().clone()
}

#[test]
fn message_is_sent_edited_and_deleted_without_mentions() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let channel = fixture.create_guild_fixture.channel;
        let hello = format!("hello <@{}> @everyone", fixture.create_guild_fixture.member);
        let execution = fixture.execution(send_message(channel, &hello));
        let sent = fixture.execute(&execution).await;
        let id = sent.created.unwrap();
        let expected = json!({ "channel_id": channel.to_string(), "message_id": id.to_string(), "outcome": "created" });
        assert_eq!(sent.result, expected);
        assert_eq!((sent.bind[0].kind, sent.bind[0].channel), (ManagedKind::Message, Some(channel)));
        let stored = fixture.get(&format!("/channels/{channel}/messages/{id}")).await;
        assert_eq!((&stored["mentions"], &stored["mention_everyone"]), (&json!([]), &json!(false)));
        assert_eq!(fixture.execute(&execution).await.created, Some(id), "the nonce prevents a duplicate");

        let body = MessageBody { allowed_mentions: Some(json!({ "parse": ["users"] })), ..message_body(&hello) };
        let reply = SendMessage { channel: Reference::Id(channel), key: None, reply_to: Some(Reference::Id(id)), body };
        let reply = fixture.execute(&fixture.execution(Payload::SendMessage(reply))).await.created.unwrap();
        let stored = fixture.get(&format!("/channels/{channel}/messages/{reply}")).await;
        assert_eq!(stored["message_reference"]["message_id"], json!(id.to_string()));
        assert_eq!(stored["mentions"].as_array().unwrap().len(), 1);

        let (channel_ref, message) = (Reference::Id(channel), Reference::Id(id));
        let embeds = Some(vec![json!({ "title": "more" })]);
        let body = MessageBody { embeds, ..MessageBody::default() };
        let edit = EditMessage { channel: channel_ref.clone(), message: message.clone(), body };
        fixture.execute(&fixture.execution(Payload::EditMessage(edit))).await;
        let stored = fixture.get(&format!("/channels/{channel}/messages/{id}")).await;
        assert_eq!((&stored["content"], &stored["embeds"][0]["title"]), (&json!(hello), &json!("more")));

        let delete = fixture.execution(Payload::DeleteMessage(DeleteMessage { channel: channel_ref, message }));
        assert_eq!(fixture.execute(&delete).await.result, json!({ "deleted": true }));
        assert_eq!(fixture.execute(&delete).await.result, json!({ "deleted": false }));
        assert_eq!(messages(&fixture, channel).await.len(), 1);
    });
}

#[test]
fn direct_messages_use_one_channel_for_each_user() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let dm = |content: &str| {
            Payload::SendDm(SendDm { user: fixture.create_guild_fixture.member, body: message_body(content) })
        };
        let first = fixture.execute(&Execution { guild: None, ..fixture.execution(dm("one")) }).await;
        let second = fixture.execute(&Execution { guild: None, ..fixture.execution(dm("two")) }).await;
        assert_eq!(first.result["channel_id"], second.result["channel_id"]);
        let stored = messages(&fixture, parse_id(&first.result["channel_id"])).await;
        assert_eq!(stored.iter().map(|one| &one["content"]).collect::<Vec<_>>(), [&json!("two"), &json!("one")]);

        let bot = parse_id(&fixture.get("/users/@me").await["id"]);
        let to_bot = Payload::SendDm(SendDm { user: bot, body: message_body("me") });
        assert_eq!(fixture.execute_failing(&fixture.execution(to_bot)).await.class, FailureClass::Forbidden);
    });
}

fn ensure(channel: u64, body: MessageBody, pin: Option<bool>) -> Payload {
    Payload::EnsureMessage(EnsureMessage { key: "rules".to_owned(), channel: Reference::Id(channel), body, pin })
}

#[test]
fn ensuring_a_message_twice_sends_one_and_changes_nothing() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let channel = fixture.create_guild_fixture.channel;
        let body = || MessageBody {
            embeds: Some(vec![json!({ "title": "Rules", "fields": [{ "name": "1", "value": "be kind" }] })]),
            components: Some(vec![
                json!({ "type": 1, "components": [{ "type": 2, "style": 1, "label": "ok", "custom_id": "ok" }] }),
            ]),
            ..message_body(" read this ")
        };
        let created = fixture.execute(&fixture.execution(ensure(channel, body(), Some(true)))).await;
        let bound = Some((created.created.unwrap(), Some(channel)));
        assert_eq!(created.bind[0].channel, Some(channel));
        let repeated = fixture
            .execute(&Execution { existing: bound, ..fixture.execution(ensure(channel, body(), Some(true))) })
            .await;
        assert_eq!(repeated.result["outcome"], "unchanged");
        assert_eq!((fixture.world.arrived_at(PATCH_MESSAGE), fixture.world.arrived_at(POST_MESSAGE)), (0, 1));
        let pins = fixture.get(&format!("/channels/{channel}/messages/pins")).await;
        assert_eq!(pins["items"].as_array().unwrap().len(), 1);

        let other = MessageBody { content: Some("read that".into()), ..MessageBody::default() };
        let changed = fixture
            .execute(&Execution { existing: bound, ..fixture.execution(ensure(channel, other, Some(false))) })
            .await;
        assert_eq!(changed.result["outcome"], "updated");
        let stored = fixture.get(&format!("/channels/{channel}/messages/{}", created.created.unwrap())).await;
        assert_eq!((&stored["content"], &stored["pinned"]), (&json!("read that"), &json!(false)));
        assert_eq!(stored["embeds"][0]["title"], "Rules", "omitted fields stay");
    });
}

#[test]
fn failed_pin_is_retried_without_a_second_message() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let channel = fixture.create_guild_fixture.channel;
        let execution = fixture.execution(ensure(channel, message_body("rules"), Some(true)));
        fixture.world.fault_once(
            "PUT /channels/{channel.id}/messages/pins/{message.id}",
            FaultAction::Status { status: 503, code: 0 },
        );
        assert_eq!(fixture.execute_failing(&execution).await.class, FailureClass::Transient);
        let ExecutionResult::Done(done) = fixture.perform(&execution).await else { panic!("not done") };
        assert_eq!(done.result["outcome"], "found");
        let stored = messages(&fixture, channel).await;
        assert_eq!(stored.iter().filter(|one| one["content"] == "rules").count(), 1);
        assert_eq!(
            fixture.get(&format!("/channels/{channel}/messages/{}", done.created.unwrap())).await["pinned"],
            true
        );
    });
}

#[test]
fn deleted_message_is_sent_again() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let channel = fixture.create_guild_fixture.channel;
        let created =
            fixture.execute(&fixture.execution(ensure(channel, message_body("rules"), None))).await.created.unwrap();
        let gone = DeleteMessage { channel: Reference::Id(channel), message: Reference::Id(created) };
        fixture.execute(&fixture.execution(Payload::DeleteMessage(gone))).await;
        let bound = Some((created, Some(channel)));
        let recreated = fixture
            .execute(&Execution { existing: bound, ..fixture.execution(ensure(channel, message_body("rules"), None)) })
            .await;
        assert_eq!(
            (&recreated.result["outcome"], recreated.unbind),
            (&json!("created"), vec![(ManagedKind::Message, created)])
        );
        assert_eq!(messages(&fixture, channel).await.len(), 1);
    });
}
