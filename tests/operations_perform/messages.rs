//! Messages: the effect of each kind.

use guildhall_actors::ports::{Execution, ExecutionResult};
use guildhall_core::operation::payload::{DeleteMessage, EditMessage, EnsureMessage, MessageBody, SendDm, SendMessage};
use guildhall_core::operation::{FailureClass, ManagedKind, Payload, Reference};
use guildhall_sim::FaultAction;
use serde_json::{Value, json};

use crate::gate::run;
use crate::stage::{Stage, number, says, send_message};

const PATCH_MESSAGE: &str = "PATCH /channels/{channel.id}/messages/{message.id}";
const POST_MESSAGE: &str = "POST /channels/{channel.id}/messages";

async fn messages(stage: &Stage, channel: u64) -> Vec<Value> {
    stage.get(&format!("/channels/{channel}/messages")).await.as_array().unwrap().clone()
}

#[test]
fn a_message_is_sent_answered_changed_and_deleted_and_mentions_nobody_unasked() {
    run(async {
        let stage = Stage::new().await;
        let channel = stage.place.channel;
        let hello = format!("hello <@{}> @everyone", stage.place.member);
        let work = stage.work(send_message(channel, &hello));
        let sent = stage.done(&work).await;
        let id = sent.made.unwrap();
        let expected = json!({ "channel_id": channel.to_string(), "message_id": id.to_string(), "outcome": "created" });
        assert_eq!(sent.result, expected);
        assert_eq!((sent.bind[0].kind, sent.bind[0].channel), (ManagedKind::Message, Some(channel)));
        let held = stage.get(&format!("/channels/{channel}/messages/{id}")).await;
        assert_eq!((&held["mentions"], &held["mention_everyone"]), (&json!([]), &json!(false)));
        assert_eq!(stage.done(&work).await.made, Some(id), "the nonce prevents a duplicate");

        let body = MessageBody { allowed_mentions: Some(json!({ "parse": ["users"] })), ..says(&hello) };
        let reply = SendMessage { channel: Reference::Id(channel), key: None, reply_to: Some(Reference::Id(id)), body };
        let reply = stage.done(&stage.work(Payload::SendMessage(reply))).await.made.unwrap();
        let held = stage.get(&format!("/channels/{channel}/messages/{reply}")).await;
        assert_eq!(held["message_reference"]["message_id"], json!(id.to_string()));
        assert_eq!(held["mentions"].as_array().unwrap().len(), 1);

        let (channel_ref, message) = (Reference::Id(channel), Reference::Id(id));
        let embeds = Some(vec![json!({ "title": "more" })]);
        let body = MessageBody { embeds, ..MessageBody::default() };
        let edit = EditMessage { channel: channel_ref.clone(), message: message.clone(), body };
        stage.done(&stage.work(Payload::EditMessage(edit))).await;
        let held = stage.get(&format!("/channels/{channel}/messages/{id}")).await;
        assert_eq!((&held["content"], &held["embeds"][0]["title"]), (&json!(hello), &json!("more")));

        let delete = stage.work(Payload::DeleteMessage(DeleteMessage { channel: channel_ref, message }));
        assert_eq!(stage.done(&delete).await.result, json!({ "deleted": true }));
        assert_eq!(stage.done(&delete).await.result, json!({ "deleted": false }));
        assert_eq!(messages(&stage, channel).await.len(), 1);
    });
}

#[test]
fn a_user_is_written_to_in_one_channel_of_their_own() {
    run(async {
        let stage = Stage::new().await;
        let dm = |content: &str| Payload::SendDm(SendDm { user: stage.place.member, body: says(content) });
        let first = stage.done(&Execution { guild: None, ..stage.work(dm("one")) }).await;
        let second = stage.done(&Execution { guild: None, ..stage.work(dm("two")) }).await;
        assert_eq!(first.result["channel_id"], second.result["channel_id"]);
        let held = messages(&stage, number(&first.result["channel_id"])).await;
        assert_eq!(held.iter().map(|one| &one["content"]).collect::<Vec<_>>(), [&json!("two"), &json!("one")]);

        let bot = number(&stage.get("/users/@me").await["id"]);
        let to_bot = Payload::SendDm(SendDm { user: bot, body: says("me") });
        assert_eq!(stage.failed(&stage.work(to_bot)).await.class, FailureClass::Forbidden);
    });
}

