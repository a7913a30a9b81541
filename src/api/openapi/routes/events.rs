//! Dead events and state entries.

use serde_json::json;

use crate::api::openapi::{
    common::{A_TIME, time},
    route_doc::{RouteDoc, Tag},
    schema::{
        Describe as _, SchemaRef, any_object, anything, closed, count, integer, list, may, must, named, object,
        or_null, text, text_of, truth,
    },
};

pub(crate) fn about(method: &str, path: &str) -> Option<RouteDoc> {
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
const TTL_MOST_MS: u64 = 366 * 24 * 60 * 60 * 1_000;

/// All schemas of this file, by name.
pub(crate) fn schemas() -> Vec<(&'static str, SchemaRef)> {
    let dead = object([
        must("place", text().pattern(Some(PLACE)).says("Position in this list.")),
        must("handler", text().says("The handler that failed.")),
        must("event_type", text().says("The type of the event, such as `member.join`.")),
        must("session", text()),
        must("seq", text().pattern(Some(PLACE))),
        must("why", or_null(text().says("Why it failed for good."))),
        must("attempts", count().says("Number of attempts.")),
        must("created_at", time()),
        must("event", or_null(any_object().says("The event. Interaction tokens are redacted."))),
    ]);
    let next =
        or_null(text().pattern(Some(PLACE)).says("Value of `before` for the next page; `null` on the last page."));
    let value = object([must("key", text()), must("value", anything().says("Any JSON except `null`."))]);
    let new = closed([
        must("value", anything().says("Any JSON except `null`, at most 64 KiB.")),
        may(
            "ttl_ms",
            or_null(integer(1, TTL_MOST_MS).says(
                "Lifetime of the value; without it the value does not \
            expire.",
            )),
        ),
    ]);
    vec![
        ("DeadEvent", dead.says("An event that failed for good.").into()),
        ("DeadEventPage", object([must("events", list(named("DeadEvent"))), must("next", next)]).into()),
        ("Revived", object([must("revived", truth())]).into()),
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
        .says("The newest first.")
        .limited()
        .query("before", text().pattern(Some(PLACE)), "`next` of the previous response.")
        .answers(200, "A page of dead events.", named("DeadEventPage"), [("page", page)])
}

fn revive() -> RouteDoc {
    RouteDoc::new(Tag::Events, "revive_event", "Revive a dead event")
        .says(
            "Delivers the event to its handler again, after the events that wait already. If that fails as well, it \
            is listed again at another place.",
        )
        .path("place", text().pattern(Some(PLACE)), "`place` of the event.")
        .answers(202, "The event will be delivered again.", named("Revived"), [("revived", json!({"revived": true}))])
}

fn a_key(about: RouteDoc) -> RouteDoc {
    let key = text_of(1, 255);
    about.path(
        "key",
        key,
        "At most 255 bytes, no control characters, and none of the reserved keys that docs/handlers.md lists.",
    )
}

fn show_state() -> RouteDoc {
    a_key(RouteDoc::new(Tag::State, "show_state", "Show a state entry")).answers(
        200,
        "The entry.",
        named("StateValue"),
        [("value", json!({"key": "sess:profile:42", "value": {"level": 7}}))],
    )
}

fn put_state() -> RouteDoc {
    a_key(RouteDoc::new(Tag::State, "put_state", "Set a state entry"))
        .takes(
            named("NewStateValue"),
            [
                ("for an hour", json!({"value": {"level": 7}, "ttl_ms": 3_600_000})),
                ("without expiry", json!({"value": ["any", "JSON"]})),
            ],
        )
        .answers_nothing(204, "The entry is stored.")
}

fn delete_state() -> RouteDoc {
    a_key(RouteDoc::new(Tag::State, "delete_state", "Delete a state entry"))
        .answers_nothing(204, "The entry does not exist, whether it existed before or not.")
}
