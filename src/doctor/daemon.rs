//! Checks of the running daemon, if any: whether it is ready, and how much of the ban budget is used.

use guildhall_actors::telemetry::events::CRASHES;
use guildhall_actors::telemetry::operations::RESTARTS;
use guildhall_actors::wall_clock::WallClock;
use guildhall_core::{snapshot::GateSnapshot, time::UnixMs};
use http::Method;
use serde_json::Value;

use super::Finding;
use crate::{
    api::dto::{Breaker, Breakers, InvalidRequests, Limits, ReadinessReport, Time},
    client::{ApiRequest, Client, ClientError},
    settings::Settings,
    terminal_text::escape_controls,
};

const GUILD_RESTARTS: &str = "guild restarts";
const BREAKERS: &str = "breakers";

/// Maximum number of breakers that are named.
const MAX_NAMED_BREAKERS: usize = 10;

/// The percentages of the ban budget at which background work stops, and at which all calls except interactions stop.
const STOP_PERCENTAGES: (u64, u64) = (50, 80);

/// Checks whether the daemon is running and ready; returns its client if it responds.
pub(crate) async fn check_ready<'a>(
    daemon: &'a Result<Client, String>,
    report_finding: &mut impl FnMut(Finding),
) -> Result<&'a Client, String> {
    let client = match daemon {
        Ok(client) => client,
        Err(reason) => {
            report_finding(Finding::skip("daemon", format!("not checked: {reason}")));
            return Err("the daemon was not checked".to_owned());
        }
    };
    let api_url = client.api_url();
    match client.get_any_status("/readyz").await {
        Ok((200, _)) => report_finding(Finding::ok("daemon", format!("ready at {api_url}"))),
        Ok((_, report)) => {
            let advice = "check its log; `GET /readyz` shows what each part is waiting for";
            report_finding(Finding::warn(
                "daemon",
                format!("running at {api_url}, but not ready{}", not_ready_reasons(report)),
                advice,
            ));
        }
        Err(ClientError::Unreachable { .. }) => {
            report_finding(Finding::skip("daemon", format!("not running at {api_url}")));
            return Err("the daemon is not running".to_owned());
        }
        Err(error) => {
            report_finding(Finding::warn("daemon", error.to_string(), "check --api and api.bind"));
            return Err("the daemon does not respond".to_owned());
        }
    }
    Ok(client)
}

/// The reasons of the parts that are not ready, from the response of `/readyz`.
fn not_ready_reasons(report: Value) -> String {
    let Ok(report) = serde_json::from_value::<ReadinessReport>(report) else { return String::new() };
    let reasons: Vec<_> =
        report.reasons().map(|(part, reason)| format!("{part}: {}", escape_controls(reason))).collect();
    if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) }
}

/// Reads from the daemon's metrics how many guild actors it has restarted.
pub(crate) async fn guild_restarts(daemon: Result<&Client, &String>) -> Finding {
    let client = match daemon {
        Ok(client) => client,
        Err(reason) => return Finding::skip(GUILD_RESTARTS, format!("unknown: {reason}")),
    };
    match client.get_raw("/metrics").await {
        Ok((200, text)) => evaluate_guild_restarts(&String::from_utf8_lossy(&text)),
        Ok((status, _)) => Finding::skip(GUILD_RESTARTS, format!("unknown: /metrics returned {status}")),
        Err(error) => Finding::skip(GUILD_RESTARTS, format!("unknown: {error}")),
    }
}

fn evaluate_guild_restarts(metrics: &str) -> Finding {
    let [operations, events] = [RESTARTS, CRASHES].map(|metric| sum_counter(metrics, metric.name));
    let seen = format!(
        "guild actors restarted since the daemon started: {operations} for operations, {events} for \
        events"
    );
    if operations + events == 0 {
        return Finding::ok(GUILD_RESTARTS, seen);
    }
    let advice = "search the daemon's log for `panicked` to find the cause; `guildhall dlq list` shows operations that were set \
         aside";
    Finding::warn(GUILD_RESTARTS, seen, advice)
}

