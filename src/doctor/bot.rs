//! Checks of the bot in Discord: token, intents, session starts; and of Discord's clock.

use std::time::Duration;

use serde_json::Value;
use twilight_model::gateway::Intents;

use super::{
    Finding,
    discord::{CallFailure, DateSample, DiscordCaller},
};
use crate::discord::PRIVILEGED;
use crate::handlers;
use crate::settings::{BotTokenError, Settings};
use crate::terminal_text::escape_controls;

/// A smaller clock difference is harmless.
const SKEW_OK: Duration = Duration::from_secs(2);
/// From this clock difference on, effects of calls are not found again by their time.
const SKEW_FAIL: Duration = Duration::from_secs(30);
/// A warning is reported when less than this fraction (one tenth) of the day's session starts is left.
const LOW_STARTS_DIVISOR: u64 = 10;

/// Checks that Discord accepts the token; returns the id of its bot.
pub(crate) async fn token(
    settings: &Settings,
    caller: &mut DiscordCaller,
    report: &mut impl FnMut(Finding),
) -> Option<u64> {
    if let Err(error) = settings.discord.bot_token() {
        let seen = match &error {
            BotTokenError::Missing => "discord.token is not set".to_owned(),
            BotTokenError::OfSimulator { .. } => "discord.token cannot be used".to_owned(),
        };
        report(Finding::fail("token", seen, error.to_string()));
        return None;
    }
    match caller.get("/users/@me").await {
        Ok(user) => {
            let id = user["id"].as_str().and_then(|id| id.parse().ok());
            let name = escape_controls(user["username"].as_str().unwrap_or("nameless")).into_owned();
            report(match id {
                Some(id) => Finding::ok("token", format!("accepted by Discord: {name} ({id})")),
                None => Finding::fail(
                    "token",
                    "the server at discord.api_url is not Discord",
                    "check discord.api_url; remove it to use Discord itself",
                ),
            });
            id
        }
        Err(failure) => {
            report(failure_finding("token", &failure));
            None
        }
    }
}

/// Converts a failed call to a finding.
pub(crate) fn failure_finding(check: &str, failure: &CallFailure) -> Finding {
    match failure {
        CallFailure::Stopped(_) => Finding::skip(check, failure.describe()),
        CallFailure::Limited(_) => Finding::warn(check, failure.describe(), failure.advice()),
        CallFailure::NotSent(_) => Finding::warn(check, failure.describe(), failure.advice()),
        CallFailure::Unreachable(_) | CallFailure::Unauthorized | CallFailure::Refused { .. } => {
            Finding::fail(check, failure.describe(), failure.advice())
        }
    }
}

/// Checks that the application may use the intents in the settings.
pub(crate) async fn intents(settings: &Settings, caller: &mut DiscordCaller) -> Finding {
    match caller.get("/applications/@me").await {
        Ok(application) => evaluate_intents(settings.gateway.intents, &application),
        Err(failure) => failure_finding("intents", &failure),
    }
}

/// Checks that Discord sends the events of the handlers.
pub(crate) fn handlers(settings: &Settings) -> Finding {
    const CHECK: &str = "handlers";
    let loaded = match handlers::load(&settings.handlers) {
        Ok(loaded) => loaded,
        Err(error) => return Finding::fail(CHECK, error.to_string(), "run: guildhall handlers check"),
    };
    let unreachable = handlers::unreachable(&loaded, settings.gateway.intents);
    match unreachable.as_slice() {
        [] if loaded.is_empty() => Finding::skip(CHECK, "handlers.file has no handlers"),
        [] => Finding::ok(CHECK, format!("{} handlers; Discord sends their events", loaded.len())),
        [first, rest @ ..] => {
            let more = if rest.is_empty() { String::new() } else { format!(" ({} more)", rest.len()) };
            Finding::warn(CHECK, format!("{first}{more}"), "run: guildhall handlers check")
        }
    }
}

