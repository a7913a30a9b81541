//! Making Discord have the commands of a file: one look, and one call if anything differs.
//!
//! ```text
//!  who are we? ─▶ what does Discord have? ─▶ plan ─▶ the same: nothing is sent
//!                                               └─▶ one bulk overwrite
//! ```

mod errand;
mod refusal;

use std::time::Duration;

use guildhall_core::command::{Commands, Plan, Scope, plan};
use http::Method;
use serde_json::Value;

use self::errand::Errand;
pub use self::refusal::SyncError;
use super::command_gate::CommandGate;
use crate::{
    client::Client,
    settings::{Settings, Token},
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
pub struct Synced {
    /// What is, or would be, done.
    pub plan: Plan,
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
    token: Token,
    wanted: &Commands,
    scope: Scope,
    mode: SyncMode,
    daemon: &Result<Client, String>,
) -> Result<Synced, SyncError> {
    let gate = CommandGate::find(settings, &token, daemon).await?;
    let errand = Errand::new(&gate, scope, WITHIN);
    let synced = run(&errand, wanted, scope, mode).await;
    gate.leave().await;
    synced
}

async fn run(errand: &Errand<'_>, wanted: &Commands, scope: Scope, mode: SyncMode) -> Result<Synced, SyncError> {
    let application = errand.json(Method::GET, "/applications/@me", None).await?;
    let Some(application) = application["id"].as_str().and_then(|id| id.parse::<u64>().ok()) else {
        return Err(SyncError::Unreadable);
    };
    let place = match scope {
        Scope::Global => format!("/applications/{application}/commands"),
        Scope::Guild(guild) => format!("/applications/{application}/guilds/{guild}/commands"),
    };
    let there = errand.json(Method::GET, &format!("{place}?with_localizations=true"), None).await?;
    let Value::Array(there) = there else { return Err(SyncError::Unreadable) };
    let plan = plan(wanted, &there, scope);
    let sent = plan.is_needed() && mode == SyncMode::Apply;
    if sent {
        // It says the same each time, so it may be sent again.
        errand.json(Method::PUT, &place, Some(&plan.body)).await?;
    }
    Ok(Synced { plan, sent })
}
