//! Channels: the effect of each kind.

use guildhall_actors::ports::Execution;
use guildhall_core::operation::payload::{
    ChannelType, CreateChannel, DeleteChannel, EnsureChannel, NewChannel, Overwrite, OverwriteMode, OverwriteTarget,
    Reorder, ReorderPosition, ReorderTarget, ReplaceOverwrites, UpdatePermissions,
};
use guildhall_core::operation::{FailureClass, ManagedKind, Payload, Reference};
use http::Method;
use serde_json::{Value, json};

use crate::gate::run;
use crate::stage::{Stage, channel_named, create_channel, create_role, number};

const PATCH_CHANNEL: &str = "PATCH /channels/{channel.id}";

fn ensure(channel: NewChannel, adopt: bool) -> Payload {
    Payload::EnsureChannel(EnsureChannel { key: "lobby".to_owned(), channel, adopt })
}

fn overwrite(role: u64, allow: u64, deny: u64) -> Overwrite {
    Overwrite { target: OverwriteTarget::Role(Reference::Id(role)), allow, deny }
}

async fn overwrites(stage: &Stage, channel: u64) -> Value {
    stage.get(&format!("/channels/{channel}")).await["permission_overwrites"].clone()
}

#[test]
fn a_channel_is_made_in_its_category_with_its_marker_and_deleted() {
    run(async {
        let stage = Stage::new().await;
        let category = NewChannel { kind: ChannelType::Category, ..channel_named("Season") };
        let category = Payload::CreateChannel(CreateChannel { key: None, channel: category });
        let category = stage.done(&stage.work(category)).await;
        assert!(category.bind.is_empty());
        let parent = category.made.unwrap();
        let channel = NewChannel {
            parent: Some(Reference::Id(parent)),
            topic: Some("kick-off".into()),
            nsfw: Some(true),
            rate_limit_per_user: Some(5),
            overwrites: Some(vec![overwrite(stage.place.guild, 0, 2_048)]),
            ..channel_named("Match Day")
        };
        let work = stage.work(Payload::CreateChannel(CreateChannel { key: Some("match".into()), channel }));
        let made = stage.done(&work).await;
        let held = &stage.channels_named("match-day").await[0];
        assert_eq!(held["id"], json!(made.made.unwrap().to_string()));
        assert_eq!((&held["parent_id"], &held["topic"]), (&json!(parent.to_string()), &json!("kick-off")));
        assert_eq!((&held["nsfw"], &held["rate_limit_per_user"]), (&json!(true), &json!(5)));
        assert_eq!(held["permission_overwrites"][0]["deny"], "2048");
        assert_eq!((made.bind[0].kind, made.bind[0].key.as_str()), (ManagedKind::Channel, "match"));
        assert!(stage.reasons(10).await[0].contains(&work.marker.tag()));

        let channel = Reference::Id(made.made.unwrap());
        let delete = stage.work(Payload::DeleteChannel(DeleteChannel { channel }));
        assert_eq!(stage.done(&delete).await.result, json!({ "deleted": true }));
        let again = stage.done(&delete).await;
        assert_eq!((again.result, again.unbind.len()), (json!({ "deleted": false }), 1));
        assert!(stage.channels_named("match-day").await.is_empty());
    });
}

#[test]
fn permissions_are_replaced_merged_or_set_whole() {
    run(async {
        let stage = Stage::new().await;
        let channel = stage.place.channel;
        let reference = Reference::Id(channel);
        let role = stage.done(&stage.work(create_role("Captain"))).await.made.unwrap();
        let update = |overwrites, mode| {
            Payload::UpdatePermissions(UpdatePermissions { channel: reference.clone(), overwrites, mode })
        };
        let guild = stage.place.guild;
        let both = vec![overwrite(guild, 0, 0b0110 << 10), overwrite(role, 0b0001 << 10, 0)];
        stage.done(&stage.work(update(both, OverwriteMode::Replace))).await;
        assert_eq!(overwrites(&stage, channel).await.as_array().unwrap().len(), 2);

        let merged = stage.work(update(vec![overwrite(guild, 0b0010 << 10, 0b1000 << 10)], OverwriteMode::Merge));
        assert_eq!(stage.done(&merged).await.result["changed"], 1);
        let held = overwrites(&stage, channel).await;
        let of_all = held.as_array().unwrap().iter().find(|one| one["id"] == json!(guild.to_string())).unwrap();
        let bits = |bits: u64| json!((bits << 10).to_string());
        assert_eq!((&of_all["allow"], &of_all["deny"]), (&bits(0b0010), &bits(0b1100)));
        assert_eq!(stage.done(&merged).await.result["changed"], 0, "no call without a change");

        let only = ReplaceOverwrites { channel: reference.clone(), overwrites: vec![overwrite(role, 0, 2_048)] };
        stage.done(&stage.work(Payload::ReplaceOverwrites(only))).await;
        let held = overwrites(&stage, channel).await;
        assert_eq!(held, json!([{ "id": role.to_string(), "type": 0, "allow": "0", "deny": "2048" }]));
    });
}

