//! Responses to interactions.

use guildhall_core::operation::payload::{DeferReply, EditOriginal, SendFollowup};
use guildhall_core::operation::{FailureClass, Payload};
use guildhall_sim::{FaultAction, FireSpec, Snowflake};
use serde_json::json;

use crate::gate::run;
use crate::stage::{Stage, says};

async fn fired(stage: &Stage) -> (u64, String) {
    let report = stage.world.sim.fire(FireSpec::command(Snowflake::new(stage.place.guild), "hello")).await.unwrap();
    (report.id.unwrap().get(), report.token.unwrap())
}

fn defer(interaction: u64, token: &str) -> Payload {
    Payload::DeferReply(DeferReply { interaction, token: token.to_owned(), ephemeral: true, update: false })
}

#[test]
fn an_interaction_is_deferred_once_answered_and_followed_up() {
    run(async {
        let stage = Stage::new().await;
        let (interaction, token) = fired(&stage).await;
        let work = stage.work(defer(interaction, &token));
        assert_eq!(stage.done(&work).await.result, json!({ "already": false }));
        assert_eq!(stage.done(&work).await.result, json!({ "already": true }), "40060 counts as success");

        let edit = EditOriginal { interaction, token: token.clone(), body: says("first") };
        let first = stage.done(&stage.work(Payload::EditOriginal(edit))).await.made.unwrap();
        let ephemeral = true;
        let more = SendFollowup { interaction, token: token.clone(), ephemeral, body: says("second") };
        let second = stage.done(&stage.work(Payload::SendFollowup(more))).await.made.unwrap();
        assert_ne!(first, second);
        let path = format!("/webhooks/{}/{token}/messages", stage.application);
        let original = stage.get(&format!("{path}/@original")).await;
        assert_eq!((&original["content"], &original["flags"]), (&json!("first"), &json!(64)));
        let followup = stage.get(&format!("{path}/{second}")).await;
        assert_eq!((&followup["content"], &followup["flags"]), (&json!("second"), &json!(64)));
    });
}

#[test]
fn an_interaction_that_nobody_knows_or_that_has_ended_is_not_found() {
    run(async {
        let stage = Stage::new().await;
        let unknown = stage.failed(&stage.work(defer(5, "none"))).await;
        assert_eq!((unknown.class, unknown.code), (FailureClass::NotFound, Some(10_062)));
        let edit = || EditOriginal { interaction: 5, token: "gone".into(), body: says("x") };
        let ended = stage.failed(&stage.work(Payload::EditOriginal(edit()))).await;
        assert_eq!((ended.class, ended.code), (FailureClass::NotFound, Some(50_027)));
        let refused = stage.failed(&stage.work(Payload::EditOriginal(edit()))).await;
        assert_eq!((refused.class, refused.code), (FailureClass::NotFound, None), "the gate has cached it");
    });
}

#[test]
fn a_lost_defer_is_sent_again_and_a_lost_followup_never() {
    run(async {
        let stage = Stage::new().await;
        let (interaction, token) = fired(&stage).await;
        let work = stage.work(defer(interaction, &token));
        stage.world.fault_once("POST /interactions/**", FaultAction::DropAfter);
        assert_eq!(stage.failed(&work).await.class, FailureClass::Transient);
        assert_eq!(stage.done(&work).await.result, json!({ "already": true }));

        let more = SendFollowup { interaction, token, ephemeral: false, body: says("once") };
        let followup = stage.work(Payload::SendFollowup(more));
        stage.lost(&followup, "POST /webhooks/**", FaultAction::DropAfter).await;
        assert!(stage.unclear(&followup).await.contains("followup"));
    });
}
