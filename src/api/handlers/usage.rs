//! What callers use of the store, and their limits.

use actix_web::{HttpRequest, HttpResponse, web::Data};
use guildhall_actors::ports::{FileUsage, ScopeUsage};
use serde_json::{Value, json};

use crate::api::app_state::AppState;
use crate::api::params::Params;
use crate::api::problem::ProblemResponse;
use crate::api::{errors, middleware};

pub(crate) async fn show(request: HttpRequest, served: Data<AppState>) -> Result<HttpResponse, ProblemResponse> {
    Params::query(&request).end()?;
    let caller = middleware::caller_of(&request);
    let usage = served.ask(|desk| async move { desk.usage(&caller).await }).await?;
    let usage = usage.map_err(|error| errors::of_desk(&error))?;
    let scopes: Vec<Value> = usage.scopes.iter().map(scope).collect();
    Ok(HttpResponse::Ok().json(json!({"usage": scopes, "file": usage.file.map(file)})))
}

fn scope(usage: &ScopeUsage) -> Value {
    let ScopeUsage { scope, used, limit } = usage;
    json!({
        "by": scope.kind(),
        "name": scope.name(),
        "operations": used.operations.max(0),
        "max_operations": bound(limit.operations),
        "bytes": used.bytes.max(0),
        "max_bytes": bound(limit.bytes),
        "ratio": limit.ratio(*used),
    })
}

/// 0 means no limit.
fn bound(most: u64) -> Option<u64> {
    (most > 0).then_some(most)
}

fn file(file: FileUsage) -> Value {
    json!({"bytes": file.used, "accepts_until_bytes": file.accepts_until, "max_bytes": file.most})
}
