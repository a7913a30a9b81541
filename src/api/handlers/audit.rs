//! Lists the audit.

use actix_web::{HttpRequest, web::Json};
use guildhall_actors::access::{AuditAction, AuditFilter, Caller};
use serde_json::json;

use super::page;
use crate::api::{
    dto::{AuditPage, AuditRow},
    errors,
    extract::{App, JsonResult, Query},
    fields::{self, Field as _, fields},
    openapi::{
        common::A_TIME,
        route_doc::{RouteDoc, Tag},
    },
};

/// Maximum length of a key id in the filter.
const MAX_KEY_LEN: usize = 64;

fields! {
    struct AuditQuery {
        /// Filter by the key that was used.
        key: Option<String> = fields::text(MAX_KEY_LEN).optional(),
        /// Filter by action.
        action: Option<AuditAction> =
            fields::one_of("Action", AuditAction::ALL.map(AuditAction::name), AuditAction::from_name).optional(),
        /// Filter by guild.
        guild_id: Option<u64> = fields::guild().optional(),
        /// `next` of the previous response.
        before: Option<i64> = fields::position().optional(),
        /// Maximum number of entries.
        limit: usize = fields::page_size(),
    }
}

pub(crate) fn list_doc() -> RouteDoc {
    let row = json!({
        "place": "12", "at": A_TIME, "tenant": "default", "key": "admin", "action": "keys.create", "guild_id": null,
        "target": "k7mq2vx9apzd", "detail": "operations:write", "request_id": "deploy-42.1",
    });
    RouteDoc::new(Tag::Keys, "list_audit", "List the audit")
        .description(
            "The newest first. Every change leaves one row; so does a rejected request of a key, at most ten times a \
             minute for each key. Rows are stored for `retention.audit_ms`.",
        )
        .response(200, "A page of audit rows.", [("page", json!({"audit": [row], "next": null}))])
}

pub(crate) async fn list(
    request: HttpRequest,
    Query(query): Query<AuditQuery>,
    caller: Caller,
    app: App,
) -> JsonResult<AuditPage> {
    let filter = AuditFilter {
        tenant: caller.tenant.clone(),
        key: query.key,
        action: query.action,
        guilds: caller.visible_guilds(query.guild_id),
        before: query.before,
        // One more shows whether another page follows.
        limit: query.limit + 1,
    };
    let listed = app.with_keys(&request, |keys| async move { keys.audit(filter).await }).await?;
    let listed = listed.map_err(|error| errors::store_problem(&error))?;
    let (listed, next) = page(listed, query.limit, |row| row.position.to_string().into());
    Ok(Json(AuditPage { audit: listed.iter().map(AuditRow::from).collect(), next }))
}
