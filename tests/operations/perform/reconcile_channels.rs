//! Channel creations with an unknown outcome.

use guildhall_actors::ports::ReconcileResult;
use guildhall_core::operation::payload::{ChannelType, CreateChannel, EnsureChannel, NewChannel};
use guildhall_core::operation::{ManagedKind, Payload, Reference};
use guildhall_sim::{FaultAction, Snowflake};
use guildhall_testkit::gate::run;
use http::Method;
use serde_json::json;

use super::fixture::{
    BASIC_PERMISSIONS, ExecutorFixture, VIEW_AUDIT_LOG, channel_named, create_channel, create_hidden_channel, parse_id,
    with_clock_skew,
};

const CREATE_ROUTE: &str = "POST /guilds/*/channels";

#[test]
fn created_channel_is_found_with_any_clock_skew() {
    run(async {
        for (bits, origin) in [(BASIC_PERMISSIONS | VIEW_AUDIT_LOG, "created"), (BASIC_PERMISSIONS, "adopted")] {
            let fixture = ExecutorFixture::with_permissions(bits).await;
            for seconds in [-30, 0, 30] {
                let execution =
                    with_clock_skew(fixture.execution(create_channel(&format!("Made Here {seconds}"))), seconds);
                fixture.execute_lost(&execution, CREATE_ROUTE, FaultAction::DropAfter).await;
                let found = fixture.reconcile_found(&execution).await;
                let stored = fixture.channels_named(&format!("made-here-{seconds}")).await;
                assert_eq!((stored.len(), found.created), (1, Some(parse_id(&stored[0]["id"]))), "{bits} {seconds}");
                assert_eq!((found.bind[0].kind, found.bind[0].origin), (ManagedKind::Channel, origin));
                let execution =
                    with_clock_skew(fixture.execution(create_channel(&format!("never {seconds}"))), seconds);
                fixture.execute_lost(&execution, CREATE_ROUTE, FaultAction::DropBefore).await;
                assert_eq!(fixture.reconcile(&execution).await, ReconcileResult::Absent, "{bits} {seconds}");
            }
        }
    });
}

#[test]
fn ensured_channel_is_found_or_adopted() {
    run(async {
        let fixture = ExecutorFixture::with_permissions(BASIC_PERMISSIONS).await;
        for adopt in [false, true] {
            let channel = channel_named(&format!("kept {adopt}"));
            let execution =
                fixture.execution(Payload::EnsureChannel(EnsureChannel { key: "k".into(), channel, adopt }));
            fixture.execute_lost(&execution, CREATE_ROUTE, FaultAction::DropAfter).await;
            let created = if adopt {
                assert_eq!(fixture.reconcile(&execution).await, ReconcileResult::Absent);
                fixture.execute(&execution).await.created
            } else {
                fixture.reconcile_found(&execution).await.created
            };
            let stored = fixture.channels_named(&format!("kept-{adopt}")).await;
            assert_eq!((stored.len(), created), (1, Some(parse_id(&stored[0]["id"]))));
        }
    });
}

#[test]
fn channel_of_another_type_or_parent_does_not_match() {
    run(async {
        let fixture = ExecutorFixture::with_permissions(BASIC_PERMISSIONS).await;
        let channels = format!("/guilds/{}/channels", fixture.create_guild_fixture.guild);
        let category = fixture.call_discord(Method::POST, &channels, &json!({ "name": "season", "type": 4 })).await;
        fixture.call_discord(Method::POST, &channels, &json!({ "name": "match", "type": 2 })).await;
        fixture.call_discord(Method::POST, &channels, &json!({ "name": "match" })).await;
        let parent = Some(Reference::Id(parse_id(&category["id"])));
        let channel = NewChannel { parent, kind: ChannelType::Text, ..channel_named("match") };
        let execution = fixture.execution(Payload::CreateChannel(CreateChannel { key: None, channel }));
        fixture.execute_lost(&execution, CREATE_ROUTE, FaultAction::DropBefore).await;
        assert_eq!(fixture.reconcile(&execution).await, ReconcileResult::Absent);
        fixture.execute_lost(&execution, CREATE_ROUTE, FaultAction::DropAfter).await;
        let expected =
            fixture.world.score().effects[&fixture.create_guild_fixture.guild.to_string()].last().unwrap().object.get();
        assert_eq!(fixture.reconcile_found(&execution).await.created, Some(expected));
        fixture.execute_lost(&execution, CREATE_ROUTE, FaultAction::DropAfter).await;
        assert!(fixture.reconcile_unclear(&execution).await.contains("2 channels"));
    });
}

