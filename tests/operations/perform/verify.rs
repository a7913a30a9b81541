//! Whether the effect of an operation is in place, for every kind and every way in which its outcome can become
//! unknown.

use guildhall_actors::ports::{Execution, ExecutionResult, ReconcileResult};
use guildhall_core::operation::payload::{
    AssignRole, DeferReply, DeleteChannel, DeleteMessage, DeleteRole, EditMessage, EditOriginal, EnsureChannel,
    EnsureMessage, EnsureRole, MessageBody, Method as Verb, NewRole, Overwrite, OverwriteMode, OverwriteTarget, Read,
    RemoveRole, Reorder, ReorderPosition, ReorderTarget, ReplaceOverwrites, Request, SendDm, SendFollowup,
    SetMemberRoles, UpdatePermissions,
};
use guildhall_core::operation::{OperationKind, Payload, Reference};
use guildhall_sim::{FaultAction, FireSpec, Snowflake};
use guildhall_testkit::gate::run;
use http::Method;
use serde_json::{Value, json};

use super::fixture::{
    ExecutorFixture, VIEW_CHANNEL, channel_named, create_channel, create_role, message_body, parse_id, role_named,
    send_message,
};

/// What Discord can show about an effect afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Visibility {
    Everything,
    Nothing,
    /// There is no effect to show.
    NoEffect,
}

/// An operation, and the call that has its effect.
struct Case {
    execution: Execution,
    route: &'static str,
    visibility: Visibility,
}

fn case(execution: Execution, route: &'static str) -> Case {
    Case { execution, route, visibility: Visibility::Everything }
}

async fn new_role(fixture: &ExecutorFixture, name: &str) -> u64 {
    let path = format!("/guilds/{}/roles", fixture.create_guild_fixture.guild);
    parse_id(&fixture.call_discord(Method::POST, &path, &json!({ "name": name })).await["id"])
}

async fn new_channel(fixture: &ExecutorFixture, name: &str) -> u64 {
    let path = format!("/guilds/{}/channels", fixture.create_guild_fixture.guild);
    parse_id(&fixture.call_discord(Method::POST, &path, &json!({ "name": name })).await["id"])
}

async fn new_message(fixture: &ExecutorFixture, content: &str) -> u64 {
    let path = format!("/channels/{}/messages", fixture.create_guild_fixture.channel);
    parse_id(&fixture.call_discord(Method::POST, &path, &json!({ "content": content })).await["id"])
}

async fn fire_command(fixture: &ExecutorFixture) -> (u64, String) {
    let report = fixture
        .world
        .sim
        .fire(FireSpec::command(Snowflake::new(fixture.create_guild_fixture.guild), "hello"))
        .await
        .unwrap();
    (report.id.unwrap().get(), report.token.unwrap())
}

/// An interaction that has its initial response.
async fn defer_command(fixture: &ExecutorFixture) -> (u64, String) {
    let (interaction, token) = fire_command(fixture).await;
    fixture
        .call_discord(Method::POST, &format!("/interactions/{interaction}/{token}/callback"), &json!({ "type": 5 }))
        .await;
    (interaction, token)
}

fn with_binding(execution: Execution, id: u64, channel: Option<u64>) -> Execution {
    Execution { existing: Some((id, channel)), ..execution }
}

fn allow_view(role: u64) -> Overwrite {
    Overwrite { target: OverwriteTarget::Role(Reference::Id(role)), allow: VIEW_CHANNEL, deny: 0 }
}

fn position_of(object: u64, position: u16) -> ReorderPosition {
    ReorderPosition { object: Reference::Id(object), position, parent: None }
}

/// The position of a role.
async fn position(fixture: &ExecutorFixture, role: u64) -> u16 {
    let roles = fixture.get(&format!("/guilds/{}/roles", fixture.create_guild_fixture.guild)).await;
    let role = roles.as_array().unwrap().iter().find(|one| parse_id(&one["id"]) == role).unwrap();
    role["position"].as_u64().unwrap().try_into().unwrap()
}

