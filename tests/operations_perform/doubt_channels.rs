//! Channel creations with an unknown outcome.

use guildhall_actors::ports::ReconcileResult;
use guildhall_core::operation::payload::{ChannelType, CreateChannel, EnsureChannel, NewChannel};
use guildhall_core::operation::{ManagedKind, Payload, Reference};
use guildhall_sim::{FaultAction, Snowflake};
use http::Method;
use serde_json::json;

use crate::gate::run;
use crate::stage::{PLAIN, Stage, VIEW_AUDIT_LOG, channel_named, create_channel, create_hidden, number, skewed};

const CREATE: &str = "POST /guilds/*/channels";

#[test]
fn a_channel_that_was_made_is_found_and_one_that_was_not_is_absent_whatever_the_clock_says() {
    run(async {
        for (bits, origin) in [(PLAIN | VIEW_AUDIT_LOG, "created"), (PLAIN, "adopted")] {
            let stage = Stage::with_permissions(bits).await;
            for seconds in [-30, 0, 30] {
                let work = skewed(stage.work(create_channel(&format!("Made Here {seconds}"))), seconds);
                stage.lost(&work, CREATE, FaultAction::DropAfter).await;
                let found = stage.found(&work).await;
                let held = stage.channels_named(&format!("made-here-{seconds}")).await;
                assert_eq!((held.len(), found.made), (1, Some(number(&held[0]["id"]))), "{bits} {seconds}");
                assert_eq!((found.bind[0].kind, found.bind[0].origin), (ManagedKind::Channel, origin));
                let work = skewed(stage.work(create_channel(&format!("never {seconds}"))), seconds);
                stage.lost(&work, CREATE, FaultAction::DropBefore).await;
                assert_eq!(stage.reconcile(&work).await, ReconcileResult::Absent, "{bits} {seconds}");
            }
        }
    });
}

#[test]
fn an_ensured_channel_is_found_and_done_again_when_it_adopts() {
    run(async {
        let stage = Stage::with_permissions(PLAIN).await;
        for adopt in [false, true] {
            let channel = channel_named(&format!("kept {adopt}"));
            let work = stage.work(Payload::EnsureChannel(EnsureChannel { key: "k".into(), channel, adopt }));
            stage.lost(&work, CREATE, FaultAction::DropAfter).await;
            let made = if adopt {
                assert_eq!(stage.reconcile(&work).await, ReconcileResult::Absent);
                stage.done(&work).await.made
            } else {
                stage.found(&work).await.made
            };
            let held = stage.channels_named(&format!("kept-{adopt}")).await;
            assert_eq!((held.len(), made), (1, Some(number(&held[0]["id"]))));
        }
    });
}

#[test]
fn a_like_named_channel_of_another_type_or_parent_is_another() {
    run(async {
        let stage = Stage::with_permissions(PLAIN).await;
        let channels = format!("/guilds/{}/channels", stage.place.guild);
        let category = stage.aside(Method::POST, &channels, &json!({ "name": "season", "type": 4 })).await;
        stage.aside(Method::POST, &channels, &json!({ "name": "match", "type": 2 })).await;
        stage.aside(Method::POST, &channels, &json!({ "name": "match" })).await;
        let parent = Some(Reference::Id(number(&category["id"])));
        let channel = NewChannel { parent, kind: ChannelType::Text, ..channel_named("match") };
        let work = stage.work(Payload::CreateChannel(CreateChannel { key: None, channel }));
        stage.lost(&work, CREATE, FaultAction::DropBefore).await;
        assert_eq!(stage.reconcile(&work).await, ReconcileResult::Absent);
        stage.lost(&work, CREATE, FaultAction::DropAfter).await;
        let right = stage.world.score().effects[&stage.place.guild.to_string()].last().unwrap().object.get();
        assert_eq!(stage.found(&work).await.made, Some(right));
        stage.lost(&work, CREATE, FaultAction::DropAfter).await;
        assert!(stage.unclear(&work).await.contains("2 channels"));
    });
}

