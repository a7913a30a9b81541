//! Lists circuit breakers, and opens or closes them manually.

use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, web::Data};
use guildhall_actors::access::AuditAction;
use guildhall_core::{
    breaker::{BreakerKey, BreakerSnapshot, ForceError},
    response::Credential,
    route::RouteKey,
    time::UnixMs,
};
use serde_json::{Value, json};

use crate::api::app_state::AppState;
use crate::api::params::Params;
use crate::api::{dto, middleware, params};
use crate::{
    api::{
        events::ManualIntervention,
        problem::{ProblemResponse, ProblemType},
    },
    events::emit,
};

type HandlerResult = Result<HttpResponse, ProblemResponse>;

/// Maximum length of a key.
const KEY_MOST: usize = 256;
/// Maximum duration of a forced breaker that is not open until it is reset: a week.
const FOR_MOST: u64 = 7 * 24 * 60 * 60 * 1_000;

pub(crate) async fn list(request: HttpRequest, served: Data<AppState>) -> HandlerResult {
    Params::query(&request).end()?;
    let seen = served.ask_gate(|desk| async move { desk.gate.observe().await }).await?;
    let (breakers, now) = (&seen.breakers.breakers, served.now());
    let shown: Vec<_> = breakers.breakers.iter().map(|breaker| shown(breaker, now)).collect();
    Ok(HttpResponse::Ok().json(json!({"breakers": shown, "watched": breakers.watched})))
}

fn shown(breaker: &BreakerSnapshot, now: UnixMs) -> Value {
    json!({
        "key": breaker.key,
        "kind": breaker.kind.name(),
        "state": breaker.state,
        "why": breaker.why.name(),
        "since": dto::time(now.before(Duration::from_millis(breaker.for_ms))),
        "until": breaker.retry_after_ms.map(|wait| dto::time(now + Duration::from_millis(wait))),
        "calls": breaker.calls,
        "failures": breaker.failures,
        "slow": breaker.slow,
    })
}

pub(crate) async fn force(request: HttpRequest, served: Data<AppState>) -> HandlerResult {
    let mut asking = Params::body(&request)?;
    let given = asking.text("key", KEY_MOST);
    let lasting = asking.number("for_ms", 1, FOR_MOST).map(Duration::from_millis);
    asking.end()?;
    let key = named(given, served.gate()?.credential)?;
    let caller = middleware::caller_of(&request);
    let how = lasting.map_or_else(|| "until it is reset".to_owned(), |time| format!("for {} ms", time.as_millis()));
    let note = caller.note(AuditAction::BreakersForce, served.now()).on(&key).saying(how);
    let (book, to_open) = (served.book()?, key.clone());
    let forced = served.ask_gate(|desk| async move {
        // First, so that only possible changes are recorded.
        if let Err(refused) = desk.gate.may_force(to_open.clone(), lasting).await? {
            return Some(Err(unforced(refused)));
        }
        if let Err(told) = book.note(note).await {
            return Some(Err(told));
        }
        Some(desk.gate.force(to_open, lasting).await?.map_err(unforced))
    });
    forced.await??;
    emit(ManualIntervention { action: AuditAction::BreakersForce, target: &key, caller: &caller });
    look(&served, key).await
}

pub(crate) async fn reset(request: HttpRequest, served: Data<AppState>) -> HandlerResult {
    let mut asking = Params::body(&request)?;
    let given = asking.text("key", KEY_MOST);
    asking.end()?;
    let key = named(given, served.gate()?.credential)?;
    let caller = middleware::caller_of(&request);
    let note = caller.note(AuditAction::BreakersReset, served.now()).on(&key);
    let (book, to_close) = (served.book()?, key.clone());
    let reset = served.ask_gate(|desk| async move {
        if let Err(told) = book.note(note).await {
            return Some(Err(told));
        }
        desk.gate.reset(to_close).await.map(Ok)
    });
    reset.await??;
    emit(ManualIntervention { action: AuditAction::BreakersReset, target: &key, caller: &caller });
    look(&served, key).await
}

/// The current state of a breaker.
async fn look(served: &AppState, key: BreakerKey) -> HandlerResult {
    let asked = key.clone();
    let seen = served.ask_gate(move |desk| async move { desk.gate.look(asked).await }).await?;
    let body = match seen {
        Some(breaker) => shown(&breaker, served.now()),
        // A closed breaker without failures is not tracked.
        None => json!({"key": key, "kind": key.kind().name(), "state": "closed", "until": null}),
    };
    Ok(HttpResponse::Ok().json(body))
}

fn unforced(refused: ForceError) -> ProblemResponse {
    let told = ProblemType::Conflict.says(format!("Nothing was changed: {refused}."));
    match refused {
        ForceError::Forced => told.with("state", "forced_open"),
        ForceError::TooManyKeys(_) => told,
    }
}

/// Parses the key of a breaker, and checks that this process can have it.
fn named(given: Option<String>, own: Credential) -> Result<BreakerKey, ProblemResponse> {
    let wrong = |message: String| params::parameter("key", message);
    let given = given.ok_or_else(|| wrong("is required, as `GET /v1/breakers` lists it".to_owned()))?;
    let key: BreakerKey = given.parse().map_err(|error| wrong(format!("names no breaker: {error}")))?;
    let known = match &key {
        BreakerKey::Address => true,
        BreakerKey::Target(name) => !name.chars().any(char::is_control),
        BreakerKey::Discord(whose) => is_own(*whose, own),
        BreakerKey::Route(whose, route) | BreakerKey::Pair(whose, route, _) => is_own(*whose, own) && is_route(route),
    };
    if !known {
        let own = BreakerKey::Discord(own);
        return Err(wrong(format!(
            "names no breaker of this bot; possible keys are `discord`, `{own}`, `{own}/<METHOD> <path>`, that with \
             `#<id>`, the same of `discord:anonymous`, and `target:<handler>`"
        )));
    }
    Ok(key)
}

fn is_own(whose: Credential, own: Credential) -> bool {
    whose == own || whose == Credential::Anonymous
}

/// Whether it has the form of a route: a method, and a path of plain characters.
fn is_route(route: &RouteKey) -> bool {
    let Some((method, path)) = route.as_str().split_once(' ') else { return false };
    ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"].contains(&method)
        && path.starts_with('/')
        && path.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Credential = Credential::Application(42);

    #[test]
    fn only_breakers_that_this_bot_can_have_are_named() {
        for key in [
            "discord",
            "discord:42",
            "discord:anonymous",
            "discord:42/POST /guilds/{id}/roles",
            "discord:42/DELETE /channels/{id}/messages/{id} (old)#7",
            "target:crm/eu#1",
        ] {
            assert_eq!(named(Some(key.to_owned()), OWN).unwrap().to_string(), key);
        }
        for key in
            ["", "discords", "discord:43", "discord:42/x", "discord:42/BREW /pot", "discord:42/GET x", "target:\u{7}"]
        {
            assert!(named(Some(key.to_owned()), OWN).is_err(), "{key}");
        }
        assert!(named(None, OWN).is_err());
    }
}
