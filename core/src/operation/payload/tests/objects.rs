//! Tests of which operations may pass each other.

#![expect(clippy::needless_pass_by_value, reason = "the tables read better with the values in place")]

use super::*;
use crate::operation::{ManagedKind, OperationId};

/// What the operation with this number reads and writes.
fn objects(number: u8, kind: OperationKind, value: &Value) -> Objects {
    parse_ok(kind, value).objects(id(number), GUILD)
}

fn id(number: u8) -> OperationId {
    OperationId::new(1_700_000_000_000, [number; 10])
}

/// Whether the order of two operations matters, whichever comes first.
fn conflict(one: (OperationKind, Value), other: (OperationKind, Value)) -> bool {
    let (first, second) = (objects(1, one.0, &one.1), objects(2, other.0, &other.1));
    assert_eq!(first.meets(&second), second.meets(&first), "{one:?} {other:?}");
    first.meets(&second)
}

fn create_role(more: Value) -> (OperationKind, Value) {
    (OperationKind::CreateRole, with(&json!({"name": "a"}), more))
}

fn ensure_role(key: &str, adopt: bool) -> (OperationKind, Value) {
    (OperationKind::EnsureRole, json!({"name": "a", "key": key, "adopt": adopt}))
}

fn assign(user: &str, role: Value) -> (OperationKind, Value) {
    (OperationKind::AssignRole, with(&json!({"user_id": user}), json!({"role_id": role})))
}

fn delete_role(role: Value) -> (OperationKind, Value) {
    (OperationKind::DeleteRole, with(&json!({}), json!({"role_id": role})))
}

fn create_channel(more: Value) -> (OperationKind, Value) {
    (OperationKind::CreateChannel, with(&json!({"name": "a"}), more))
}

fn update_permissions(channel: Value, overwrite: Value) -> (OperationKind, Value) {
    (OperationKind::UpdatePermissions, with(&json!({"channel_id": channel}), json!({"overwrites": [overwrite]})))
}

fn send_message(channel: Value) -> (OperationKind, Value) {
    (OperationKind::SendMessage, with(&json!({"content": "a"}), json!({"channel_id": channel})))
}

fn edit(channel: &str, message: Value) -> (OperationKind, Value) {
    (OperationKind::EditMessage, json!({"content": "a", "channel_id": channel, "message_id": message}))
}

#[test]
fn parked_role_creation_blocks_only_related_operations() {
    for parked in [create_role(json!({})), create_role(json!({"key": "vip"}))] {
        for other in [
            create_role(json!({})),
            create_role(json!({"key": "mods"})),
            ensure_role("mods", false),
            assign("12", json!("11")),
            assign("12", json!({"key": "mods"})),
            assign("12", json!({"operation": id(9).to_string()})),
            delete_role(json!("11")),
            (OperationKind::SetMemberRoles, json!({"user_id": "12", "role_ids": ["11"]})),
            create_channel(json!({"key": "vip", "overwrites": [{"role_id": "11"}]})),
            update_permissions(json!("21"), json!({"role_id": "11"})),
            (OperationKind::Reorder, json!({"what": "channels", "places": [{"id": "21", "position": 1}]})),
            send_message(json!("21")),
            edit("21", json!("41")),
        ] {
            assert!(!conflict(parked.clone(), other.clone()), "{other:?} waits for {parked:?}");
        }
    }
}

