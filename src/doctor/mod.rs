//! Checks everything that a daemon needs: its state, what is wrong, and what to do about it.
//!
//! ```text
//!  settings ─▶ Discord: token, intents, session starts, clock, roles ─┐
//!           ─▶ store, Redis, broker                                    ├─▶ findings, one a line
//!           ─▶ handlers: files, webhooks                               ─┤
//!           ─▶ the running daemon: ready? breakers, ban budget         ─┘
//! ```
//!
//! The checks are read-only. They make a few calls to Discord, one at a time with a pause between them, and none after
//! the first that Discord refuses: through the gate of the running daemon, or a gate that starts with the state that
//! the last daemon stored.

mod admin_key;
mod bot;
mod daemon;
mod discord;
mod files;
mod roles;
mod storage;
mod webhooks;

use std::path::PathBuf;

use guildhall_core::snapshot::GateSnapshot;
use serde::Serialize;

use self::discord::DiscordCaller;
use crate::{client::Client, handlers, settings::Settings};

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// Passed.
    Ok,
    /// Works, but needs attention.
    Warn,
    /// Failed.
    Fail,
    /// Skipped.
    Skip,
}

/// One finding of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the check.
    pub check: String,
    /// Result of the check.
    #[serde(rename = "verdict")]
    pub status: CheckStatus,
    /// What the check found.
    pub seen: String,
    /// What to do about it.
    pub advice: Option<String>,
}

impl Finding {
    /// A check that passed.
    pub fn ok(check: impl Into<String>, seen: impl Into<String>) -> Self {
        Self { check: check.into(), status: CheckStatus::Ok, seen: seen.into(), advice: None }
    }

    /// A check that was skipped.
    pub fn skip(check: impl Into<String>, seen: impl Into<String>) -> Self {
        Self { status: CheckStatus::Skip, ..Self::ok(check, seen) }
    }

    /// A warning: it works, but needs attention.
    pub fn warn(check: impl Into<String>, seen: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { status: CheckStatus::Warn, advice: Some(advice.into()), ..Self::ok(check, seen) }
    }

    /// A check that failed.
    pub fn fail(check: impl Into<String>, seen: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { status: CheckStatus::Fail, advice: Some(advice.into()), ..Self::ok(check, seen) }
    }
}

/// What to check.
#[derive(Debug)]
pub struct DoctorOptions<'a> {
    /// The settings that the daemon has, or would have.
    pub settings: &'a Settings,
    /// Files with secrets in settings.
    pub secret_files: Vec<PathBuf>,
    /// Client of a running daemon, or why there is none.
    pub daemon: Result<Client, String>,
    /// Guilds in which to check the bot's roles; if empty, the first ones that the bot is in.
    pub guilds: Vec<u64>,
    /// Maximum number of guilds if `guilds` is empty.
    pub max_guilds: u32,
}

/// Runs all checks, and reports each finding as soon as it is known.
pub async fn examine(options: &DoctorOptions<'_>, mut report: impl FnMut(Finding)) {
    let settings = options.settings;
    // Before the store is opened: SQLite would create files with the mode that is reported.
    let mut permissions = Vec::new();
    let mut secret_files = options.secret_files.clone();
    secret_files.extend(handlers::files_with_secrets(&settings.handlers));
    files::permissions(settings, &secret_files, &mut |finding| permissions.push(finding));
    let mut caller = DiscordCaller::new(options, &mut report).await;
    let bot = bot::token(settings, &mut caller, &mut report).await;
    report(bot::intents(settings, &mut caller).await);
    report(bot::handlers(settings));
    report(bot::sessions(settings, &mut caller).await);
    report(bot::clock(&caller));
    permissions.into_iter().for_each(&mut report);
    let probe = storage::store(settings, &mut report).await;
    report(admin_key::examine(settings, probe.as_ref()));
    storage::redis(settings, &mut report).await;
    storage::broker(settings, &mut report).await;
    webhooks::check_webhooks(settings, &mut report).await;
    let client = daemon::check_ready(&options.daemon, &mut report).await;
    report(daemon::guild_restarts(client.as_ref().copied()).await);
    let stored = probe.and_then(|probe| probe.stored_value).and_then(|stored| GateSnapshot::decode(&stored).ok());
    report(daemon::breakers(client.as_ref().copied(), stored.as_ref()).await);
    report(daemon::ban_budget(settings, client, stored.as_ref()).await);
    roles::check_roles(options, bot, &mut caller, &mut report).await;
    caller.leave().await;
}