/// An operation of this kind whose effect is not in place yet. Each has its own objects.
async fn new_case(fixture: &ExecutorFixture, kind: OperationKind, n: usize) -> Case {
    let (user, channel) = (fixture.create_guild_fixture.member, fixture.create_guild_fixture.channel);
    let name = format!("{}-{n}", kind.name().replace('_', "-"));
    let execution = |payload| fixture.execution(payload);
    match kind {
        OperationKind::CreateRole => case(execution(create_role(&name)), "POST /guilds/*/roles"),
        OperationKind::DeleteRole => {
            let role = Reference::Id(new_role(fixture, &name).await);
            case(execution(Payload::DeleteRole(DeleteRole { role })), "DELETE /guilds/*/roles/*")
        }
        OperationKind::AssignRole => {
            let role = Reference::Id(new_role(fixture, &name).await);
            case(execution(Payload::AssignRole(AssignRole { user, role })), "PUT /guilds/*/members/*/roles/*")
        }
        OperationKind::RemoveRole => {
            let role = new_role(fixture, &name).await;
            let path = format!("/guilds/{}/members/{user}/roles/{role}", fixture.create_guild_fixture.guild);
            fixture.call_discord(Method::PUT, &path, &Value::Null).await;
            let role = Reference::Id(role);
            case(execution(Payload::RemoveRole(RemoveRole { user, role })), "DELETE /guilds/*/members/*/roles/*")
        }
        OperationKind::CreateChannel => case(execution(create_channel(&name)), "POST /guilds/*/channels"),
        OperationKind::DeleteChannel => {
            let channel = Reference::Id(new_channel(fixture, &name).await);
            case(execution(Payload::DeleteChannel(DeleteChannel { channel })), "DELETE /channels/*")
        }
        OperationKind::UpdatePermissions => {
            let overwrites = vec![allow_view(new_role(fixture, &name).await)];
            let channel = Reference::Id(new_channel(fixture, &name).await);
            let payload = UpdatePermissions { channel, overwrites, mode: OverwriteMode::Replace };
            case(execution(Payload::UpdatePermissions(payload)), "PUT /channels/*/permissions/*")
        }
        OperationKind::SetMemberRoles => {
            let roles = vec![Reference::Id(new_role(fixture, &name).await)];
            case(execution(Payload::SetMemberRoles(SetMemberRoles { user, roles })), "PATCH /guilds/*/members/*")
        }
        OperationKind::EnsureRole => {
            let id = new_role(fixture, &name).await;
            let role = NewRole { color: Some(255), ..role_named(&name) };
            let execution = execution(Payload::EnsureRole(EnsureRole { key: "k".into(), role, adopt: false }));
            case(with_binding(execution, id, None), "PATCH /guilds/*/roles/*")
        }
        OperationKind::EnsureChannel => {
            let id = new_channel(fixture, &name).await;
            let mut channel = channel_named(&name);
            channel.topic = Some("about this".to_owned());
            let execution = execution(Payload::EnsureChannel(EnsureChannel { key: "k".into(), channel, adopt: false }));
            case(with_binding(execution, id, None), "PATCH /channels/*")
        }
        OperationKind::ReplaceOverwrites => {
            let overwrites = vec![allow_view(new_role(fixture, &name).await)];
            let channel = Reference::Id(new_channel(fixture, &name).await);
            case(execution(Payload::ReplaceOverwrites(ReplaceOverwrites { channel, overwrites })), "PATCH /channels/*")
        }
        OperationKind::Reorder => {
            let (first, second) = (new_role(fixture, &name).await, new_role(fixture, &name).await);
            let (low, high) = (position(fixture, first).await, position(fixture, second).await);
            let places = vec![position_of(first, high), position_of(second, low)];
            let payload = Reorder { what: ReorderTarget::Roles, places };
            assert_ne!(low, high);
            case(execution(Payload::Reorder(payload)), "PATCH /guilds/*/roles")
        }
        OperationKind::EnsureMessage => {
            let id = new_message(fixture, "before").await;
            let payload = EnsureMessage {
                key: "k".into(),
                channel: Reference::Id(channel),
                body: message_body(&name),
                pin: None,
            };
            case(
                with_binding(execution(Payload::EnsureMessage(payload)), id, Some(channel)),
                "PATCH /channels/*/messages/*",
            )
        }
        OperationKind::SendMessage => case(execution(send_message(channel, &name)), "POST /channels/*/messages"),
        OperationKind::EditMessage => {
            let message = Reference::Id(new_message(fixture, "before").await);
            let payload = EditMessage { channel: Reference::Id(channel), message, body: message_body(&name) };
            case(execution(Payload::EditMessage(payload)), "PATCH /channels/*/messages/*")
        }
        OperationKind::DeleteMessage => {
            let message = Reference::Id(new_message(fixture, "before").await);
            let payload = DeleteMessage { channel: Reference::Id(channel), message };
            case(execution(Payload::DeleteMessage(payload)), "DELETE /channels/*/messages/*")
        }
        OperationKind::SendDm => {
            case(execution(Payload::SendDm(SendDm { user, body: message_body(&name) })), "POST /channels/*/messages")
        }
        OperationKind::DeferReply => {
            let (interaction, token) = fire_command(fixture).await;
            let payload = DeferReply { interaction, token: token.into(), ephemeral: true, update: false };
            case(execution(Payload::DeferReply(payload)), "POST /interactions/**")
        }
        OperationKind::SendFollowup => {
            let (interaction, token) = defer_command(fixture).await;
            let payload =
                SendFollowup { interaction, token: token.into(), ephemeral: false, body: message_body(&name) };
            let case = case(execution(Payload::SendFollowup(payload)), "POST /webhooks/**");
            Case { visibility: Visibility::Nothing, ..case }
        }
        OperationKind::EditOriginal => {
            let (interaction, token) = defer_command(fixture).await;
            let payload = EditOriginal {
                interaction,
                token: token.into(),
                only_if_deferred: false,
                if_rejected: None,
                body: message_body(&name),
            };
            case(execution(Payload::EditOriginal(payload)), "PATCH /webhooks/**")
        }
        OperationKind::Read => {
            let payload = Read { path: format!("/guilds/{}/roles", fixture.create_guild_fixture.guild) };
            Case { visibility: Visibility::NoEffect, ..case(execution(Payload::Read(payload)), "GET /guilds/*/roles") }
        }
        OperationKind::Request => {
            let path =
                format!("/guilds/{}/roles/{}", fixture.create_guild_fixture.guild, new_role(fixture, &name).await);
            let body = Some(json!({ "color": 255 }));
            let payload = Request { method: Verb::Patch, path, body, user: None };
            Case {
                visibility: Visibility::Nothing,
                ..case(execution(Payload::Request(payload)), "PATCH /guilds/*/roles/*")
            }
        }
    }
}

