//! Dead events and state entries.

use serde_json::json;

use crate::api::openapi::{
    common::{A_TIME, time},
    route_doc::{RouteDoc, Tag},
    schema::{
        Describe as _, SchemaRef, any_object, any_value, boolean, closed, count, integer, list, object, optional,
        or_null, required, schema_ref, text, text_of,
    },
};

pub(crate) fn doc_for(method: &str, path: &str) -> Option<RouteDoc> {
    Some(match (method, path) {
        ("GET", "/events/dead") => list_dead(),
        ("POST", "/events/dead/{place}/revive") => revive(),
        ("GET", "/state/{key:.+}") => show_state(),
        ("PUT", "/state/{key:.+}") => put_state(),
        ("DELETE", "/state/{key:.+}") => delete_state(),
        _ => return None,
    })
}

/// A position in a numbered list.
pub(crate) const PLACE: &str = "^-?[0-9]{1,18}$";
/// Maximum lifetime of a value that expires: 366 days.
const MAX_TTL_MS: u64 = 366 * 24 * 60 * 60 * 1_000;

/// All schemas of this file, by name.
pub(crate) fn schemas() -> Vec<(&'static str, SchemaRef)> {
    let dead = object([
        required("place", text().pattern(Some(PLACE)).describe("Position in this list.")),
        required("handler", text().describe("The handler that failed.")),
        required("event_type", text().describe("The type of the event, such as `member.join`.")),
        required("session", text()),
        required("seq", text().pattern(Some(PLACE))),
        required("why", or_null(text().describe("Why it failed for good."))),
        required("attempts", count().describe("Number of attempts.")),
        required("created_at", time()),
        required("event", or_null(any_object().describe("The event. Interaction tokens are redacted."))),
    ]);
    let next =
        or_null(text().pattern(Some(PLACE)).describe("Value of `before` for the next page; `null` on the last page."));
    let value = object([required("key", text()), required("value", any_value().describe("Any JSON except `null`."))]);
    let new = closed([
        required("value", any_value().describe("Any JSON except `null`, at most 64 KiB.")),
        optional(
            "ttl_ms",
            or_null(integer(1, MAX_TTL_MS).describe(
                "Lifetime of the value; without it the value does not \
            expire.",
            )),
        ),
    ]);
    vec![
        ("DeadEvent", dead.describe("An event that failed for good.").into()),
        ("DeadEventPage", object([required("events", list(schema_ref("DeadEvent"))), required("next", next)]).into()),
        ("Revived", object([required("revived", boolean())]).into()),
        ("StateValue", value.into()),
        ("NewStateValue", new.into()),
    ]
}

fn list_dead() -> RouteDoc {
    let page = json!({
        "events": [{
            "place": "17", "handler": "greeter", "event_type": "member.join", "session": "abc", "seq": "42",
            "why": "the webhook returned 410", "attempts": 5, "created_at": A_TIME,
            "event": {"event_type": "member.join", "guild_id": "1571715189416398849"},
        }],
        "next": null,
    });
    RouteDoc::new(Tag::Events, "list_dead_events", "List dead events")
        .description("The newest first.")
        .with_limit()
        .query("before", text().pattern(Some(PLACE)), "`next` of the previous response.")
        .responses(200, "A page of dead events.", schema_ref("DeadEventPage"), [("page", page)])
}

fn revive() -> RouteDoc {
    RouteDoc::new(Tag::Events, "revive_event", "Revive a dead event")
        .description(
            "Delivers the event to its handler again, after the events that wait already. If that fails as well, it \
            is listed again at another place.",
        )
        .path("place", text().pattern(Some(PLACE)), "`place` of the event.")
        .responses(
            202,
            "The event will be delivered again.",
            schema_ref("Revived"),
            [("revived", json!({"revived": true}))],
        )
}

fn with_key(doc: RouteDoc) -> RouteDoc {
    let key = text_of(1, 255);
    doc.path(
        "key",
        key,
        "At most 255 bytes, no control characters, and none of the reserved keys that docs/handlers.md lists.",
    )
}

fn show_state() -> RouteDoc {
    with_key(RouteDoc::new(Tag::State, "show_state", "Show a state entry")).responses(
        200,
        "The entry.",
        schema_ref("StateValue"),
        [("value", json!({"key": "sess:profile:42", "value": {"level": 7}}))],
    )
}

fn put_state() -> RouteDoc {
    with_key(RouteDoc::new(Tag::State, "put_state", "Set a state entry"))
        .required_body(
            schema_ref("NewStateValue"),
            [
                ("for an hour", json!({"value": {"level": 7}, "ttl_ms": 3_600_000})),
                ("without expiry", json!({"value": ["any", "JSON"]})),
            ],
        )
        .empty_response(204, "The entry is stored.")
}

fn delete_state() -> RouteDoc {
    with_key(RouteDoc::new(Tag::State, "delete_state", "Delete a state entry"))
        .empty_response(204, "The entry does not exist, whether it existed before or not.")
}
