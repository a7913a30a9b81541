//! An operation of any kind never calls an object that its caller has no access to.

use std::sync::Arc;

use guildhall_actors::ports::{Execution, ExecutionResult};
use guildhall_core::access::{Bounds, Owner};
use guildhall_core::operation::payload::Location;
use guildhall_core::operation::{FailureClass, OperationKind, Payload};
use guildhall_sim::FaultAction;
use guildhall_testkit::gate::{GuildIds, run};
use serde_json::{Value, json};

use super::fixture::{ExecutorFixture, send_message};

/// The call that finds the guild of a channel.
const CHANNEL_LOOKUP: &str = "GET /channels/{channel.id}";
/// The same as a pattern for faults.
const CHANNEL_LOOKUP_PATTERN: &str = "GET /channels/*";

/// An operation with a key for its guild alone, or for those of its tenant.
fn bounded(fixture: &ExecutorFixture, bounds: Bounds, payload: Payload) -> Execution {
    Execution { bounds, ..fixture.execution(payload) }
}

/// Every kind that calls a channel, for this one.
fn channel_payloads(guild: &GuildIds) -> Vec<Payload> {
    let channel = guild.channel.to_string();
    let forward =
        json!({"content": "look", "message_reference": {"type": 1, "message_id": "1", "channel_id": channel}});
    let parse = |kind: OperationKind, payload: Value| Payload::parse(kind, &payload, Some(1)).unwrap();
    let path = format!("/channels/{channel}");
    vec![
        send_message(guild.channel, "hello"),
        parse(OperationKind::EnsureMessage, json!({"channel_id": channel, "key": "rules", "content": "be kind"})),
        parse(OperationKind::EditMessage, json!({"channel_id": channel, "message_id": "1", "content": "other words"})),
        parse(OperationKind::DeleteMessage, json!({"channel_id": channel, "message_id": "1"})),
        parse(OperationKind::DeleteChannel, json!({"channel_id": channel})),
        parse(OperationKind::ReplaceOverwrites, json!({"channel_id": channel, "overwrites": []})),
        parse(
            OperationKind::UpdatePermissions,
            json!({"channel_id": channel, "overwrites": [{"user_id": "5", "allow": "1024"}]}),
        ),
        parse(OperationKind::CreateChannel, json!({"name": "below", "parent_id": channel})),
        parse(OperationKind::EnsureChannel, json!({"name": "below", "key": "below", "parent_id": channel})),
        parse(OperationKind::Read, json!({"path": format!("{path}/messages?limit=1")})),
        parse(OperationKind::Request, json!({"method": "DELETE", "path": path})),
        parse(OperationKind::Request, json!({"method": "POST", "path": "/users/@me/channels", "body": forward})),
    ]
}

/// All calls that arrived, except lookups of a channel.
fn calls_without_lookups(fixture: &ExecutorFixture) -> u64 {
    fixture.world.arrived() - fixture.world.arrived_at(CHANNEL_LOOKUP)
}

#[test]
fn channel_of_another_guild_is_never_called() {
    run(async {
        let fixture = ExecutorFixture::with_guilds(2).await;
        let other = fixture.world.guilds[1].clone();
        let (before, lookups) = (calls_without_lookups(&fixture), fixture.world.arrived_at(CHANNEL_LOOKUP));
        for payload in channel_payloads(&other) {
            let kind = payload.kind();
            let failure = fixture.execute_failing(&bounded(&fixture, Bounds::Guild, payload)).await;
            assert_eq!(failure.class, FailureClass::NotFound, "{kind:?}: {failure:?}");
            assert!(
                failure.message.contains(&format!("channel {} does not exist", other.channel)),
                "{kind:?}: {failure:?}"
            );
        }
        assert_eq!(calls_without_lookups(&fixture), before, "nothing of it was sent");
        assert_eq!(fixture.world.arrived_at(CHANNEL_LOOKUP), lookups + 1);
        // It exists, and its owner can use it.
        assert!(fixture.get(&format!("/channels/{}", other.channel)).await["id"].is_string());
    });
}

#[test]
fn own_channel_is_looked_up_once() {
    run(async {
        let fixture = ExecutorFixture::with_guilds(2).await;
        let lookups = fixture.world.arrived_at(CHANNEL_LOOKUP);
        for content in ["one", "two", "three"] {
            fixture
                .execute(&bounded(&fixture, Bounds::Guild, send_message(fixture.create_guild_fixture.channel, content)))
                .await;
        }
        assert_eq!(fixture.world.arrived_at(CHANNEL_LOOKUP), lookups + 1);
        fixture.execute(&fixture.execution(send_message(fixture.world.guilds[1].channel, "from the operator"))).await;
        assert_eq!(fixture.world.arrived_at(CHANNEL_LOOKUP), lookups + 1, "an operator needs no lookup");
    });
}