#[test]
fn an_order_is_one_call() {
    run(async {
        let stage = Stage::new().await;
        let channel = stage.done(&stage.work(create_channel("last"))).await.made.unwrap();
        let place = |object: u64, position| ReorderPosition { object: Reference::Id(object), position, parent: None };
        let places = vec![place(channel, 0), place(stage.place.channel, 5)];
        stage.done(&stage.work(Payload::Reorder(Reorder { what: ReorderTarget::Channels, places }))).await;
        assert_eq!(stage.get(&format!("/channels/{channel}")).await["position"], 0);
        assert_eq!(stage.get(&format!("/channels/{}", stage.place.channel)).await["position"], 5);

        let low = stage.done(&stage.work(create_role("low"))).await.made.unwrap();
        let high = stage.done(&stage.work(create_role("high"))).await.made.unwrap();
        let places = vec![place(low, 2), place(high, 1)];
        stage.done(&stage.work(Payload::Reorder(Reorder { what: ReorderTarget::Roles, places }))).await;
        let position = |role: &[Value]| role[0]["position"].as_u64().unwrap();
        let (low, high) = (stage.roles_named("low").await, stage.roles_named("high").await);
        assert!(position(&low) > position(&high));
        assert_eq!(stage.world.arrived_at("PATCH /guilds/{guild.id}/roles"), 1);
    });
}

#[test]
fn ensuring_a_channel_sends_only_what_differs_and_never_a_name_that_is_so_already() {
    run(async {
        let stage = Stage::new().await;
        let wanted = NewChannel { topic: Some("hello".into()), nsfw: Some(false), ..channel_named("The Lobby") };
        let made = stage.done(&stage.work(ensure(wanted.clone(), false))).await.made.unwrap();
        let bound = Some((made, None));
        let again = stage.done(&Execution { bound, ..stage.work(ensure(wanted.clone(), false)) }).await;
        assert_eq!((again.made, &again.result["outcome"]), (Some(made), &json!("unchanged")));
        assert_eq!(stage.world.arrived_at(PATCH_CHANNEL), 0, "the-lobby is The Lobby");
        assert_eq!(stage.channels_named("the-lobby").await.len(), 1);

        let slow = NewChannel { rate_limit_per_user: Some(9), ..wanted };
        assert_eq!(
            stage.done(&Execution { bound, ..stage.work(ensure(slow, false)) }).await.result["outcome"],
            "updated"
        );
        let held = stage.get(&format!("/channels/{made}")).await;
        assert_eq!((&held["rate_limit_per_user"], &held["topic"]), (&json!(9), &json!("hello")));
        let log = stage.get(&format!("/guilds/{}/audit-logs?action_type=11", stage.place.guild)).await;
        let changes = log["audit_log_entries"][0]["changes"].as_array().unwrap();
        assert_eq!((changes.len(), &changes[0]["key"]), (1, &json!("rate_limit_per_user")));

        let voice = NewChannel { kind: ChannelType::Voice, ..channel_named("The Lobby") };
        let conflict = stage.failed(&Execution { bound, ..stage.work(ensure(voice, false)) }).await;
        assert_eq!(conflict.class, FailureClass::Conflict, "{conflict}");
    });
}

#[test]
fn a_channel_is_adopted_by_name_type_and_parent_and_made_anew_when_it_is_gone() {
    run(async {
        let stage = Stage::new().await;
        let channels = format!("/guilds/{}/channels", stage.place.guild);
        stage.aside(Method::POST, &channels, &json!({ "name": "lobby", "type": 2 })).await;
        let text = stage.aside(Method::POST, &channels, &json!({ "name": "Lobby" })).await;
        let adopted = stage.done(&stage.work(ensure(channel_named("lobby"), true))).await;
        assert_eq!((adopted.made, adopted.bind[0].origin), (Some(number(&text["id"])), "adopted"));

        for _ in 0..2 {
            stage.aside(Method::POST, &channels, &json!({ "name": "lobby" })).await;
        }
        let conflict = stage.failed(&stage.work(ensure(channel_named("lobby"), true))).await;
        assert_eq!(conflict.class, FailureClass::Conflict);
        assert!(conflict.message.contains("2 channels are named `lobby`"), "{conflict}");

        let old = adopted.made.unwrap();
        stage.aside(Method::DELETE, &format!("/channels/{old}"), &Value::Null).await;
        let anew = Execution { bound: Some((old, None)), ..stage.work(ensure(channel_named("lobby"), false)) };
        let anew = stage.done(&anew).await;
        assert_eq!((&anew.result["outcome"], anew.unbind), (&json!("created"), vec![(ManagedKind::Channel, old)]));
    });
}
