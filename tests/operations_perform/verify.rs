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
use http::Method;
use serde_json::{Value, json};

use crate::gate::run;
use crate::stage::{
    Stage, VIEW_CHANNEL, channel_named, create_channel, create_role, number, role_named, says, send_message,
};

/// What Discord can show about an effect afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tells {
    Everything,
    Nothing,
    /// There is no effect to show.
    NoEffect,
}

/// An operation, and the call that has its effect.
struct Case {
    work: Execution,
    route: &'static str,
    tells: Tells,
}

fn case(work: Execution, route: &'static str) -> Case {
    Case { work, route, tells: Tells::Everything }
}

async fn new_role(stage: &Stage, name: &str) -> u64 {
    let path = format!("/guilds/{}/roles", stage.place.guild);
    number(&stage.aside(Method::POST, &path, &json!({ "name": name })).await["id"])
}

async fn new_channel(stage: &Stage, name: &str) -> u64 {
    let path = format!("/guilds/{}/channels", stage.place.guild);
    number(&stage.aside(Method::POST, &path, &json!({ "name": name })).await["id"])
}

async fn new_message(stage: &Stage, content: &str) -> u64 {
    let path = format!("/channels/{}/messages", stage.place.channel);
    number(&stage.aside(Method::POST, &path, &json!({ "content": content })).await["id"])
}

async fn fired(stage: &Stage) -> (u64, String) {
    let report = stage.world.sim.fire(FireSpec::command(Snowflake::new(stage.place.guild), "hello")).await.unwrap();
    (report.id.unwrap().get(), report.token.unwrap())
}

/// An interaction that has its initial response.
async fn deferred(stage: &Stage) -> (u64, String) {
    let (interaction, token) = fired(stage).await;
    stage.aside(Method::POST, &format!("/interactions/{interaction}/{token}/callback"), &json!({ "type": 5 })).await;
    (interaction, token)
}

fn bound(work: Execution, id: u64, channel: Option<u64>) -> Execution {
    Execution { bound: Some((id, channel)), ..work }
}

fn allow_view(role: u64) -> Overwrite {
    Overwrite { target: OverwriteTarget::Role(Reference::Id(role)), allow: VIEW_CHANNEL, deny: 0 }
}

fn place(object: u64, position: u16) -> ReorderPosition {
    ReorderPosition { object: Reference::Id(object), position, parent: None }
}

/// The position of a role.
async fn position(stage: &Stage, role: u64) -> u16 {
    let roles = stage.get(&format!("/guilds/{}/roles", stage.place.guild)).await;
    let role = roles.as_array().unwrap().iter().find(|one| number(&one["id"]) == role).unwrap();
    role["position"].as_u64().unwrap().try_into().unwrap()
}

