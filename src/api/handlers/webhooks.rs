//! Webhooks that do not exist, which the gate remembers.

use actix_web::web::Json;
use guildhall_actors::access::{AuditAction, Caller};
use serde_json::json;

use crate::{
    api::{
        dto::ClearedWebhook,
        events::ManualIntervention,
        extract::{App, Body, JsonResult},
        fields::{self, fields},
        openapi::route_doc::{RouteDoc, Tag},
    },
    events::emit,
};

/// Id of a webhook, in examples.
const A_WEBHOOK: &str = "1571715189416398850";

fields! {
    struct ClearWebhook {
        /// Id of the webhook.
        webhook_id: u64 = fields::webhook(),
    }
}

pub(crate) fn clear_doc() -> RouteDoc {
    RouteDoc::new(Tag::Limits, "clear_webhook", "Forget that a webhook does not exist")
        .description(
            "Discord answers calls to a deleted webhook with 404 and code 10015. This process remembers that for \
             `breaker.gone_webhook_ms` and does not send further calls to it; from now on they are sent again.",
        )
        .body_example("by id", json!({"webhook_id": A_WEBHOOK}))
        .response(
            200,
            "The webhook is no longer remembered.",
            [("cleared", json!({"webhook_id": A_WEBHOOK, "cleared": 1}))],
        )
}

pub(crate) async fn clear(Body(body): Body<ClearWebhook>, caller: Caller, app: App) -> JsonResult<ClearedWebhook> {
    let id = body.webhook_id;
    let note = caller.audit_record(AuditAction::WebhooksClear, app.now()).with_target(&id);
    let audit = app.audit_writer()?;
    let cleared = app.with_gate(move |service| async move {
        if let Err(problem) = audit.write(note).await {
            return Some(Err(problem));
        }
        service.gate.clear_webhook(id).await.map(Ok)
    });
    let cleared = cleared.await??;
    emit(ManualIntervention { action: AuditAction::WebhooksClear, target: &id, caller: &caller });
    Ok(Json(ClearedWebhook { webhook_id: id.into(), cleared }))
}
