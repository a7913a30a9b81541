//! Named budgets of other upstreams: lists them, takes points from them, and records what the upstreams report.

use std::time::Duration;

use actix_web::web::Json;
use guildhall_actors::access::{AuditAction, Caller};
use guildhall_core::budget::{BudgetError, BudgetMember, BudgetName, Observation, Points};
use serde_json::{Value, json};

use crate::api::{
    dto::{AcquiredBudget, Budget, BudgetInFull, Budgets, HourlySpend},
    errors,
    extract::{App, Body, JsonResult, OptionalBody, Path, Query},
    fields::{self, Field as _, NoFields, field_error, fields},
    openapi::{
        common::A_TIME,
        route_doc::{RouteDoc, Tag},
    },
    problem::{ProblemResponse, ProblemType},
};

/// Default cost.
const DEFAULT_COST: Points = Points::whole(1);
/// Default maximum delay.
const DEFAULT_WAIT: Duration = Duration::from_secs(5);
/// Maximum of that: a day. Booked points have a limit of their own.
const MAX_WAIT_MS: u64 = 24 * 60 * 60 * 1_000;
/// Maximum age of a report.
const MAX_AGE_MS: u64 = guildhall_core::budget::Budget::MEMORY.as_secs() * 1_000;

fields! {
    struct BudgetQuery {
        /// Number of hours of spend in the response.
        hours: u64 = fields::integer(1..=366 * 24).or(24),
    }

    struct AcquireBudget {
        /// The cost; default 1.
        cost: Option<Points> = fields::points(Points::SMALLEST).optional(),
        /// Maximum delay that the caller accepts; default 5000.
        max_wait_ms: Option<u64> = fields::integer(0..=MAX_WAIT_MS).optional(),
    }

    /// What the upstream reported: at least one field.
    struct ObserveBudget {
        /// What remains.
        available: Option<Points> = fields::points(Points::ZERO).optional(),
        /// The maximum.
        maximum: Option<Points> = fields::points(Points::SMALLEST).optional(),
        /// How much is restored in a second.
        restore_per_second: Option<Points> = fields::points(Points::ZERO).optional(),
        /// Nothing is permitted before this time has passed.
        retry_after_ms: Option<u64> = fields::integer(0..=MAX_WAIT_MS).optional(),
        /// How long ago the call was sent to which the upstream responded so.
        age_ms: Option<u64> = fields::integer(0..=MAX_AGE_MS).optional(),
    }
}

fn example() -> Value {
    json!({
        "name": "shop", "maximum": 2_000.0, "restore_per_second": 100.0, "observed": true, "available": 988.0, "booked": 0.0,
        "blocked_until": null, "kept": "alone",
    })
}

pub(crate) fn list_doc() -> RouteDoc {
    RouteDoc::new(Tag::Budgets, "list_budgets", "List budgets")
        .response(200, "All budgets.", [("budgets", json!({"budgets": [example()], "next": null}))])
        .problem(ProblemType::BudgetUnavailable)
}

pub(crate) async fn list(_: Query<NoFields>, app: App) -> JsonResult<Budgets> {
    let listed = app.with_budgets(|budgets| async move { budgets.list().await }).await?;
    let (listed, now) = (listed.map_err(|error| budget_problem(&error))?, app.now());
    // There are never so many that they need pages.
    Ok(Json(Budgets { budgets: listed.iter().map(|budget| Budget::new(budget, now)).collect(), next: None }))
}

pub(crate) fn show_doc() -> RouteDoc {
    let mut budget = example();
    budget["spend"] = json!([{"hour": A_TIME, "points": 12.0, "calls": 1}]);
    RouteDoc::new(Tag::Budgets, "show_budget", "Show a budget")
        .response(200, "The budget.", [("budget", budget)])
        .problem(ProblemType::BudgetUnavailable)
}