fn ensure(channel: u64, body: MessageBody, pin: Option<bool>) -> Payload {
    Payload::EnsureMessage(EnsureMessage { key: "rules".to_owned(), channel: Reference::Id(channel), body, pin })
}

#[test]
fn ensuring_a_message_twice_sends_one_and_changes_nothing() {
    run(async {
        let stage = Stage::new().await;
        let channel = stage.place.channel;
        let body = || MessageBody {
            embeds: Some(vec![json!({ "title": "Rules", "fields": [{ "name": "1", "value": "be kind" }] })]),
            components: Some(vec![
                json!({ "type": 1, "components": [{ "type": 2, "style": 1, "label": "ok", "custom_id": "ok" }] }),
            ]),
            ..says(" read this ")
        };
        let made = stage.done(&stage.work(ensure(channel, body(), Some(true)))).await;
        let bound = Some((made.made.unwrap(), Some(channel)));
        assert_eq!(made.bind[0].channel, Some(channel));
        let again = stage.done(&Execution { bound, ..stage.work(ensure(channel, body(), Some(true))) }).await;
        assert_eq!(again.result["outcome"], "unchanged");
        assert_eq!((stage.world.arrived_at(PATCH_MESSAGE), stage.world.arrived_at(POST_MESSAGE)), (0, 1));
        let pins = stage.get(&format!("/channels/{channel}/messages/pins")).await;
        assert_eq!(pins["items"].as_array().unwrap().len(), 1);

        let other = MessageBody { content: Some("read that".into()), ..MessageBody::default() };
        let changed = stage.done(&Execution { bound, ..stage.work(ensure(channel, other, Some(false))) }).await;
        assert_eq!(changed.result["outcome"], "updated");
        let held = stage.get(&format!("/channels/{channel}/messages/{}", made.made.unwrap())).await;
        assert_eq!((&held["content"], &held["pinned"]), (&json!("read that"), &json!(false)));
        assert_eq!(held["embeds"][0]["title"], "Rules", "omitted fields stay");
    });
}

#[test]
fn a_message_that_could_not_be_pinned_yet_is_pinned_by_the_next_try_and_not_sent_again() {
    run(async {
        let stage = Stage::new().await;
        let channel = stage.place.channel;
        let work = stage.work(ensure(channel, says("rules"), Some(true)));
        stage.world.fault_once(
            "PUT /channels/{channel.id}/messages/pins/{message.id}",
            FaultAction::Status { status: 503, code: 0 },
        );
        assert_eq!(stage.failed(&work).await.class, FailureClass::Transient);
        let ExecutionResult::Done(done) = stage.perform(&work).await else { panic!("not done") };
        assert_eq!(done.result["outcome"], "found");
        let held = messages(&stage, channel).await;
        assert_eq!(held.iter().filter(|one| one["content"] == "rules").count(), 1);
        assert_eq!(stage.get(&format!("/channels/{channel}/messages/{}", done.made.unwrap())).await["pinned"], true);
    });
}

#[test]
fn a_message_that_was_deleted_is_sent_anew() {
    run(async {
        let stage = Stage::new().await;
        let channel = stage.place.channel;
        let made = stage.done(&stage.work(ensure(channel, says("rules"), None))).await.made.unwrap();
        let gone = DeleteMessage { channel: Reference::Id(channel), message: Reference::Id(made) };
        stage.done(&stage.work(Payload::DeleteMessage(gone))).await;
        let bound = Some((made, Some(channel)));
        let anew = stage.done(&Execution { bound, ..stage.work(ensure(channel, says("rules"), None)) }).await;
        assert_eq!((&anew.result["outcome"], anew.unbind), (&json!("created"), vec![(ManagedKind::Message, made)]));
        assert_eq!(messages(&stage, channel).await.len(), 1);
    });
}