/// An operation of this kind whose effect is not in place yet. Each has its own objects.
async fn new_case(stage: &Stage, kind: OperationKind, n: usize) -> Case {
    let (user, channel) = (stage.place.member, stage.place.channel);
    let name = format!("{}-{n}", kind.name().replace('_', "-"));
    let work = |payload| stage.work(payload);
    match kind {
        OperationKind::CreateRole => case(work(create_role(&name)), "POST /guilds/*/roles"),
        OperationKind::DeleteRole => {
            let role = Reference::Id(new_role(stage, &name).await);
            case(work(Payload::DeleteRole(DeleteRole { role })), "DELETE /guilds/*/roles/*")
        }
        OperationKind::AssignRole => {
            let role = Reference::Id(new_role(stage, &name).await);
            case(work(Payload::AssignRole(AssignRole { user, role })), "PUT /guilds/*/members/*/roles/*")
        }
        OperationKind::RemoveRole => {
            let role = new_role(stage, &name).await;
            let path = format!("/guilds/{}/members/{user}/roles/{role}", stage.place.guild);
            stage.aside(Method::PUT, &path, &Value::Null).await;
            let role = Reference::Id(role);
            case(work(Payload::RemoveRole(RemoveRole { user, role })), "DELETE /guilds/*/members/*/roles/*")
        }
        OperationKind::CreateChannel => case(work(create_channel(&name)), "POST /guilds/*/channels"),
        OperationKind::DeleteChannel => {
            let channel = Reference::Id(new_channel(stage, &name).await);
            case(work(Payload::DeleteChannel(DeleteChannel { channel })), "DELETE /channels/*")
        }
        OperationKind::UpdatePermissions => {
            let overwrites = vec![allow_view(new_role(stage, &name).await)];
            let channel = Reference::Id(new_channel(stage, &name).await);
            let payload = UpdatePermissions { channel, overwrites, mode: OverwriteMode::Replace };
            case(work(Payload::UpdatePermissions(payload)), "PUT /channels/*/permissions/*")
        }
        OperationKind::SetMemberRoles => {
            let roles = vec![Reference::Id(new_role(stage, &name).await)];
            case(work(Payload::SetMemberRoles(SetMemberRoles { user, roles })), "PATCH /guilds/*/members/*")
        }
        OperationKind::EnsureRole => {
            let id = new_role(stage, &name).await;
            let role = NewRole { color: Some(255), ..role_named(&name) };
            let work = work(Payload::EnsureRole(EnsureRole { key: "k".into(), role, adopt: false }));
            case(bound(work, id, None), "PATCH /guilds/*/roles/*")
        }
        OperationKind::EnsureChannel => {
            let id = new_channel(stage, &name).await;
            let mut channel = channel_named(&name);
            channel.topic = Some("about this".to_owned());
            let work = work(Payload::EnsureChannel(EnsureChannel { key: "k".into(), channel, adopt: false }));
            case(bound(work, id, None), "PATCH /channels/*")
        }
        OperationKind::ReplaceOverwrites => {
            let overwrites = vec![allow_view(new_role(stage, &name).await)];
            let channel = Reference::Id(new_channel(stage, &name).await);
            case(work(Payload::ReplaceOverwrites(ReplaceOverwrites { channel, overwrites })), "PATCH /channels/*")
        }
        OperationKind::Reorder => {
            let (first, second) = (new_role(stage, &name).await, new_role(stage, &name).await);
            let (low, high) = (position(stage, first).await, position(stage, second).await);
            let places = vec![place(first, high), place(second, low)];
            let payload = Reorder { what: ReorderTarget::Roles, places };
            assert_ne!(low, high);
            case(work(Payload::Reorder(payload)), "PATCH /guilds/*/roles")
        }
        OperationKind::EnsureMessage => {
            let id = new_message(stage, "before").await;
            let payload =
                EnsureMessage { key: "k".into(), channel: Reference::Id(channel), body: says(&name), pin: None };
            case(bound(work(Payload::EnsureMessage(payload)), id, Some(channel)), "PATCH /channels/*/messages/*")
        }
        OperationKind::SendMessage => case(work(send_message(channel, &name)), "POST /channels/*/messages"),
        OperationKind::EditMessage => {
            let message = Reference::Id(new_message(stage, "before").await);
            let payload = EditMessage { channel: Reference::Id(channel), message, body: says(&name) };
            case(work(Payload::EditMessage(payload)), "PATCH /channels/*/messages/*")
        }
        OperationKind::DeleteMessage => {
            let message = Reference::Id(new_message(stage, "before").await);
            let payload = DeleteMessage { channel: Reference::Id(channel), message };
            case(work(Payload::DeleteMessage(payload)), "DELETE /channels/*/messages/*")
        }
        OperationKind::SendDm => {
            case(work(Payload::SendDm(SendDm { user, body: says(&name) })), "POST /channels/*/messages")
        }
        OperationKind::DeferReply => {
            let (interaction, token) = fired(stage).await;
            let payload = DeferReply { interaction, token, ephemeral: true, update: false };
            case(work(Payload::DeferReply(payload)), "POST /interactions/**")
        }
        OperationKind::SendFollowup => {
            let (interaction, token) = deferred(stage).await;
            let payload = SendFollowup { interaction, token, ephemeral: false, body: says(&name) };
            let case = case(work(Payload::SendFollowup(payload)), "POST /webhooks/**");
            Case { tells: Tells::Nothing, ..case }
        }
        OperationKind::EditOriginal => {
            let (interaction, token) = deferred(stage).await;
            let payload = EditOriginal { interaction, token, body: says(&name) };
            case(work(Payload::EditOriginal(payload)), "PATCH /webhooks/**")
        }
        OperationKind::Read => {
            let payload = Read { path: format!("/guilds/{}/roles", stage.place.guild) };
            Case { tells: Tells::NoEffect, ..case(work(Payload::Read(payload)), "GET /guilds/*/roles") }
        }
        OperationKind::Request => {
            let path = format!("/guilds/{}/roles/{}", stage.place.guild, new_role(stage, &name).await);
            let body = Some(json!({ "color": 255 }));
            let payload = Request { method: Verb::Patch, path, body, user: None };
            Case { tells: Tells::Nothing, ..case(work(Payload::Request(payload)), "PATCH /guilds/*/roles/*") }
        }
    }
}