#[test]
fn operation_waits_for_the_object_it_refers_to() {
    let parked = create_role(json!({"key": "vip"}));
    for other in [
        create_role(json!({"key": "vip"})),
        ensure_role("vip", false),
        ensure_role("mods", true),
        assign("12", json!({"key": "vip"})),
        assign("12", json!({"operation": id(1).to_string()})),
        delete_role(json!({"key": "vip"})),
        create_channel(json!({"overwrites": [{"role_id": {"key": "vip"}}]})),
        update_permissions(json!("21"), json!({"role_id": {"operation": id(1).to_string()}})),
        (OperationKind::Reorder, json!({"what": "roles", "places": [{"id": "11", "position": 1}]})),
        (OperationKind::Read, json!({"path": "/guilds/1/roles"})),
        (OperationKind::Request, json!({"method": "GET", "path": "/guilds/1/roles"})),
        (OperationKind::Request, json!({"method": "DELETE", "path": "/guilds/1/roles/5"})),
    ] {
        // The parked one is operation 1, so the order of the two is given.
        let first = objects(1, parked.0, &parked.1);
        assert!(first.meets(&objects(2, other.0, &other.1)), "{other:?} passes");
    }
}

#[test]
fn names_that_may_be_one_object_conflict() {
    let names = [json!("11"), json!({"key": "mods"}), json!({"operation": id(8).to_string()})];
    for (one, name) in names.iter().enumerate() {
        for other_name in &names[one..] {
            assert!(conflict(delete_role(name.clone()), assign("12", other_name.clone())), "{name} {other_name}");
        }
    }
    // Both may have ensured the same role.
    assert!(conflict(delete_role(names[2].clone()), assign("12", json!({"operation": id(9).to_string()}))));
    // The object of a key may have any id, or be the object of any operation.
    assert!(conflict(ensure_role("mods", false), delete_role(json!("11"))));
    assert!(conflict(ensure_role("mods", false), assign("12", names[2].clone())));
    // These are certainly two objects.
    assert!(!conflict(delete_role(json!("11")), assign("12", json!("13"))));
    assert!(!conflict(delete_role(json!({"key": "a"})), assign("12", json!({"key": "b"}))));
    assert!(!conflict(ensure_role("a", false), ensure_role("b", false)));
    // A role and a channel are different objects, even with the same name.
    assert!(!conflict(delete_role(json!({"key": "a"})), send_message(json!({"key": "a"}))));
    assert!(!conflict(delete_role(json!("11")), send_message(json!("11"))));
}

#[test]
fn operations_on_the_same_object_keep_their_order() {
    for (one, other, expected) in [
        // Members.
        (assign("12", json!("11")), assign("12", json!("13")), true),
        (assign("12", json!("11")), assign("13", json!("14")), false),
        (assign("12", json!("11")), (OperationKind::SetMemberRoles, json!({"user_id": "12", "role_ids": []})), true),
        (assign("12", json!("11")), (OperationKind::RemoveRole, json!({"user_id": "12", "role_id": "11"})), true),
        // Channels.
        (send_message(json!("21")), send_message(json!("21")), true),
        (send_message(json!("21")), send_message(json!("22")), false),
        (send_message(json!("21")), send_message(json!({"key": "general"})), true),
        (update_permissions(json!("21"), json!({"role_id": "11"})), send_message(json!("21")), true),
        (
            update_permissions(json!("21"), json!({"role_id": "11"})),
            update_permissions(json!("22"), json!({"role_id": "11"})),
            false,
        ),
        (
            update_permissions(json!("21"), json!({"user_id": "12"})),
            update_permissions(json!("22"), json!({"user_id": "12"})),
            false,
        ),
        ((OperationKind::DeleteChannel, json!({"channel_id": "21"})), create_channel(json!({"parent_id": "21"})), true),
        ((OperationKind::DeleteChannel, json!({"channel_id": "21"})), edit("21", json!("41")), true),
        (create_channel(json!({"parent_id": "21"})), create_channel(json!({"parent_id": "21"})), false),
        (
            (OperationKind::Reorder, json!({"what": "channels", "places": [{"id": "1", "position": 1}]})),
            send_message(json!("21")),
            true,
        ),
        // Access is denied first, then the role is given: the two must not be swapped.
        (update_permissions(json!("21"), json!({"role_id": "11", "deny": "1024"})), assign("12", json!("11")), true),
        (update_permissions(json!("21"), json!({"role_id": "11", "deny": "1024"})), assign("12", json!("14")), false),
        (update_permissions(json!("21"), json!({"user_id": "12", "deny": "1024"})), assign("12", json!("14")), true),
        (
            (OperationKind::EnsureChannel, json!({"key": "a", "name": "a", "overwrites": [{"role_id": "11"}]})),
            assign("12", json!("11")),
            true,
        ),
        // A channel that does not exist yet gives no access.
        (create_channel(json!({"overwrites": [{"role_id": "11"}]})), assign("12", json!("11")), false),
        (create_channel(json!({"overwrites": [{"role_id": "11"}]})), delete_role(json!("11")), true),
        // Messages.
        (edit("21", json!("41")), edit("21", json!("42")), false),
        (
            edit("21", json!("41")),
            (OperationKind::DeleteMessage, json!({"channel_id": "21", "message_id": "41"})),
            true,
        ),
        (edit("21", json!({"key": "rules"})), edit("21", json!("42")), true),
        (
            (OperationKind::SendMessage, json!({"channel_id": "21", "content": "a", "reply_to": "41"})),
            (OperationKind::DeleteMessage, json!({"channel_id": "22", "message_id": "41"})),
            true,
        ),
        (
            (OperationKind::EnsureMessage, json!({"channel_id": "21", "content": "a", "key": "rules"})),
            edit("22", json!({"key": "rules"})),
            true,
        ),
        // Anything.
        ((OperationKind::Read, json!({"path": "/a"})), (OperationKind::Read, json!({"path": "/a"})), false),
        (
            (OperationKind::Read, json!({"path": "/a"})),
            (OperationKind::Request, json!({"method": "PUT", "path": "/b"})),
            true,
        ),
        ((OperationKind::Request, json!({"method": "PUT", "path": "/b"})), send_message(json!("21")), true),
    ] {
        assert_eq!(conflict(one.clone(), other.clone()), expected, "{one:?} {other:?}");
    }
}