/// Hides the newest channel from listings, as Discord may hide channels that the bot cannot view.
fn hide_newest(stage: &Stage) -> u64 {
    let made = stage.world.score().effects[&stage.place.guild.to_string()].last().unwrap().object;
    stage.world.fault("GET /guilds/*/channels", FaultAction::HideChannels { channels: vec![made] });
    made.get()
}

#[test]
fn a_channel_that_no_list_shows_is_found_by_its_marker() {
    run(async {
        let stage = Stage::with_permissions(PLAIN | VIEW_AUDIT_LOG).await;
        let work = stage.work(create_hidden(stage.place.guild, "secret"));
        stage.lost(&work, CREATE, FaultAction::DropAfter).await;
        let made = hide_newest(&stage);
        assert!(stage.channels_named("secret").await.is_empty());
        assert_eq!(stage.found(&work).await.made, Some(made));
        let never = stage.work(create_hidden(stage.place.guild, "never"));
        stage.lost(&never, CREATE, FaultAction::DropBefore).await;
        assert_eq!(stage.reconcile(&never).await, ReconcileResult::Absent, "the log is proof");
    });
}

#[test]
fn without_the_log_a_channel_that_hides_from_the_bot_is_unclear_never_absent() {
    run(async {
        let stage = Stage::with_permissions(PLAIN).await;
        for lost in [FaultAction::DropBefore, FaultAction::DropAfter] {
            let work = stage.work(create_hidden(stage.place.guild, "secret"));
            let made = lost == FaultAction::DropAfter;
            stage.lost(&work, CREATE, lost).await;
            if made {
                hide_newest(&stage);
            }
            let why = stage.unclear(&work).await;
            assert!(why.contains("secret") && why.contains("VIEW_AUDIT_LOG"), "{why}");
        }
    });
}

#[test]
fn without_the_log_a_channel_in_a_category_that_hides_it_is_unclear_too() {
    run(async {
        let stage = Stage::with_permissions(PLAIN).await;
        let channels = format!("/guilds/{}/channels", stage.place.guild);
        let deny = json!([{ "id": stage.place.guild.to_string(), "type": 0, "deny": "1024" }]);
        let body = json!({ "name": "staff", "type": 4, "permission_overwrites": deny });
        let category = number(&stage.aside(Method::POST, &channels, &body).await["id"]);
        let channel = NewChannel { parent: Some(Reference::Id(category)), ..channel_named("inside") };
        let work = stage.work(Payload::CreateChannel(CreateChannel { key: None, channel }));
        stage.lost(&work, CREATE, FaultAction::DropBefore).await;
        assert!(stage.unclear(&work).await.contains("inside"));
        let hidden = FaultAction::HideChannels { channels: vec![Snowflake::new(category)] };
        stage.world.fault("GET /guilds/*/channels", hidden);
        assert!(stage.unclear(&work).await.contains("inside"), "the category itself is not listed");
    });
}

#[test]
fn channel_that_the_audit_log_does_not_show_yet_is_found_in_the_list() {
    run(async {
        let stage = Stage::with_permissions(PLAIN | VIEW_AUDIT_LOG).await;
        let work = stage.work(create_channel("lagging"));
        stage.lost(&work, CREATE, FaultAction::DropAfter).await;
        let made = stage.world.score().effects[&stage.place.guild.to_string()].last().unwrap().object;
        stage.world.fault("GET /guilds/*/audit-logs", FaultAction::HideEntries { targets: vec![made] });
        assert_eq!(stage.found(&work).await.made, Some(made.get()));
        let never = stage.work(create_channel("never"));
        stage.lost(&never, CREATE, FaultAction::DropBefore).await;
        assert_eq!(stage.reconcile(&never).await, ReconcileResult::Absent, "neither the log nor the list has it");
    });
}
