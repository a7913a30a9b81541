//! Responses to interactions, and raw requests.

use guildhall_core::operation::payload::Method;
use serde_json::json;

use super::{Nulls, PayloadDoc, messages::message};
use crate::api::openapi::{
    common::snowflake,
    schema::{Describe, Field, any_value, boolean, closed, one_of_names, required, text_of},
};

/// An interaction token, which becomes part of a path.
pub(crate) const TOKEN: &str = "^[!\"$&-.0->@-\\[\\]-~]+$";
/// A path below the API's version, with its query.
pub(crate) const PATH: &str = "^/[!\"$-~]+$";

fn interaction() -> [Field; 2] {
    [
        required(
            "interaction_id",
            snowflake().describe(
                "An interaction that this deployment has received in this guild within the last 15 minutes; others \
                 require a key with the scope `interactions:any`.",
            ),
        ),
        required(
            "interaction_token",
            text_of(1, 512).pattern(Some(TOKEN)).describe(
                "The token of the interaction. It is \
            secret, and redacted in responses.",
            ),
        ),
    ]
}

fn ephemeral(nulls: Nulls) -> Field {
    nulls.optional(
        "ephemeral",
        boolean().default(Some(false.into())).describe(
            "Whether only the user of the interaction sees the \
        response.",
        ),
    )
}

pub(crate) fn defer_reply() -> PayloadDoc {
    let nulls = Nulls::Omitted;
    let update = boolean().default(Some(false.into()));
    let update = update.describe("The response edits the message of the component. Not with `ephemeral`.");
    PayloadDoc {
        description: "Defers the response to an interaction.",
        shape: closed(interaction().into_iter().chain([ephemeral(nulls), nulls.optional("update", update)])),
        examples: vec![
            (
                "A response that only the user of the interaction sees",
                json!({"interaction_id": "1571715189416398870", "interaction_token": "aW50ZXJhY3Rpb24", "ephemeral": true}),
            ),
            (
                "A response that edits the message",
                json!({"interaction_id": "1571715189416398870", "interaction_token": "aW50ZXJhY3Rpb24", "update": true}),
            ),
        ],
    }
}

pub(crate) fn send_followup() -> PayloadDoc {
    let nulls = Nulls::Omitted;
    PayloadDoc {
        description: "Sends another response to an interaction. If the outcome is unknown it is not sent again: \
            `needs_review`.",
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

pub(crate) fn edit_original() -> PayloadDoc {
    PayloadDoc {
        description: "Edits the first response to an interaction.",
        shape: message(Nulls::Rejected, interaction()),
        examples: vec![(
            "Change the text",
            json!({"interaction_id": "1571715189416398870", "interaction_token": "aW50ZXJhY3Rpb24", "content": "Done."}),
        )],
    }
}

pub(crate) fn read() -> PayloadDoc {
    PayloadDoc {
        description: "Reads a resource, and stores the response as the operation's result.",
        shape: closed([required("path", path())]),
        examples: vec![("A guild's roles", json!({"path": "/guilds/1571715189416398849/roles"}))],
    }
}

pub(crate) fn request() -> PayloadDoc {
    let nulls = Nulls::Omitted;
    PayloadDoc {
        description: "Any call to Discord's API that no other kind makes. If the outcome of a `POST` is unknown it is not \
            sent again: `needs_review`.",
        shape: closed([
            required("method", one_of_names(Method::ALL.map(Method::name))),
            required("path", path()),
            nulls.optional("body", any_value().describe("Any JSON. Not with `GET`.")),
            nulls.optional("user_id", snowflake().describe("The user whose queue it is in. Only outside a guild.")),
        ]),
        examples: vec![
            (
                "Change a guild's name",
                json!({"method": "PATCH", "path": "/guilds/1571715189416398849", "body": {"name": "The Aviators"}}),
            ),
            ("Read the bot's own user", json!({"method": "GET", "path": "/users/@me"})),
            (
                "In the queue of a user, outside a guild",
                json!({"method": "POST", "path": "/users/@me/channels", "body": {"recipient_id": "80351110224678912"}, "user_id": "80351110224678912"}),
            ),
        ],
    }
}

fn path() -> utoipa::openapi::schema::ObjectBuilder {
    text_of(2, 2048).pattern(Some(PATH)).describe(
        "The path below the API's version, with its query. No empty segment, no `.` or `..`, no encoded slash and no \
         backslash.",
    )
}
