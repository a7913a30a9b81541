//! Roles: the effect of each kind.

use guildhall_actors::ports::{Binding, Execution};
use guildhall_core::operation::payload::{AssignRole, DeleteRole, EnsureRole, NewRole, RemoveRole, SetMemberRoles};
use guildhall_core::operation::{FailureClass, ManagedKind, Payload, Reference};
use http::Method;
use serde_json::json;

use crate::gate::run;
use crate::stage::{Stage, create_role, number, role_named};

const PATCH_ROLE: &str = "PATCH /guilds/{guild.id}/roles/{role.id}";

fn ensure(role: NewRole, adopt: bool) -> Payload {
    Payload::EnsureRole(EnsureRole { key: "captain".to_owned(), role, adopt })
}

fn captain() -> NewRole {
    NewRole { permissions: Some(1_024), color: Some(255), hoist: Some(true), ..role_named("Captain") }
}

#[test]
fn a_role_is_made_with_its_marker_given_taken_and_deleted() {
    run(async {
        let stage = Stage::new().await;
        let work = stage.work(create_role("Captain"));
        let made = stage.done(&work).await;
        let role = made.made.unwrap();
        let binding = Binding {
            kind: ManagedKind::Role,
            key: "a-role".into(),
            discord_id: role,
            channel: None,
            origin: "created",
        };
        assert_eq!((made.bind, made.status), (vec![binding], Some(200)));
        assert_eq!(made.result["role_id"], json!(role.to_string()));
        assert_eq!(stage.reasons(30).await, [format!("asked for [gh:{}]", work.marker)]);

        let (guild, user) = (stage.place.guild, stage.place.member);
        let member = format!("/guilds/{guild}/members/{user}");
        let reference = Reference::Id(role);
        stage.done(&stage.work(Payload::AssignRole(AssignRole { user, role: reference.clone() }))).await;
        assert_eq!(stage.get(&member).await["roles"], json!([role.to_string()]));
        let take = stage.work(Payload::RemoveRole(RemoveRole { user, role: reference.clone() }));
        stage.done(&take).await;
        assert_eq!(stage.get(&member).await["roles"], json!([]));
        let other = stage.done(&stage.work(create_role("Other"))).await.made.unwrap();
        let exactly = SetMemberRoles { user, roles: vec![reference.clone(), Reference::Id(other)] };
        stage.done(&stage.work(Payload::SetMemberRoles(exactly))).await;
        assert_eq!(stage.get(&member).await["roles"].as_array().unwrap().len(), 2);
        assert!(stage.reasons(25).await.iter().all(|reason| reason.contains("[gh:")));

        let delete = stage.work(Payload::DeleteRole(DeleteRole { role: reference }));
        let gone = stage.done(&delete).await;
        assert_eq!((gone.result, gone.unbind), (json!({ "deleted": true }), vec![(ManagedKind::Role, role)]));
        assert!(stage.roles_named("Captain").await.is_empty());
        let again = stage.done(&delete).await;
        assert_eq!((again.result, again.unbind), (json!({ "deleted": false }), vec![(ManagedKind::Role, role)]));
        assert_eq!(stage.done(&take).await.status, Some(404), "no member has a deleted role");
    });
}

#[test]
fn ensuring_a_role_twice_makes_one_and_changes_nothing() {
    run(async {
        let stage = Stage::new().await;
        let first = stage.done(&stage.work(ensure(captain(), false))).await;
        let role = first.made.unwrap();
        assert_eq!(first.result["outcome"], "created");
        let again = Execution { bound: Some((role, None)), ..stage.work(ensure(captain(), false)) };
        let second = stage.done(&again).await;
        assert_eq!((second.made, &second.result["outcome"]), (Some(role), &json!("unchanged")));
        assert_eq!(stage.roles_named("Captain").await.len(), 1);
        assert_eq!(stage.world.arrived_at(PATCH_ROLE), 0);

        let blue = NewRole { color: Some(7), hoist: None, ..captain() };
        let third = stage.done(&Execution { bound: Some((role, None)), ..stage.work(ensure(blue, false)) }).await;
        assert_eq!(third.result["outcome"], "updated");
        let held = &stage.roles_named("Captain").await[0];
        assert_eq!((&held["color"], &held["hoist"], &held["permissions"]), (&json!(7), &json!(true), &json!("1024")));
    });
}

#[test]
fn a_role_that_was_deleted_is_made_anew_and_the_old_one_forgotten() {
    run(async {
        let stage = Stage::new().await;
        let role = stage.done(&stage.work(ensure(captain(), false))).await.made.unwrap();
        stage.done(&stage.work(Payload::DeleteRole(DeleteRole { role: Reference::Id(role) }))).await;
        let again = stage.done(&Execution { bound: Some((role, None)), ..stage.work(ensure(captain(), false)) }).await;
        assert_ne!(again.made, Some(role));
        assert_eq!((again.unbind, again.bind.len()), (vec![(ManagedKind::Role, role)], 1));
    });
}

#[test]
fn the_one_role_of_a_name_that_is_nobodys_is_adopted_and_several_are_a_conflict() {
    run(async {
        let stage = Stage::new().await;
        let roles = format!("/guilds/{}/roles", stage.place.guild);
        let strange = stage.aside(Method::POST, &roles, &json!({ "name": "Captain", "color": 9 })).await;
        let owned = stage.aside(Method::POST, &roles, &json!({ "name": "Captain" })).await;
        stage.known.insert(ManagedKind::Role, number(&owned["id"]));
        let adopted = stage.done(&stage.work(ensure(captain(), true))).await;
        assert_eq!(adopted.made, Some(number(&strange["id"])));
        assert_eq!((adopted.bind[0].origin, &adopted.result["outcome"]), ("adopted", &json!("adopted")));
        assert_eq!(
            stage.get(&format!("{roles}/{}", adopted.made.unwrap())).await["color"],
            255,
            "and updated to match"
        );

        for _ in 0..2 {
            stage.aside(Method::POST, &roles, &json!({ "name": "Captain" })).await;
        }
        let before = stage.roles_named("Captain").await.len();
        let conflict = stage.failed(&stage.work(ensure(captain(), true))).await;
        assert_eq!(conflict.class, FailureClass::Conflict);
        assert!(conflict.message.contains("2 roles are named `Captain`"), "{conflict}");
        assert_eq!(stage.roles_named("Captain").await.len(), before);
    });
}
