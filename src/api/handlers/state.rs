//! State entries and dead events: `/v1/state` and `/v1/events/dead`.

use std::{sync::Arc, time::Duration};

use actix_web::{HttpResponse, web::Json};
use guildhall_actors::access::{AuditAction, Caller};
use guildhall_actors::ports::{EventStore, OperationStore};
use guildhall_actors::supervisor::EventsHandle;
use guildhall_actors::wall_clock::WallClock;
use serde_json::{Value, json};

use super::page;
use crate::api::{
    app_state::AppState,
    dto::{DeadEvent, DeadEventPage, Revived, StateValue},
    errors,
    extract::{App, Body, EventPosition, HandlerResult, JsonResult, Path, Query, StateKey},
    fields::{self, Field as _, fields},
    openapi::{
        common::A_TIME,
        route_doc::{RouteDoc, Tag},
        schema::{any_value, integer},
    },
    problem::{ProblemResponse, ProblemType},
};

/// Maximum size of a value, in bytes of JSON.
const MAX_VALUE_LEN: usize = 64 * 1024;
/// Maximum lifetime of a value that expires: a year.
const MAX_TTL_MS: u64 = 366 * 24 * 60 * 60 * 1_000;

fields! {
    struct NewStateValue {
        /// Any JSON except `null`, at most 64 KiB.
        value: String = fields::json(read_value, any_value),
        /// Lifetime of the value; without it the value does not expire.
        ttl_ms: Option<u64> = fields::json(read_ttl, || integer(1, MAX_TTL_MS)).optional(),
    }

    struct DeadEventQuery {
        /// Maximum number of entries.
        limit: usize = fields::page_size(),
        /// `next` of the previous response.
        before: Option<i64> = fields::position().optional(),
    }
}

/// A value as JSON text.
fn read_value(given: &Value) -> Result<String, Vec<String>> {
    let written = given.to_string();
    if given.is_null() {
        Err(vec!["is required and must not be null; DELETE removes a value".to_owned()])
    } else if written.len() > MAX_VALUE_LEN {
        Err(vec![format!("must be at most {MAX_VALUE_LEN} bytes of JSON")])
    } else {
        Ok(written)
    }
}

fn read_ttl(given: &Value) -> Result<u64, Vec<String>> {
    let ttl = given.as_u64().filter(|ttl| (1..=MAX_TTL_MS).contains(ttl));
    ttl.ok_or_else(|| vec![format!("must be a whole number from 1 to {MAX_TTL_MS}")])
}

/// The stores of state entries and events, and the event router.
#[derive(Clone)]
pub struct StateService {
    /// Values are written here.
    pub values: Arc<dyn OperationStore>,
    /// Values are read here; it also stores events.
    pub store: Arc<dyn EventStore>,
    /// Receives revived events.
    pub events: EventsHandle,
    /// The current time.
    pub clock: WallClock,
}

impl std::fmt::Debug for StateService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StateService").finish_non_exhaustive()
    }
}

pub(crate) fn show_doc() -> RouteDoc {
    RouteDoc::new(Tag::State, "show_state", "Show a state entry").response(
        200,
        "The entry.",
        [("value", json!({"key": "sess:profile:42", "value": {"level": 7}}))],
    )
}

pub(crate) async fn show(Path(StateKey(key)): Path<StateKey>, app: App) -> JsonResult<StateValue> {
    let keys = vec![key.clone()];
    let found = app.with_state(|service| async move { service.store.values(keys, service.clock.now()).await }).await?;
    let found = found.map_err(|error| errors::store_problem(&error))?.pop().flatten().ok_or_else(|| absent(&key))?;
    let value: Value = serde_json::from_str(&found).unwrap_or(Value::String(found));
    Ok(Json(StateValue { key, value }))
}

pub(crate) fn put_doc() -> RouteDoc {
    RouteDoc::new(Tag::State, "put_state", "Set a state entry")
        .body_example("for an hour", json!({"value": {"level": 7}, "ttl_ms": 3_600_000}))
        .body_example("without expiry", json!({"value": ["any", "JSON"]}))
        .empty_response(204, "The entry is stored.")
}

pub(crate) async fn put(
    Path(StateKey(key)): Path<StateKey>,
    Body(body): Body<NewStateValue>,
    caller: Caller,
    app: App,
) -> HandlerResult {
    set(&caller, &app, key, Some((body.value, body.ttl_ms.map(Duration::from_millis)))).await
}

pub(crate) fn remove_doc() -> RouteDoc {
    RouteDoc::new(Tag::State, "delete_state", "Delete a state entry")
        .empty_response(204, "The entry does not exist, whether it existed before or not.")
}

pub(crate) async fn remove(Path(StateKey(key)): Path<StateKey>, caller: Caller, app: App) -> HandlerResult {
    set(&caller, &app, key, None).await
}

