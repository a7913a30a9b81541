//! Checks of the running daemon, if any: whether it is ready, and how much of the ban budget is used.

use guildhall_actors::telemetry::events::BROKEN;
use guildhall_actors::telemetry::operations::RESTARTS;
use guildhall_actors::wall_clock::WallClock;
use guildhall_core::{snapshot::GateSnapshot, time::UnixMs};
use http::Method;
use serde_json::Value;

use super::Finding;
use crate::{
    client::{ApiRequest, Client, ClientError},
    settings::Settings,
    terminal_text::plain,
};

const GUILD_RESTARTS: &str = "guild restarts";

/// The percentages of the ban budget at which background work stops, and at which all calls except interactions stop.
const STOPS: (u64, u64) = (50, 80);

/// Checks whether the daemon is running and ready; returns its client if it responds.
pub(crate) async fn ready<'a>(
    daemon: &'a Result<Client, String>,
    tell: &mut impl FnMut(Finding),
) -> Result<&'a Client, String> {
    let client = match daemon {
        Ok(client) => client,
        Err(why) => {
            tell(Finding::skip("daemon", format!("not checked: {why}")));
            return Err("the daemon was not checked".to_owned());
        }
    };
    let place = client.place();
    match client.look("/readyz").await {
        Ok((200, _)) => tell(Finding::ok("daemon", format!("ready at {place}"))),
        Ok((_, report)) => {
            let advice = "check its log; `GET /readyz` shows what each part is waiting for";
            tell(Finding::warn("daemon", format!("running at {place}, but not ready{}", reasons(&report)), advice));
        }
        Err(ClientError::Unreachable { .. }) => {
            tell(Finding::skip("daemon", format!("not running at {place}")));
            return Err("the daemon is not running".to_owned());
        }
        Err(fault) => {
            tell(Finding::warn("daemon", fault.to_string(), "check --api and api.bind"));
            return Err("the daemon does not respond".to_owned());
        }
    }
    Ok(client)
}

/// The reasons of the parts that are not ready, from the response of `/readyz`.
fn reasons(report: &Value) -> String {
    let parts = report["parts"].as_object().into_iter().flatten();
    let reasons = parts.filter_map(|(part, state)| Some(format!("{part}: {}", plain(state["reason"].as_str()?))));
    let reasons: Vec<_> = reasons.collect();
    if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) }
}

/// Reads from the daemon's metrics how many guild actors it has restarted.
pub(crate) async fn guild_restarts(daemon: Result<&Client, &String>) -> Finding {
    let client = match daemon {
        Ok(client) => client,
        Err(why) => return Finding::skip(GUILD_RESTARTS, format!("unknown: {why}")),
    };
    match client.look_raw("/metrics").await {
        Ok((200, text)) => judge_guild_restarts(&String::from_utf8_lossy(&text)),
        Ok((status, _)) => Finding::skip(GUILD_RESTARTS, format!("unknown: /metrics returned {status}")),
        Err(fault) => Finding::skip(GUILD_RESTARTS, format!("unknown: {fault}")),
    }
}

fn judge_guild_restarts(metrics: &str) -> Finding {
    let [operations, events] = [RESTARTS, BROKEN].map(|name| sum_of(metrics, name));
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
fn sum_of(metrics: &str, name: &str) -> u64 {
    let samples = metrics.lines().filter_map(|line| line.strip_prefix(name));
    let samples = samples.filter(|rest| rest.starts_with([' ', '{']));
    samples.filter_map(|rest| rest.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// Checks how much of the ban budget is used: as the running daemon reports it, otherwise as its gate last stored it.
pub(crate) async fn ban_budget(settings: &Settings, daemon: Result<&Client, String>, kept: Option<String>) -> Finding {
    let why = match daemon {
        Ok(client) => match client.send(&ApiRequest::new(Method::GET, "/v1/limits").about("limits")).await {
            Ok(answered) => {
                let invalid = &answered.body["invalid_requests"];
                match (invalid["used"].as_u64(), invalid["most"].as_u64()) {
                    (Some(used), Some(most)) => return judge(used, most, "counted by the daemon"),
                    (_, _) => "the daemon does not report it".to_owned(),
                }
            }
            Err(fault @ (ClientError::Refused(_) | ClientError::Unknown { .. })) => fault.to_string(),
            Err(_) => "the daemon does not respond".to_owned(),
        },
        Err(why) => why,
    };
    let memory = kept.and_then(|kept| GateSnapshot::decode(&kept).ok());
    match memory {
        Some(memory) => of_memory(settings, &memory, WallClock::system().now()),
        None => Finding::skip("ban budget", format!("unknown: {why}")),
    }
}

fn of_memory(settings: &Settings, memory: &GateSnapshot, now: UnixMs) -> Finding {
    let used = memory.invalid.left(memory.age(now));
    let ago = now.since(memory.saved_at).as_secs();
    judge(u64::from(used), u64::from(settings.gate.invalid.limit), &format!("from the state stored {ago} s ago"))
}

fn judge(used: u64, most: u64, by: &str) -> Finding {
    const CHECK: &str = "ban budget";
    let seen = format!("{used} of {most} invalid requests (401, 403, 429) in ten minutes, {by}");
    let advice = "find their source with `guildhall limits top --by invalid`, and stop it: above 10,000 Discord bans \
        this address";
    match used.saturating_mul(100) / most.max(1) {
        percent if percent < STOPS.0 => Finding::ok(CHECK, seen),
        percent if percent < STOPS.1 => Finding::warn(CHECK, format!("{seen}; background work is paused"), advice),
        _ => Finding::fail(CHECK, format!("{seen}; only interactions are sent, or nothing"), advice),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::doctor::CheckStatus;

    #[test]
    fn the_more_is_used_the_worse_it_is() {
        let verdict = |used| judge(used, 10_000, "").verdict;
        assert_eq!(
            [verdict(0), verdict(4_999), verdict(5_000), verdict(8_000)],
            [CheckStatus::Ok, CheckStatus::Ok, CheckStatus::Warn, CheckStatus::Fail]
        );
        assert_eq!(judge(1, 0, "").verdict, CheckStatus::Fail);
    }

    #[test]
    fn restarts_of_guilds_are_added_up_over_labels() {
        let metrics = format!(
            "# TYPE {RESTARTS} counter\n{RESTARTS} 2\n\n{BROKEN}{{handler=\"a b\"}} 1\n{BROKEN}{{handler=\"c\"}} 3\n\
             {RESTARTS}_of_another 7\n"
        );
        assert_eq!((sum_of(&metrics, RESTARTS), sum_of(&metrics, BROKEN)), (2, 4));
        let finding = judge_guild_restarts(&metrics);
        assert_eq!(finding.verdict, CheckStatus::Warn);
        assert!(finding.seen.contains("2 for operations, 4 for events"), "{}", finding.seen);
        assert_eq!(judge_guild_restarts("").verdict, CheckStatus::Ok);
    }

    #[test]
    fn what_is_not_ready_says_why() {
        let report =
            json!({"parts": {"gateway": {"state": "not_ready", "reason": "no shard"}, "store": {"state": "ready"}}});
        assert_eq!(reasons(&report), " (gateway: no shard)");
        assert_eq!(reasons(&json!({})), "");
    }
}