#[test]
fn effect_of_every_kind_is_found_or_absent() {
    let faults = [
        (FaultAction::DropAfter, true),
        (FaultAction::StatusAfter { status: 502 }, true),
        (FaultAction::DropBefore, false),
        (FaultAction::Status { status: 502, code: 0 }, false),
    ];
    run(async {
        for kind in OperationKind::ALL {
            let fixture = ExecutorFixture::new().await;
            for (n, (fault, is_in_place)) in faults.iter().enumerate() {
                let label = format!("{} {fault:?}", kind.name());
                let Case { execution, route, visibility } = new_case(&fixture, kind, n).await;
                fixture.world.fault_once(route, fault.clone());
                let performed = fixture.perform(&execution).await;
                if visibility == Visibility::NoEffect {
                    assert!(matches!(performed, ExecutionResult::Failed(_)), "{label}: {performed:?}");
                    assert_eq!(fixture.verify(&execution).await, ReconcileResult::Absent, "{label}");
                    continue;
                }
                assert!(matches!(performed, ExecutionResult::Unknown(_)), "{label}: {performed:?}");
                let writes = fixture.world.score().effects.values().map(Vec::len).sum::<usize>();
                let verified = fixture.verify(&execution).await;
                match (visibility, is_in_place) {
                    (Visibility::Everything, true) => {
                        let ReconcileResult::Found(found) = verified else { panic!("{label}: {verified:?}") };
                        assert!(!found.result.is_null(), "{label}");
                    }
                    (Visibility::Everything, false) => assert_eq!(verified, ReconcileResult::Absent, "{label}"),
                    (Visibility::Nothing, _) => {
                        assert!(matches!(verified, ReconcileResult::Unclear(_)), "{label}: {verified:?}");
                    }
                    (Visibility::NoEffect, _) => unreachable!("handled above"),
                }
                let after = fixture.world.score().effects.values().map(Vec::len).sum::<usize>();
                assert_eq!(writes, after, "{label}: a check changes nothing");
            }
        }
    });
}

#[test]
fn unanswered_check_is_repeated() {
    run(async {
        for kind in OperationKind::ALL {
            let fixture = ExecutorFixture::new().await;
            let Case { execution, route, visibility } = new_case(&fixture, kind, 0).await;
            if visibility != Visibility::Everything {
                continue;
            }
            fixture.world.fault_once(route, FaultAction::DropAfter);
            fixture.perform(&execution).await;
            for fault in [FaultAction::Status { status: 503, code: 0 }, FaultAction::DropBefore] {
                fixture.world.fault_once("*", fault);
                let verified = fixture.verify(&execution).await;
                assert!(matches!(verified, ReconcileResult::Failed(_)), "{}: {verified:?}", kind.name());
            }
            let verified = fixture.verify(&execution).await;
            assert!(matches!(verified, ReconcileResult::Found(_)), "{}: {verified:?}", kind.name());
        }
    });
}

