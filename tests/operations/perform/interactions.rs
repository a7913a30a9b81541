//! Responses to interactions.

use guildhall_core::operation::payload::{DeferReply, EditOriginal, SendFollowup};
use guildhall_core::operation::{FailureClass, Payload};
use guildhall_sim::{FaultAction, FireSpec, Snowflake};
use guildhall_testkit::gate::run;
use serde_json::json;

use super::fixture::{ExecutorFixture, message_body};

async fn fire_command(fixture: &ExecutorFixture) -> (u64, String) {
    let report = fixture
        .world
        .sim
        .fire(FireSpec::command(Snowflake::new(fixture.create_guild_fixture.guild), "hello"))
        .await
        .unwrap();
    (report.id.unwrap().get(), report.token.unwrap())
}

fn defer(interaction: u64, token: &str) -> Payload {
    Payload::DeferReply(DeferReply { interaction, token: token.to_owned().into(), ephemeral: true, update: false })
}

#[test]
fn interaction_is_deferred_edited_and_followed_up() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let (interaction, token) = fire_command(&fixture).await;
        let execution = fixture.execution(defer(interaction, &token));
        assert_eq!(fixture.execute(&execution).await.result, json!({ "already": false }));
        assert_eq!(fixture.execute(&execution).await.result, json!({ "already": true }), "40060 counts as success");

        let edit = EditOriginal { interaction, token: token.clone().into(), body: message_body("first") };
        let first = fixture.execute(&fixture.execution(Payload::EditOriginal(edit))).await.created.unwrap();
        let ephemeral = true;
        let more = SendFollowup { interaction, token: token.clone().into(), ephemeral, body: message_body("second") };
        let second = fixture.execute(&fixture.execution(Payload::SendFollowup(more))).await.created.unwrap();
        assert_ne!(first, second);
        let path = format!("/webhooks/{}/{token}/messages", fixture.application);
        let original = fixture.get(&format!("{path}/@original")).await;
        assert_eq!((&original["content"], &original["flags"]), (&json!("first"), &json!(64)));
        let followup = fixture.get(&format!("{path}/{second}")).await;
        assert_eq!((&followup["content"], &followup["flags"]), (&json!("second"), &json!(64)));
    });
}

#[test]
fn unknown_or_expired_interaction_is_not_found() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let unknown = fixture.execute_failing(&fixture.execution(defer(5, "none"))).await;
        assert_eq!((unknown.class, unknown.code), (FailureClass::NotFound, Some(10_062)));
        let edit = || EditOriginal { interaction: 5, token: "gone".to_owned().into(), body: message_body("x") };
        let expired = fixture.execute_failing(&fixture.execution(Payload::EditOriginal(edit()))).await;
        assert_eq!((expired.class, expired.code), (FailureClass::NotFound, Some(50_027)));
        let refused = fixture.execute_failing(&fixture.execution(Payload::EditOriginal(edit()))).await;
        assert_eq!((refused.class, refused.code), (FailureClass::NotFound, None), "the gate has cached it");
    });
}

#[test]
fn lost_defer_is_sent_again_but_not_a_lost_followup() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let (interaction, token) = fire_command(&fixture).await;
        let execution = fixture.execution(defer(interaction, &token));
        fixture.world.fault_once("POST /interactions/**", FaultAction::DropAfter);
        assert_eq!(fixture.execute_failing(&execution).await.class, FailureClass::Transient);
        assert_eq!(fixture.execute(&execution).await.result, json!({ "already": true }));

        let more = SendFollowup { interaction, token: token.into(), ephemeral: false, body: message_body("once") };
        let followup = fixture.execution(Payload::SendFollowup(more));
        fixture.execute_lost(&followup, "POST /webhooks/**", FaultAction::DropAfter).await;
        assert!(fixture.reconcile_unclear(&followup).await.contains("followup"));
    });
}
