//! The effect of a `request`, a call written by the caller.
//!
//! A call that writes is evaluated by its method and path, which [`CALLS`] lists with what they can give. A path is
//! compared segment by segment, decoded once as Discord does, and must match exactly. Every other call that writes may
//! have any effect, and so needs the scope `danger`: a path in upper case, with another version, encoded twice, or one
//! that Discord adds later.

use serde_json::Value;

use super::{
    danger::Danger,
    effect::{AssignedRoles, Denials, PermissionEffect, RoleGuild},
    request_calls::{CALLS, CallEffect},
};
use crate::operation::payload::{
    Method, Request,
    location::{decoded, parse_id},
};

/// The effect of a call.
pub(super) fn of(request: &Request) -> PermissionEffect {
    if request.method == Method::Get {
        return PermissionEffect::default();
    }
    let Some((gives, ids)) = find_call(request.method, &request.path) else {
        return PermissionEffect { danger: Some(Danger::UnknownCall), ..PermissionEffect::default() };
    };
    let body = request.body.as_ref().unwrap_or(&Value::Null);
    let granted = PermissionEffect::granting(granted(body));
    let synced = if syncs_category(body) { Some(Danger::CategorySync) } else { None };
    let mut effect = effect_of_call(gives, &ids, body);
    effect.danger = granted.danger.or(effect.danger).or(synced);
    effect
}

/// What a call with this path gives, and the ids in the path.
fn find_call(method: Method, path: &str) -> Option<(CallEffect, Vec<u64>)> {
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    let segments: Vec<_> = path.split('/').map(decoded).collect();
    let ids_of = |template: &str| {
        let mut ids = Vec::new();
        let mut expected = template.split('/');
        for segment in &segments {
            match expected.next()? {
                "{id}" => ids.push(parse_id(segment).ok()?),
                "{}" => {}
                literal if literal == segment => {}
                _ => return None,
            }
        }
        expected.next().is_none().then_some(ids)
    };
    let calls = CALLS.iter().filter(|(own, ..)| *own == method);
    calls.into_iter().find_map(|(_, template, gives)| Some((*gives, ids_of(template)?)))
}

fn effect_of_call(gives: CallEffect, ids: &[u64], body: &Value) -> PermissionEffect {
    let id = |at: usize| ids.get(at).copied().unwrap_or_default();
    let roles = |guild, roles: Option<Vec<u64>>, replaces| match roles {
        Some(roles) => {
            PermissionEffect { assigned: Some(AssignedRoles { guild, roles, replaces }), ..PermissionEffect::default() }
        }
        None => PermissionEffect { danger: Some(Danger::UnreadableRole), ..PermissionEffect::default() },
    };
    let denials = |denied: Option<Vec<(u64, u64)>>, replaces_all| match denied {
        Some(denied) => PermissionEffect {
            denials: Some(Denials { channel: Some(id(0)), denied, replaces_all }),
            ..PermissionEffect::default()
        },
        None => PermissionEffect { danger: Some(Danger::UnreadableOverwrite), ..PermissionEffect::default() },
    };
    let guild = RoleGuild::Guild(id(0));
    match gives {
        CallEffect::Nothing => PermissionEffect::default(),
        CallEffect::RoleOfPath => roles(guild, Some(vec![id(2)]), None),
        CallEffect::RolesToNewMember => roles(guild, role_ids(body, "roles"), None),
        CallEffect::RolesToMember => roles(guild, role_ids(body, "roles"), Some(id(1))),
        CallEffect::RolesByInvite => roles(RoleGuild::Channel(id(0)), role_ids(body, "role_ids"), None),
        CallEffect::RolesByOnboarding => roles(guild, role_ids(body, "role_ids"), None),
        CallEffect::Overwrites => match body.get("permission_overwrites") {
            Some(overwrites) => denials(denied(overwrites), true),
            None => PermissionEffect::default(),
        },
        CallEffect::OneOverwrite => {
            let deny = body.get("deny").map_or(0, |deny| read_bits(deny).unwrap_or(0));
            denials(Some(vec![(id(1), deny)]), false)
        }
        CallEffect::Ownership => {
            let is_given = body.get("owner_id").is_some_and(|owner| !owner.is_null());
            PermissionEffect { danger: is_given.then_some(Danger::Ownership), ..PermissionEffect::default() }
        }
    }
}

