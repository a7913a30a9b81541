//! Finds the gateway's URL and its identify limits: calls `GET /gateway/bot` through the gate until it succeeds.

use std::time::Duration;

use guildhall_actors::gate::{CallOutcome, Rest};
use guildhall_actors::ports::StoredSession;
use guildhall_core::{lane::Lane, response::ResponseClass};
use twilight_model::gateway::connection_info::BotConnectionInfo;

use crate::{
    api::ComponentHandle,
    discord::{IdentifyLimits, SessionStartLimit, rest::CallBuilder},
    events::{GatewayDiscoveryFailed, emit},
    settings::{Settings, ShardRange},
};

/// Maximum wait between two attempts.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

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
    kept: &[StoredSession],
    part: &ComponentHandle,
) -> Result<GatewayInfo, DiscoveryError> {
    let (gateway, spacing) = (&settings.gateway, settings.gateway.identify_spacing);
    if let Some(url) = settings.discord.gateway_url.clone() {
        let (max_concurrency, a_day) = (gateway.max_concurrency, gateway.identifies_a_day);
        let limits = IdentifyLimits { max_concurrency, spacing, a_day, left: None };
        let shards = gateway.shards.max(1);
        return Ok(GatewayInfo { url: Some(url), shards, range: range_of(settings, shards), limits });
    }
    let info = ask(rest, calls, part).await?;
    let shards = if gateway.shards == 0 { info.shards.max(1) } else { gateway.shards };
    let range = range_of(settings, shards);
    let limit = info.session_start_limit;
    let reset_after = Duration::from_millis(limit.reset_after);
    let needed = needed(range, shards, kept);
    if limit.remaining < needed {
        return Err(DiscoveryError::NoSessionsLeft { remaining: limit.remaining, shards: needed, reset_after });
    }
    let left = Some(SessionStartLimit { remaining: limit.remaining, reset_after });
    let limits = IdentifyLimits { max_concurrency: limit.max_concurrency, spacing, a_day: limit.total, left };
    Ok(GatewayInfo { url: Some(info.url), shards, range, limits })
}

/// The shards that this process runs. A range is only set together with the number of shards, and fits it.
fn range_of(settings: &Settings, shards: u32) -> ShardRange {
    settings.gateway.shard_range.unwrap_or(ShardRange::all(shards))
}

/// Number of shards that have no session to resume.
fn needed(range: ShardRange, shards: u32, kept: &[StoredSession]) -> u32 {
    let has_one = |shard| kept.iter().any(|kept| kept.shards == shards && kept.shard == shard);
    range.numbers().map(|shard| u32::from(!has_one(shard))).sum()
}

/// Repeats the call until Discord responds.
async fn ask(
    rest: &dyn Rest,
    calls: &CallBuilder,
    part: &ComponentHandle,
) -> Result<BotConnectionInfo, DiscoveryError> {
    let mut wait = Duration::from_secs(1);
    loop {
        let call = calls.gateway_bot().expect("invariant: a call without fields is valid").on(Lane::Interactive);
        let answer = call.answer;
        let (why, retry_after) = match rest.call(call.request).await {
            CallOutcome::Answered(answered) => match (answered.class, answer.read(&answered)) {
                (ResponseClass::Success, Ok(info)) => return Ok(info),
                (ResponseClass::Unauthorized, _) => return Err(DiscoveryError::Unauthorized),
                (ResponseClass::Forbidden | ResponseClass::NotFound | ResponseClass::Rejected, _) => {
                    return Err(DiscoveryError::Refused(answered.status.as_u16()));
                }
                (ResponseClass::RateLimited { retry_after, .. }, _) => {
                    ("Discord returned 429".to_owned(), Some(retry_after))
                }
                (class, _) => (format!("Discord returned {} ({})", answered.status.as_u16(), class.name()), None),
            },
            CallOutcome::NotSent(not_sent) => (not_sent.to_string(), not_sent.retry_after),
            CallOutcome::Unknown(unknown) => (unknown.to_string(), None),
        };
        let pause = retry_after.unwrap_or(wait).max(Duration::from_secs(1));
        part.not_ready(&format!("the gateway URL is not known yet: {why}"));
        emit(GatewayDiscoveryFailed { why: &why, retry_after: pause });
        tokio::time::sleep(pause).await;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

#[cfg(test)]
mod tests {
    use guildhall_core::time::UnixMs;

    use super::*;

    #[test]
    fn shards_with_a_session_of_as_many_shards_need_no_new_one() {
        let kept = |shard, shards| StoredSession {
            shard,
            shards,
            session: "s".into(),
            resume_url: None,
            confirmed: 1,
            at: UnixMs::new(0),
            under: None,
        };
        let range: ShardRange = "1-3".parse().unwrap();
        assert_eq!(needed(range, 4, &[]), 3);
        assert_eq!(needed(range, 4, &[kept(0, 4), kept(2, 4), kept(3, 2)]), 2);
    }
}
