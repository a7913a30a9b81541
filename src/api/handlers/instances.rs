//! The processes that share the store.

use actix_web::web::Json;
use serde_json::json;

use crate::api::{
    dto::{Instance, Instances},
    errors,
    extract::{App, JsonResult},
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
