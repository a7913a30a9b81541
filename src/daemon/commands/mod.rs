//! Synchronizes Discord's commands with a file: one read, and one write if anything differs.
//!
//! ```text
//!  own application? ─▶ Discord's commands? ─▶ plan ─▶ the same: nothing is sent
//!                                                └─▶ one bulk overwrite
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

/// Maximum duration of a sync, including the waits that Discord requires.
const SYNC_TIMEOUT: Duration = Duration::from_secs(90);

/// Whether changes are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// Make the changes.
    Apply,
    /// Only compute the changes.
    DryRun,
}

/// Result of a sync.
#[derive(Clone, Debug, PartialEq)]
pub struct SyncResult {
    /// The changes that are, or would be, made.
    pub plan: CommandPlan,
    /// Whether they were sent to Discord.
    pub sent: bool,
}

/// Makes Discord have these commands, and no others: through `daemon` if it is running. Must run within an actix
/// `System`.
///
/// # Errors
///
/// When Discord refuses, or does not respond in time.
pub async fn sync(
    settings: &Settings,
    token: SecretValue,
    desired: &Commands,
    scope: CommandScope,
    mode: SyncMode,
    daemon: &Result<Client, String>,
) -> Result<SyncResult, SyncError> {
    let gate = CommandGate::find(settings, &token, daemon).await?;
    let client = RetryingClient::new(&gate, scope, SYNC_TIMEOUT);
    let synced = run(&client, desired, scope, mode).await;
    gate.leave().await;
    synced
}

async fn run(
    client: &RetryingClient<'_>,
    desired: &Commands,
    scope: CommandScope,
    mode: SyncMode,
) -> Result<SyncResult, SyncError> {
    let application = client.json(Method::GET, "/applications/@me", None).await?;
    let Some(application) = application["id"].as_str().and_then(|id| id.parse::<u64>().ok()) else {
        return Err(SyncError::Unreadable);
    };
    let path = match scope {
        CommandScope::Global => format!("/applications/{application}/commands"),
        CommandScope::Guild(guild) => format!("/applications/{application}/guilds/{guild}/commands"),
    };
    let existing = client.json(Method::GET, &format!("{path}?with_localizations=true"), None).await?;
    let Value::Array(existing) = existing else { return Err(SyncError::Unreadable) };
    let plan = plan(desired, &existing, scope);
    let sent = plan.is_needed() && mode == SyncMode::Apply;
    if sent {
        // Idempotent, so it may be sent again.
        client.json(Method::PUT, &path, Some(&plan.body)).await?;
    }
    Ok(SyncResult { plan, sent })
}
