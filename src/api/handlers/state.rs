//! State entries and dead events: `/v1/state` and `/v1/events/dead`.

use std::{sync::Arc, time::Duration};

use actix_web::{HttpRequest, HttpResponse, web::Data};
use guildhall_actors::access::AuditAction;
use guildhall_actors::ports::{EventStore, InboxEntry, OperationStore};
use guildhall_actors::supervisor::EventsHandle;
use guildhall_actors::wall_clock::WallClock;
use guildhall_core::state_key::{MAX_BYTES, check_reserved};
use serde_json::{Value, json};

use crate::api::app_state::AppState;
use crate::api::params::Params;
use crate::api::problem::{ProblemResponse, ProblemType};
use crate::api::{dto, errors, middleware, params};

type HandlerResult = Result<HttpResponse, ProblemResponse>;

/// Maximum size of a value, in bytes of JSON.
const MAX_VALUE_LEN: usize = 64 * 1024;
/// Maximum lifetime of a value that expires: a year.
const MAX_TTL_MS: u64 = 366 * 24 * 60 * 60 * 1_000;

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

pub(crate) async fn show(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let key = key(&request)?;
    let keys = vec![key.clone()];
    let found = app.with_state(|service| async move { service.store.values(keys, service.clock.now()).await }).await?;
    let found = found.map_err(|error| errors::store_problem(&error))?.pop().flatten().ok_or_else(|| absent(&key))?;
    let value: Value = serde_json::from_str(&found).unwrap_or(Value::String(found));
    Ok(HttpResponse::Ok().json(json!({ "key": key, "value": value })))
}

pub(crate) async fn put(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let key = key(&request)?;
    let Value::Object(mut fields) = params::json(&request)? else {
        return Err(ProblemType::BadRequest.with_detail(
            "The request body must be a JSON object: {\"value\": …, \"ttl_ms\": \
            …}.",
        ));
    };
    let value = fields.remove("value").unwrap_or_default();
    let ttl = fields.remove("ttl_ms").unwrap_or_default();
    let mut errors = Vec::new();
    let written = value.to_string();
    if value.is_null() {
        errors.push(("value".to_owned(), "is required and must not be null; DELETE removes a value".to_owned()));
    } else if written.len() > MAX_VALUE_LEN {
        errors.push(("value".to_owned(), format!("must be at most {MAX_VALUE_LEN} bytes of JSON")));
    }
    let lifetime = ttl.as_u64().filter(|ttl| (1..=MAX_TTL_MS).contains(ttl)).map(Duration::from_millis);
    if lifetime.is_none() && !ttl.is_null() {
        errors.push(("ttl_ms".to_owned(), format!("must be a whole number from 1 to {MAX_TTL_MS}")));
    }
    for other in fields.keys().take(10) {
        let displayed: String = other.chars().take(64).collect();
        errors.push((displayed, "is unknown; expected one of: value, ttl_ms".to_owned()));
    }
    if !errors.is_empty() {
        let messages: Vec<_> = errors.iter().map(|(name, message)| format!("{name} {message}")).collect();
        return Err(ProblemType::BadRequest.with_detail(format!("{}.", messages.join("; "))).errors(errors));
    }
    set(&request, &app, key, Some((written, lifetime))).await
}

pub(crate) async fn remove(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    set(&request, &app, key(&request)?, None).await
}

async fn set(
    request: &HttpRequest,
    app: &AppState,
    key: String,
    value: Option<(String, Option<Duration>)>,
) -> HandlerResult {
    let action = if value.is_some() { AuditAction::StatePut } else { AuditAction::StateDelete };
    let note = middleware::caller_of(request).audit_record(action, app.now()).with_target(&key);
    let stored = app.with_state(|service| async move {
        let (value, ttl) = value.unzip();
        let expires_at = ttl.flatten().map(|ttl| service.clock.now() + ttl);
        Arc::clone(&service.values).with_audit(note).set_state(&key, value, expires_at).await
    });
    stored.await?.map_err(|error| errors::store_problem(&error))?;
    Ok(HttpResponse::NoContent().finish())
}

/// The key of a state entry, from the path.
fn key(request: &HttpRequest) -> Result<String, ProblemResponse> {
    let error = |message| params::parameter("key", message);
    let key = params::path_parameter(request, "key")?;
    if !(1..=MAX_BYTES).contains(&key.len()) || key.chars().any(char::is_control) {
        return Err(error(format!("must be 1 to {MAX_BYTES} bytes, without control characters")));
    }
    check_reserved(&key).map_err(|reserved| error(reserved.to_string()))?;
    Ok(key)
}

fn absent(key: &str) -> ProblemResponse {
    ProblemType::NotFound.with_detail(format!("The key {key:?} has no value, or its value has expired."))
}

pub(crate) async fn list_dead(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let mut params = Params::query(&request);
    let (limit, before) = (params.limit(), params.position("before"));
    params.finish()?;
    // One more shows whether another page follows.
    let listed = app.with_state(|service| async move { service.store.dead_events(before, limit + 1).await }).await?;
    let mut listed = listed.map_err(|error| errors::store_problem(&error))?;
    let more = listed.len() > limit;
    listed.truncate(limit);
    let next = listed.last().filter(|_| more).map(|entry| entry.position.to_string());
    let events: Vec<_> = listed.iter().map(dead_event_json).collect();
    Ok(HttpResponse::Ok().json(json!({ "events": events, "next": next })))
}

fn dead_event_json(entry: &InboxEntry) -> Value {
    let mut event: Value = serde_json::from_str(&entry.event).unwrap_or_default();
    // The token permits anyone to respond as the bot.
    if let Some(token) = event.get_mut("interaction_token") {
        *token = "(redacted)".into();
    }
    if let Some(token) = event.pointer_mut("/data/token") {
        *token = "(redacted)".into();
    }
    json!({
        "place": entry.position.to_string(),
        "handler": &*entry.key.handler,
        "event_type": entry.name,
        "session": &*entry.key.session,
        "seq": entry.key.seq.to_string(),
        "why": entry.dead,
        "attempts": entry.attempts,
        "created_at": dto::time(entry.created_at),
        "event": event,
    })
}

pub(crate) async fn revive(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let given = params::path_parameter(&request, "place")?;
    let place: i64 = given
        .parse()
        .map_err(|_| ProblemType::BadRequest.with_detail("place must be a number from the list of dead events."))?;
    let caller = middleware::caller_of(&request);
    let revived = app.with_state(|service| async move {
        let note = caller.audit_record(AuditAction::EventsRevive, service.clock.now()).with_target(&place);
        let revived = service.store.revive(place, note).await;
        if revived.as_ref().is_ok_and(|revived| *revived) {
            service.events.wake_inbox();
        }
        revived
    });
    if !revived.await?.map_err(|error| errors::store_problem(&error))? {
        return Err(ProblemType::NotFound.with_detail(format!("There is no dead event at place {place}.")));
    }
    Ok(HttpResponse::Accepted().json(json!({ "revived": true })))
}
