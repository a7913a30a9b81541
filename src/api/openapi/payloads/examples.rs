//! Valid payloads of each kind.

use guildhall_core::operation::OperationKind;
use serde_json::{Value, json};

use crate::api::openapi::common::AN_OPERATION;

/// Valid payloads of a kind.
pub(crate) fn examples(kind: OperationKind) -> Vec<Value> {
    match kind {
        OperationKind::CreateRole => vec![
            json!({"name": "Pilots"}),
            json!({"name": "Pilots", "key": "pilots", "permissions": "1024", "color": 0x58_65_F2, "hoist": true, "mentionable": false}),
        ],
        OperationKind::DeleteRole => vec![json!({"role_id": {"key": "pilots"}})],
        OperationKind::AssignRole => vec![
            json!({"user_id": "80351110224678912", "role_id": "1571715189416398850"}),
            json!({"user_id": "80351110224678912", "role_id": {"key": "pilots"}}),
        ],
        OperationKind::RemoveRole => vec![json!({"user_id": "80351110224678912", "role_id": "1571715189416398850"})],
        OperationKind::CreateChannel => vec![
            json!({
                "name": "hangar", "key": "hangar", "type": "text", "parent_id": {"key": "crew"}, "topic": "Who flies what",
                "nsfw": false, "position": 2, "rate_limit_per_user": 5,
                "overwrites": [
                    {"role_id": "1571715189416398849", "deny": "1024"},
                    {"role_id": {"key": "pilots"}, "allow": "1024"},
                ],
            }),
            json!({"name": "Crew", "key": "crew", "type": "category"}),
            json!({"name": "Tower", "type": "voice", "bitrate": 64_000, "user_limit": 20}),
            json!({"name": "Briefing", "type": "stage", "user_limit": 500}),
            json!({"name": "questions", "type": "forum", "topic": "Ask here."}),
        ],
        OperationKind::DeleteChannel => vec![json!({"channel_id": "1571715189416398852"})],
        OperationKind::UpdatePermissions => vec![json!({
            "channel_id": {"key": "hangar"}, "mode": "merge",
            "overwrites": [
                {"user_id": "80351110224678912", "allow": "1024"},
                {"role_id": {"operation": AN_OPERATION}, "deny": "2048"},
            ],
        })],
        OperationKind::SetMemberRoles => {
            vec![json!({"user_id": "80351110224678912", "role_ids": ["1571715189416398850", {"key": "pilots"}]})]
        }
        OperationKind::EnsureRole => vec![
            json!({"key": "mods", "name": "Moderators", "permissions": "1024", "color": 255, "hoist": true, "mentionable": true, "adopt": true}),
        ],
        OperationKind::EnsureChannel => vec![
            json!({
                "key": "rules", "name": "rules", "type": "text", "parent_id": "1571715189416398851",
                "topic": "Read these.", "nsfw": false, "position": 0, "rate_limit_per_user": 0, "adopt": true,
                "overwrites": [
                    {"role_id": "1571715189416398849", "deny": "2048"},
                    {"user_id": "80351110224678912", "allow": "2048"},
                    {"role_id": {"key": "mods"}, "allow": "2048"},
                ],
            }),
            json!({"key": "crew", "name": "Crew", "type": "category"}),
            json!({"key": "tower", "name": "Tower", "type": "voice", "bitrate": 64_000, "user_limit": 20}),
            json!({"key": "briefing", "name": "Briefing", "type": "stage", "user_limit": 500}),
            json!({"key": "questions", "name": "questions", "type": "forum", "topic": "Ask here."}),
        ],
        OperationKind::ReplaceOverwrites => vec![json!({
            "channel_id": "1571715189416398852",
            "overwrites": [
                {"role_id": "1571715189416398849", "deny": "1024"},
                {"role_id": {"key": "pilots"}, "allow": "1024"},
            ],
        })],
        OperationKind::Reorder => vec![
            json!({"what": "channels", "places": [
                {"id": {"key": "rules"}, "position": 0},
                {"id": "1571715189416398852", "position": 1, "parent_id": {"key": "crew"}},
            ]}),
            json!({"what": "roles", "places": [{"id": {"key": "mods"}, "position": 4}]}),
        ],
        OperationKind::EnsureMessage => vec![json!({
            "key": "welcome", "channel_id": {"key": "rules"}, "content": "Be kind.", "pin": true,
            "embeds": [{"title": "House rules"}], "components": [], "allowed_mentions": {"parse": [], "replied_user": false},
        })],
        OperationKind::SendMessage => vec![
            json!({"channel_id": "1571715189416398852", "content": "Clear for take-off."}),
            json!({
                "channel_id": {"key": "hangar"}, "key": "answer-1", "reply_to": "1571715189416398860",
                "content": "It is yours.", "allowed_mentions": {"parse": [], "replied_user": true},
                "embeds": [{"title": "Glider", "description": "Fuelled and ready.", "footer": {"text": "Bay 4"}}],
                "components": [{"type": 1, "components": [{"type": 2, "style": 1, "label": "Fly", "custom_id": "fly"}]}],
            }),
        ],
        OperationKind::EditMessage => vec![json!({
            "channel_id": "1571715189416398852", "message_id": {"key": "welcome"}, "content": "Be very kind.",
            "embeds": [], "components": [], "allowed_mentions": {"parse": ["everyone"]},
        })],
        OperationKind::DeleteMessage => {
            vec![json!({"channel_id": "1571715189416398852", "message_id": "1571715189416398860"})]
        }
        OperationKind::SendDm => vec![
            json!({"user_id": "80351110224678912", "content": "Your shift begins.", "embeds": [{"title": "Tower, bay 4"}]}),
        ],
        OperationKind::DeferReply => vec![
            json!({"interaction_id": "1571715189416398870", "interaction_token": "aW50ZXJhY3Rpb24", "ephemeral": true}),
            json!({"interaction_id": "1571715189416398870", "interaction_token": "aW50ZXJhY3Rpb24", "update": true}),
        ],
        OperationKind::SendFollowup => vec![json!({
            "interaction_id": "1571715189416398870", "interaction_token": "aW50ZXJhY3Rpb24", "content": "And done.",
            "embeds": [{"title": "Bay 4"}], "ephemeral": true,
        })],
        OperationKind::EditOriginal => vec![
            json!({"interaction_id": "1571715189416398870", "interaction_token": "aW50ZXJhY3Rpb24", "content": "Done."}),
            json!({
                "interaction_id": "1571715189416398870", "interaction_token": "aW50ZXJhY3Rpb24",
                "content": "Please try again later.", "only_if_deferred": true, "if_rejected": "Sorry.",
            }),
        ],
        OperationKind::Read => vec![json!({"path": "/guilds/1571715189416398849/roles"})],
        OperationKind::Request => vec![
            json!({"method": "PATCH", "path": "/guilds/1571715189416398849", "body": {"name": "The Aviators"}}),
            json!({"method": "GET", "path": "/users/@me"}),
            json!({"method": "POST", "path": "/users/@me/channels", "body": {"recipient_id": "80351110224678912"}, "user_id": "80351110224678912"}),
        ],
    }
}

/// References in each form.
pub(super) fn references() -> [Value; 3] {
    [json!("1571715189416398850"), json!({"key": "mods"}), json!({"operation": AN_OPERATION})]
}
