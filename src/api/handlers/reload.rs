//! Reloading the settings of this process: `POST /v1/reload`.

use std::{borrow::Cow, future::Future, pin::Pin};

use actix_web::web::Json;
use guildhall_actors::access::{AuditAction, Caller};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::{
    api::{
        events::ManualIntervention,
        extract::{App, JsonResult, OptionalBody},
        fields::NoFields,
        openapi::route_doc::{RouteDoc, Tag},
        problem::{ProblemResponse, ProblemType},
    },
    events::emit,
};

/// Reads the settings again and applies what can be applied.
pub trait Reload: Send + Sync {
    /// Checks everything first: with one error nothing is applied.
    fn reload(&self) -> ReloadFuture;
}

/// A reload in progress.
pub type ReloadFuture = Pin<Box<dyn Future<Output = Result<ReloadReport, ReloadError>> + Send>>;

/// The result of a reload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReloadReport {
    /// What has changed and is in force.
    pub changed: Vec<ReloadedItem>,
    /// What a reload can apply and has not changed.
    pub unchanged: Vec<Cow<'static, str>>,
    /// What has changed and is in force after a restart only.
    pub needs_restart: Vec<ReloadedItem>,
}

/// A change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReloadedItem {
    /// A setting, `certificate`, or `handler` and its name.
    pub what: String,
    /// The old value; secrets are redacted.
    pub old: Value,
    /// The value that is in force now, or after a restart; secrets are redacted.
    pub new: Value,
}

/// Why nothing was reloaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReloadError {
    /// The process is still starting.
    #[error("the daemon is still starting")]
    Starting,
    /// The settings are invalid: all errors, each with its setting. No message contains a secret.
    #[error("{}", join_messages(.0))]
    Invalid(Vec<(String, String)>),
}

fn join_messages(errors: &[(String, String)]) -> String {
    errors.iter().map(|(_, message)| message.as_str()).collect::<Vec<_>>().join("; ")
}

pub(crate) fn reload_doc() -> RouteDoc {
    let report = json!({
        "changed": [{"what": "log.filter", "old": "info", "new": "debug"},
            {"what": "handler welcome", "old": null, "new": "added"}],
        "unchanged": ["discord.token", "certificate"],
        "needs_restart": [{"what": "gateway.shards", "old": 1, "new": 2}],
    });
    RouteDoc::new(Tag::Fleet, "reload", "Reload the settings of this process")
        .description(
            "Reads the settings file, the environment of the process and the files that they name again, as SIGHUP \
             does. Everything is checked first: with one error nothing is applied, and `errors` lists all of them.",
        )
        .body_example("nothing", json!({}))
        .response(200, "What was applied, and what needs a restart.", [("report", report)])
        .problem(ProblemType::InvalidSettings)
}

pub(crate) async fn reload(_: OptionalBody<NoFields>, caller: Caller, app: App) -> JsonResult<ReloadReport> {
    let note = caller.audit_record(AuditAction::Reload, app.now());
    let audit = app.audit_writer()?;
    let report = app.with_reload(move |reload| async move {
        audit.write(note).await?;
        reload.reload().await.map_err(|error| match error {
            ReloadError::Starting => ProblemResponse::from(ProblemType::Starting),
            ReloadError::Invalid(errors) => ProblemResponse::from(ProblemType::InvalidSettings).errors(errors),
        })
    });
    let report = report.await??;
    emit(ManualIntervention { action: AuditAction::Reload, target: &"settings", caller: &caller });
    Ok(Json(report))
}
