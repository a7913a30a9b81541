//! Channels: the effect of each kind.

use guildhall_actors::ports::Execution;
use guildhall_core::operation::payload::{
    ChannelType, CreateChannel, DeleteChannel, EnsureChannel, NewChannel, Overwrite, OverwriteMode, OverwriteTarget,
    Reorder, ReorderPosition, ReorderTarget, ReplaceOverwrites, UpdatePermissions,
};
use guildhall_core::operation::{FailureClass, ManagedKind, Payload, Reference};
use guildhall_testkit::gate::run;
use http::Method;
use serde_json::{Value, json};

use super::fixture::{ExecutorFixture, channel_named, create_channel, create_role, parse_id};

const PATCH_CHANNEL: &str = "PATCH /channels/{channel.id}";

fn ensure(channel: NewChannel, adopt: bool) -> Payload {
    Payload::EnsureChannel(EnsureChannel { key: "lobby".to_owned(), channel, adopt })
}

fn overwrite(role: u64, allow: u64, deny: u64) -> Overwrite {
    Overwrite { target: OverwriteTarget::Role(Reference::Id(role)), allow, deny }
}

async fn overwrites(fixture: &ExecutorFixture, channel: u64) -> Value {
    fixture.get(&format!("/channels/{channel}")).await["permission_overwrites"].clone()
}

#[test]
fn channel_is_created_with_its_marker_and_deleted() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let category = NewChannel { kind: ChannelType::Category, ..channel_named("Season") };
        let category = Payload::CreateChannel(CreateChannel { key: None, channel: category });
        let category = fixture.execute(&fixture.execution(category)).await;
        assert!(category.bind.is_empty());
        let parent = category.created.unwrap();
        let channel = NewChannel {
            parent: Some(Reference::Id(parent)),
            topic: Some("kick-off".into()),
            nsfw: Some(true),
            rate_limit_per_user: Some(5),
            overwrites: Some(vec![overwrite(fixture.create_guild_fixture.guild, 0, 2_048)]),
            ..channel_named("Match Day")
        };
        let execution = fixture.execution(Payload::CreateChannel(CreateChannel { key: Some("match".into()), channel }));
        let created = fixture.execute(&execution).await;
        let stored = &fixture.channels_named("match-day").await[0];
        assert_eq!(stored["id"], json!(created.created.unwrap().to_string()));
        assert_eq!((&stored["parent_id"], &stored["topic"]), (&json!(parent.to_string()), &json!("kick-off")));
        assert_eq!((&stored["nsfw"], &stored["rate_limit_per_user"]), (&json!(true), &json!(5)));
        assert_eq!(stored["permission_overwrites"][0]["deny"], "2048");
        assert_eq!((created.bind[0].kind, created.bind[0].key.as_str()), (ManagedKind::Channel, "match"));
        assert!(fixture.reasons(10).await[0].contains(&execution.marker.tag()));

        let channel = Reference::Id(created.created.unwrap());
        let delete = fixture.execution(Payload::DeleteChannel(DeleteChannel { channel }));
        assert_eq!(fixture.execute(&delete).await.result, json!({ "deleted": true }));
        let repeated = fixture.execute(&delete).await;
        assert_eq!((repeated.result, repeated.unbind.len()), (json!({ "deleted": false }), 1));
        assert!(fixture.channels_named("match-day").await.is_empty());
    });
}

#[test]
fn permissions_are_replaced_merged_or_set_as_a_whole() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let channel = fixture.create_guild_fixture.channel;
        let reference = Reference::Id(channel);
        let role = fixture.execute(&fixture.execution(create_role("Captain"))).await.created.unwrap();
        let update = |overwrites, mode| {
            Payload::UpdatePermissions(UpdatePermissions { channel: reference.clone(), overwrites, mode })
        };
        let guild = fixture.create_guild_fixture.guild;
        let initial = vec![overwrite(guild, 0, 0b0110 << 10), overwrite(role, 0b0001 << 10, 0)];
        fixture.execute(&fixture.execution(update(initial, OverwriteMode::Replace))).await;
        assert_eq!(overwrites(&fixture, channel).await.as_array().unwrap().len(), 2);

        let merged =
            fixture.execution(update(vec![overwrite(guild, 0b0010 << 10, 0b1000 << 10)], OverwriteMode::Merge));
        assert_eq!(fixture.execute(&merged).await.result["changed"], 1);
        let stored = overwrites(&fixture, channel).await;
        let everyone = stored.as_array().unwrap().iter().find(|one| one["id"] == json!(guild.to_string())).unwrap();
        let bits = |bits: u64| json!((bits << 10).to_string());
        assert_eq!((&everyone["allow"], &everyone["deny"]), (&bits(0b0010), &bits(0b1100)));
        assert_eq!(fixture.execute(&merged).await.result["changed"], 0, "no call without a change");

        let replacement = ReplaceOverwrites { channel: reference.clone(), overwrites: vec![overwrite(role, 0, 2_048)] };
        fixture.execute(&fixture.execution(Payload::ReplaceOverwrites(replacement))).await;
        let stored = overwrites(&fixture, channel).await;
        assert_eq!(stored, json!([{ "id": role.to_string(), "type": 0, "allow": "0", "deny": "2048" }]));
    });
}

