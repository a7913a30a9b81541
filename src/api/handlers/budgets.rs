//! Named budgets of other upstreams: lists them, takes points from them, and records what the upstreams report.

use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, web::Data};
use guildhall_actors::access::AuditAction;
use guildhall_core::{
    budget::{
        Budget, BudgetDecision, BudgetError, BudgetMember, BudgetName, BudgetSnapshot, BudgetSource, Observation,
        Points, SpendRecord,
    },
    time::UnixMs,
};
use serde_json::{Value, json};

use crate::api::app_state::AppState;
use crate::api::params::Params;
use crate::api::problem::{ProblemResponse, ProblemType};
use crate::api::{dto, errors, middleware, params};

type HandlerResult = Result<HttpResponse, ProblemResponse>;

/// Default cost.
const DEFAULT_COST: Points = Points::whole(1);
/// Default maximum delay.
const DEFAULT_WAIT: Duration = Duration::from_secs(5);
/// Maximum of that: a day. Booked points have a limit of their own.
const MAX_WAIT_MS: u64 = 24 * 60 * 60 * 1_000;
/// Hours of spend in a response: the default, and the maximum.
const DEFAULT_HOURS: u64 = 24;
const MAX_HOURS: u64 = 366 * 24;

pub(crate) async fn list(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    Params::query(&request).finish()?;
    let listed = app.with_budgets(|budgets| async move { budgets.list().await }).await?;
    let (listed, now) = (listed.map_err(|error| budget_problem(&error))?, app.now());
    let budgets: Vec<_> = listed.iter().map(|budget| budget_json(budget, now)).collect();
    // There are never so many that they need pages.
    Ok(HttpResponse::Ok().json(json!({"budgets": budgets, "next": null})))
}

pub(crate) async fn show(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let name = name(&request)?;
    let mut params = Params::query(&request);
    let hours = params.number("hours", 1, MAX_HOURS).unwrap_or(DEFAULT_HOURS);
    params.finish()?;
    let found = app.with_budgets(move |budgets| async move {
        let snapshot = budgets.show(&name).await.map_err(|error| budget_problem(&error))?;
        let spend = budgets.last_hours(&name, hours).await.map_err(|error| errors::store_problem(&error))?;
        Ok::<_, ProblemResponse>((snapshot, spend))
    });
    let (budget, spend) = found.await??;
    let mut body = budget_json(&budget, app.now());
    body["spend"] = spend.iter().map(spend_json).collect::<Vec<_>>().into();
    Ok(HttpResponse::Ok().json(body))
}

pub(crate) async fn acquire(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let name = name(&request)?;
    let mut params = Params::optional_body(&request)?;
    let cost = params.points("cost", Points::SMALLEST).unwrap_or(DEFAULT_COST);
    let wait = params.number("max_wait_ms", 0, MAX_WAIT_MS).map_or(DEFAULT_WAIT, Duration::from_millis);
    params.finish()?;
    let decision = app.with_budgets(move |budgets| async move { budgets.acquire(&name, cost, wait).await }).await?;
    let (allowed, delay, remaining) = match decision.map_err(|error| budget_problem(&error))? {
        BudgetDecision::Allowed { delay, remaining } => (true, Some(delay), remaining),
        BudgetDecision::Refused { retry_after, remaining } => (false, retry_after, remaining),
    };
    Ok(HttpResponse::Ok().json(json!({
        "allowed": allowed,
        "delay_ms": delay.map(millis_up),
        "remaining": remaining,
    })))
}