fn evaluate_intents(requested: Intents, application: &Value) -> Finding {
    let Some(flags) = application["flags"].as_u64() else {
        return Finding::skip("intents", "Discord does not report which intents are enabled for the application");
    };
    let privileged = PRIVILEGED.iter().filter(|(intent, _, _)| requested.contains(*intent));
    let (enabled, missing): (Vec<_>, Vec<_>) = privileged.partition(|(_, bits, _)| flags & bits != 0);
    let names = |entries: &[&(Intents, u64, &str)]| {
        let entries = entries.iter().flat_map(|(intent, _, _)| intent.iter_names());
        entries.map(|(name, _)| name.to_lowercase()).collect::<Vec<_>>().join(", ")
    };
    if missing.is_empty() {
        let enabled = names(&enabled);
        let privileged =
            if enabled.is_empty() { "none of them privileged".to_owned() } else { format!("{enabled} enabled") };
        let count = requested.iter_names().count();
        return Finding::ok("intents", format!("gateway.intents has {count}, {privileged}"));
    }
    let switches = missing.iter().map(|(_, _, name)| *name).collect::<Vec<_>>().join(", ");
    Finding::fail(
        "intents",
        format!(
            "gateway.intents has {}, which is not enabled for the application: Discord would close the connection with \
             4014",
            names(&missing)
        ),
        format!("enable {switches} on the Bot page of Discord's developer portal, or remove it from gateway.intents"),
    )
}

/// Checks how many session starts are left.
pub(crate) async fn sessions(settings: &Settings, caller: &mut DiscordCaller) -> Finding {
    match caller.get("/gateway/bot").await {
        Ok(gateway) => evaluate_sessions(settings.gateway.shards, &gateway),
        Err(failure) => failure_finding("session starts", &failure),
    }
}

fn evaluate_sessions(shards: u32, gateway: &Value) -> Finding {
    const CHECK: &str = "session starts";
    let (limit, recommended) = (&gateway["session_start_limit"], gateway["shards"].as_u64().unwrap_or(1));
    let (Some(remaining), Some(total)) = (limit["remaining"].as_u64(), limit["total"].as_u64()) else {
        return Finding::skip(CHECK, "Discord does not report how many are left");
    };
    let reset = Duration::from_millis(limit["reset_after"].as_u64().unwrap_or(0));
    let needed = if shards == 0 { recommended } else { u64::from(shards) };
    let shards_note = if shards == 0 { String::new() } else { format!(", gateway.shards is {shards}") };
    let seen = format!(
        "{remaining} of {total} left, reset in {}; Discord recommends {recommended} shard{}{shards_note}",
        format_hours(reset),
        if recommended == 1 { "" } else { "s" },
    );
    let cause_advice = "find out what starts sessions so often: when none are left, Discord resets the token";
    if remaining < needed {
        return Finding::fail(
            CHECK,
            seen,
            format!("a start of the daemon needs {needed}; wait {}, and {cause_advice}", format_hours(reset)),
        );
    }
    if remaining * LOW_STARTS_DIVISOR < total {
        return Finding::warn(CHECK, seen, cause_advice);
    }
    Finding::ok(CHECK, seen)
}

fn format_hours(duration: Duration) -> String {
    let minutes = duration.as_secs().div_ceil(60);
    if minutes < 60 { format!("{minutes} min") } else { format!("{} h {} min", minutes / 60, minutes % 60) }
}

/// Compares this machine's clock with Discord's.
pub(crate) fn clock(caller: &DiscordCaller) -> Finding {
    match caller.date() {
        Some(sample) => evaluate_clock(sample),
        None => {
            let reason = caller.stopped().map_or_else(|| "its responses have no date".to_owned(), str::to_owned);
            Finding::skip("clock", format!("cannot read Discord's clock: {reason}"))
        }
    }
}