#[test]
fn messages_to_one_user_or_interaction_keep_their_order() {
    let dm = |user: &str| (OperationKind::SendDm, json!({"user_id": user, "content": "a"}));
    assert!(conflict(dm("12"), dm("12")));
    assert!(!conflict(dm("12"), dm("13")));
    let interaction = json!({"interaction_id": "31", "interaction_token": "a"});
    let defer = (OperationKind::DeferReply, interaction.clone());
    assert!(conflict(defer, (OperationKind::EditOriginal, with(&interaction, json!({"content": "a"})))));
}

#[test]
fn writing_operation_conflicts_with_itself() {
    for kind in OperationKind::ALL {
        for sample in samples(kind) {
            let payload = parse_ok(kind, &sample);
            let own = payload.objects(id(1), GUILD);
            let reads = kind == OperationKind::Read || sample["method"] == "GET";
            assert_eq!(own.meets(&own), !reads, "{}", kind.name());
            assert_eq!(own.writes.is_empty(), reads, "{}", kind.name());
        }
    }
}

#[test]
fn reference_by_operation_conflicts_with_its_creator() {
    let own: OperationId = OPERATION.parse().unwrap();
    let makers = [
        (OperationKind::CreateRole, ManagedKind::Role),
        (OperationKind::EnsureRole, ManagedKind::Role),
        (OperationKind::CreateChannel, ManagedKind::Channel),
        (OperationKind::EnsureChannel, ManagedKind::Channel),
        (OperationKind::SendMessage, ManagedKind::Message),
        (OperationKind::EnsureMessage, ManagedKind::Message),
    ];
    for (kind, made) in makers {
        let maker = parse_ok(kind, &samples(kind)[0]).objects(own, GUILD);
        let reference = json!({"operation": OPERATION});
        let user = match made {
            ManagedKind::Role => delete_role(reference),
            ManagedKind::Channel => send_message(reference),
            ManagedKind::Message => edit("99", reference),
        };
        assert!(maker.meets(&objects(2, user.0, &user.1)), "{}", kind.name());
    }
}
