//! The REST proxy: who uses it most.

use actix_web::web::Json;
use guildhall_core::egress_usage::EgressMeasure;
use serde_json::json;

use crate::api::{
    dto::EgressTop,
    extract::{App, JsonResult, Query},
    fields::{self, Field as _, fields},
    openapi::{
        common::A_TIME,
        route_doc::{RouteDoc, Tag},
    },
};

fields! {
    /// The routes and callers to list.
    struct EgressTopQuery {
        /// Calls, the time that they were delayed, calls that Guildhall answered itself, or errors of Discord; default
        /// `calls`.
        by: Option<EgressMeasure> =
            fields::one_of("EgressMeasure", EgressMeasure::ALL.map(EgressMeasure::name), EgressMeasure::from_name).optional(),
        /// Maximum number of routes, and of callers.
        limit: usize = fields::integer(1..=200).or(10),
    }
}

pub(crate) fn top_doc() -> RouteDoc {
    let usage =
        |name: &str| json!({"name": name, "calls": 1_204, "waited_ms": 310, "refused": 2, "errors": 5, "over": 0});
    let example = json!({
        "enabled": true, "by": "calls", "since": A_TIME,
        "routes": [usage("POST /channels/{id}/messages")], "callers": [usage("k7mq2vx9apzd")],
    });
    RouteDoc::new(Tag::Egress, "list_egress_top", "List who uses the REST proxy most").response(
        200,
        "The routes and callers with the highest usage, the highest first.",
        [("top", example)],
    )
}

pub(crate) async fn top(Query(query): Query<EgressTopQuery>, app: App) -> JsonResult<EgressTop> {
    let by = query.by.unwrap_or(EgressMeasure::Calls);
    Ok(Json(match app.control.egress.get() {
        Some(usage) => EgressTop::new(by, &usage.top(by, query.limit), app.now()),
        None => EgressTop::disabled(by),
    }))
}
