//! Messages.

use serde_json::json;
use utoipa::openapi::schema::ObjectBuilder;

use super::{Nulls, PayloadDoc};
use crate::api::openapi::{
    common::snowflake,
    schema::{
        Describe, Field, SchemaRef, any_object, boolean, closed, list_of, object, one_of_names, optional, or_null,
        required, schema_ref, text_of, with_one_of,
    },
};

/// The content of a message.
pub(crate) fn body(nulls: Nulls) -> [Field; 4] {
    [
        nulls.optional("content", text_of(0, 2000)),
        nulls.optional(
            "embeds",
            list_of(0, 10, schema_ref("Embed")).describe("At most 6000 characters of text in all embeds."),
        ),
        nulls.optional("components", list_of(0, 40, any_object()).describe("Components as defined by Discord.")),
        nulls.optional(
            "allowed_mentions",
            schema_ref(&nulls.title("AllowedMentions")).describe("Who may be mentioned. **Without it, nobody is.**"),
        ),
    ]
}

/// A message with these fields beside its content, which must not be empty.
pub(crate) fn message(nulls: Nulls, fields: impl IntoIterator<Item = Field>) -> ObjectBuilder {
    with_one_of(closed(fields.into_iter().chain(body(nulls))), &["content", "embeds", "components"])
}

/// An embed, limited as by Discord and otherwise passed through.
pub(crate) fn embed() -> ObjectBuilder {
    let part = |name: &'static str, longest: usize| optional(name, or_null(text_of(0, longest)));
    let nested = |field: Field| -> SchemaRef { or_null(object([field])) };
    let field = object([part("name", 256), part("value", 1024)]);
    object([
        part("title", 256),
        part("description", 4096),
        optional("footer", nested(part("text", 2048))),
        optional("author", nested(part("name", 256))),
        optional("fields", or_null(list_of(0, 25, field))),
    ])
    .describe("An embed as defined by Discord.")
}

/// Who may be mentioned.
pub(crate) fn allowed_mentions(nulls: Nulls) -> ObjectBuilder {
    let ids = || list_of(0, 100, snowflake());
    closed([
        nulls.optional(
            "parse",
            list_of(0, 3, one_of_names(["roles", "users", "everyone"])).describe(
                "All mentions of these \
            types.",
            ),
        ),
        nulls.optional("users", ids().describe("These users; must be empty if `parse` contains `users`.")),
        nulls.optional("roles", ids().describe("These roles; must be empty if `parse` contains `roles`.")),
        nulls.optional("replied_user", boolean().describe("The author of the message that this one replies to.")),
    ])
    .describe("Who may be mentioned.")
}

pub(crate) fn send() -> PayloadDoc {
    let nulls = Nulls::Omitted;
    let fields = [
        required("channel_id", nulls.reference()),
        nulls.optional("key", schema_ref("ManagedKey")),
        nulls.optional("reply_to", nulls.reference().describe("The message to reply to.")),
    ];
    PayloadDoc {
        description: "Sends a message to a channel.",
        shape: message(nulls, fields),
        examples: vec![
            ("A line of text", json!({"channel_id": "1571715189416398852", "content": "Clear for take-off."})),
            (
                "A reply that mentions the author",
                json!({
                    "channel_id": {"key": "hangar"}, "key": "answer-1", "reply_to": "1571715189416398860",
                    "content": "It is yours.", "allowed_mentions": {"parse": [], "replied_user": true},
                    "embeds": [{"title": "Glider", "description": "Fuelled and ready.", "footer": {"text": "Bay 4"}}],
                    "components": [{"type": 1, "components": [{"type": 2, "style": 1, "label": "Fly", "custom_id": "fly"}]}],
                }),
            ),
        ],
    }
}

pub(crate) fn ensure() -> PayloadDoc {
    let nulls = Nulls::Rejected;
    let fields = [
        required("key", schema_ref("ManagedKey")),
        required("channel_id", nulls.reference()),
        nulls.optional("pin", boolean().describe("Whether the message is pinned; unchanged if omitted.")),
    ];
    PayloadDoc {
        description: "Sends the message if the key has none yet, otherwise edits it.",
        shape: message(nulls, fields),
        examples: vec![(
            "A pinned message that must exist",
            json!({
                "key": "welcome", "channel_id": {"key": "rules"}, "content": "Be kind.", "pin": true,
                "embeds": [{"title": "House rules"}], "components": [], "allowed_mentions": {"parse": [], "replied_user": false},
            }),
        )],
    }
}

pub(crate) fn edit() -> PayloadDoc {
    let nulls = Nulls::Rejected;
    let fields = [required("channel_id", nulls.reference()), required("message_id", nulls.reference())];
    PayloadDoc {
        description: "Edits a message of the bot. Omitted fields stay unchanged; `\"\"` and `[]` clear a field.",
        shape: message(nulls, fields),
        examples: vec![(
            "Change the text",
            json!({
                "channel_id": "1571715189416398852", "message_id": {"key": "welcome"}, "content": "Be very kind.",
                "embeds": [], "components": [], "allowed_mentions": {"parse": ["everyone"]},
            }),
        )],
    }
}

pub(crate) fn delete() -> PayloadDoc {
    let nulls = Nulls::Omitted;
    PayloadDoc {
        description: "Deletes a message. Succeeds if it does not exist.",
        shape: closed([required("channel_id", nulls.reference()), required("message_id", nulls.reference())]),
        examples: vec![("By id", json!({"channel_id": "1571715189416398852", "message_id": "1571715189416398860"}))],
    }
}

pub(crate) fn send_dm() -> PayloadDoc {
    PayloadDoc {
        description: "Sends a direct message to a user. It is queued for that user, whichever guild it is submitted for.",
        shape: message(Nulls::Omitted, [required("user_id", snowflake())]),
        examples: vec![(
            "A text with an embed",
            json!({"user_id": "80351110224678912", "content": "Your shift begins.", "embeds": [{"title": "Tower, bay 4"}]}),
        )],
    }
}
