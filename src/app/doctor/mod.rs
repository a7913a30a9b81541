//! Looking over all that a daemon needs: what is there, what is wrong with it, and what to do about it.
//!
//! ```text
//!  settings ─▶ Discord: token, intents, session starts, clock, roles ─┐
//!           ─▶ store, Redis, broker                                    ├─▶ findings, one a line
//!           ─▶ the running daemon: ready? ban budget                   ─┘
//! ```
//!
//! It only looks. Discord is asked a few things, one at a time and with a pause between them, and no more once it says no: through
//! the gate of the running daemon, or a gate that knows what the last one kept.

mod admin_key;
mod bot;
mod daemon;
mod discord;
mod files;
mod roles;
mod storage;

use serde::Serialize;

use self::discord::DiscordCaller;
use crate::{client::Client, settings::Settings};

/// How something stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// As it should be.
    Ok,
    /// It works, and somebody should know.
    Warn,
    /// It does not work.
    Fail,
    /// It was not looked at.
    Skip,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What.
    pub check: String,
    /// How it stands.
    pub verdict: CheckStatus,
    /// What was seen.
    pub seen: String,
    /// What to do about it.
    pub advice: Option<String>,
}

impl Finding {
    /// As it should be.
    pub fn ok(check: impl Into<String>, seen: impl Into<String>) -> Self {
        Self { check: check.into(), verdict: CheckStatus::Ok, seen: seen.into(), advice: None }
    }

    /// It was not looked at.
    pub fn skip(check: impl Into<String>, seen: impl Into<String>) -> Self {
        Self { verdict: CheckStatus::Skip, ..Self::ok(check, seen) }
    }

    /// It works, and somebody should know.
    pub fn warn(check: impl Into<String>, seen: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { verdict: CheckStatus::Warn, advice: Some(advice.into()), ..Self::ok(check, seen) }
    }

    /// It does not work.
    pub fn fail(check: impl Into<String>, seen: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { verdict: CheckStatus::Fail, advice: Some(advice.into()), ..Self::ok(check, seen) }
    }
}

/// What to look at.
#[derive(Debug)]
pub struct DoctorOptions<'a> {
    /// The settings that the daemon has, or would have.
    pub settings: &'a Settings,
    /// The way to a running daemon, or why there is none.
    pub daemon: Result<Client, String>,
    /// The guilds to look at the bot's roles in; if there are none, the first it is in.
    pub guilds: Vec<u64>,
    /// How many of those.
    pub guilds_most: u32,
}

/// Looks at everything, and tells each finding as soon as it is there.
pub async fn examine(examination: &DoctorOptions<'_>, mut tell: impl FnMut(Finding)) {
    let settings = examination.settings;
    // Before the store is opened: SQLite would create files of the mode that is reported.
    let mut permissions = Vec::new();
    files::permissions(settings, &mut |finding| permissions.push(finding));
    let mut caller = DiscordCaller::new(examination, &mut tell).await;
    let bot = bot::token(settings, &mut caller, &mut tell).await;
    tell(bot::intents(settings, &mut caller).await);
    tell(bot::sessions(settings, &mut caller).await);
    tell(bot::clock(&caller));
    permissions.into_iter().for_each(&mut tell);
    let looked = storage::store(settings, &mut tell).await;
    tell(admin_key::examine(settings, looked.as_ref()));
    storage::redis(settings, &mut tell).await;
    tell(Finding::skip("rabbitmq", "not configured: this version has no broker"));
    let is_there = daemon::ready(&examination.daemon, &mut tell).await;
    tell(daemon::guild_restarts(is_there.as_ref().copied()).await);
    tell(daemon::ban_budget(settings, is_there, looked.and_then(|looked| looked.kept)).await);
    roles::look(examination, bot, &mut caller, &mut tell).await;
    caller.leave().await;
}