#[test]
fn rate_limited_check_is_repeated_later() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let Case { execution, route, .. } = new_case(&fixture, OperationKind::AssignRole, 0).await;
        fixture.world.fault_once(route, FaultAction::DropAfter);
        fixture.perform(&execution).await;
        let limit = FaultAction::RateLimit { scope: guildhall_sim::Scope::Shared, retry_after_ms: 20 };
        fixture.world.fault_once("GET /guilds/*/members/*", limit);
        assert!(matches!(fixture.verify(&execution).await, ReconcileResult::Held { .. }));
        assert!(matches!(fixture.verify(&execution).await, ReconcileResult::Found(_)));
    });
}

#[test]
fn effect_that_the_bot_may_not_read_is_unclear() {
    const CASES: [(OperationKind, &str); 8] = [
        (OperationKind::AssignRole, "GET /guilds/*/members/*"),
        (OperationKind::RemoveRole, "GET /guilds/*/members/*"),
        (OperationKind::SetMemberRoles, "GET /guilds/*/members/*"),
        (OperationKind::UpdatePermissions, "GET /channels/*"),
        (OperationKind::ReplaceOverwrites, "GET /channels/*"),
        (OperationKind::EditMessage, "GET /channels/*/messages/*"),
        (OperationKind::DeleteMessage, "GET /channels/*/messages/*"),
        (OperationKind::Reorder, "GET /guilds/*/roles"),
    ];
    run(async {
        for (kind, read) in CASES {
            let fixture = ExecutorFixture::new().await;
            let Case { execution, route, .. } = new_case(&fixture, kind, 0).await;
            fixture.world.fault_once(route, FaultAction::DropAfter);
            fixture.perform(&execution).await;
            fixture.world.fault_once(read, FaultAction::Status { status: 403, code: 50_001 });
            let verified = fixture.verify(&execution).await;
            assert!(matches!(verified, ReconcileResult::Unclear(_)), "{}: {verified:?}", kind.name());
        }
    });
}

#[test]
fn checked_operation_has_the_usual_result() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        for kind in [
            OperationKind::AssignRole,
            OperationKind::RemoveRole,
            OperationKind::DeleteRole,
            OperationKind::DeleteChannel,
            OperationKind::ReplaceOverwrites,
        ] {
            let Case { execution, .. } = new_case(&fixture, kind, 0).await;
            let answered = fixture.execute(&execution).await;
            let ReconcileResult::Found(found) = fixture.verify(&execution).await else { panic!("{}", kind.name()) };
            assert_eq!((found.result, found.unbind), (answered.result, answered.unbind), "{}", kind.name());
        }
    });
}

#[test]
fn unbound_ensured_objects_are_found_if_created() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let channel = Reference::Id(fixture.create_guild_fixture.channel);
        for (fault, found) in [(FaultAction::DropAfter, true), (FaultAction::DropBefore, false)] {
            for adopt in [false, true] {
                let name = format!("kept-{found}-{adopt}");
                let role = EnsureRole { key: "r".into(), role: role_named(&name), adopt };
                let ensured = EnsureChannel { key: "c".into(), channel: channel_named(&name), adopt };
                let message =
                    EnsureMessage { key: "m".into(), channel: channel.clone(), body: message_body(&name), pin: None };
                for (payload, route) in [
                    (Payload::EnsureRole(role), "POST /guilds/*/roles"),
                    (Payload::EnsureChannel(ensured), "POST /guilds/*/channels"),
                    (Payload::EnsureMessage(message), "POST /channels/*/messages"),
                ] {
                    let execution = fixture.execution(payload);
                    fixture.execute_lost(&execution, route, fault.clone()).await;
                    let verified = fixture.verify(&execution).await;
                    let is_found = matches!(&verified, ReconcileResult::Found(done) if done.bind.len() == 1);
                    assert_eq!(is_found, found, "{route} {adopt}: {verified:?}");
                    assert!(found || verified == ReconcileResult::Absent, "{verified:?}");
                    if let ReconcileResult::Found(done) = verified {
                        fixture.store_bindings(&execution, &done);
                    }
                }
            }
        }
    });
}

#[test]
fn adopted_role_that_was_not_changed_is_absent() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        new_role(&fixture, "stray").await;
        let role = NewRole { color: Some(9), ..role_named("stray") };
        let execution = fixture.execution(Payload::EnsureRole(EnsureRole { key: "r".into(), role, adopt: true }));
        for (fault, found) in [(FaultAction::DropBefore, false), (FaultAction::DropAfter, true)] {
            fixture.world.fault_once("PATCH /guilds/*/roles/*", fault);
            assert!(matches!(fixture.perform(&execution).await, ExecutionResult::Unknown(_)));
            let verified = fixture.verify(&execution).await;
            assert_eq!(matches!(verified, ReconcileResult::Found(_)), found, "{verified:?}");
        }
    });
}

