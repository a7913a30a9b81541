//! Answers to interactions, and calls of any kind.

use guildhall_core::operation::payload::Method;
use serde_json::json;

use super::{Nulls, PayloadDoc, messages::message};
use crate::api::openapi::{
    common::snowflake,
    schema::{Describe, Field, anything, closed, must, one_of_names, text_of, truth},
};

/// An interaction's token, which becomes part of a path.
pub(super) const TOKEN: &str = "^[!\"$&-.0->@-\\[\\]-~]+$";
/// A path below the API's version, with its query.
pub(super) const PATH: &str = "^/[!\"$-~]+$";

fn interaction() -> [Field; 2] {
    [
        must(
            "interaction_id",
            snowflake().says(
                "An interaction that this deployment has received in this guild within the last 15 minutes; any other needs \
                 a key with the scope `interactions:any`.",
            ),
        ),
        must("interaction_token", text_of(1, 512).pattern(Some(TOKEN)).says("A secret, never shown.")),
    ]
}

fn ephemeral(nulls: Nulls) -> Field {
    nulls.may("ephemeral", truth().default(Some(false.into())).says("Only who asked sees it."))
}

pub(super) fn defer_reply() -> PayloadDoc {
    let nulls = Nulls::NotSaid;
    let update = truth().default(Some(false.into()));
    let update =
        update.says("The answer changes the message that the component belongs to. Not together with `ephemeral`.");
    PayloadDoc {
        does: "Tells Discord that the answer to an interaction is on its way.",
        shape: closed(interaction().into_iter().chain([ephemeral(nulls), nulls.may("update", update)])),
        examples: vec![
            (
                "An answer that only who asked will see",
                json!({"interaction_id": "1571715189416398870", "interaction_token": "aW50ZXJhY3Rpb24", "ephemeral": true}),
            ),
            (
                "The message will change",
                json!({"interaction_id": "1571715189416398870", "interaction_token": "aW50ZXJhY3Rpb24", "update": true}),
            ),
        ],
    }
}

pub(super) fn send_followup() -> PayloadDoc {
    let nulls = Nulls::NotSaid;
    PayloadDoc {
        does: "Says something more in answer to an interaction. In doubt it is never sent again: `needs_review`.",
        shape: message(nulls, interaction().into_iter().chain([ephemeral(nulls)])),
        examples: vec![(
            "A line of text",
            json!({
                "interaction_id": "1571715189416398870", "interaction_token": "aW50ZXJhY3Rpb24", "content": "And done.",
                "embeds": [{"title": "Bay 4"}], "ephemeral": true,
            }),
        )],
    }
}

pub(super) fn edit_original() -> PayloadDoc {
    PayloadDoc {
        does: "Changes the first answer to an interaction.",
        shape: message(Nulls::Refused, interaction()),
        examples: vec![(
            "Other words",
            json!({"interaction_id": "1571715189416398870", "interaction_token": "aW50ZXJhY3Rpb24", "content": "Done."}),
        )],
    }
}

pub(super) fn read() -> PayloadDoc {
    PayloadDoc {
        does: "Reads something, and keeps the answer as the operation's result.",
        shape: closed([must("path", path())]),
        examples: vec![("A guild's roles", json!({"path": "/guilds/1571715189416398849/roles"}))],
    }
}

pub(super) fn request() -> PayloadDoc {
    let nulls = Nulls::NotSaid;
    PayloadDoc {
        does: "Any call to Discord's API that no other kind makes. In doubt a `POST` is never sent again: `needs_review`.",
        shape: closed([
            must("method", one_of_names(Method::ALL.map(Method::name))),
            must("path", path()),
            nulls.may("body", anything().says("Any JSON. Not with `GET`.")),
            nulls.may("user_id", snowflake().says("Whose line it stands in. Only outside a guild.")),
        ]),
        examples: vec![
            (
                "A guild's name",
                json!({"method": "PATCH", "path": "/guilds/1571715189416398849", "body": {"name": "The Aviators"}}),
            ),
            ("Who the bot is", json!({"method": "GET", "path": "/users/@me"})),
            (
                "In the line of a user, outside a guild",
                json!({"method": "POST", "path": "/users/@me/channels", "body": {"recipient_id": "80351110224678912"}, "user_id": "80351110224678912"}),
            ),
        ],
    }
}

fn path() -> utoipa::openapi::schema::ObjectBuilder {
    text_of(2, 2048).pattern(Some(PATH)).says(
        "Below the API's version, with its query. No empty segment, no `.` or `..`, no encoded slash and no backslash.",
    )
}
