//! Permissions that let somebody take a guild over.

use serde_json::Value;

use crate::operation::{Payload, payload::Overwrite};

/// Discord's bits of them.
const DANGERS: [(u64, &str); 10] = [
    (1 << 3, "ADMINISTRATOR"),
    (1 << 4, "MANAGE_CHANNELS"),
    (1 << 5, "MANAGE_GUILD"),
    (1 << 13, "MANAGE_MESSAGES"),
    (1 << 27, "MANAGE_NICKNAMES"),
    (1 << 28, "MANAGE_ROLES"),
    (1 << 29, "MANAGE_WEBHOOKS"),
    (1 << 30, "MANAGE_GUILD_EXPRESSIONS"),
    (1 << 33, "MANAGE_EVENTS"),
    (1 << 34, "MANAGE_THREADS"),
];

/// Those of them that an operation grants, by name.
#[must_use]
pub fn dangers(payload: &Payload) -> Vec<&'static str> {
    let granted = match payload {
        Payload::CreateRole(create) => create.role.permissions.unwrap_or(0),
        Payload::EnsureRole(ensure) => ensure.role.permissions.unwrap_or(0),
        Payload::CreateChannel(create) => allowed(create.channel.overwrites.as_deref().unwrap_or_default()),
        Payload::EnsureChannel(ensure) => allowed(ensure.channel.overwrites.as_deref().unwrap_or_default()),
        Payload::UpdatePermissions(update) => allowed(&update.overwrites),
        Payload::ReplaceOverwrites(replace) => allowed(&replace.overwrites),
        Payload::Request(request) => request.body.as_ref().map_or(0, written),
        Payload::DeleteRole(_)
        | Payload::AssignRole(_)
        | Payload::RemoveRole(_)
        | Payload::DeleteChannel(_)
        | Payload::SetMemberRoles(_)
        | Payload::Reorder(_)
        | Payload::EnsureMessage(_)
        | Payload::SendMessage(_)
        | Payload::EditMessage(_)
        | Payload::DeleteMessage(_)
        | Payload::SendDm(_)
        | Payload::DeferReply(_)
        | Payload::SendFollowup(_)
        | Payload::EditOriginal(_)
        | Payload::Read(_) => 0,
    };
    DANGERS.into_iter().filter(|(bit, _)| granted & bit != 0).map(|(_, name)| name).collect()
}

fn allowed(overwrites: &[Overwrite]) -> u64 {
    overwrites.iter().fold(0, |all, overwrite| all | overwrite.allow)
}

/// What a body in the caller's own words grants, wherever it says so. What cannot be read may be anything.
fn written(body: &Value) -> u64 {
    match body {
        Value::Object(fields) => fields.iter().fold(0, |all, (name, value)| {
            all | match name.as_str() {
                "permissions" | "allow" | "allow_new" | "permissions_new" => bits(value),
                _ => written(value),
            }
        }),
        Value::Array(values) => values.iter().fold(0, |all, value| all | written(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

fn bits(value: &Value) -> u64 {
    match value {
        Value::Null => 0,
        Value::Number(number) => number.as_u64().unwrap_or(u64::MAX),
        Value::String(text) => text.trim().parse().unwrap_or(u64::MAX),
        // Command permissions are a list of objects, each of which says who, not what.
        Value::Array(_) | Value::Object(_) => written(value),
        Value::Bool(_) => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::operation::Kind;

    fn of(kind: Kind, payload: &Value) -> Vec<&'static str> {
        dangers(&Payload::parse(kind, payload, Some(42)).unwrap())
    }

    #[test]
    fn a_role_or_an_overwrite_that_grants_management_is_dangerous_however_it_is_granted() {
        let manage = (1u64 << 28 | 1 << 10).to_string();
        assert_eq!(of(Kind::CreateRole, &json!({"name": "a", "permissions": manage})), ["MANAGE_ROLES"]);
        assert_eq!(of(Kind::EnsureRole, &json!({"key": "a", "name": "a", "permissions": manage})), ["MANAGE_ROLES"]);
        let overwrites = json!([{"role_id": "5", "allow": "1024"}, {"user_id": "6", "allow": manage}]);
        let channel = json!({"name": "a", "overwrites": overwrites});
        assert_eq!(of(Kind::CreateChannel, &channel), ["MANAGE_ROLES"]);
        let channel = json!({"name": "a", "key": "a", "overwrites": overwrites});
        assert_eq!(of(Kind::EnsureChannel, &channel), ["MANAGE_ROLES"]);
        let update = json!({"channel_id": "9", "overwrites": overwrites});
        assert_eq!(of(Kind::UpdatePermissions, &update), ["MANAGE_ROLES"]);
        assert_eq!(of(Kind::ReplaceOverwrites, &update), ["MANAGE_ROLES"]);
    }

    #[test]
    fn what_is_denied_or_harmless_is_not() {
        assert_eq!(of(Kind::CreateRole, &json!({"name": "a", "permissions": "1024"})), [""; 0]);
        let update = json!({"channel_id": "9", "overwrites": [{"role_id": "5", "deny": "8"}]});
        assert_eq!(of(Kind::UpdatePermissions, &update), [""; 0]);
        assert_eq!(of(Kind::AssignRole, &json!({"user_id": "1", "role_id": "2"})), [""; 0]);
    }

    #[test]
    fn a_callers_own_words_are_looked_through_and_what_cannot_be_read_may_be_anything() {
        let request = |body: Value| json!({"method": "PATCH", "path": "/guilds/42/roles/5", "body": body});
        assert_eq!(of(Kind::Request, &request(json!({"permissions": "8"}))), ["ADMINISTRATOR"]);
        assert_eq!(of(Kind::Request, &request(json!({"permissions": 8}))), ["ADMINISTRATOR"]);
        let deep = json!({"permission_overwrites": [{"id": "1", "allow": " 8 "}]});
        assert_eq!(of(Kind::Request, &request(deep)), ["ADMINISTRATOR"]);
        assert_eq!(of(Kind::Request, &request(json!({"permissions": "0x8"}))).len(), DANGERS.len());
        assert_eq!(of(Kind::Request, &request(json!({"permissions": "1024", "name": "8"}))), [""; 0]);
    }
}
