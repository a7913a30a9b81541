//! Lists the audit.

use actix_web::{HttpRequest, HttpResponse, web::Data};
use guildhall_actors::access::{AuditAction, AuditFilter, StoredAuditRecord};
use serde_json::{Value, json};

use crate::api::app_state::AppState;
use crate::api::params::Params;
use crate::api::problem::ProblemResponse;
use crate::api::{dto, errors, middleware};

/// Maximum length of a key id in the filter.
const MAX_KEY_LEN: usize = 64;

pub(crate) async fn list(request: HttpRequest, app: Data<AppState>) -> Result<HttpResponse, ProblemResponse> {
    let caller = middleware::caller_of(&request);
    let mut params = Params::query(&request);
    let limit = params.limit();
    let names = AuditAction::ALL.map(AuditAction::name).join(", ");
    let filter = AuditFilter {
        tenant: caller.tenant.clone(),
        key: params.text("key", MAX_KEY_LEN),
        action: params.one_of("action", &names, AuditAction::from_name),
        guilds: caller.visible_guilds(params.guild()),
        before: params.position("before"),
        // One more shows whether another page follows.
        limit: limit + 1,
    };
    params.finish()?;
    let listed = app.with_keys(&request, |keys| async move { keys.audit(filter).await }).await?;
    let mut listed = listed.map_err(|error| errors::store_problem(&error))?;
    let more = listed.len() > limit;
    listed.truncate(limit);
    let next = listed.last().filter(|_| more).map(|row| row.position.to_string());
    let rows: Vec<_> = listed.iter().map(row_json).collect();
    Ok(HttpResponse::Ok().json(json!({ "audit": rows, "next": next })))
}

fn row_json(StoredAuditRecord { position: place, record: note }: &StoredAuditRecord) -> Value {
    json!({
        "place": place.to_string(),
        "at": dto::time(note.at),
        "tenant": &*note.tenant,
        "key": &*note.key,
        "action": note.action.name(),
        "guild_id": note.guild.map(|guild| guild.to_string()),
        "target": note.target,
        "detail": note.detail,
        "request_id": &*note.request,
    })
}
