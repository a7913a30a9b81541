//! Lists the audit.

use actix_web::{HttpRequest, HttpResponse, web::Data};
use guildhall_actors::access::{AuditAction, AuditFilter, StoredAuditRecord};
use serde_json::{Value, json};

use crate::api::app_state::AppState;
use crate::api::params::Params;
use crate::api::problem::ProblemResponse;
use crate::api::{dto, errors, middleware};

/// Maximum length of a key id in the filter.
const KEY_MOST: usize = 64;

pub(crate) async fn list(request: HttpRequest, served: Data<AppState>) -> Result<HttpResponse, ProblemResponse> {
    let caller = middleware::caller_of(&request);
    let mut asking = Params::query(&request);
    let limit = asking.limit();
    let names = AuditAction::ALL.map(AuditAction::name).join(", ");
    let filter = AuditFilter {
        tenant: caller.tenant.clone(),
        key: asking.text("key", KEY_MOST),
        action: asking.named("action", &names, AuditAction::from_name),
        among: caller.among(asking.guild()),
        before: asking.place("before"),
        // One more shows whether another page follows.
        limit: limit + 1,
    };
    asking.end()?;
    let listed = served.ask_keys(&request, |keys| async move { keys.audit(filter).await }).await?;
    let mut listed = listed.map_err(|error| errors::of_store(&error))?;
    let more = listed.len() > limit;
    listed.truncate(limit);
    let next = listed.last().filter(|_| more).map(|row| row.place.to_string());
    let rows: Vec<_> = listed.iter().map(shown).collect();
    Ok(HttpResponse::Ok().json(json!({ "audit": rows, "next": next })))
}

fn shown(StoredAuditRecord { place, note }: &StoredAuditRecord) -> Value {
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
