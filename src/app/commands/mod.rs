//! Making Discord have the commands of a file: one look, and one call if anything differs.
//!
//! ```text
//!  who are we? ─▶ what does Discord have? ─▶ plan ─▶ the same: nothing is sent
//!                                               └─▶ one bulk overwrite
//! ```

mod retry;
mod sync_error;

use std::time::Duration;

use guildhall_core::command::{CommandPlan, CommandScope, Commands, plan};
use http::Method;
use serde_json::Value;

use self::retry::RetryingClient;
pub use self::sync_error::SyncError;
use super::command_gate::CommandGate;
use crate::{
    client::Client,
    settings::{SecretValue, Settings},
};

/// How long all of it may take, with what Discord asks to wait.
const WITHIN: Duration = Duration::from_secs(90);

/// What may be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// Whatever has to be.
    Apply,
    /// Nothing: it is only looked.
    Look,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct SyncResult {
    /// What is, or would be, done.
    pub plan: CommandPlan,
    /// Whether Discord was told.
    pub sent: bool,
}

/// Makes Discord have these commands, and no others: through `daemon` if it runs. Must run within an actix `System`.
///
/// # Errors
///
/// When Discord refuses, or does not answer in time.
pub async fn sync(
    settings: &Settings,
    token: SecretValue,
    wanted: &Commands,
    scope: CommandScope,
    mode: SyncMode,
    daemon: &Result<Client, String>,
) -> Result<SyncResult, SyncError> {
    let gate = CommandGate::find(settings, &token, daemon).await?;
    let errand = RetryingClient::new(&gate, scope, WITHIN);
    let synced = run(&errand, wanted, scope, mode).await;
    gate.leave().await;
    synced
}

async fn run(
    errand: &RetryingClient<'_>,
    wanted: &Commands,
    scope: CommandScope,
    mode: SyncMode,
) -> Result<SyncResult, SyncError> {
    let application = errand.json(Method::GET, "/applications/@me", None).await?;
    let Some(application) = application["id"].as_str().and_then(|id| id.parse::<u64>().ok()) else {
        return Err(SyncError::Unreadable);
    };
    let place = match scope {
        CommandScope::Global => format!("/applications/{application}/commands"),
        CommandScope::Guild(guild) => format!("/applications/{application}/guilds/{guild}/commands"),
    };
    let there = errand.json(Method::GET, &format!("{place}?with_localizations=true"), None).await?;
    let Value::Array(there) = there else { return Err(SyncError::Unreadable) };
    let plan = plan(wanted, &there, scope);
    let sent = plan.is_needed() && mode == SyncMode::Apply;
    if sent {
        // It says the same each time, so it may be sent again.
        errand.json(Method::PUT, &place, Some(&plan.body)).await?;
    }
    Ok(SyncResult { plan, sent })
}