fn evaluate_clock(DateSample { discord_time, sent_at, received_at }: DateSample) -> Finding {
    // Discord's date is truncated to seconds.
    let discord_time_end = discord_time + Duration::from_secs(1);
    let ahead = sent_at.duration_since(discord_time_end).unwrap_or_default();
    let behind = discord_time.duration_since(received_at).unwrap_or_default();
    let (skew, direction) = if ahead > behind { (ahead, "ahead of") } else { (behind, "behind") };
    let seen = if skew.is_zero() {
        "this machine's clock matches Discord's".to_owned()
    } else {
        format!("this machine's clock is {:.1} s {direction} Discord's", skew.as_secs_f64())
    };
    let advice = "synchronize the clock of this machine (chrony, systemd-timesyncd): the effects of calls are looked \
        up by their time, and webhook signatures expire by it";
    match skew {
        skew if skew <= SKEW_OK => Finding::ok("clock", seen),
        skew if skew < SKEW_FAIL => Finding::warn("clock", seen, advice),
        _ => Finding::fail("clock", seen, advice),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use serde_json::json;

    use super::*;
    use crate::doctor::CheckStatus;

    #[test]
    fn privileged_intents_have_to_be_enabled() {
        let requested = Intents::GUILDS | Intents::GUILD_MEMBERS | Intents::MESSAGE_CONTENT;
        let finding = |flags: u64| evaluate_intents(requested, &json!({ "flags": flags }));
        assert_eq!(finding(1 << 15 | 1 << 18).status, CheckStatus::Ok);
        let one = finding(1 << 14);
        assert_eq!(one.status, CheckStatus::Fail);
        assert!(one.seen.contains("message_content") && !one.seen.contains("guild_members"), "{one:?}");
        assert!(one.advice.unwrap().contains("Message Content Intent"));
        let plain = evaluate_intents(Intents::GUILDS, &json!({"flags": 0}));
        assert_eq!(
            (plain.status, plain.seen.as_str()),
            (CheckStatus::Ok, "gateway.intents has 1, none of them privileged")
        );
        assert_eq!(evaluate_intents(requested, &json!({})).status, CheckStatus::Skip);
    }

    #[test]
    fn session_starts_have_to_be_enough_for_all_shards() {
        let finding = |remaining: u64, shards: u32| {
            let limit = json!({"total": 1000, "remaining": remaining, "reset_after": 7_230_000, "max_concurrency": 1});
            evaluate_sessions(shards, &json!({"shards": 4, "session_start_limit": limit}))
        };
        assert_eq!(finding(1000, 0).seen, "1000 of 1000 left, reset in 2 h 1 min; Discord recommends 4 shards");
        assert_eq!(
            [finding(100, 0).status, finding(99, 0).status, finding(3, 0).status],
            [CheckStatus::Ok, CheckStatus::Warn, CheckStatus::Fail]
        );
        assert_eq!(finding(3, 2).status, CheckStatus::Warn, "two are enough for two shards");
        assert_eq!(evaluate_sessions(0, &json!({})).status, CheckStatus::Skip);
    }

    #[test]
    fn clock_difference_excludes_the_duration_of_the_call() {
        let at = |ms: u64| SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_000 + ms);
        let finding = |discord, sent, received| {
            evaluate_clock(DateSample { discord_time: at(discord), sent_at: at(sent), received_at: at(received) })
        };
        assert_eq!(finding(10_000, 10_400, 10_500).seen, "this machine's clock matches Discord's");
        assert_eq!(finding(10_000, 4_000, 9_000).status, CheckStatus::Ok, "a slow response is not a wrong clock");
        let ahead = finding(10_000, 16_000, 16_100);
        assert_eq!(
            (ahead.status, ahead.seen.as_str()),
            (
                CheckStatus::Warn,
                "this machine's clock is 5.0 s ahead of \
            Discord's"
            )
        );
        let behind = finding(100_000, 16_000, 16_100);
        assert_eq!(behind.status, CheckStatus::Fail);
        assert!(behind.seen.contains("83.9 s behind"), "{behind:?}");
    }
}
