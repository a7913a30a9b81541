//! Finds the gateway's URL and its identify limits: calls `GET /gateway/bot` through the gate until it succeeds.

use std::time::Duration;

use guildhall_actors::gate::{CallOutcome, Rest};
use guildhall_actors::ports::StoredSession;
use guildhall_core::{backoff::Backoff, lane::Lane, response::ResponseClass};
use twilight_model::gateway::connection_info::BotConnectionInfo;

use crate::{
    api::ComponentHandle,
    discord::{IdentifyLimits, SessionStartLimit, rest::CallBuilder},
    events::{FailureLog, GatewayDiscoveryFailed, emit},
    settings::{Settings, ShardRange},
};

/// Waits between attempts.
const BACKOFF: Backoff = Backoff::exact(Duration::from_secs(1), Duration::from_secs(30));

/// How to connect to the gateway.
#[derive(Debug)]
pub(crate) struct GatewayInfo {
    /// Its URL; `None` is twilight's own default.
    pub(crate) url: Option<String>,
    /// Number of shards of the bot.
    pub(crate) shards: u32,
    /// The shards that this process runs.
    pub(crate) range: ShardRange,
    /// Discord's limits on IDENTIFY.
    pub(crate) limits: IdentifyLimits,
}

/// Why shards cannot be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiscoveryError {
    /// Discord refused the token.
    #[error(
        "Discord refused the token (401); copy the current one from the Bot page of the application in Discord's \
         developer portal, and set GUILDHALL__DISCORD__TOKEN or GUILDHALL__DISCORD__TOKEN_FILE"
    )]
    Unauthorized,
    /// Not enough session starts are left; exceeding the limit resets the token.
    #[error(
        "Discord allows {remaining} more session starts within the next {} s, and {shards} are needed; above the limit \
         Discord resets the token, so no shard was started; find out what starts sessions so often, and start again \
         after that time",
        reset_after.as_secs()
    )]
    NoSessionsLeft {
        /// Session starts that are left.
        remaining: u32,
        /// Session starts that are needed.
        shards: u32,
        /// When the limit is reset.
        reset_after: Duration,
    },
    /// Discord rejected the call.
    #[error("Discord refused GET /gateway/bot (status {0}); check discord.api_url")]
    Refused(u16),
}

/// Finds the gateway for shards of which some may have a stored session. `part` reports what it is waiting for.
pub(crate) async fn find(
    settings: &Settings,
    rest: &dyn Rest,
    calls: &CallBuilder,
    stored_sessions: &[StoredSession],
    part: &ComponentHandle,
) -> Result<GatewayInfo, DiscoveryError> {
    let (gateway, spacing) = (&settings.gateway, settings.gateway.identify_spacing);
    if let Some(url) = settings.discord.gateway_url.clone() {
        let (max_concurrency, max_per_day) = (gateway.max_concurrency, gateway.identifies_a_day);
        let limits = IdentifyLimits { max_concurrency, spacing, max_per_day, remaining_starts: None };
        let shards = gateway.shards.max(1);
        return Ok(GatewayInfo { url: Some(url), shards, range: range_of(settings, shards), limits });
    }
    let info = fetch_gateway_info(rest, calls, part).await?;
    let shards = if gateway.shards == 0 { info.shards.max(1) } else { gateway.shards };
    let range = range_of(settings, shards);
    let limit = info.session_start_limit;
    let reset_after = Duration::from_millis(limit.reset_after);
    let needed = needed_session_starts(range, shards, stored_sessions);
    if limit.remaining < needed {
        return Err(DiscoveryError::NoSessionsLeft { remaining: limit.remaining, shards: needed, reset_after });
    }
    let remaining_starts = Some(SessionStartLimit { remaining: limit.remaining, reset_after });
    let limits =
        IdentifyLimits { max_concurrency: limit.max_concurrency, spacing, max_per_day: limit.total, remaining_starts };
    Ok(GatewayInfo { url: Some(info.url), shards, range, limits })
}

/// The shards that this process runs. A range is only set together with the number of shards, and fits it.
fn range_of(settings: &Settings, shards: u32) -> ShardRange {
    settings.gateway.shard_range.unwrap_or(ShardRange::all(shards))
}

/// Number of shards that have no session to resume.
fn needed_session_starts(range: ShardRange, shards: u32, stored_sessions: &[StoredSession]) -> u32 {
    let has_session = |shard| {
        stored_sessions.iter().any(|stored_sessions| stored_sessions.shards == shards && stored_sessions.shard == shard)
    };
    range.ids().map(|shard| u32::from(!has_session(shard))).sum()
}

/// Repeats the call until Discord responds.
async fn fetch_gateway_info(
    rest: &dyn Rest,
    calls: &CallBuilder,
    part: &ComponentHandle,
) -> Result<BotConnectionInfo, DiscoveryError> {
    let failures = FailureLog::new("discovery of the gateway");
    let mut attempts = 0;
    loop {
        let call = calls.gateway_bot().expect("invariant: a call without fields is valid").with_lane(Lane::Interactive);
        let response_type = call.decoder;
        let (reason, retry_after) = match rest.call(call.request).await {
            CallOutcome::Answered(response) => match (response.class, response_type.decode(&response)) {
                (ResponseClass::Success, Ok(info)) => {
                    failures.on_success();
                    return Ok(info);
                }
                (ResponseClass::Unauthorized, _) => return Err(DiscoveryError::Unauthorized),
                (ResponseClass::Forbidden | ResponseClass::NotFound | ResponseClass::Rejected, _) => {
                    return Err(DiscoveryError::Refused(response.status.as_u16()));
                }
                (ResponseClass::RateLimited { retry_after, .. }, _) => {
                    ("Discord returned 429".to_owned(), Some(retry_after))
                }
                (class, _) => (format!("Discord returned {} ({})", response.status.as_u16(), class.name()), None),
            },
            CallOutcome::NotSent(not_sent) => (not_sent.to_string(), not_sent.retry_after),
            CallOutcome::Unknown(unknown) => (unknown.to_string(), None),
        };
        attempts += 1;
        let pause = retry_after.unwrap_or(BACKOFF.delay_without_jitter(attempts)).max(BACKOFF.base);
        part.not_ready(&format!("the gateway URL is not known yet: {reason}"));
        emit(GatewayDiscoveryFailed { reason: &reason, retry_after: pause, summary: failures.on_failure() });
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use guildhall_core::time::UnixMs;

    use super::*;

    #[test]
    fn sessions_of_the_same_shard_count_need_no_start() {
        let stored = |shard, shards| StoredSession {
            shard,
            shards,
            session: "s".into(),
            resume_url: None,
            confirmed: 1,
            at: UnixMs::new(0),
            fence: None,
        };
        let range: ShardRange = "1-3".parse().unwrap();
        assert_eq!(needed_session_starts(range, 4, &[]), 3);
        assert_eq!(needed_session_starts(range, 4, &[stored(0, 4), stored(2, 4), stored(3, 2)]), 2);
    }
}