pub(crate) async fn show(
    Path(name): Path<BudgetName>,
    Query(query): Query<BudgetQuery>,
    app: App,
) -> JsonResult<BudgetInFull> {
    let found = app.with_budgets(move |budgets| async move {
        let snapshot = budgets.show(&name).await.map_err(|error| budget_problem(&error))?;
        let spend = budgets.last_hours(&name, query.hours).await.map_err(|error| errors::store_problem(&error))?;
        Ok::<_, ProblemResponse>((snapshot, spend))
    });
    let (budget, spend) = found.await??;
    let spend = spend.iter().map(HourlySpend::from).collect();
    Ok(Json(BudgetInFull { budget: Budget::new(&budget, app.now()), spend }))
}

pub(crate) fn acquire_doc() -> RouteDoc {
    RouteDoc::new(Tag::Budgets, "acquire_budget", "Acquire points of a budget")
        .description("The response comes at once; the caller must wait for the delay.")
        .body_example("ten points, within a second", json!({"cost": 10, "max_wait_ms": 1_000}))
        .response(
            200,
            "Whether the call is allowed, and when.",
            [("at once", json!({"allowed": true, "delay_ms": 0, "remaining": 930.0}))],
        )
        .problems([ProblemType::Conflict, ProblemType::BudgetUnavailable])
}

pub(crate) async fn acquire(
    Path(name): Path<BudgetName>,
    OptionalBody(body): OptionalBody<AcquireBudget>,
    app: App,
) -> JsonResult<AcquiredBudget> {
    let cost = body.cost.unwrap_or(DEFAULT_COST);
    let wait = body.max_wait_ms.map_or(DEFAULT_WAIT, Duration::from_millis);
    let decision = app.with_budgets(move |budgets| async move { budgets.acquire(&name, cost, wait).await }).await?;
    Ok(Json(decision.map_err(|error| budget_problem(&error))?.into()))
}

pub(crate) fn observe_doc() -> RouteDoc {
    RouteDoc::new(Tag::Budgets, "observe_budget", "Report the budget of an upstream")
        .body_example(
            "as reported by a GraphQL API",
            json!({"available": 988, "maximum": 2_000, "restore_per_second": 100, "age_ms": 80}),
        )
        .response(200, "The report is recorded.", [("budget", example())])
        .problems([ProblemType::Conflict, ProblemType::BudgetUnavailable])
}

pub(crate) async fn observe(
    Path(name): Path<BudgetName>,
    Body(body): Body<ObserveBudget>,
    caller: Caller,
    app: App,
) -> JsonResult<Budget> {
    let seen = Observation {
        available: body.available,
        maximum: body.maximum,
        restore_per_second: body.restore_per_second,
        retry_after: body.retry_after_ms.map(Duration::from_millis),
        age: Duration::from_millis(body.age_ms.unwrap_or(0)),
    };
    if (Observation { age: Duration::ZERO, ..seen }) == Observation::default() {
        let detail = "The request body is empty: give what the upstream reported, as available, maximum, \
            restore_per_second or retry_after_ms.";
        return Err(ProblemType::BadRequest.with_detail(detail));
    }
    let note =
        caller.audit_record(AuditAction::BudgetsObserve, app.now()).with_target(&name).with_detail(summary(&seen));
    let audit = app.audit_writer()?;
    let observed = app.with_budgets(move |budgets| async move {
        // First, so that only possible changes are recorded.
        budgets.prepare(&name, &seen).await.map_err(|error| budget_problem(&error))?;
        audit.write(note).await?;
        budgets.observe(&name, seen).await.map_err(|error| budget_problem(&error))?;
        budgets.show(&name).await.map_err(|error| budget_problem(&error))
    });
    let budget = observed.await??;
    Ok(Json(Budget::new(&budget, app.now())))
}

/// A summary of what an upstream reported.
fn summary(seen: &Observation) -> String {
    let points =
        [("available", seen.available), ("maximum", seen.maximum), ("restore_per_second", seen.restore_per_second)];
    let fields = points.iter().filter_map(|(name, points)| points.map(|points| format!("{name} {points}")));
    let wait = seen.retry_after.map(|wait| format!("retry_after_ms {}", wait.as_millis()));
    fields.chain(wait).collect::<Vec<_>>().join(", ")
}

fn budget_problem(error: &BudgetError) -> ProblemResponse {
    let of_field = |field: &str| field_error(field, error.to_string());
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