#[test]
fn effect_of_every_kind_is_found_if_it_is_in_place_and_absent_if_not() {
    let faults = [
        (FaultAction::DropAfter, true),
        (FaultAction::StatusAfter { status: 502 }, true),
        (FaultAction::DropBefore, false),
        (FaultAction::Status { status: 502, code: 0 }, false),
    ];
    run(async {
        for kind in OperationKind::ALL {
            let stage = Stage::new().await;
            for (n, (fault, happened)) in faults.iter().enumerate() {
                let label = format!("{} {fault:?}", kind.name());
                let Case { work, route, tells } = new_case(&stage, kind, n).await;
                stage.world.fault_once(route, fault.clone());
                let performed = stage.perform(&work).await;
                if tells == Tells::NoEffect {
                    assert!(matches!(performed, ExecutionResult::Failed(_)), "{label}: {performed:?}");
                    assert_eq!(stage.verify(&work).await, ReconcileResult::Absent, "{label}");
                    continue;
                }
                assert!(matches!(performed, ExecutionResult::Unknown(_)), "{label}: {performed:?}");
                let writes = stage.world.score().effects.values().map(Vec::len).sum::<usize>();
                let verified = stage.verify(&work).await;
                match (tells, happened) {
                    (Tells::Everything, true) => {
                        let ReconcileResult::Found(found) = verified else { panic!("{label}: {verified:?}") };
                        assert!(!found.result.is_null(), "{label}");
                    }
                    (Tells::Everything, false) => assert_eq!(verified, ReconcileResult::Absent, "{label}"),
                    (Tells::Nothing, _) => {
                        assert!(matches!(verified, ReconcileResult::Unclear(_)), "{label}: {verified:?}");
                    }
                    (Tells::NoEffect, _) => unreachable!("handled above"),
                }
                let after = stage.world.score().effects.values().map(Vec::len).sum::<usize>();
                assert_eq!(writes, after, "{label}: a check changes nothing");
            }
        }
    });
}

#[test]
fn check_that_discord_does_not_answer_is_made_again() {
    run(async {
        for kind in OperationKind::ALL {
            let stage = Stage::new().await;
            let Case { work, route, tells } = new_case(&stage, kind, 0).await;
            if tells != Tells::Everything {
                continue;
            }
            stage.world.fault_once(route, FaultAction::DropAfter);
            stage.perform(&work).await;
            for fault in [FaultAction::Status { status: 503, code: 0 }, FaultAction::DropBefore] {
                stage.world.fault_once("*", fault);
                let verified = stage.verify(&work).await;
                assert!(matches!(verified, ReconcileResult::Failed(_)), "{}: {verified:?}", kind.name());
            }
            let verified = stage.verify(&work).await;
            assert!(matches!(verified, ReconcileResult::Found(_)), "{}: {verified:?}", kind.name());
        }
    });
}

#[test]
fn check_that_a_limit_holds_is_made_later() {
    run(async {
        let stage = Stage::new().await;
        let Case { work, route, .. } = new_case(&stage, OperationKind::AssignRole, 0).await;
        stage.world.fault_once(route, FaultAction::DropAfter);
        stage.perform(&work).await;
        let limit = FaultAction::RateLimit { scope: guildhall_sim::Scope::Shared, retry_after_ms: 20 };
        stage.world.fault_once("GET /guilds/*/members/*", limit);
        assert!(matches!(stage.verify(&work).await, ReconcileResult::Held { .. }));
        assert!(matches!(stage.verify(&work).await, ReconcileResult::Found(_)));
    });
}

