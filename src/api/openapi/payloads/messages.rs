//! Messages.

use serde_json::json;
use utoipa::openapi::schema::ObjectBuilder;

use super::{Nulls, PayloadDoc};
use crate::api::openapi::{
    common::snowflake,
    schema::{
        Describe, Field, SchemaRef, any_object, closed, list_of, may, must, named, object, one_of_names, or_null,
        text_of, truth, with_one_of,
    },
};

/// What a message says.
pub(super) fn body(nulls: Nulls) -> [Field; 4] {
    [
        nulls.may("content", text_of(0, 2000)),
        nulls.may("embeds", list_of(0, 10, named("Embed")).says("At most 6000 characters of text together.")),
        nulls.may("components", list_of(0, 40, any_object()).says("As Discord takes them.")),
        nulls.may(
            "allowed_mentions",
            named(&nulls.title("AllowedMentions")).says("Who may be mentioned. **Without it, nobody is.**"),
        ),
    ]
}

/// A message with these fields beside what it says, of which there has to be something.
pub(super) fn message(nulls: Nulls, fields: impl IntoIterator<Item = Field>) -> ObjectBuilder {
    with_one_of(closed(fields.into_iter().chain(body(nulls))), &["content", "embeds", "components"])
}

/// An embed, held to Discord's bounds and else left as it is.
pub(super) fn embed() -> ObjectBuilder {
    let part = |name: &'static str, longest: usize| may(name, or_null(text_of(0, longest)));
    let within = |field: Field| -> SchemaRef { or_null(object([field])) };
    let field = object([part("name", 256), part("value", 1024)]);
    object([
        part("title", 256),
        part("description", 4096),
        may("footer", within(part("text", 2048))),
        may("author", within(part("name", 256))),
        may("fields", or_null(list_of(0, 25, field))),
    ])
    .says("An embed, as Discord takes it.")
}

/// Who may be mentioned.
pub(super) fn allowed_mentions(nulls: Nulls) -> ObjectBuilder {
    let ids = || list_of(0, 100, snowflake());
    closed([
        nulls.may("parse", list_of(0, 3, one_of_names(["roles", "users", "everyone"])).says("All of these.")),
        nulls.may("users", ids().says("These users; empty if `parse` names `users`.")),
        nulls.may("roles", ids().says("These roles; empty if `parse` names `roles`.")),
        nulls.may("replied_user", truth().says("Who wrote the message that this one answers.")),
    ])
    .says("Who may be mentioned.")
}

pub(super) fn send() -> PayloadDoc {
    let nulls = Nulls::NotSaid;
    let fields = [
        must("channel_id", nulls.reference()),
        nulls.may("key", named("ManagedKey")),
        nulls.may("reply_to", nulls.reference().says("The message that it answers.")),
    ];
    PayloadDoc {
        does: "Sends a message to a channel.",
        shape: message(nulls, fields),
        examples: vec![
            ("A line of text", json!({"channel_id": "1571715189416398852", "content": "Clear for take-off."})),
            (
                "An answer that mentions who asked",
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

pub(super) fn ensure() -> PayloadDoc {
    let nulls = Nulls::Refused;
    let fields = [
        must("key", named("ManagedKey")),
        must("channel_id", nulls.reference()),
        nulls.may("pin", truth().says("Whether it should be pinned; not said, that stays as it is.")),
    ];
    PayloadDoc {
        does: "Sends the message if the key names none, else makes it say this.",
        shape: message(nulls, fields),
        examples: vec![(
            "A pinned message that is to be there",
            json!({
                "key": "welcome", "channel_id": {"key": "rules"}, "content": "Be kind.", "pin": true,
                "embeds": [{"title": "House rules"}], "components": [], "allowed_mentions": {"parse": [], "replied_user": false},
            }),
        )],
    }
}

pub(super) fn edit() -> PayloadDoc {
    let nulls = Nulls::Refused;
    let fields = [must("channel_id", nulls.reference()), must("message_id", nulls.reference())];
    PayloadDoc {
        does: "Changes a message of the bot's own. What is not said stays; `\"\"` and `[]` clear.",
        shape: message(nulls, fields),
        examples: vec![(
            "Other words",
            json!({
                "channel_id": "1571715189416398852", "message_id": {"key": "welcome"}, "content": "Be very kind.",
                "embeds": [], "components": [], "allowed_mentions": {"parse": ["everyone"]},
            }),
        )],
    }
}

pub(super) fn delete() -> PayloadDoc {
    let nulls = Nulls::NotSaid;
    PayloadDoc {
        does: "Deletes a message. There being none is success.",
        shape: closed([must("channel_id", nulls.reference()), must("message_id", nulls.reference())]),
        examples: vec![(
            "By its id",
            json!({"channel_id": "1571715189416398852", "message_id": "1571715189416398860"}),
        )],
    }
}

pub(super) fn send_dm() -> PayloadDoc {
    PayloadDoc {
        does: "Sends a message to a user. It stands in that user's own line, whichever guild it was submitted for.",
        shape: message(Nulls::NotSaid, [must("user_id", snowflake())]),
        examples: vec![(
            "Some text",
            json!({"user_id": "80351110224678912", "content": "Your shift begins.", "embeds": [{"title": "Tower, bay 4"}]}),
        )],
    }
}