#[test]
fn message_that_was_sent_and_not_pinned_needs_a_review() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let channel = Reference::Id(fixture.create_guild_fixture.channel);
        let payload = EnsureMessage { key: "m".into(), channel, body: message_body("rules"), pin: Some(true) };
        let execution = fixture.execution(Payload::EnsureMessage(payload));
        fixture.world.fault_once("PUT /channels/*/messages/pins/*", FaultAction::DropBefore);
        assert!(matches!(fixture.perform(&execution).await, ExecutionResult::Unknown(_)));
        let verified = fixture.verify(&execution).await;
        assert!(matches!(&verified, ReconcileResult::Unclear(reason) if reason.contains("pinned")), "{verified:?}");
        fixture.world.fault_once("PUT /channels/*/messages/pins/*", FaultAction::DropAfter);
        assert!(matches!(fixture.perform(&execution).await, ExecutionResult::Unknown(_)));
        assert!(matches!(fixture.verify(&execution).await, ReconcileResult::Found(_)));
    });
}

#[test]
fn permissions_are_in_place_only_if_all_of_them_are() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let channel = new_channel(&fixture, "gated").await;
        let mut overwrites = Vec::new();
        for name in ["a", "b", "c"] {
            overwrites.push(allow_view(new_role(&fixture, name).await));
        }
        for mode in [OverwriteMode::Replace, OverwriteMode::Merge] {
            let channel = Reference::Id(channel);
            let execution = fixture.execution(Payload::UpdatePermissions(UpdatePermissions {
                channel,
                overwrites: overwrites.clone(),
                mode,
            }));
            if mode == OverwriteMode::Replace {
                fixture.world.fault_once("PUT /channels/*/permissions/*", FaultAction::DropAfter);
                assert!(matches!(fixture.perform(&execution).await, ExecutionResult::Unknown(_)));
                assert_eq!(fixture.verify(&execution).await, ReconcileResult::Absent, "one of three");
                fixture.execute(&execution).await;
            }
            let verified = fixture.verify(&execution).await;
            assert!(matches!(verified, ReconcileResult::Found(_)), "{mode:?}: {verified:?}");
        }
    });
}

#[test]
fn channels_are_in_place_with_their_parent_and_position() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let path = format!("/guilds/{}/channels", fixture.create_guild_fixture.guild);
        let category = fixture.call_discord(Method::POST, &path, &json!({ "name": "season", "type": 4 })).await;
        let category = parse_id(&category["id"]);
        let (first, second) = (new_channel(&fixture, "one").await, new_channel(&fixture, "two").await);
        let parent = Some(Reference::Id(category));
        let positions = vec![
            ReorderPosition { parent: parent.clone(), ..position_of(first, 2) },
            ReorderPosition { parent, ..position_of(second, 1) },
        ];
        let execution =
            fixture.execution(Payload::Reorder(Reorder { what: ReorderTarget::Channels, places: positions }));
        fixture.world.fault_once("PATCH /guilds/*/channels", FaultAction::DropBefore);
        assert!(matches!(fixture.perform(&execution).await, ExecutionResult::Unknown(_)));
        assert_eq!(fixture.verify(&execution).await, ReconcileResult::Absent);
        fixture.world.fault_once("PATCH /guilds/*/channels", FaultAction::DropAfter);
        assert!(matches!(fixture.perform(&execution).await, ExecutionResult::Unknown(_)));
        assert!(matches!(fixture.verify(&execution).await, ReconcileResult::Found(_)));
    });
}

#[test]
fn edit_whose_embeds_differ_in_detail_is_unclear() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let channel = fixture.create_guild_fixture.channel;
        let path = format!("/channels/{channel}/messages");
        let body = json!({ "content": "x", "embeds": [{ "title": "Score", "color": 1 }] });
        let message = Reference::Id(parse_id(&fixture.call_discord(Method::POST, &path, &body).await["id"]));
        let edit = |color| {
            let embeds = Some(vec![json!({ "title": "Score", "color": color })]);
            let body = MessageBody { content: Some("x".into()), embeds, ..MessageBody::default() };
            Payload::EditMessage(EditMessage { channel: Reference::Id(channel), message: message.clone(), body })
        };
        assert!(matches!(fixture.verify(&fixture.execution(edit(2))).await, ReconcileResult::Unclear(_)));
        assert!(matches!(fixture.verify(&fixture.execution(edit(1))).await, ReconcileResult::Found(_)));
    });
}
