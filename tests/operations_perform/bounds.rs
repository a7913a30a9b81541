//! An operation of any kind never calls an object that its caller has no access to.

use std::sync::Arc;

use guildhall_actors::ports::{Execution, ExecutionResult};
use guildhall_core::access::{Bounds, Owner};
use guildhall_core::operation::payload::Location;
use guildhall_core::operation::{FailureClass, OperationKind, Payload};
use guildhall_sim::FaultAction;
use serde_json::{Value, json};

use crate::gate::{Place, run};
use crate::stage::{Stage, send_message};

/// The call that finds the guild of a channel.
const LOOK: &str = "GET /channels/{channel.id}";
/// The same as a pattern for faults.
const ANY_LOOK: &str = "GET /channels/*";

/// An operation with a key for its guild alone, or for those of its tenant.
fn confined(stage: &Stage, bounds: Bounds, payload: Payload) -> Execution {
    Execution { bounds, ..stage.work(payload) }
}

/// Every kind that calls a channel, for this one.
fn on_channel(place: &Place) -> Vec<Payload> {
    let channel = place.channel.to_string();
    let forward =
        json!({"content": "look", "message_reference": {"type": 1, "message_id": "1", "channel_id": channel}});
    let of = |kind: OperationKind, payload: Value| Payload::parse(kind, &payload, Some(1)).unwrap();
    let path = format!("/channels/{channel}");
    vec![
        send_message(place.channel, "hello"),
        of(OperationKind::EnsureMessage, json!({"channel_id": channel, "key": "rules", "content": "be kind"})),
        of(OperationKind::EditMessage, json!({"channel_id": channel, "message_id": "1", "content": "other words"})),
        of(OperationKind::DeleteMessage, json!({"channel_id": channel, "message_id": "1"})),
        of(OperationKind::DeleteChannel, json!({"channel_id": channel})),
        of(OperationKind::ReplaceOverwrites, json!({"channel_id": channel, "overwrites": []})),
        of(
            OperationKind::UpdatePermissions,
            json!({"channel_id": channel, "overwrites": [{"user_id": "5", "allow": "1024"}]}),
        ),
        of(OperationKind::CreateChannel, json!({"name": "below", "parent_id": channel})),
        of(OperationKind::EnsureChannel, json!({"name": "below", "key": "below", "parent_id": channel})),
        of(OperationKind::Read, json!({"path": format!("{path}/messages?limit=1")})),
        of(OperationKind::Request, json!({"method": "DELETE", "path": path})),
        of(OperationKind::Request, json!({"method": "POST", "path": "/users/@me/channels", "body": forward})),
    ]
}

/// All calls that arrived, except lookups of a channel.
fn arrived(stage: &Stage) -> u64 {
    stage.world.arrived() - stage.world.arrived_at(LOOK)
}

#[test]
fn another_guilds_channel_is_looked_up_once_and_never_called() {
    run(async {
        let stage = Stage::with_guilds(2).await;
        let other = stage.world.places[1].clone();
        let (before, looks) = (arrived(&stage), stage.world.arrived_at(LOOK));
        for payload in on_channel(&other) {
            let kind = payload.kind();
            let failure = stage.failed(&confined(&stage, Bounds::Guild, payload)).await;
            assert_eq!(failure.class, FailureClass::NotFound, "{kind:?}: {failure:?}");
            assert!(failure.message.contains(&format!("no channel {}", other.channel)), "{kind:?}: {failure:?}");
        }
        assert_eq!(arrived(&stage), before, "nothing of it was sent");
        assert_eq!(stage.world.arrived_at(LOOK), looks + 1);
        // It exists, and its owner can use it.
        assert!(stage.get(&format!("/channels/{}", other.channel)).await["id"].is_string());
    });
}

#[test]
fn a_guilds_own_channel_is_looked_up_once_and_then_used() {
    run(async {
        let stage = Stage::with_guilds(2).await;
        let looks = stage.world.arrived_at(LOOK);
        for content in ["one", "two", "three"] {
            stage.done(&confined(&stage, Bounds::Guild, send_message(stage.place.channel, content))).await;
        }
        assert_eq!(stage.world.arrived_at(LOOK), looks + 1);
        stage.done(&stage.work(send_message(stage.world.places[1].channel, "from whoever runs it"))).await;
        assert_eq!(stage.world.arrived_at(LOOK), looks + 1, "an operator needs no lookup");
    });
}