#[test]
fn effect_that_the_bot_may_not_look_at_is_unclear() {
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
            let stage = Stage::new().await;
            let Case { work, route, .. } = new_case(&stage, kind, 0).await;
            stage.world.fault_once(route, FaultAction::DropAfter);
            stage.perform(&work).await;
            stage.world.fault_once(read, FaultAction::Status { status: 403, code: 50_001 });
            let verified = stage.verify(&work).await;
            assert!(matches!(verified, ReconcileResult::Unclear(_)), "{}: {verified:?}", kind.name());
        }
    });
}

#[test]
fn result_of_a_checked_operation_is_that_of_an_answered_one() {
    run(async {
        let stage = Stage::new().await;
        for kind in [
            OperationKind::AssignRole,
            OperationKind::RemoveRole,
            OperationKind::DeleteRole,
            OperationKind::DeleteChannel,
            OperationKind::ReplaceOverwrites,
        ] {
            let Case { work, .. } = new_case(&stage, kind, 0).await;
            let answered = stage.done(&work).await;
            let ReconcileResult::Found(found) = stage.verify(&work).await else { panic!("{}", kind.name()) };
            assert_eq!((found.result, found.unbind), (answered.result, answered.unbind), "{}", kind.name());
        }
    });
}

#[test]
fn ensured_objects_without_a_key_are_found_if_they_were_made() {
    run(async {
        let stage = Stage::new().await;
        let channel = Reference::Id(stage.place.channel);
        for (fault, found) in [(FaultAction::DropAfter, true), (FaultAction::DropBefore, false)] {
            for adopt in [false, true] {
                let name = format!("kept-{found}-{adopt}");
                let role = EnsureRole { key: "r".into(), role: role_named(&name), adopt };
                let made = EnsureChannel { key: "c".into(), channel: channel_named(&name), adopt };
                let message = EnsureMessage { key: "m".into(), channel: channel.clone(), body: says(&name), pin: None };
                for (payload, route) in [
                    (Payload::EnsureRole(role), "POST /guilds/*/roles"),
                    (Payload::EnsureChannel(made), "POST /guilds/*/channels"),
                    (Payload::EnsureMessage(message), "POST /channels/*/messages"),
                ] {
                    let work = stage.work(payload);
                    stage.lost(&work, route, fault.clone()).await;
                    let verified = stage.verify(&work).await;
                    let is_found = matches!(&verified, ReconcileResult::Found(done) if done.bind.len() == 1);
                    assert_eq!(is_found, found, "{route} {adopt}: {verified:?}");
                    assert!(found || verified == ReconcileResult::Absent, "{verified:?}");
                    if let ReconcileResult::Found(done) = verified {
                        stage.keep(&work, &done);
                    }
                }
            }
        }
    });
}

#[test]
fn adopted_role_that_was_not_changed_is_absent() {
    run(async {
        let stage = Stage::new().await;
        new_role(&stage, "stray").await;
        let role = NewRole { color: Some(9), ..role_named("stray") };
        let work = stage.work(Payload::EnsureRole(EnsureRole { key: "r".into(), role, adopt: true }));
        for (fault, found) in [(FaultAction::DropBefore, false), (FaultAction::DropAfter, true)] {
            stage.world.fault_once("PATCH /guilds/*/roles/*", fault);
            assert!(matches!(stage.perform(&work).await, ExecutionResult::Unknown(_)));
            let verified = stage.verify(&work).await;
            assert_eq!(matches!(verified, ReconcileResult::Found(_)), found, "{verified:?}");
        }
    });
}

