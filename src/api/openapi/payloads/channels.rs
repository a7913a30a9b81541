//! Channels, their permission overwrites, and their order.

use guildhall_core::operation::payload::{ChannelType, OverwriteMode, ReorderTarget};
use serde_json::json;

use super::{NAME, Nulls, PayloadDoc, permissions};
use crate::api::openapi::{
    common::{AN_OPERATION, snowflake},
    schema::{Describe, Field, SchemaRef, closed, either, integer, list_of, must, named, one_of_names, text_of, truth},
};

fn channel(nulls: Nulls) -> Vec<Field> {
    let kinds = one_of_names(ChannelType::ALL.map(ChannelType::name)).default(Some("text".into()));
    vec![
        must("name", text_of(1, 100).pattern(Some(NAME)).says("No white space at its start or end.")),
        nulls.may("type", kinds.says("Fields that a channel of this type does not have are rejected.")),
        nulls.may("parent_id", nulls.reference().says("The category. Not for categories.")),
        nulls.may(
            "topic",
            text_of(0, 4096).says(
                "At most 1024 characters, except in a forum. For text, announcement and forum \
                channels.",
            ),
        ),
        nulls.may("nsfw", truth().says("Not for categories.")),
        nulls.may("position", integer(0, 65_535)),
        nulls
            .may("rate_limit_per_user", integer(0, 21_600).says("Seconds. For text, voice, stage and forum channels.")),
        nulls.may("bitrate", integer(8_000, 384_000).says("For voice and stage channels.")),
        nulls
            .may("user_limit", integer(0, 10_000).says("At most 99, except on a stage. For voice and stage channels.")),
        nulls.may(
            "overwrites",
            list_of(0, 100, named(&nulls.title("Overwrite"))).says(
                "At most one for each role or \
            member.",
            ),
        ),
    ]
}

/// What a role or a member may do in a channel.
pub(crate) fn overwrite(nulls: Nulls) -> SchemaRef {
    let of = |whose: Field, not: &'static str, title: &str| -> SchemaRef {
        let rights = ["allow", "deny"].map(|name| nulls.may(name, permissions().default(Some("0".into()))));
        closed([whose].into_iter().chain(rights).chain(nulls.not(not))).title(Some(title)).into()
    };
    let role = must("role_id", nulls.reference().says("The role whose members get these permissions."));
    let member = must("user_id", snowflake().says("The member who gets these permissions."));
    either([of(role, "user_id", "For a role"), of(member, "role_id", "For a member")])
        .says("What a role or a member may do in a channel. `allow` and `deny` must have no permission in common.")
        .into()
}

pub(crate) fn create() -> PayloadDoc {
    let nulls = Nulls::NotSaid;
    PayloadDoc {
        does: "Creates a channel or a category.",
        shape: closed(channel(nulls).into_iter().chain([nulls.may("key", named("ManagedKey"))])),
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
    let nulls = Nulls::Refused;
    let own = [
        must("key", named("ManagedKey")),
        nulls.may(
            "adopt",
            truth().default(Some(false.into())).says(
                "Adopts the only channel with this name, type and parent that has \
                no key, if the key has no channel yet. Several such channels are a conflict.",
            ),
        ),
    ];
    PayloadDoc {
        does: "Creates the channel if the key has none yet, otherwise updates it; omitted fields stay unchanged.",
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
        does: "Deletes a channel. Succeeds if it does not exist.",
        shape: closed([must("channel_id", Nulls::NotSaid.reference())]),
        examples: vec![("By id", json!({"channel_id": "1571715189416398852"}))],
    }
}

pub(crate) fn update_permissions() -> PayloadDoc {
    let nulls = Nulls::NotSaid;
    let mode = one_of_names(OverwriteMode::ALL.map(OverwriteMode::name)).default(Some("replace".into()));
    let mode = mode.says(
        "`replace`: these replace the existing overwrites of the same roles and members. `merge`: \
        these are applied on top of them.",
    );
    PayloadDoc {
        does: "Changes the overwrites of some roles and members in a channel; others stay unchanged.",
        shape: closed([
            must("channel_id", nulls.reference()),
            must(
                "overwrites",
                list_of(1, 100, named(&nulls.title("Overwrite"))).says(
                    "At most one for each role or \
                member.",
                ),
            ),
            nulls.may("mode", mode),
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
    let nulls = Nulls::NotSaid;
    PayloadDoc {
        does: "Sets exactly these overwrites of a channel.",
        shape: closed([
            must("channel_id", nulls.reference()),
            must(
                "overwrites",
                list_of(0, 100, named(&nulls.title("Overwrite"))).says(
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
    let nulls = Nulls::NotSaid;
    let place = closed([
        must("id", nulls.reference().says("The role or channel.")),
        must("position", integer(0, 65_535)),
        nulls.may("parent_id", nulls.reference().says("The category that a channel moves to. Not for roles.")),
    ]);
    PayloadDoc {
        does: "Sets the positions of roles or channels, in one call.",
        shape: closed([
            must("what", one_of_names(ReorderTarget::ALL.map(ReorderTarget::name))),
            must("places", list_of(1, 500, place).says("Without duplicates.")),
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
