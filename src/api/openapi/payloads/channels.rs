//! Channels, their permission overwrites, and their order.

use guildhall_core::operation::payload::{ChannelType, OverwriteMode, ReorderTarget};
use serde_json::json;

use super::{NAME, Nulls, PayloadDoc, permissions};
use crate::api::openapi::{
    common::{AN_OPERATION, snowflake},
    schema::{
        Describe, Field, SchemaRef, boolean, closed, integer, list_of, one_of, one_of_names, required, schema_ref,
        text_of,
    },
};

fn channel(nulls: Nulls) -> Vec<Field> {
    let kinds = one_of_names(ChannelType::ALL.map(ChannelType::name)).default(Some("text".into()));
    vec![
        required("name", text_of(1, 100).pattern(Some(NAME)).describe("No white space at its start or end.")),
        nulls.optional("type", kinds.describe("Fields that a channel of this type does not have are rejected.")),
        nulls.optional("parent_id", nulls.reference().describe("The category. Not for categories.")),
        nulls.optional(
            "topic",
            text_of(0, 4096).describe(
                "At most 1024 characters, except in a forum. For text, announcement and forum \
                channels.",
            ),
        ),
        nulls.optional("nsfw", boolean().describe("Not for categories.")),
        nulls.optional("position", integer(0, 65_535)),
        nulls.optional(
            "rate_limit_per_user",
            integer(0, 21_600).describe("Seconds. For text, voice, stage and forum channels."),
        ),
        nulls.optional("bitrate", integer(8_000, 384_000).describe("For voice and stage channels.")),
        nulls.optional(
            "user_limit",
            integer(0, 10_000).describe("At most 99, except on a stage. For voice and stage channels."),
        ),
        nulls.optional(
            "overwrites",
            list_of(0, 100, schema_ref(&nulls.title("Overwrite"))).describe(
                "At most one for each role or \
            member.",
            ),
        ),
    ]
}

/// What a role or a member may do in a channel.
pub(crate) fn overwrite(nulls: Nulls) -> SchemaRef {
    let of = |subject: Field, not: &'static str, title: &str| -> SchemaRef {
        let rights = ["allow", "deny"].map(|name| nulls.optional(name, permissions().default(Some("0".into()))));
        closed([subject].into_iter().chain(rights).chain(nulls.excluded(not))).title(Some(title)).into()
    };
    let role = required("role_id", nulls.reference().describe("The role whose members get these permissions."));
    let member = required("user_id", snowflake().describe("The member who gets these permissions."));
    one_of([of(role, "user_id", "For a role"), of(member, "role_id", "For a member")])
        .describe("What a role or a member may do in a channel. `allow` and `deny` must have no permission in common.")
        .into()
}

pub(crate) fn create() -> PayloadDoc {
    let nulls = Nulls::Omitted;
    PayloadDoc {
        description: "Creates a channel or a category.",
        shape: closed(channel(nulls).into_iter().chain([nulls.optional("key", schema_ref("ManagedKey"))])),
        examples: vec![
            (
                "A text channel that is visible to one role only",
                json!({
                    "name": "hangar", "key": "hangar", "type": "text", "parent_id": {"key": "crew"}, "topic": "Who flies what",
                    "nsfw": false, "position": 2, "rate_limit_per_user": 5,
                    "overwrites": [
                        {"role_id": "1571715189416398849", "deny": "1024"},
                        {"role_id": {"key": "pilots"}, "allow": "1024"},
                    ],
                }),
            ),
            ("A category", json!({"name": "Crew", "key": "crew", "type": "category"})),
            ("A voice channel", json!({"name": "Tower", "type": "voice", "bitrate": 64_000, "user_limit": 20})),
            ("A stage", json!({"name": "Briefing", "type": "stage", "user_limit": 500})),
            ("A forum", json!({"name": "questions", "type": "forum", "topic": "Ask here."})),
        ],
    }
}