#[test]
fn message_that_was_sent_and_not_pinned_needs_a_review() {
    run(async {
        let stage = Stage::new().await;
        let channel = Reference::Id(stage.place.channel);
        let payload = EnsureMessage { key: "m".into(), channel, body: says("rules"), pin: Some(true) };
        let work = stage.work(Payload::EnsureMessage(payload));
        stage.world.fault_once("PUT /channels/*/messages/pins/*", FaultAction::DropBefore);
        assert!(matches!(stage.perform(&work).await, ExecutionResult::Unknown(_)));
        let verified = stage.verify(&work).await;
        assert!(matches!(&verified, ReconcileResult::Unclear(why) if why.contains("pinned")), "{verified:?}");
        stage.world.fault_once("PUT /channels/*/messages/pins/*", FaultAction::DropAfter);
        assert!(matches!(stage.perform(&work).await, ExecutionResult::Unknown(_)));
        assert!(matches!(stage.verify(&work).await, ReconcileResult::Found(_)));
    });
}

#[test]
fn permissions_are_in_place_only_if_all_of_them_are() {
    run(async {
        let stage = Stage::new().await;
        let channel = new_channel(&stage, "gated").await;
        let mut overwrites = Vec::new();
        for name in ["a", "b", "c"] {
            overwrites.push(allow_view(new_role(&stage, name).await));
        }
        for mode in [OverwriteMode::Replace, OverwriteMode::Merge] {
            let channel = Reference::Id(channel);
            let work = stage.work(Payload::UpdatePermissions(UpdatePermissions {
                channel,
                overwrites: overwrites.clone(),
                mode,
            }));
            if mode == OverwriteMode::Replace {
                stage.world.fault_once("PUT /channels/*/permissions/*", FaultAction::DropAfter);
                assert!(matches!(stage.perform(&work).await, ExecutionResult::Unknown(_)));
                assert_eq!(stage.verify(&work).await, ReconcileResult::Absent, "one of three");
                stage.done(&work).await;
            }
            let verified = stage.verify(&work).await;
            assert!(matches!(verified, ReconcileResult::Found(_)), "{mode:?}: {verified:?}");
        }
    });
}

#[test]
fn channels_are_in_place_with_their_parent_and_position() {
    run(async {
        let stage = Stage::new().await;
        let path = format!("/guilds/{}/channels", stage.place.guild);
        let category = stage.aside(Method::POST, &path, &json!({ "name": "season", "type": 4 })).await;
        let category = number(&category["id"]);
        let (first, second) = (new_channel(&stage, "one").await, new_channel(&stage, "two").await);
        let parent = Some(Reference::Id(category));
        let places = vec![
            ReorderPosition { parent: parent.clone(), ..place(first, 2) },
            ReorderPosition { parent, ..place(second, 1) },
        ];
        let work = stage.work(Payload::Reorder(Reorder { what: ReorderTarget::Channels, places }));
        stage.world.fault_once("PATCH /guilds/*/channels", FaultAction::DropBefore);
        assert!(matches!(stage.perform(&work).await, ExecutionResult::Unknown(_)));
        assert_eq!(stage.verify(&work).await, ReconcileResult::Absent);
        stage.world.fault_once("PATCH /guilds/*/channels", FaultAction::DropAfter);
        assert!(matches!(stage.perform(&work).await, ExecutionResult::Unknown(_)));
        assert!(matches!(stage.verify(&work).await, ReconcileResult::Found(_)));
    });
}

#[test]
fn edit_whose_embeds_differ_in_detail_is_unclear() {
    run(async {
        let stage = Stage::new().await;
        let channel = stage.place.channel;
        let path = format!("/channels/{channel}/messages");
        let body = json!({ "content": "x", "embeds": [{ "title": "Score", "color": 1 }] });
        let message = Reference::Id(number(&stage.aside(Method::POST, &path, &body).await["id"]));
        let edit = |color| {
            let embeds = Some(vec![json!({ "title": "Score", "color": color })]);
            let body = MessageBody { content: Some("x".into()), embeds, ..MessageBody::default() };
            Payload::EditMessage(EditMessage { channel: Reference::Id(channel), message: message.clone(), body })
        };
        assert!(matches!(stage.verify(&stage.work(edit(2))).await, ReconcileResult::Unclear(_)));
        assert!(matches!(stage.verify(&stage.work(edit(1))).await, ReconcileResult::Found(_)));
    });
}
