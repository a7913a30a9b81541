//! Lists circuit breakers, and opens or closes them manually.

use std::time::Duration;

use actix_web::web::Json;
use guildhall_actors::access::{AuditAction, Caller};
use guildhall_core::{
    breaker::{BreakerKey, ForceError},
    response::Credential,
    route::RouteKey,
};
use serde_json::{Value, json};

use crate::{
    api::{
        app_state::AppState,
        dto::{Breaker, Breakers},
        events::ManualIntervention,
        extract::{App, Body, JsonResult, Query},
        fields::{self, Field as _, NoFields, field_error, fields},
        openapi::{
            common::{A_TIME, LATER},
            route_doc::{RouteDoc, Tag},
        },
        problem::{ProblemResponse, ProblemType},
    },
    events::emit,
};

/// Maximum length of a key.
const MAX_KEY_LEN: usize = 256;
/// Maximum duration of a forced breaker that is not open until it is reset: a week.
const MAX_FORCED_MS: u64 = 7 * 24 * 60 * 60 * 1_000;

fields! {
    struct ForceBreaker {
        /// A key as listed.
        key: String = fields::text(MAX_KEY_LEN),
        /// How long it stays open; without it, until it is reset.
        for_ms: Option<u64> = fields::integer(1..=MAX_FORCED_MS).optional(),
    }

    struct ResetBreaker {
        /// A key as listed.
        key: String = fields::text(MAX_KEY_LEN),
    }
}

fn example(state: &str, reason: &str, until: Option<&str>) -> Value {
    json!({
        "key": "target:crm", "kind": "target", "state": state, "why": reason, "since": A_TIME, "until": until, "calls": 0,
        "failures": 0, "slow": 0,
    })
}

pub(crate) fn list_doc() -> RouteDoc {
    let all = json!({"breakers": [example("open", "failures", Some(LATER))], "watched": 1});
    RouteDoc::new(Tag::Limits, "list_breakers", "List circuit breakers")
        .description("Those that are not closed first. Closed breakers without failures are not tracked.")
        .response(200, "All breakers.", [("breakers", all)])
}

pub(crate) async fn list(_: Query<NoFields>, app: App) -> JsonResult<Breakers> {
    let seen = app.with_gate(|service| async move { service.gate.observe().await }).await?;
    let (breakers, now) = (&seen.breakers.breakers, app.now());
    let listed = breakers.breakers.iter().map(|breaker| Breaker::new(breaker, now)).collect();
    Ok(Json(Breakers { breakers: listed, watched: breakers.watched }))
}

pub(crate) fn force_doc() -> RouteDoc {
    RouteDoc::new(Tag::Limits, "force_breaker", "Open a circuit breaker")
        .description(
            "Opens it until it is reset, or for a time. Meanwhile operations are `delayed` and use no attempt.",
        )
        .body_example("for a minute", json!({"key": "target:crm", "for_ms": 60_000}))
        .response(200, "The breaker is open.", [("open", example("open", "forced", Some(LATER)))])
        .problem(ProblemType::Conflict)
}

pub(crate) async fn force(Body(body): Body<ForceBreaker>, caller: Caller, app: App) -> JsonResult<Breaker> {
    let key = find_key(&body.key, &app).await?;
    let duration = body.for_ms.map(Duration::from_millis);
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

pub(crate) fn reset_doc() -> RouteDoc {
    RouteDoc::new(Tag::Limits, "reset_breaker", "Close a circuit breaker")
        .description("Closes it, whatever opened it.")
        .body_example("by key", json!({"key": "target:crm"}))
        .response(200, "The breaker is closed.", [("closed", example("closed", "reset", None))])
}

pub(crate) async fn reset(Body(body): Body<ResetBreaker>, caller: Caller, app: App) -> JsonResult<Breaker> {
    let key = find_key(&body.key, &app).await?;
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
async fn current_state(app: &AppState, key: BreakerKey) -> JsonResult<Breaker> {
    let requested = key.clone();
    let seen = app.with_gate(move |service| async move { service.gate.breaker_snapshot(requested).await }).await?;
    Ok(Json(seen.map_or_else(|| Breaker::untracked(&key), |breaker| Breaker::new(&breaker, app.now()))))
}

fn force_problem(refused: ForceError) -> ProblemResponse {
    let problem = ProblemType::Conflict.with_detail(format!("Nothing was changed: {refused}."));
    match refused {
        ForceError::Forced => problem.with("state", "forced_open"),
        ForceError::TooManyKeys(_) => problem,
    }
}

/// Parses the key of a breaker, and checks that this process can have it.
/// Reads a key. A token that does not name its application, as those of simulators, has breakers under the id that
/// Discord returned: a key that is listed is one of this bot.
async fn find_key(given: &str, app: &App) -> Result<BreakerKey, ProblemResponse> {
    let problem = match parse_key(given, app.gate()?.credential) {
        Ok(key) => return Ok(key),
        Err(problem) => problem,
    };
    let Ok(key) = given.parse::<BreakerKey>() else { return Err(problem) };
    let listed = key.clone();
    match app.with_gate(|service| async move { service.gate.breaker_snapshot(listed).await }).await? {
        Some(_) => Ok(key),
        None => Err(problem),
    }
}

fn parse_key(given: &str, own: Credential) -> Result<BreakerKey, ProblemResponse> {
    let invalid = |message: String| field_error("key", message);
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
    credential == own || matches!(credential, Credential::Anonymous | Credential::Token(_))
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
            "discord:token-00000000000000ab/GET /users/@me",
            "discord:42/POST /guilds/{id}/roles",
            "discord:42/DELETE /channels/{id}/messages/{id} (old)#7",
            "target:crm/eu#1",
        ] {
            assert_eq!(parse_key(key, OWN).unwrap().to_string(), key);
        }
        for key in
            ["", "discords", "discord:43", "discord:42/x", "discord:42/BREW /pot", "discord:42/GET x", "target:\u{7}"]
        {
            assert!(parse_key(key, OWN).is_err(), "{key}");
        }
    }
}
