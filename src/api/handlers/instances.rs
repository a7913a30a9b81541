//! The processes that share the store, and their pending work.

use actix_web::web::Json;
use serde_json::json;

use crate::api::{
    dto::{Instance, Instances, Queues},
    errors,
    extract::{App, JsonResult, Query},
    fields::NoFields,
    openapi::{
        common::{A_TIME, AN_OPERATION},
        route_doc::{RouteDoc, Tag},
    },
};

pub(crate) fn list_doc() -> RouteDoc {
    let all = json!({"instances": [{
        "id": AN_OPERATION, "name": "guildhall-1", "is_self": true, "started_at": A_TIME, "lag_ms": 900,
        "lease_left_ms": null, "arriving": false, "leaving": false, "queues": 12, "highest_fence": 3, "shards": [0, 1],
    }]});
    RouteDoc::new(Tag::Fleet, "list_instances", "List processes")
        .description("All processes that share the store, the oldest first.")
        .response(200, "All processes.", [("instances", all)])
}

pub(crate) async fn list(app: App) -> JsonResult<Instances> {
    let instances = app.with_operations(|service| async move { service.instances().await }).await?;
    let instances = instances.map_err(|error| errors::operation_problem(&error))?;
    Ok(Json(Instances { instances: instances.iter().map(Instance::from).collect() }))
}

pub(crate) fn queues_doc() -> RouteDoc {
    let queues = json!({
        "pending": {"delayed": 0, "queued": 3, "reconciling": 0, "retrying": 0, "running": 1, "scheduled": 12},
        "dead_letters": 2, "dead_events": 0, "all_paused": false, "paused_guilds": 1,
    });
    RouteDoc::new(Tag::Fleet, "show_queues", "Show pending work")
        .description("The operations of all processes that are not finished, and what needs attention.")
        .response(200, "The pending work.", [("queues", queues)])
}

pub(crate) async fn queues(_: Query<NoFields>, app: App) -> JsonResult<Queues> {
    let backlog = app.with_operations(|service| async move { service.backlog().await }).await?;
    Ok(Json(backlog.map_err(|error| errors::operation_problem(&error))?.into()))
}