async fn set(caller: &Caller, app: &AppState, key: String, value: Option<(String, Option<Duration>)>) -> HandlerResult {
    let action = if value.is_some() { AuditAction::StatePut } else { AuditAction::StateDelete };
    let note = caller.audit_record(action, app.now()).with_target(&key);
    let stored = app.with_state(|service| async move {
        let (value, ttl) = value.unzip();
        let expires_at = ttl.flatten().map(|ttl| service.clock.now() + ttl);
        Arc::clone(&service.values).with_audit(note).set_state(&key, value, expires_at).await
    });
    stored.await?.map_err(|error| errors::store_problem(&error))?;
    Ok(HttpResponse::NoContent().finish())
}

fn absent(key: &str) -> ProblemResponse {
    ProblemType::NotFound.with_detail(format!("The key {key:?} has no value, or its value has expired."))
}

fn dead_event_example() -> Value {
    json!({
        "place": "17", "handler": "greeter", "event_type": "member.join", "session": "abc", "seq": "42",
        "why": "the webhook returned 410", "attempts": 5, "created_at": A_TIME,
        "event": {"event_type": "member.join", "guild_id": "1571715189416398849"},
    })
}

pub(crate) fn list_dead_doc() -> RouteDoc {
    let page = json!({"events": [dead_event_example()], "next": null});
    RouteDoc::new(Tag::Events, "list_dead_events", "List dead events").description("The newest first.").response(
        200,
        "A page of dead events.",
        [("page", page)],
    )
}

pub(crate) async fn list_dead(
    Query(DeadEventQuery { limit, before }): Query<DeadEventQuery>,
    app: App,
) -> JsonResult<DeadEventPage> {
    // One more shows whether another page follows.
    let listed = app.with_state(|service| async move { service.store.dead_events(before, limit + 1).await }).await?;
    let listed = listed.map_err(|error| errors::store_problem(&error))?;
    let (listed, next) = page(listed, limit, |entry| entry.position.to_string().into());
    Ok(Json(DeadEventPage { events: listed.iter().map(DeadEvent::from).collect(), next }))
}

pub(crate) fn show_dead_doc() -> RouteDoc {
    RouteDoc::new(Tag::Events, "show_dead_event", "Show a dead event").response(
        200,
        "The dead event.",
        [("event", dead_event_example())],
    )
}

pub(crate) async fn show_dead(Path(EventPosition(position)): Path<EventPosition>, app: App) -> JsonResult<DeadEvent> {
    // The list starts before a place, with the highest one.
    let before = position.checked_add(1);
    let listed = app.with_state(|service| async move { service.store.dead_events(before, 1).await }).await?;
    let listed = listed.map_err(|error| errors::store_problem(&error))?;
    let found = listed.iter().find(|entry| entry.position == position).ok_or_else(|| no_dead_event(position))?;
    Ok(Json(DeadEvent::from(found)))
}

pub(crate) fn discard_dead_doc() -> RouteDoc {
    RouteDoc::new(Tag::Events, "discard_dead_event", "Discard a dead event")
        .description("Deletes it. Its handler has not handled it, and never will.")
        .empty_response(204, "The dead event was discarded.")
}

pub(crate) async fn discard_dead(
    Path(EventPosition(position)): Path<EventPosition>,
    caller: Caller,
    app: App,
) -> HandlerResult {
    let discarded = app.with_state(|service| async move {
        let note = caller.audit_record(AuditAction::EventsDiscard, service.clock.now()).with_target(&position);
        service.store.discard_event(position, note).await
    });
    if discarded.await?.map_err(|error| errors::store_problem(&error))? {
        Ok(HttpResponse::NoContent().finish())
    } else {
        Err(no_dead_event(position))
    }
}

fn no_dead_event(position: i64) -> ProblemResponse {
    ProblemType::NotFound.with_detail(format!("There is no dead event at place {position}."))
}

pub(crate) fn revive_doc() -> RouteDoc {
    RouteDoc::new(Tag::Events, "revive_event", "Revive a dead event")
        .description(
            "Delivers the event to its handler again, after the events that wait already. If that fails as well, it \
            is listed again at another place.",
        )
        .response_of::<Revived>(202, "The event will be delivered again.", [("revived", json!({"revived": true}))])
}

pub(crate) async fn revive(
    Path(EventPosition(position)): Path<EventPosition>,
    caller: Caller,
    app: App,
) -> HandlerResult {
    let revived = app.with_state(|service| async move {
        let note = caller.audit_record(AuditAction::EventsRevive, service.clock.now()).with_target(&position);
        let revived = service.store.revive(position, note).await;
        if revived.as_ref().is_ok_and(|revived| *revived) {
            service.events.wake_inbox();
        }
        revived
    });
    if !revived.await?.map_err(|error| errors::store_problem(&error))? {
        return Err(no_dead_event(position));
    }
    Ok(HttpResponse::Accepted().json(Revived { revived: true }))
}