#[test]
fn reorder_is_one_call() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let channel = fixture.execute(&fixture.execution(create_channel("last"))).await.created.unwrap();
        let position_of =
            |object: u64, position| ReorderPosition { object: Reference::Id(object), position, parent: None };
        let positions = vec![position_of(channel, 0), position_of(fixture.create_guild_fixture.channel, 5)];
        fixture
            .execute(&fixture.execution(Payload::Reorder(Reorder { what: ReorderTarget::Channels, places: positions })))
            .await;
        assert_eq!(fixture.get(&format!("/channels/{channel}")).await["position"], 0);
        assert_eq!(fixture.get(&format!("/channels/{}", fixture.create_guild_fixture.channel)).await["position"], 5);

        let low = fixture.execute(&fixture.execution(create_role("low"))).await.created.unwrap();
        let high = fixture.execute(&fixture.execution(create_role("high"))).await.created.unwrap();
        let positions = vec![position_of(low, 2), position_of(high, 1)];
        fixture
            .execute(&fixture.execution(Payload::Reorder(Reorder { what: ReorderTarget::Roles, places: positions })))
            .await;
        let position = |role: &[Value]| role[0]["position"].as_u64().unwrap();
        let (low, high) = (fixture.roles_named("low").await, fixture.roles_named("high").await);
        assert!(position(&low) > position(&high));
        assert_eq!(fixture.world.arrived_at("PATCH /guilds/{guild.id}/roles"), 1);
    });
}

#[test]
fn ensuring_a_channel_sends_only_differences() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let desired = NewChannel { topic: Some("hello".into()), nsfw: Some(false), ..channel_named("The Lobby") };
        let created = fixture.execute(&fixture.execution(ensure(desired.clone(), false))).await.created.unwrap();
        let bound = Some((created, None));
        let repeated =
            fixture.execute(&Execution { existing: bound, ..fixture.execution(ensure(desired.clone(), false)) }).await;
        assert_eq!((repeated.created, &repeated.result["outcome"]), (Some(created), &json!("unchanged")));
        assert_eq!(fixture.world.arrived_at(PATCH_CHANNEL), 0, "the-lobby is The Lobby");
        assert_eq!(fixture.channels_named("the-lobby").await.len(), 1);

        let slow = NewChannel { rate_limit_per_user: Some(9), ..desired };
        assert_eq!(
            fixture.execute(&Execution { existing: bound, ..fixture.execution(ensure(slow, false)) }).await.result["outcome"],
            "updated"
        );
        let stored = fixture.get(&format!("/channels/{created}")).await;
        assert_eq!((&stored["rate_limit_per_user"], &stored["topic"]), (&json!(9), &json!("hello")));
        let log =
            fixture.get(&format!("/guilds/{}/audit-logs?action_type=11", fixture.create_guild_fixture.guild)).await;
        let changes = log["audit_log_entries"][0]["changes"].as_array().unwrap();
        assert_eq!((changes.len(), &changes[0]["key"]), (1, &json!("rate_limit_per_user")));

        let voice = NewChannel { kind: ChannelType::Voice, ..channel_named("The Lobby") };
        let conflict =
            fixture.execute_failing(&Execution { existing: bound, ..fixture.execution(ensure(voice, false)) }).await;
        assert_eq!(conflict.class, FailureClass::Conflict, "{conflict}");
    });
}

#[test]
fn channel_is_adopted_or_created_again() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let channels = format!("/guilds/{}/channels", fixture.create_guild_fixture.guild);
        fixture.call_discord(Method::POST, &channels, &json!({ "name": "lobby", "type": 2 })).await;
        let text = fixture.call_discord(Method::POST, &channels, &json!({ "name": "Lobby" })).await;
        let adopted = fixture.execute(&fixture.execution(ensure(channel_named("lobby"), true))).await;
        assert_eq!((adopted.created, adopted.bind[0].origin), (Some(parse_id(&text["id"])), "adopted"));

        for _ in 0..2 {
            fixture.call_discord(Method::POST, &channels, &json!({ "name": "lobby" })).await;
        }
        let conflict = fixture.execute_failing(&fixture.execution(ensure(channel_named("lobby"), true))).await;
        assert_eq!(conflict.class, FailureClass::Conflict);
        assert!(conflict.message.contains("2 channels are named `lobby`"), "{conflict}");

        let old = adopted.created.unwrap();
        fixture.call_discord(Method::DELETE, &format!("/channels/{old}"), &Value::Null).await;
        let recreated =
            Execution { existing: Some((old, None)), ..fixture.execution(ensure(channel_named("lobby"), false)) };
        let recreated = fixture.execute(&recreated).await;
        assert_eq!(
            (&recreated.result["outcome"], recreated.unbind),
            (&json!("created"), vec![(ManagedKind::Channel, old)])
        );
    });
}
