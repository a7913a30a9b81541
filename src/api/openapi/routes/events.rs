//! Events that were given up, and what bots keep.

use serde_json::json;

use crate::api::openapi::{
    common::{A_TIME, time},
    route_doc::{RouteDoc, Tag},
    schema::{
        Describe as _, SchemaRef, any_object, anything, closed, count, integer, list, may, must, named, object,
        or_null, text, text_of, truth,
    },
};

pub(super) fn about(method: &str, path: &str) -> Option<RouteDoc> {
    Some(match (method, path) {
        ("GET", "/events/dead") => list_dead(),
        ("POST", "/events/dead/{place}/revive") => revive(),
        ("GET", "/state/{key:.+}") => show_state(),
        ("PUT", "/state/{key:.+}") => put_state(),
        ("DELETE", "/state/{key:.+}") => delete_state(),
        _ => return None,
    })
}

/// A place in a list that has numbers.
pub(super) const PLACE: &str = "^-?[0-9]{1,18}$";
/// The longest that a value is kept which is to end: 366 days.
const TTL_MOST_MS: u64 = 366 * 24 * 60 * 60 * 1_000;

/// Every schema of this file, by its name.
pub(super) fn schemas() -> Vec<(&'static str, SchemaRef)> {
    let dead = object([
        must("place", text().pattern(Some(PLACE)).says("What it goes by here.")),
        must("handler", text().says("Whose it was.")),
        must("event_type", text().says("What happened: `member.join`.")),
        must("session", text()),
        must("seq", text().pattern(Some(PLACE))),
        must("why", or_null(text().says("Why it was given up."))),
        must("attempts", count().says("How often it was tried.")),
        must("created_at", time()),
        must("event", or_null(any_object().says("The event. Tokens of interactions are not shown."))),
    ]);
    let next =
        or_null(text().pattern(Some(PLACE)).says("What `before` has to be for those that follow; `null` at the end."));
    let value = object([must("key", text()), must("value", anything().says("Any JSON but `null`."))]);
    let new = closed([
        must("value", anything().says("Any JSON but `null`, at most 64 KiB.")),
        may("ttl_ms", or_null(integer(1, TTL_MOST_MS).says("For how long it is kept; for good if this is left out."))),
    ]);
    vec![
        ("DeadEvent", dead.says("An event that was given up.").into()),
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
            "why": "the webhook answered 410", "attempts": 5, "created_at": A_TIME,
            "event": {"event_type": "member.join", "guild_id": "1571715189416398849"},
        }],
        "next": null,
    });
    RouteDoc::new(Tag::Events, "list_dead_events", "List events that were given up")
        .says("The newest first.")
        .limited()
        .query("before", text().pattern(Some(PLACE)), "`next` of the answer before.")
        .answers(200, "A page of them.", named("DeadEventPage"), [("page", page)])
}

fn revive() -> RouteDoc {
    RouteDoc::new(Tag::Events, "revive_event", "Let the handler hear of an event again")
        .says("After what waits for it already. If that fails as well, it is listed again at another place.")
        .path("place", text().pattern(Some(PLACE)), "`place` of the event.")
        .answers(202, "The handler will hear of it.", named("Revived"), [("revived", json!({"revived": true}))])
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
    a_key(RouteDoc::new(Tag::State, "show_state", "Show what is kept under a key")).answers(
        200,
        "What is kept.",
        named("StateValue"),
        [("value", json!({"key": "sess:profile:42", "value": {"level": 7}}))],
    )
}

fn put_state() -> RouteDoc {
    a_key(RouteDoc::new(Tag::State, "put_state", "Keep something under a key"))
        .takes(
            named("NewStateValue"),
            [
                ("for an hour", json!({"value": {"level": 7}, "ttl_ms": 3_600_000})),
                ("for good", json!({"value": ["any", "JSON"]})),
            ],
        )
        .answers_nothing(204, "It is kept.")
}

fn delete_state() -> RouteDoc {
    a_key(RouteDoc::new(Tag::State, "delete_state", "Remove what is kept under a key"))
        .answers_nothing(204, "Nothing is kept there, whether there was something or not.")
}
