//! What callers use of the store, and their limits.

use actix_web::{HttpRequest, HttpResponse, web::Data};
use guildhall_actors::ports::{FileUsage, ScopeUsage};
use serde_json::{Value, json};

use crate::api::app_state::AppState;
use crate::api::params::Params;
use crate::api::problem::ProblemResponse;
use crate::api::{errors, middleware};

pub(crate) async fn show(request: HttpRequest, app: Data<AppState>) -> Result<HttpResponse, ProblemResponse> {
    Params::query(&request).finish()?;
    let caller = middleware::caller_of(&request);
    let usage = app.with_operations(|service| async move { service.usage(&caller).await }).await?;
    let usage = usage.map_err(|error| errors::operation_problem(&error))?;
    let scopes: Vec<Value> = usage.scopes.iter().map(scope).collect();
    Ok(HttpResponse::Ok().json(json!({"usage": scopes, "file": usage.file.map(file)})))
}

fn scope(usage: &ScopeUsage) -> Value {
    let ScopeUsage { scope, used, limit } = usage;
    json!({
        "by": scope.kind(),
        "name": scope.name(),
        "operations": used.operations.max(0),
        "max_operations": limit_or_null(limit.operations),
        "bytes": used.bytes.max(0),
        "max_bytes": limit_or_null(limit.bytes),
        "ratio": limit.ratio(*used),
    })
}

/// 0 means no limit.
fn limit_or_null(limit: u64) -> Option<u64> {
    (limit > 0).then_some(limit)
}

fn file(file: FileUsage) -> Value {
    json!({"bytes": file.used, "accepts_until_bytes": file.accepts_until, "max_bytes": file.max_bytes})
}