/// Hides the newest channel from listings, as Discord may hide channels that the bot cannot view.
fn hide_newest(fixture: &ExecutorFixture) -> u64 {
    let created = fixture.world.score().effects[&fixture.create_guild_fixture.guild.to_string()].last().unwrap().object;
    fixture.world.fault("GET /guilds/*/channels", FaultAction::HideChannels { channels: vec![created] });
    created.get()
}

#[test]
fn unlisted_channel_is_found_by_its_marker() {
    run(async {
        let fixture = ExecutorFixture::with_permissions(BASIC_PERMISSIONS | VIEW_AUDIT_LOG).await;
        let execution = fixture.execution(create_hidden_channel(fixture.create_guild_fixture.guild, "secret"));
        fixture.execute_lost(&execution, CREATE_ROUTE, FaultAction::DropAfter).await;
        let created = hide_newest(&fixture);
        assert!(fixture.channels_named("secret").await.is_empty());
        assert_eq!(fixture.reconcile_found(&execution).await.created, Some(created));
        let never = fixture.execution(create_hidden_channel(fixture.create_guild_fixture.guild, "never"));
        fixture.execute_lost(&never, CREATE_ROUTE, FaultAction::DropBefore).await;
        assert_eq!(fixture.reconcile(&never).await, ReconcileResult::Absent, "the log is proof");
    });
}

#[test]
fn hidden_channel_is_unclear_without_the_audit_log() {
    run(async {
        let fixture = ExecutorFixture::with_permissions(BASIC_PERMISSIONS).await;
        for lost in [FaultAction::DropBefore, FaultAction::DropAfter] {
            let execution = fixture.execution(create_hidden_channel(fixture.create_guild_fixture.guild, "secret"));
            let created = lost == FaultAction::DropAfter;
            fixture.execute_lost(&execution, CREATE_ROUTE, lost).await;
            if created {
                hide_newest(&fixture);
            }
            let reason = fixture.reconcile_unclear(&execution).await;
            assert!(reason.contains("secret") && reason.contains("VIEW_AUDIT_LOG"), "{reason}");
        }
    });
}

#[test]
fn channel_in_a_hidden_category_is_unclear() {
    run(async {
        let fixture = ExecutorFixture::with_permissions(BASIC_PERMISSIONS).await;
        let channels = format!("/guilds/{}/channels", fixture.create_guild_fixture.guild);
        let deny = json!([{ "id": fixture.create_guild_fixture.guild.to_string(), "type": 0, "deny": "1024" }]);
        let body = json!({ "name": "staff", "type": 4, "permission_overwrites": deny });
        let category = parse_id(&fixture.call_discord(Method::POST, &channels, &body).await["id"]);
        let channel = NewChannel { parent: Some(Reference::Id(category)), ..channel_named("inside") };
        let execution = fixture.execution(Payload::CreateChannel(CreateChannel { key: None, channel }));
        fixture.execute_lost(&execution, CREATE_ROUTE, FaultAction::DropBefore).await;
        assert!(fixture.reconcile_unclear(&execution).await.contains("inside"));
        let hidden = FaultAction::HideChannels { channels: vec![Snowflake::new(category)] };
        fixture.world.fault("GET /guilds/*/channels", hidden);
        assert!(fixture.reconcile_unclear(&execution).await.contains("inside"), "the category itself is not listed");
    });
}

#[test]
fn channel_missing_from_the_audit_log_is_found_in_the_list() {
    run(async {
        let fixture = ExecutorFixture::with_permissions(BASIC_PERMISSIONS | VIEW_AUDIT_LOG).await;
        let execution = fixture.execution(create_channel("lagging"));
        fixture.execute_lost(&execution, CREATE_ROUTE, FaultAction::DropAfter).await;
        let created =
            fixture.world.score().effects[&fixture.create_guild_fixture.guild.to_string()].last().unwrap().object;
        fixture.world.fault("GET /guilds/*/audit-logs", FaultAction::HideEntries { targets: vec![created] });
        assert_eq!(fixture.reconcile_found(&execution).await.created, Some(created.get()));
        let never = fixture.execution(create_channel("never"));
        fixture.execute_lost(&never, CREATE_ROUTE, FaultAction::DropBefore).await;
        assert_eq!(fixture.reconcile(&never).await, ReconcileResult::Absent, "neither the log nor the list has it");
    });
}
