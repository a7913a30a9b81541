//! What callers use of the store, and their limits.

use actix_web::web::Json;
use guildhall_actors::access::Caller;
use serde_json::json;

use crate::api::{
    dto::{FileUsage, ScopeUsage, StoreUsage},
    errors,
    extract::{App, JsonResult, Query},
    fields::NoFields,
    openapi::route_doc::{RouteDoc, Tag},
};

pub(crate) fn show_doc() -> RouteDoc {
    let own = json!({"usage": [
        {"by": "key", "name": "0198c0de0198c0de", "operations": 120, "max_operations": 50_000, "bytes": 163_840,
            "max_bytes": 1_073_741_824, "ratio": 0.0024},
        {"by": "tenant", "name": "acme", "operations": 400, "max_operations": 200_000, "bytes": 540_000,
            "max_bytes": 4_294_967_296_u64, "ratio": 0.002},
    ], "file": null});
    RouteDoc::new(Tag::Fleet, "show_usage", "Show the usage of the store")
        .description("For the calling key and its tenant; for the operator's key, for all keys and tenants.")
        .response(200, "What is used, and the bounds.", [("usage", own)])
}

pub(crate) async fn show(_: Query<NoFields>, caller: Caller, app: App) -> JsonResult<StoreUsage> {
    let usage = app.with_operations(|service| async move { service.usage(&caller).await }).await?;
    let usage = usage.map_err(|error| errors::operation_problem(&error))?;
    Ok(Json(StoreUsage {
        usage: usage.scopes.iter().map(ScopeUsage::from).collect(),
        file: usage.file.map(FileUsage::from),
    }))
}
