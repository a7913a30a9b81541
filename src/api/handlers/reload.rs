//! Reloading the settings of this process: `POST /v1/reload`.

use std::{future::Future, pin::Pin};

use actix_web::{HttpRequest, HttpResponse, web::Data};
use guildhall_actors::access::AuditAction;
use serde::Serialize;
use serde_json::Value;

use crate::api::app_state::AppState;
use crate::api::middleware;
use crate::api::params::Params;
use crate::{
    api::{
        events::ManualIntervention,
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
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ReloadReport {
    /// What has changed and is in force.
    pub changed: Vec<ReloadedItem>,
    /// What could have been applied and has not changed.
    pub unchanged: Vec<&'static str>,
    /// What has changed and is in force after a restart only.
    pub needs_restart: Vec<ReloadedItem>,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReloadedItem {
    /// A setting, `certificate`, or `handler NAME`.
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

pub(crate) async fn reload(request: HttpRequest, app: Data<AppState>) -> Result<HttpResponse, ProblemResponse> {
    Params::optional_body(&request)?.finish()?;
    let caller = middleware::caller_of(&request);
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
    Ok(HttpResponse::Ok().json(report))
}
