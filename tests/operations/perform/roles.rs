//! Roles: the effect of each kind.

use guildhall_actors::ports::{Binding, Execution};
use guildhall_core::operation::payload::{AssignRole, DeleteRole, EnsureRole, NewRole, RemoveRole, SetMemberRoles};
use guildhall_core::operation::{FailureClass, ManagedKind, Payload, Reference};
use guildhall_testkit::gate::run;
use http::Method;
use serde_json::json;

use super::fixture::{ExecutorFixture, create_role, parse_id, role_named};

const PATCH_ROLE: &str = "PATCH /guilds/{guild.id}/roles/{role.id}";

fn ensure(role: NewRole, adopt: bool) -> Payload {
    Payload::EnsureRole(EnsureRole { key: "captain".to_owned(), role, adopt })
}

fn captain() -> NewRole {
    NewRole { permissions: Some(1_024), color: Some(255), hoist: Some(true), ..role_named("Captain") }
}

#[test]
fn role_is_created_assigned_removed_and_deleted() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let execution = fixture.execution(create_role("Captain"));
        let created = fixture.execute(&execution).await;
        let role = created.created.unwrap();
        let binding = Binding {
            kind: ManagedKind::Role,
            key: "a-role".into(),
            discord_id: role,
            channel: None,
            origin: "created",
        };
        assert_eq!((created.bind, created.status), (vec![binding], Some(200)));
        assert_eq!(created.result["role_id"], json!(role.to_string()));
        assert_eq!(fixture.reasons(30).await, [format!("asked for [gh:{}]", execution.marker)]);

        let (guild, user) = (fixture.create_guild_fixture.guild, fixture.create_guild_fixture.member);
        let member = format!("/guilds/{guild}/members/{user}");
        let reference = Reference::Id(role);
        fixture.execute(&fixture.execution(Payload::AssignRole(AssignRole { user, role: reference.clone() }))).await;
        assert_eq!(fixture.get(&member).await["roles"], json!([role.to_string()]));
        let remove = fixture.execution(Payload::RemoveRole(RemoveRole { user, role: reference.clone() }));
        fixture.execute(&remove).await;
        assert_eq!(fixture.get(&member).await["roles"], json!([]));
        let other = fixture.execute(&fixture.execution(create_role("Other"))).await.created.unwrap();
        let exactly = SetMemberRoles { user, roles: vec![reference.clone(), Reference::Id(other)] };
        fixture.execute(&fixture.execution(Payload::SetMemberRoles(exactly))).await;
        assert_eq!(fixture.get(&member).await["roles"].as_array().unwrap().len(), 2);
        assert!(fixture.reasons(25).await.iter().all(|reason| reason.contains("[gh:")));

        let delete = fixture.execution(Payload::DeleteRole(DeleteRole { role: reference }));
        let deleted = fixture.execute(&delete).await;
        assert_eq!((deleted.result, deleted.unbind), (json!({ "deleted": true }), vec![(ManagedKind::Role, role)]));
        assert!(fixture.roles_named("Captain").await.is_empty());
        let repeated = fixture.execute(&delete).await;
        assert_eq!((repeated.result, repeated.unbind), (json!({ "deleted": false }), vec![(ManagedKind::Role, role)]));
        assert_eq!(fixture.execute(&remove).await.status, Some(404), "no member has a deleted role");
    });
}

#[test]
fn ensuring_a_role_twice_creates_one_and_changes_nothing() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let first = fixture.execute(&fixture.execution(ensure(captain(), false))).await;
        let role = first.created.unwrap();
        assert_eq!(first.result["outcome"], "created");
        let repeated = Execution { existing: Some((role, None)), ..fixture.execution(ensure(captain(), false)) };
        let second = fixture.execute(&repeated).await;
        assert_eq!((second.created, &second.result["outcome"]), (Some(role), &json!("unchanged")));
        assert_eq!(fixture.roles_named("Captain").await.len(), 1);
        assert_eq!(fixture.world.arrived_at(PATCH_ROLE), 0);

        let blue = NewRole { color: Some(7), hoist: None, ..captain() };
        let third = fixture
            .execute(&Execution { existing: Some((role, None)), ..fixture.execution(ensure(blue, false)) })
            .await;
        assert_eq!(third.result["outcome"], "updated");
        let stored = &fixture.roles_named("Captain").await[0];
        assert_eq!(
            (&stored["color"], &stored["hoist"], &stored["permissions"]),
            (&json!(7), &json!(true), &json!("1024"))
        );
    });
}

#[test]
fn deleted_role_is_created_again_and_unbound() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let role = fixture.execute(&fixture.execution(ensure(captain(), false))).await.created.unwrap();
        fixture.execute(&fixture.execution(Payload::DeleteRole(DeleteRole { role: Reference::Id(role) }))).await;
        let repeated = fixture
            .execute(&Execution { existing: Some((role, None)), ..fixture.execution(ensure(captain(), false)) })
            .await;
        assert_ne!(repeated.created, Some(role));
        assert_eq!((repeated.unbind, repeated.bind.len()), (vec![(ManagedKind::Role, role)], 1));
    });
}

#[test]
fn single_unmanaged_role_is_adopted_and_several_conflict() {
    run(async {
        let fixture = ExecutorFixture::new().await;
        let roles = format!("/guilds/{}/roles", fixture.create_guild_fixture.guild);
        let unmanaged = fixture.call_discord(Method::POST, &roles, &json!({ "name": "Captain", "color": 9 })).await;
        let owned = fixture.call_discord(Method::POST, &roles, &json!({ "name": "Captain" })).await;
        fixture.ownership.insert(ManagedKind::Role, parse_id(&owned["id"]));
        let adopted = fixture.execute(&fixture.execution(ensure(captain(), true))).await;
        assert_eq!(adopted.created, Some(parse_id(&unmanaged["id"])));
        assert_eq!((adopted.bind[0].origin, &adopted.result["outcome"]), ("adopted", &json!("adopted")));
        assert_eq!(
            fixture.get(&format!("{roles}/{}", adopted.created.unwrap())).await["color"],
            255,
            "and updated to match"
        );

        for _ in 0..2 {
            fixture.call_discord(Method::POST, &roles, &json!({ "name": "Captain" })).await;
        }
        let before = fixture.roles_named("Captain").await.len();
        let conflict = fixture.execute_failing(&fixture.execution(ensure(captain(), true))).await;
        assert_eq!(conflict.class, FailureClass::Conflict);
        assert!(conflict.message.contains("2 roles are named `Captain`"), "{conflict}");
        assert_eq!(fixture.roles_named("Captain").await.len(), before);
    });
}