#[test]
fn tenant_key_uses_channels_of_its_guilds() {
    run(async {
        let fixture = ExecutorFixture::with_guilds(2).await;
        let [own, other] = [0, 1].map(|n| fixture.world.guilds[n].clone());
        let owner_of = |guild: &GuildIds, tenant: &str| Owner { guild: Some(guild.guild), tenant: tenant.to_owned() };
        fixture.ownership.set_owner(Location::Channel(own.channel), owner_of(&own, "acme"));
        fixture.ownership.set_owner(Location::Channel(other.channel), owner_of(&other, "acme"));
        let acme = |payload| Execution { tenant: Arc::from("acme"), ..bounded(&fixture, Bounds::Tenant, payload) };
        fixture.execute(&acme(send_message(other.channel, "another guild of ours"))).await;
        fixture.ownership.set_owner(Location::Channel(other.channel), owner_of(&other, "rival"));
        let failure = fixture.execute_failing(&acme(send_message(other.channel, "of another guild"))).await;
        assert_eq!(failure.class, FailureClass::NotFound, "{failure:?}");
        // Without a guild, calls reach only guilds of that tenant.
        fixture.ownership.set_owner(Location::Guild(own.guild), owner_of(&own, "acme"));
        fixture.ownership.set_owner(Location::Guild(other.guild), owner_of(&other, "rival"));
        let read = |path: String| Payload::parse(OperationKind::Read, &json!({ "path": path }), None).unwrap();
        let without_guild = |path: String| Execution { guild: None, ..acme(read(path)) };
        fixture.execute(&without_guild(format!("/guilds/{}/roles", own.guild))).await;
        let failure = fixture.execute_failing(&without_guild(format!("/guilds/{}/roles", other.guild))).await;
        assert_eq!(failure.class, FailureClass::NotFound, "{failure:?}");
    });
}

#[test]
fn channel_whose_lookup_fails_is_not_called() {
    run(async {
        let fixture = ExecutorFixture::with_guilds(1).await;
        let gone = Payload::parse(OperationKind::DeleteChannel, &json!({"channel_id": "5"}), Some(1)).unwrap();
        fixture.execute(&bounded(&fixture, Bounds::Guild, gone)).await;
        let route = "POST /channels/{channel.id}/messages";
        fixture.world.fault_once(CHANNEL_LOOKUP_PATTERN, FaultAction::Status { status: 503, code: 0 });
        let execution = bounded(&fixture, Bounds::Guild, send_message(fixture.create_guild_fixture.channel, "hello"));
        let failure = fixture.execute_failing(&execution).await;
        assert_eq!(failure.class, FailureClass::Transient, "it is retried: {failure:?}");
        assert_eq!(fixture.world.arrived_at(route), 0);
        fixture.execute(&execution).await;
        assert_eq!(fixture.world.arrived_at(route), 1);
    });
}

#[test]
fn webhook_is_looked_up_except_for_interaction_tokens() {
    run(async {
        let fixture = ExecutorFixture::with_guilds(1).await;
        let request = |path: String| {
            let payload = json!({"method": "POST", "path": path, "body": {"content": "hi"}});
            bounded(&fixture, Bounds::Guild, Payload::parse(OperationKind::Request, &payload, Some(1)).unwrap())
        };
        let own_owner = Owner { guild: Some(fixture.create_guild_fixture.guild), tenant: "default".to_owned() };
        let other_owner = Owner { guild: Some(7), ..own_owner };
        fixture.ownership.set_owner(Location::Webhook(9, Some("their-token".to_owned())), other_owner);
        let before = fixture.world.arrived();
        let failure = fixture.execute_failing(&request("/webhooks/9/their-token".to_owned())).await;
        assert_eq!((failure.class, fixture.world.arrived()), (FailureClass::NotFound, before), "{failure:?}");
        assert!(!failure.message.contains("their-token"), "{failure:?}");
        // Its owner is unknown: it is looked up, and not used, because the simulator has no such webhook.
        let failure = fixture.execute_failing(&request("/webhooks/10/a-token".to_owned())).await;
        let posted = fixture.world.arrived_at("POST /webhooks/{application.id}/{interaction.token}");
        assert_eq!((posted, fixture.world.arrived()), (0, before + 1), "{failure:?}");
        // Discord itself refuses an expired interaction token.
        let result = fixture.perform(&request(format!("/webhooks/{}/over", fixture.application))).await;
        let ExecutionResult::Failed(failure) = result else { panic!("{result:?}") };
        assert!(!failure.message.contains("the key of this operation has no access"), "{failure:?}");
    });
}
