//! The processes that share the store.

use actix_web::{HttpRequest, HttpResponse, web::Data};
use guildhall_actors::ports::Instance;
use serde_json::{Value, json};

use crate::api::app_state::AppState;
use crate::api::problem::ProblemResponse;
use crate::api::{dto, errors};

pub(crate) async fn list(_: HttpRequest, served: Data<AppState>) -> Result<HttpResponse, ProblemResponse> {
    let instances = served.ask(|desk| async move { desk.instances().await }).await?;
    let instances = instances.map_err(|error| errors::of_desk(&error))?;
    let shown: Vec<Value> = instances.iter().map(show).collect();
    Ok(HttpResponse::Ok().json(json!({"instances": shown})))
}

fn show(instance: &Instance) -> Value {
    json!({
        "id": instance.id.to_string(),
        "name": instance.name,
        "is_self": instance.is_self,
        "started_at": dto::time(instance.started_at),
        "lag_ms": millis(instance.lag),
        "lease_left_ms": instance.lease_left.map(millis),
        "arriving": instance.arriving,
        "leaving": instance.leaving,
        "queues": instance.queues,
        "highest_fence": instance.highest_fence,
        "shards": instance.shards,
    })
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
