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
const MAX_KEY_LEN: usize = 256;
/// Maximum duration of a forced breaker that is not open until it is reset: a week.
const MAX_FORCED_MS: u64 = 7 * 24 * 60 * 60 * 1_000;

pub(crate) async fn list(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    Params::query(&request).finish()?;
    let seen = app.with_gate(|service| async move { service.gate.observe().await }).await?;
    let (breakers, now) = (&seen.breakers.breakers, app.now());
    let items: Vec<_> = breakers.breakers.iter().map(|breaker| breaker_json(breaker, now)).collect();
    Ok(HttpResponse::Ok().json(json!({"breakers": items, "watched": breakers.watched})))
}

fn breaker_json(breaker: &BreakerSnapshot, now: UnixMs) -> Value {
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

pub(crate) async fn force(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let mut params = Params::body(&request)?;
    let given = params.text("key", MAX_KEY_LEN);
    let duration = params.number("for_ms", 1, MAX_FORCED_MS).map(Duration::from_millis);
    params.finish()?;
    let key = parse_key(given, app.gate()?.credential)?;
    let caller = middleware::caller_of(&request);
    let detail = duration.map_or_else(|| "until it is reset".to_owned(), |time| format!("for {} ms", time.as_millis()));
    let note = caller.audit_record(AuditAction::BreakersForce, app.now()).with_target(&key).with_detail(detail);
    let (audit, to_open) = (app.audit_writer()?, key.clone());
    let forced = app.with_gate(|service| async move {
        // First, so that only possible changes are recorded.
        if let Err(refused) = service.gate.check_force(to_open.clone(), duration).await? {
            return Some(Err(force_problem(refused)));
        }
        if let Err(problem) = audit.write(note).await {
            return Some(Err(problem));
        }
        Some(service.gate.force(to_open, duration).await?.map_err(force_problem))
    });
    forced.await??;
    emit(ManualIntervention { action: AuditAction::BreakersForce, target: &key, caller: &caller });
    current_state(&app, key).await
}

pub(crate) async fn reset(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let mut params = Params::body(&request)?;
    let given = params.text("key", MAX_KEY_LEN);
    params.finish()?;
    let key = parse_key(given, app.gate()?.credential)?;
    let caller = middleware::caller_of(&request);
    let note = caller.audit_record(AuditAction::BreakersReset, app.now()).with_target(&key);
    let (audit, to_close) = (app.audit_writer()?, key.clone());
    let reset = app.with_gate(|service| async move {
        if let Err(problem) = audit.write(note).await {
            return Some(Err(problem));
        }
        service.gate.reset(to_close).await.map(Ok)
    });
    reset.await??;
    emit(ManualIntervention { action: AuditAction::BreakersReset, target: &key, caller: &caller });
    current_state(&app, key).await
}

/// The current state of a breaker.
async fn current_state(app: &AppState, key: BreakerKey) -> HandlerResult {
    let requested = key.clone();
    let seen = app.with_gate(move |service| async move { service.gate.breaker_snapshot(requested).await }).await?;
    let body = match seen {
        Some(breaker) => breaker_json(&breaker, app.now()),
        // A closed breaker without failures is not tracked.
        None => json!({"key": key, "kind": key.kind().name(), "state": "closed", "until": null}),
    };
    Ok(HttpResponse::Ok().json(body))
}

fn force_problem(refused: ForceError) -> ProblemResponse {
    let problem = ProblemType::Conflict.with_detail(format!("Nothing was changed: {refused}."));
    match refused {
        ForceError::Forced => problem.with("state", "forced_open"),
        ForceError::TooManyKeys(_) => problem,
    }
}

/// Parses the key of a breaker, and checks that this process can have it.
fn parse_key(given: Option<String>, own: Credential) -> Result<BreakerKey, ProblemResponse> {
    let invalid = |message: String| params::parameter("key", message);
    let given = given.ok_or_else(|| invalid("is required, as `GET /v1/breakers` lists it".to_owned()))?;
    let key: BreakerKey = given.parse().map_err(|error| invalid(format!("names no breaker: {error}")))?;
    let exists = match &key {
        BreakerKey::Address => true,
        BreakerKey::Target(name) => !name.chars().any(char::is_control),
        BreakerKey::Discord(owner) => is_own(*owner, own),
        BreakerKey::Route(owner, route) | BreakerKey::Pair(owner, route, _) => is_own(*owner, own) && is_route(route),
    };
    if !exists {
        let own = BreakerKey::Discord(own);
        return Err(invalid(format!(
            "names no breaker of this bot; possible keys are `discord`, `{own}`, `{own}/<METHOD> <path>`, that with \
             `#<id>`, the same of `discord:anonymous`, and `target:<handler>`"
        )));
    }
    Ok(key)
}

fn is_own(credential: Credential, own: Credential) -> bool {
    credential == own || credential == Credential::Anonymous
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
    fn only_keys_of_this_bots_breakers_are_accepted() {
        for key in [
            "discord",
            "discord:42",
            "discord:anonymous",
            "discord:42/POST /guilds/{id}/roles",
            "discord:42/DELETE /channels/{id}/messages/{id} (old)#7",
            "target:crm/eu#1",
        ] {
            assert_eq!(parse_key(Some(key.to_owned()), OWN).unwrap().to_string(), key);
        }
        for key in
            ["", "discords", "discord:43", "discord:42/x", "discord:42/BREW /pot", "discord:42/GET x", "target:\u{7}"]
        {
            assert!(parse_key(Some(key.to_owned()), OWN).is_err(), "{key}");
        }
        assert!(parse_key(None, OWN).is_err());
    }
}
