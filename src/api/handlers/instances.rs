//! The processes that share the store.

use actix_web::{HttpRequest, HttpResponse, web::Data};
use guildhall_actors::ports::Instance;
use serde_json::{Value, json};

use crate::api::app_state::AppState;
use crate::api::problem::ProblemResponse;
use crate::api::{dto, errors};

pub(crate) async fn list(_: HttpRequest, app: Data<AppState>) -> Result<HttpResponse, ProblemResponse> {
    let instances = app.with_operations(|service| async move { service.instances().await }).await?;
    let instances = instances.map_err(|error| errors::operation_problem(&error))?;
    let items: Vec<Value> = instances.iter().map(instance_json).collect();
    Ok(HttpResponse::Ok().json(json!({"instances": items})))
}

fn instance_json(instance: &Instance) -> Value {
    json!({
        "id": instance.id.to_string(),
        "name": instance.name,
        "is_self": instance.is_self,
        "started_at": dto::time(instance.started_at),
        "lag_ms": millis(instance.heartbeat_age),
        "lease_left_ms": instance.lease_remaining.map(millis),
        "arriving": instance.starting,
        "leaving": instance.stopping,
        "queues": instance.queues,
        "highest_fence": instance.highest_fence,
        "shards": instance.shards,
    })
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