pub(crate) async fn observe(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let name = name(&request)?;
    let mut params = Params::body(&request)?;
    let seen = Observation {
        available: params.points("available", Points::ZERO),
        maximum: params.points("maximum", Points::SMALLEST),
        restore_per_second: params.points("restore_per_second", Points::ZERO),
        retry_after: params.number("retry_after_ms", 0, MAX_WAIT_MS).map(Duration::from_millis),
        age: Duration::from_millis(params.number("age_ms", 0, max_age_ms()).unwrap_or(0)),
    };
    params.finish()?;
    if (Observation { age: Duration::ZERO, ..seen }) == Observation::default() {
        let detail = "The request body is empty: give what the upstream reported, as available, maximum, \
            restore_per_second or retry_after_ms.";
        return Err(ProblemType::BadRequest.with_detail(detail));
    }
    let note = middleware::caller_of(&request)
        .audit_record(AuditAction::BudgetsObserve, app.now())
        .with_target(&name)
        .with_detail(summary(&seen));
    let audit = app.audit_writer()?;
    let observed = app.with_budgets(move |budgets| async move {
        // First, so that only possible changes are recorded.
        budgets.prepare(&name, &seen).await.map_err(|error| budget_problem(&error))?;
        audit.write(note).await?;
        budgets.observe(&name, seen).await.map_err(|error| budget_problem(&error))?;
        budgets.show(&name).await.map_err(|error| budget_problem(&error))
    });
    let budget = observed.await??;
    Ok(HttpResponse::Ok().json(budget_json(&budget, app.now())))
}

/// A budget's name, from the path.
fn name(request: &HttpRequest) -> Result<BudgetName, ProblemResponse> {
    let given = params::path_parameter(request, "name")?;
    BudgetName::new(&given).map_err(|error| {
        let message = error.to_string();
        ProblemType::BadRequest.with_detail(format!("{message}.")).errors([("name".to_owned(), message)])
    })
}

fn budget_json(budget: &BudgetSnapshot, now: UnixMs) -> Value {
    let source = match budget.kept {
        BudgetSource::Alone => "alone",
        BudgetSource::Together => "together",
        BudgetSource::Meanwhile => "meanwhile",
    };
    let blocked = (!budget.blocked_for.is_zero()).then(|| dto::time(now + budget.blocked_for));
    json!({
        "name": budget.name,
        "maximum": budget.limits.maximum,
        "restore_per_second": budget.limits.restore_per_second,
        "observed": budget.observed,
        "available": budget.available,
        "booked": budget.booked,
        "blocked_until": blocked,
        "kept": source,
    })
}

fn spend_json(spend: &SpendRecord) -> Value {
    json!({"hour": dto::time(spend.hour.start()), "points": spend.points(), "calls": spend.calls})
}

/// A summary of what an upstream reported.
fn summary(seen: &Observation) -> String {
    let points =
        [("available", seen.available), ("maximum", seen.maximum), ("restore_per_second", seen.restore_per_second)];
    let fields = points.iter().filter_map(|(name, points)| points.map(|points| format!("{name} {points}")));
    let wait = seen.retry_after.map(|wait| format!("retry_after_ms {}", wait.as_millis()));
    fields.chain(wait).collect::<Vec<_>>().join(", ")
}

/// Maximum age of a report.
fn max_age_ms() -> u64 {
    u64::try_from(Budget::MEMORY.as_millis()).unwrap_or(u64::MAX)
}

/// Rounded up, so that a caller does not retry too early.
fn millis_up(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}

fn budget_problem(error: &BudgetError) -> ProblemResponse {
    let of_field = |field: &str| params::parameter(field, error.to_string());
    match error {
        BudgetError::Unknown(_) => ProblemType::NotFound.with_detail(format!("{error}.")),
        BudgetError::TooMany(_) => ProblemType::Conflict.with_detail(format!("{error}; raise budgets.most.")),
        BudgetError::CostAboveMaximum { maximum, .. } => ProblemType::BadRequest
            .with_detail(format!("{error}."))
            .errors([("cost".to_owned(), error.to_string())])
            .with("maximum", maximum.as_f64()),
        BudgetError::MaximumZero => of_field("maximum"),
        BudgetError::StaleObservation => of_field("age_ms"),
        BudgetError::BadName(_) => of_field("name"),
        BudgetError::BeyondShared(_) => ProblemType::BadRequest.with_detail(format!("{error}.")),
        BudgetError::Busy { .. } => ProblemType::Busy.with_detail(format!("{error}.")),
        BudgetError::Unreachable { .. } | BudgetError::Ending => {
            ProblemType::BudgetUnavailable.with_detail(format!("{error}."))
        }
    }
}

/// The largest number of points, wherever a budget is stored.
pub(crate) const MAX_POINTS: Points = BudgetMember::MAX;