/// The sum of a counter over all its labels, in the Prometheus text format.
fn sum_counter(metrics: &str, name: &str) -> u64 {
    let samples = metrics.lines().filter_map(|line| line.strip_prefix(name));
    let samples = samples.filter(|rest| rest.starts_with([' ', '{']));
    samples.filter_map(|rest| rest.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// A breaker that is not closed.
struct OpenBreaker {
    key: String,
    state: String,
    reason: String,
    until: Option<String>,
}

/// Checks which breakers are not closed: as the running daemon reports them, otherwise as its gate last stored them.
pub(crate) async fn breakers(daemon: Result<&Client, &String>, stored: Option<&GateSnapshot>) -> Finding {
    let reason = match daemon {
        Ok(client) => match client.send(&ApiRequest::new(Method::GET, "/v1/breakers").with_feature("breakers")).await {
            Ok(response) => match serde_json::from_value(response.body) {
                Ok(Breakers { breakers, .. }) => {
                    return evaluate_breakers(&open_breakers(&breakers), "reported by the daemon");
                }
                Err(_) => "the daemon does not report them".to_owned(),
            },
            Err(error @ (ClientError::Rejected(_) | ClientError::Unsupported { .. })) => error.to_string(),
            Err(_) => "the daemon does not respond".to_owned(),
        },
        Err(reason) => reason.clone(),
    };
    match stored {
        Some(snapshot) => evaluate_stored_breakers(snapshot, WallClock::system().now()),
        None => Finding::skip(BREAKERS, format!("unknown: {reason}")),
    }
}

fn open_breakers(listed: &[Breaker]) -> Vec<OpenBreaker> {
    let text = |text: &str| escape_controls(text).into_owned();
    let open = listed.iter().filter(|breaker| breaker.state.as_ref() != "closed").map(|breaker| OpenBreaker {
        key: text(&breaker.key),
        state: text(breaker.state.as_ref()),
        reason: breaker.why.as_deref().map(text).unwrap_or_default(),
        until: breaker.until.as_ref().and_then(Time::as_str).map(text),
    });
    open.collect()
}

fn evaluate_stored_breakers(snapshot: &GateSnapshot, now: UnixMs) -> Finding {
    let open = snapshot.breakers.open(snapshot.age(now)).map(|(key, reason, remaining)| OpenBreaker {
        key: escape_controls(key).into_owned(),
        state: if remaining.is_some() { "open" } else { "forced_open" }.to_owned(),
        reason: reason.name().to_owned(),
        until: remaining.map(|remaining| (now + remaining).to_string()),
    });
    let age_seconds = now.since(snapshot.saved_at).as_secs();
    evaluate_breakers(&open.collect::<Vec<_>>(), &format!("from the state stored {age_seconds} s ago"))
}

fn evaluate_breakers(open: &[OpenBreaker], source: &str) -> Finding {
    let Some(first) = open.first() else { return Finding::ok(BREAKERS, format!("all closed, {source}")) };
    let mut seen = format!("{} not closed, {source}:", open.len());
    for OpenBreaker { key, state, reason, until } in open.iter().take(MAX_NAMED_BREAKERS) {
        let until = until.as_ref().map_or_else(String::new, |until| format!(", until {until}"));
        seen += &format!("\n{key} is {state} ({reason}){until}");
    }
    if open.len() > MAX_NAMED_BREAKERS {
        seen += &format!("\nand {} more", open.len() - MAX_NAMED_BREAKERS);
    }
    Finding::warn(BREAKERS, seen, breaker_advice(first))
}

fn breaker_advice(OpenBreaker { key, state, reason, .. }: &OpenBreaker) -> String {
    match (reason.as_str(), state.as_str()) {
        ("unauthorized", _) => {
            "Discord rejected the token: set discord.token to the current one, and reload or restart \
            the daemon"
                .to_owned()
        }
        ("blocked", _) => "Cloudflare bans this address: wait until the ban ends, and stop what spent the budget of \
            invalid requests (`guildhall limits top --by invalid`)"
            .to_owned(),
        (_, "forced_open") => format!("close it when it is no longer needed: guildhall breakers reset {key}"),
        (_, _) if key.starts_with("target:") => {
            "its webhook fails: check the brain and its log; the breaker closes when it responds again".to_owned()
        }
        (_, _) => "wait: it closes when Discord responds again; `guildhall breakers list` shows it".to_owned(),
    }
}

/// Checks how much of the ban budget is used: as the running daemon reports it, otherwise as its gate last stored it.
pub(crate) async fn ban_budget(
    settings: &Settings,
    daemon: Result<&Client, String>,
    stored: Option<&GateSnapshot>,
) -> Finding {
    let reason = match daemon {
        Ok(client) => match client.send(&ApiRequest::new(Method::GET, "/v1/limits").with_feature("limits")).await {
            Ok(response) => match serde_json::from_value(response.body) {
                Ok(Limits { invalid_requests: InvalidRequests { used, most, .. }, .. }) => {
                    return evaluate_ban_budget(used.into(), most.into(), "counted by the daemon");
                }
                Err(_) => "the daemon does not report it".to_owned(),
            },
            Err(error @ (ClientError::Rejected(_) | ClientError::Unsupported { .. })) => error.to_string(),
            Err(_) => "the daemon does not respond".to_owned(),
        },
        Err(reason) => reason,
    };
    match stored {
        Some(snapshot) => stored_ban_budget(settings, snapshot, WallClock::system().now()),
        None => Finding::skip("ban budget", format!("unknown: {reason}")),
    }
}

fn stored_ban_budget(settings: &Settings, snapshot: &GateSnapshot, now: UnixMs) -> Finding {
    let used = snapshot.invalid.remaining(snapshot.age(now));
    let age_seconds = now.since(snapshot.saved_at).as_secs();
    evaluate_ban_budget(
        u64::from(used),
        u64::from(settings.gate.invalid.limit),
        &format!("from the state stored {age_seconds} s ago"),
    )
}

fn evaluate_ban_budget(used: u64, max: u64, source: &str) -> Finding {
    const CHECK: &str = "ban budget";
    let seen = format!("{used} of {max} invalid requests (401, 403, 429) in ten minutes, {source}");
    let advice = "find their source with `guildhall limits top --by invalid`, and stop it: above 10,000 Discord bans \
        this address";
    match used.saturating_mul(100) / max.max(1) {
        percent if percent < STOP_PERCENTAGES.0 => Finding::ok(CHECK, seen),
        percent if percent < STOP_PERCENTAGES.1 => {
            Finding::warn(CHECK, format!("{seen}; background work is paused"), advice)
        }
        _ => Finding::fail(CHECK, format!("{seen}; only interactions are sent, or nothing"), advice),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::doctor::CheckStatus;

    #[test]
    fn ban_budget_warns_at_half_and_fails_at_eighty_percent() {
        let status = |used| evaluate_ban_budget(used, 10_000, "").status;
        assert_eq!(
            [status(0), status(4_999), status(5_000), status(8_000)],
            [CheckStatus::Ok, CheckStatus::Ok, CheckStatus::Warn, CheckStatus::Fail]
        );
        assert_eq!(evaluate_ban_budget(1, 0, "").status, CheckStatus::Fail);
    }

    #[test]
    fn open_breakers_are_named_with_what_to_do() {
        let breaker = |key: &str, state: &str, reason: &str, until: Option<&str>| {
            let value = json!({"key": key, "kind": "discord", "state": state, "why": reason, "until": until});
            open_breakers(&[serde_json::from_value(value).unwrap()])
        };
        assert_eq!(evaluate_breakers(&breaker("discord", "closed", "fresh", None), "").status, CheckStatus::Ok);
        let finding = |key: &str, state: &str, reason: &str| {
            evaluate_breakers(&breaker(key, state, reason, Some("2026-01-01T00:00:00.000Z")), "reported")
        };
        let ban = finding("discord", "open", "blocked");
        assert_eq!(ban.status, CheckStatus::Warn);
        let expected = "1 not closed, reported:\ndiscord is open (blocked), until 2026-01-01T00:00:00.000Z";
        assert_eq!(ban.seen, expected);
        for (key, state, reason, part) in [
            ("discord", "open", "blocked", "limits top --by invalid"),
            ("discord:1", "forced_open", "unauthorized", "discord.token"),
            ("discord:1", "forced_open", "forced", "guildhall breakers reset discord:1"),
            ("target:crm", "open", "failures_in_row", "check the brain"),
        ] {
            let advice = finding(key, state, reason).advice.unwrap();
            assert!(advice.contains(part), "{advice}");
        }
    }

    #[test]
    fn guild_restarts_are_summed_over_labels() {
        let (restarts, crashes) = (RESTARTS.name, CRASHES.name);
        let metrics = format!(
            "# TYPE {restarts} counter\n{restarts} 2\n\n{crashes}{{handler=\"a b\"}} 1\n{crashes}{{handler=\"c\"}} 3\n\
             {restarts}_of_another 7\n"
        );
        assert_eq!((sum_counter(&metrics, restarts), sum_counter(&metrics, crashes)), (2, 4));
        let finding = evaluate_guild_restarts(&metrics);
        assert_eq!(finding.status, CheckStatus::Warn);
        assert!(finding.seen.contains("2 for operations, 4 for events"), "{}", finding.seen);
        assert_eq!(evaluate_guild_restarts("").status, CheckStatus::Ok);
    }

    #[test]
    fn reasons_of_parts_that_are_not_ready_are_listed() {
        let parts = json!({"gateway": {"state": "not_ready", "reason": "no shard"}, "store": {"state": "ready"}});
        let report = json!({"ready": false, "stopping": false, "parts": parts});
        assert_eq!(not_ready_reasons(report), " (gateway: no shard)");
        assert_eq!(not_ready_reasons(json!({})), "");
    }
}