/// The roles in all fields of this name; `None` if one is not a list of ids.
fn role_ids(body: &Value, field: &str) -> Option<Vec<u64>> {
    let mut found = Vec::new();
    collect(body, field, &mut found)?;
    Some(found)
}

fn collect(body: &Value, field: &str, found: &mut Vec<u64>) -> Option<()> {
    match body {
        Value::Object(fields) => fields.iter().try_for_each(|(name, value)| match value {
            Value::Null if name == field => Some(()),
            Value::Array(ids) if name == field => ids.iter().try_for_each(|id| read_id(id).map(|id| found.push(id))),
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) if name == field => None,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
                collect(value, field, found)
            }
        }),
        Value::Array(values) => values.iter().try_for_each(|value| collect(value, field, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Some(()),
    }
}

/// What each overwrite denies; `None` if they have an unknown format.
fn denied(overwrites: &Value) -> Option<Vec<(u64, u64)>> {
    match overwrites {
        Value::Null => Some(Vec::new()),
        Value::Array(overwrites) => {
            let one = |overwrite: &Value| {
                let deny = overwrite.get("deny").map_or(0, |deny| read_bits(deny).unwrap_or(0));
                Some((read_id(overwrite.get("id")?)?, deny))
            };
            overwrites.iter().map(one).collect()
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => None,
    }
}

fn read_id(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => parse_id(text).ok(),
        Value::Number(number) => number.as_u64(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

fn read_bits(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.trim().parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// The permissions that a body grants in any permission field. A value in an unknown format counts as all of them.
fn granted(body: &Value) -> u64 {
    match body {
        Value::Object(fields) => fields.iter().fold(0, |all, (name, value)| {
            all | match (name.as_str(), value) {
                ("permissions" | "allow" | "allow_new" | "permissions_new", Value::Null) => 0,
                (
                    "permissions" | "allow" | "allow_new" | "permissions_new",
                    Value::Number(_) | Value::String(_) | Value::Bool(_),
                ) => read_bits(value).unwrap_or(u64::MAX),
                // The permissions of a command are a list of those who may use it.
                _ => granted(value),
            }
        }),
        Value::Array(values) => values.iter().fold(0, |all, value| all | granted(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// Whether channels take the overwrites of their category.
fn syncs_category(body: &Value) -> bool {
    match body {
        Value::Object(fields) => fields.iter().any(|(name, value)| match value {
            Value::Null | Value::Bool(false) => false,
            _ if name == "lock_permissions" => true,
            _ => syncs_category(value),
        }),
        Value::Array(values) => values.iter().any(syncs_category),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::operation::{OperationKind, Payload};

    fn effect(method: &str, path: &str, body: Value) -> PermissionEffect {
        let mut payload = json!({"method": method, "path": path});
        if !body.is_null() {
            payload["body"] = body;
        }
        PermissionEffect::of(&Payload::parse(OperationKind::Request, &payload, Some(42)).unwrap(), Some(42))
    }

    fn danger(method: &str, path: &str, body: Value) -> Option<Danger> {
        effect(method, path, body).danger()
    }

    #[test]
    fn fields_for_permissions_are_found_anywhere_in_a_body() {
        let administrator = Some(Danger::Grants(8));
        let role = "/guilds/42/roles/5";
        assert_eq!(danger("PATCH", role, json!({"permissions": "8"})), administrator);
        assert_eq!(danger("PATCH", role, json!({"permissions": 8})), administrator);
        let overwrites = json!({"permission_overwrites": [{"id": "1", "allow": " 8 "}]});
        assert_eq!(danger("PATCH", "/channels/7", overwrites.clone()), administrator);
        assert_eq!(danger("POST", "/guilds/42/channels", overwrites), administrator);
        assert_eq!(danger("PUT", "/channels/7/permissions/1", json!({"allow": "8"})), administrator);
        assert!(matches!(danger("PATCH", role, json!({"permissions": "0x8"})), Some(Danger::Grants(_))));
        assert!(matches!(danger("PATCH", role, json!({"permissions": true})), Some(Danger::Grants(_))));
        assert_eq!(danger("PATCH", role, json!({"permissions": "1024", "name": "8"})), None);
    }

    #[test]
    fn roles_are_found_in_path_and_body() {
        let guild = RoleGuild::Guild(42);
        let onboarding = json!({"prompts": [{"options": [{"role_ids": ["5"]}, {"role_ids": [6]}]}]});
        for (method, path, body, expected) in [
            ("PUT", "/guilds/42/members/7/roles/5", json!(null), (guild, vec![5], None)),
            ("PUT", "/guilds/42/m%65mbers/%37/roles/5?x=/", json!(null), (guild, vec![5], None)),
            ("PATCH", "/guilds/42/members/7", json!({"roles": ["5", 6]}), (guild, vec![5, 6], Some(7))),
            ("PUT", "/guilds/42/members/7", json!({"roles": ["5"]}), (guild, vec![5], None)),
            ("POST", "/channels/9/invites", json!({"role_ids": ["5"]}), (RoleGuild::Channel(9), vec![5], None)),
            ("PUT", "/guilds/42/onboarding", onboarding, (guild, vec![5, 6], None)),
        ] {
            let effect = effect(method, path, body);
            let assigned = effect.assigned().unwrap();
            assert_eq!((assigned.guild, assigned.roles.clone(), assigned.replaces), expected, "{method} {path}");
            assert_eq!(effect.danger(), None, "{method} {path}");
        }
        for roles in [json!("5"), json!({"0": "5"}), json!(["+5"]), json!([["5"]]), json!(5)] {
            let unreadable = danger("PATCH", "/guilds/42/members/7", json!({"roles": roles}));
            assert_eq!(unreadable, Some(Danger::UnreadableRole), "{roles}");
        }
    }

    #[test]
    fn ownership_and_category_sync_are_dangerous() {
        assert_eq!(danger("PATCH", "/guilds/42", json!({"owner_id": "7"})), Some(Danger::Ownership));
        assert_eq!(danger("PATCH", "/guilds/42", json!({"name": "x", "owner_id": null})), None);
        let order = |lock: Value| json!([{"id": "1", "parent_id": "2", "lock_permissions": lock}]);
        let sync = |lock: Value| danger("PATCH", "/guilds/42/channels", order(lock));
        assert_eq!(sync(json!(true)), Some(Danger::CategorySync));
        assert_eq!(sync(json!(1)), Some(Danger::CategorySync));
        assert_eq!((sync(json!(false)), sync(json!(null))), (None, None));
    }

    #[test]
    fn removed_denials_are_found() {
        let lifted = |effect: PermissionEffect| effect.denials().unwrap().lifted([(1, 8), (2, 8)]);
        let first = Some(Danger::LiftsDenial { target: 1, bits: 8 });
        assert_eq!(lifted(effect("DELETE", "/channels/7/permissions/1", json!(null))), first);
        assert_eq!(lifted(effect("DELETE", "/channels/7/permissions/3", json!(null))), None);
        assert_eq!(lifted(effect("PUT", "/channels/7/permissions/1", json!({"deny": "0"}))), first);
        assert_eq!(lifted(effect("PUT", "/channels/7/permissions/1", json!({"deny": "8"}))), None);
        let patch = |overwrites: Value| effect("PATCH", "/channels/7", json!({"permission_overwrites": overwrites}));
        assert_eq!(lifted(patch(json!([]))), first);
        assert_eq!(lifted(patch(json!([{"id": "1", "deny": "8"}, {"id": 2, "deny": 8}]))), None);
        assert_eq!(lifted(patch(json!([{"id": "1", "deny": "8"}, {"id": "1"}, {"id": 2, "deny": 8}]))), first);
        assert_eq!(patch(json!("none")).danger(), Some(Danger::UnreadableOverwrite));
        assert_eq!(effect("PATCH", "/channels/7", json!({"name": "x"})), PermissionEffect::default());
    }

    #[test]
    fn call_that_is_not_listed_may_have_any_effect() {
        for (method, path) in [
            ("PUT", "/guilds/42/MEMBERS/7/roles/5"),
            ("PUT", "/v9/guilds/42/members/7/roles/5"),
            ("PUT", "/api/v10/guilds/42/members/7/roles/5"),
            ("PUT", "/guilds/42/m%2565mbers/7/roles/5"),
            ("PUT", "/guilds/42/members/7/roles/5x"),
            ("PUT", "/guilds/42/members/7/roles/%2b5"),
            ("PUT", "/guilds/42/members/7/roles/5/more"),
            ("POST", "/guilds/42/members/7/roles/5"),
            ("POST", "/guilds/42/mfa"),
            ("PATCH", "/guilds/42/a-new-way"),
        ] {
            assert_eq!(danger(method, path, json!(null)), Some(Danger::UnknownCall), "{method} {path}");
        }
    }

    #[test]
    fn ordinary_calls_are_harmless() {
        let message =
            json!({"content": "hi", "allowed_mentions": {"roles": ["5"]}, "poll": {"allow_multiselect": true}});
        let user_permissions = json!({"permissions": [{"id": "5", "type": 1, "permission": true}]});
        for (method, path, body) in [
            ("GET", "/guilds/42/roles", json!(null)),
            ("POST", "/channels/7/messages", message),
            ("PUT", "/channels/7/messages/8/reactions/%F0%9F%91%8D/@me", json!(null)),
            ("POST", "/guilds/42/emojis", json!({"name": "x", "roles": ["5"]})),
            ("PUT", "/applications/1/guilds/42/commands/5/permissions", user_permissions),
            ("POST", "/applications/1/commands", json!({"name": "x", "default_member_permissions": "8"})),
            ("PATCH", "/guilds/42/members/@me", json!({"nick": "x"})),
            ("PATCH", "/guilds/42/members/7", json!({"nick": "x", "roles": null})),
            ("DELETE", "/guilds/42/members/7/roles/5", json!(null)),
            ("POST", "/channels/7/invites", json!({"max_age": 0})),
            ("POST", "/webhooks/7/token/slack", json!({"text": "x"})),
        ] {
            let effect = effect(method, path, body);
            assert_eq!((effect.danger(), effect.assigned(), effect.denials()), (None, None, None), "{method} {path}");
        }
    }

    #[test]
    fn listed_path_is_found_by_its_own_call() {
        for (method, template, gives) in CALLS {
            let path = template.replace("{id}", "7").replace("{}", "any");
            let found = find_call(*method, &path).map(|(found, _)| found);
            assert_eq!(found, Some(*gives), "{} {template}", method.name());
        }
    }

    proptest! {
        #[test]
        fn encoding_a_path_never_hides_its_effect(encoded in proptest::collection::vec(any::<bool>(), 28), twice: bool) {
            let plain = "/guilds/42/members/7/roles/5";
            let encode = |(byte, is_encoded): (u8, &bool)| match (*is_encoded && byte != b'/', twice) {
                (true, false) => format!("%{byte:02x}"),
                (true, true) => format!("%25{byte:02x}"),
                (false, _) => char::from(byte).to_string(),
            };
            let path: String = plain.bytes().zip(&encoded).map(encode).collect();
            let effect = effect("PUT", &path, Value::Null);
            let is_judged = effect.assigned().is_some_and(|assigned| assigned.roles == [5]);
            prop_assert!(is_judged || effect.danger() == Some(Danger::UnknownCall), "{path}");
        }

        #[test]
        fn role_is_found_whatever_else_a_body_holds(depth in 0usize..4, name in "[a-z]{1,6}") {
            let mut body = json!({"role_ids": ["5"]});
            for _ in 0..depth {
                body = json!([{"other": 1, name.clone(): body}]);
            }
            let body = json!({"prompts": body});
            let effect = effect("PUT", "/guilds/42/onboarding", body);
            let is_judged = effect.assigned().is_some_and(|assigned| assigned.roles == [5]);
            prop_assert!(is_judged || effect.danger().is_some());
        }
    }
}
