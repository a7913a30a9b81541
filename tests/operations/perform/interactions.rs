//! Responses to interactions.

use guildhall_actors::ports::ReconcileResult;
use guildhall_core::operation::payload::{DeferReply, EditOriginal, SendFollowup};
use guildhall_core::operation::{FailureClass, Payload};
use guildhall_sim::{Fault, FaultAction, FireSpec, Snowflake};
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

        let edit = EditOriginal {
            interaction,
            token: token.clone().into(),
            only_if_deferred: false,
            if_rejected: None,
            body: message_body("first"),
        };
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
fn only_a_deferred_response_is_edited() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let (interaction, token) = fire_command(&fixture).await;
        let fallback = |content: &str| {
            let payload = EditOriginal {
                interaction,
                token: token.clone().into(),
                only_if_deferred: true,
                if_rejected: None,
                body: message_body(content),
            };
            fixture.execution(Payload::EditOriginal(payload))
        };
        let original = format!("/webhooks/{}/{token}/messages/@original", fixture.application);
        // The deferral may be on its way.
        assert_eq!(fixture.execute_failing(&fallback("early")).await.class, FailureClass::Transient);
        fixture.execute(&fixture.execution(defer(interaction, &token))).await;
        assert_eq!(fixture.verify(&fallback("sorry")).await, ReconcileResult::Absent);
        // A lost edit is found in place.
        fixture.world.fault_once("PATCH /webhooks/**", FaultAction::DropAfter);
        assert_eq!(fixture.execute_failing(&fallback("sorry")).await.class, FailureClass::Transient);
        assert!(matches!(fixture.verify(&fallback("sorry")).await, ReconcileResult::Found(_)));
        assert_eq!(fixture.execute(&fallback("again")).await.result["edited"], false);
        let seen = fixture.get(&original).await;
        assert_eq!((&seen["content"], &seen["flags"]), (&json!("sorry"), &json!(64)));
    });
}

#[test]
fn rejected_edit_of_a_deferred_response_leaves_its_text() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let (interaction, token) = fire_command(&fixture).await;
        fixture.execute(&fixture.execution(defer(interaction, &token))).await;
        let edit = EditOriginal {
            interaction,
            token: token.clone().into(),
            only_if_deferred: false,
            if_rejected: Some("sorry".to_owned()),
            body: message_body(""),
        };
        let execution = fixture.execution(Payload::EditOriginal(edit));
        // The text is lost too: both are sent again.
        let (route, action) = ("PATCH /webhooks/**".to_owned(), FaultAction::DropBefore);
        let lost = Fault { route, action, probability: 1.0, count: Some(1), skip: 1 };
        fixture.world.sim.add_fault(lost).unwrap();
        assert_eq!(fixture.execute_failing(&execution).await.class, FailureClass::Transient);
        let rejected = fixture.execute_failing(&execution).await;
        assert_eq!((rejected.class, rejected.code), (FailureClass::Validation, Some(50_006)));
        let seen = fixture.get(&format!("/webhooks/{}/{token}/messages/@original", fixture.application)).await;
        assert_eq!((&seen["content"], &seen["flags"]), (&json!("sorry"), &json!(64)));
    });
}

#[test]
fn unknown_or_expired_interaction_is_not_found() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let unknown = fixture.execute_failing(&fixture.execution(defer(5, "none"))).await;
        assert_eq!((unknown.class, unknown.code), (FailureClass::NotFound, Some(10_062)));
        let edit = || EditOriginal {
            interaction: 5,
            token: "gone".to_owned().into(),
            only_if_deferred: false,
            if_rejected: None,
            body: message_body("x"),
        };
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