pub(crate) fn ensure() -> PayloadDoc {
    let nulls = Nulls::Rejected;
    let own = [
        required("key", schema_ref("ManagedKey")),
        nulls.optional(
            "adopt",
            boolean().default(Some(false.into())).describe(
                "Adopts the only channel with this name, type and parent that has \
                no key, if the key has no channel yet. Several such channels are a conflict.",
            ),
        ),
    ];
    PayloadDoc {
        description: "Creates the channel if the key has none yet, otherwise updates it; omitted fields stay unchanged.",
        shape: closed(channel(nulls).into_iter().chain(own)),
        examples: vec![
            (
                "A channel that must exist with these properties",
                json!({
                    "key": "rules", "name": "rules", "type": "text", "parent_id": "1571715189416398851",
                    "topic": "Read these.", "nsfw": false, "position": 0, "rate_limit_per_user": 0, "adopt": true,
                    "overwrites": [
                        {"role_id": "1571715189416398849", "deny": "2048"},
                        {"user_id": "80351110224678912", "allow": "2048"},
                        {"role_id": {"key": "mods"}, "allow": "2048"},
                    ],
                }),
            ),
            ("A category", json!({"key": "crew", "name": "Crew", "type": "category"})),
            (
                "A voice channel",
                json!({"key": "tower", "name": "Tower", "type": "voice", "bitrate": 64_000, "user_limit": 20}),
            ),
            ("A stage", json!({"key": "briefing", "name": "Briefing", "type": "stage", "user_limit": 500})),
            ("A forum", json!({"key": "questions", "name": "questions", "type": "forum", "topic": "Ask here."})),
        ],
    }
}

pub(crate) fn delete() -> PayloadDoc {
    PayloadDoc {
        description: "Deletes a channel. Succeeds if it does not exist.",
        shape: closed([required("channel_id", Nulls::Omitted.reference())]),
        examples: vec![("By id", json!({"channel_id": "1571715189416398852"}))],
    }
}

pub(crate) fn update_permissions() -> PayloadDoc {
    let nulls = Nulls::Omitted;
    let mode = one_of_names(OverwriteMode::ALL.map(OverwriteMode::name)).default(Some("replace".into()));
    let mode = mode.describe(
        "`replace`: these replace the existing overwrites of the same roles and members. `merge`: \
        these are applied on top of them.",
    );
    PayloadDoc {
        description: "Changes the overwrites of some roles and members in a channel; others stay unchanged.",
        shape: closed([
            required("channel_id", nulls.reference()),
            required(
                "overwrites",
                list_of(1, 100, schema_ref(&nulls.title("Overwrite"))).describe(
                    "At most one for each role or \
                member.",
                ),
            ),
            nulls.optional("mode", mode),
        ]),
        examples: vec![(
            "Admit a member, and forbid a new role to write",
            json!({
                "channel_id": {"key": "hangar"}, "mode": "merge",
                "overwrites": [
                    {"user_id": "80351110224678912", "allow": "1024"},
                    {"role_id": {"operation": AN_OPERATION}, "deny": "2048"},
                ],
            }),
        )],
    }
}

pub(crate) fn replace_overwrites() -> PayloadDoc {
    let nulls = Nulls::Omitted;
    PayloadDoc {
        description: "Sets exactly these overwrites of a channel.",
        shape: closed([
            required("channel_id", nulls.reference()),
            required(
                "overwrites",
                list_of(0, 100, schema_ref(&nulls.title("Overwrite"))).describe(
                    "At most one for each role or \
                member.",
                ),
            ),
        ]),
        examples: vec![(
            "For one role only",
            json!({
                "channel_id": "1571715189416398852",
                "overwrites": [
                    {"role_id": "1571715189416398849", "deny": "1024"},
                    {"role_id": {"key": "pilots"}, "allow": "1024"},
                ],
            }),
        )],
    }
}

pub(crate) fn reorder() -> PayloadDoc {
    let nulls = Nulls::Omitted;
    let place = closed([
        required("id", nulls.reference().describe("The role or channel.")),
        required("position", integer(0, 65_535)),
        nulls.optional("parent_id", nulls.reference().describe("The category that a channel moves to. Not for roles.")),
    ]);
    PayloadDoc {
        description: "Sets the positions of roles or channels, in one call.",
        shape: closed([
            required("what", one_of_names(ReorderTarget::ALL.map(ReorderTarget::name))),
            required("places", list_of(1, 500, place).describe("Without duplicates.")),
        ]),
        examples: vec![
            (
                "Channels",
                json!({"what": "channels", "places": [
                    {"id": {"key": "rules"}, "position": 0},
                    {"id": "1571715189416398852", "position": 1, "parent_id": {"key": "crew"}},
                ]}),
            ),
            ("Roles", json!({"what": "roles", "places": [{"id": {"key": "mods"}, "position": 4}]})),
        ],
    }
}
