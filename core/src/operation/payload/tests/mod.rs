//! Tests of payload validation and its error messages.

use serde_json::{Value, json};

use super::*;
use crate::operation::OperationKind;

mod fields;
mod fuzz;
mod model;
mod objects;
mod references;
mod rules;

const GUILD: Option<u64> = Some(81_384_788_765_712_384);
const OPERATION: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

fn parse(kind: OperationKind, value: &Value) -> Result<Payload, InvalidPayload> {
    Payload::parse(kind, value, guild_of(kind, value))
}

/// A `request` with a user has no guild; anything else may have one.
fn guild_of(kind: OperationKind, value: &Value) -> Option<u64> {
    if kind == OperationKind::Request && value.get("user_id").is_some_and(|user| !user.is_null()) {
        None
    } else {
        GUILD
    }
}

fn parse_ok(kind: OperationKind, value: &Value) -> Payload {
    parse(kind, value).unwrap_or_else(|invalid| panic!("{} {value}: {invalid}", kind.name()))
}

fn invalid_fields(kind: OperationKind, value: &Value) -> Vec<String> {
    parse(kind, value).unwrap_err().errors.into_iter().map(|error| error.field).collect()
}

/// Payloads of a kind that together have each of its fields.
fn samples(kind: OperationKind) -> Vec<Value> {
    let role = json!({"name": "Mods", "permissions": "8", "color": 255, "hoist": true, "mentionable": false});
    let overwrites = json!([
        {"role_id": "11", "allow": "1024", "deny": "2048"},
        {"user_id": "12", "allow": "1", "deny": "0"},
        {"role_id": {"key": "mods"}, "allow": "1", "deny": "2"},
        {"role_id": {"operation": OPERATION}, "allow": "0", "deny": "2"},
    ]);
    let text_channel = json!({
        "name": "general", "type": "text", "parent_id": {"key": "lobby"}, "topic": "All of it", "nsfw": false,
        "position": 3, "rate_limit_per_user": 10, "overwrites": overwrites,
    });
    let voice_channel = json!({"name": "Talk", "type": "voice", "bitrate": 64000, "user_limit": 20});
    let body = json!({
        "content": "Hello", "embeds": [{"title": "One", "fields": [{"name": "a", "value": "b"}]}],
        "components": [{"type": 1, "components": []}],
        "allowed_mentions": {"parse": ["roles"], "users": ["5"], "roles": [], "replied_user": true},
    });
    let interaction = json!({"interaction_id": "31", "interaction_token": "aW50ZXJhY3Rpb24"});
    match kind {
        OperationKind::CreateRole => vec![with(&role, json!({"key": "mods"}))],
        OperationKind::DeleteRole => vec![json!({"role_id": "11"})],
        OperationKind::AssignRole | OperationKind::RemoveRole => {
            vec![json!({"user_id": "12", "role_id": {"key": "mods"}})]
        }
        OperationKind::CreateChannel => {
            vec![with(&text_channel, json!({"key": "general"})), voice_channel]
        }
        OperationKind::DeleteChannel => vec![json!({"channel_id": {"operation": OPERATION}})],
        OperationKind::UpdatePermissions => {
            vec![json!({"channel_id": "21", "overwrites": overwrites, "mode": "merge"})]
        }
        OperationKind::SetMemberRoles => vec![json!({"user_id": "12", "role_ids": ["11", {"key": "mods"}]})],
        OperationKind::EnsureRole => vec![with(&role, json!({"key": "mods", "adopt": true}))],
        OperationKind::EnsureChannel => {
            let more = json!({"key": "general", "adopt": true});
            vec![with(&text_channel, more.clone()), with(&voice_channel, more)]
        }
        OperationKind::ReplaceOverwrites => vec![json!({"channel_id": "21", "overwrites": overwrites})],
        OperationKind::Reorder => vec![
            json!({"what": "channels", "places": [{"id": "21", "position": 2, "parent_id": {"key": "lobby"}}]}),
            json!({"what": "roles", "places": [{"id": "11", "position": 2}, {"id": {"key": "mods"}, "position": 1}]}),
        ],
        OperationKind::EnsureMessage => vec![with(&body, json!({"key": "rules", "channel_id": "21", "pin": true}))],
        OperationKind::SendMessage => vec![with(&body, json!({"key": "rules", "channel_id": "21", "reply_to": "41"}))],
        OperationKind::EditMessage => vec![with(&body, json!({"channel_id": "21", "message_id": {"key": "rules"}}))],
        OperationKind::DeleteMessage => vec![json!({"channel_id": "21", "message_id": "41"})],
        OperationKind::SendDm => vec![with(&body, json!({"user_id": "12"}))],
        OperationKind::DeferReply => {
            vec![
                with(&interaction, json!({"ephemeral": true, "update": false})),
                with(&interaction, json!({"ephemeral": false, "update": true})),
            ]
        }
        OperationKind::SendFollowup => vec![with(&with(&interaction, body), json!({"ephemeral": true}))],
        OperationKind::EditOriginal => {
            let conditional = json!({"only_if_deferred": true, "if_rejected": "Sorry."});
            vec![with(&interaction, with(&body, conditional))]
        }
        OperationKind::Read => vec![json!({"path": "/guilds/1/roles?with_counts=true"})],
        OperationKind::Request => vec![
            json!({"method": "POST", "path": "/users/@me/channels", "body": {"recipient_id": "12"}, "user_id": "12"}),
            json!({"method": "GET", "path": "/users/@me"}),
        ],
    }
}

/// An object with more fields.
fn with(base: &Value, more: Value) -> Value {
    let mut object = base.as_object().unwrap().clone();
    let Value::Object(more) = more else { panic!("expected an object") };
    object.extend(more);
    Value::Object(object)
}