#[test]
fn a_key_for_a_tenant_names_the_channels_of_that_tenants_guilds() {
    run(async {
        let stage = Stage::with_guilds(2).await;
        let [own, other] = [0, 1].map(|n| stage.world.places[n].clone());
        let of = |place: &Place, tenant: &str| Owner { guild: Some(place.guild), tenant: tenant.to_owned() };
        stage.known.place(Location::Channel(own.channel), of(&own, "acme"));
        stage.known.place(Location::Channel(other.channel), of(&other, "acme"));
        let acme = |payload| Execution { tenant: Arc::from("acme"), ..confined(&stage, Bounds::Tenant, payload) };
        stage.done(&acme(send_message(other.channel, "another guild of ours"))).await;
        stage.known.place(Location::Channel(other.channel), of(&other, "rival"));
        let failure = stage.failed(&acme(send_message(other.channel, "somebody else's"))).await;
        assert_eq!(failure.class, FailureClass::NotFound, "{failure:?}");
        // Without a guild, calls reach only guilds of that tenant.
        stage.known.place(Location::Guild(own.guild), of(&own, "acme"));
        stage.known.place(Location::Guild(other.guild), of(&other, "rival"));
        let read = |path: String| Payload::parse(OperationKind::Read, &json!({ "path": path }), None).unwrap();
        let alone = |path: String| Execution { guild: None, ..acme(read(path)) };
        stage.done(&alone(format!("/guilds/{}/roles", own.guild))).await;
        let failure = stage.failed(&alone(format!("/guilds/{}/roles", other.guild))).await;
        assert_eq!(failure.class, FailureClass::NotFound, "{failure:?}");
    });
}

#[test]
fn a_channel_that_is_gone_is_nobodys_and_one_that_cannot_be_looked_up_is_not_called() {
    run(async {
        let stage = Stage::with_guilds(1).await;
        let gone = Payload::parse(OperationKind::DeleteChannel, &json!({"channel_id": "5"}), Some(1)).unwrap();
        stage.done(&confined(&stage, Bounds::Guild, gone)).await;
        let route = "POST /channels/{channel.id}/messages";
        stage.world.fault_once(ANY_LOOK, FaultAction::Status { status: 503, code: 0 });
        let work = confined(&stage, Bounds::Guild, send_message(stage.place.channel, "hello"));
        let failure = stage.failed(&work).await;
        assert_eq!(failure.class, FailureClass::Transient, "it is retried: {failure:?}");
        assert_eq!(stage.world.arrived_at(route), 0);
        stage.done(&work).await;
        assert_eq!(stage.world.arrived_at(route), 1);
    });
}

#[test]
fn a_webhook_is_looked_up_like_a_channel_and_an_interactions_token_is_enough() {
    run(async {
        let stage = Stage::with_guilds(1).await;
        let request = |path: String| {
            let payload = json!({"method": "POST", "path": path, "body": {"content": "hi"}});
            confined(&stage, Bounds::Guild, Payload::parse(OperationKind::Request, &payload, Some(1)).unwrap())
        };
        let mine = Owner { guild: Some(stage.place.guild), tenant: "default".to_owned() };
        let theirs = Owner { guild: Some(7), ..mine };
        stage.known.place(Location::Webhook(9, Some("their-token".to_owned())), theirs);
        let before = stage.world.arrived();
        let failure = stage.failed(&request("/webhooks/9/their-token".to_owned())).await;
        assert_eq!((failure.class, stage.world.arrived()), (FailureClass::NotFound, before), "{failure:?}");
        assert!(!failure.message.contains("their-token"), "{failure:?}");
        // Its owner is unknown: it is looked up, and not used, because the simulator has no such webhook.
        let failure = stage.failed(&request("/webhooks/10/a-token".to_owned())).await;
        let posted = stage.world.arrived_at("POST /webhooks/{application.id}/{interaction.token}");
        assert_eq!((posted, stage.world.arrived()), (0, before + 1), "{failure:?}");
        // Discord itself refuses an expired interaction token.
        let own = stage.perform(&request(format!("/webhooks/{}/over", stage.application))).await;
        let ExecutionResult::Failed(failure) = own else { panic!("{own:?}") };
        assert!(!failure.message.contains("the key of this operation has no access"), "{failure:?}");
    });
}
