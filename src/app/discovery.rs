//! Where the gateway is, and how often it may be identified with: what `GET /gateway/bot` says, asked through the gate
//! until there is an answer.

use std::time::Duration;

use guildhall_actors::rest::{Outcome, Rest};
use guildhall_core::{answer::Class, lane::Lane};
use twilight_gateway::queue::InMemoryQueue;
use twilight_model::gateway::connection_info::BotConnectionInfo;

use crate::{
    api::PartHandle,
    discord::rest::Calls,
    events::{GatewayNotFound, emit},
    settings::Settings,
};

/// IDENTIFYs a bot may send a day, where Discord was not asked. Past it Discord resets the token.
const IDENTIFIES_A_DAY: u32 = 1_000;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The longest wait between two times of asking.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// How to connect to the gateway.
#[derive(Debug)]
pub(super) struct Found {
    /// Its URL; `None` is twilight's own default.
    pub(super) url: Option<String>,
    pub(super) shards: u32,
    /// Spaces IDENTIFYs as Discord allows them.
    pub(super) queue: InMemoryQueue,
}

/// Why shards must not be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiscoveryError {
    /// Discord does not know the token.
    #[error(
        "Discord refused the token (401); take the present one from the Bot page of the application in Discord's \
         developer portal, and set GUILDHALL__DISCORD__TOKEN or GUILDHALL__DISCORD__TOKEN_FILE"
    )]
    Unauthorized,
    /// Starting would use up what resets the token.
    #[error(
        "Discord allows {remaining} more session starts within the next {} s, and {shards} are needed; past it Discord \
         resets the token, so nothing was started; find out what keeps starting sessions, and start again then",
        reset_after.as_secs()
    )]
    NoSessionsLeft {
        /// Session starts left.
        remaining: u32,
        /// Those needed.
        shards: u32,
        /// When all of them are there again.
        reset_after: Duration,
    },
    /// Discord says that the call itself is wrong.
    #[error("Discord refused to say where the gateway is (status {0}); check discord.api_url")]
    Refused(u16),
}

/// Finds the gateway. What it waits for is what `part` says.
pub(super) async fn find(
    settings: &Settings,
    rest: &dyn Rest,
    calls: &Calls,
    part: &PartHandle,
) -> Result<Found, DiscoveryError> {
    if let Some(url) = settings.discord.gateway_url.clone() {
        let queue = InMemoryQueue::new(settings.gateway.max_concurrency, IDENTIFIES_A_DAY, DAY, IDENTIFIES_A_DAY);
        return Ok(Found { url: Some(url), shards: settings.gateway.shards.max(1), queue });
    }
    let info = ask(rest, calls, part).await?;
    let shards = if settings.gateway.shards == 0 { info.shards.max(1) } else { settings.gateway.shards };
    let limit = info.session_start_limit;
    let reset_after = Duration::from_millis(limit.reset_after);
    if limit.remaining < shards {
        return Err(DiscoveryError::NoSessionsLeft { remaining: limit.remaining, shards, reset_after });
    }
    let queue = InMemoryQueue::new(limit.max_concurrency, limit.remaining, reset_after, limit.total);
    Ok(Found { url: Some(info.url), shards, queue })
}

/// Asks until Discord answers.
async fn ask(rest: &dyn Rest, calls: &Calls, part: &PartHandle) -> Result<BotConnectionInfo, DiscoveryError> {
    let mut wait = Duration::from_secs(1);
    loop {
        let call = calls.gateway_bot().expect("invariant: a call without fields is valid").on(Lane::Interactive);
        let answer = call.answer;
        let (why, retry_after) = match rest.call(call.request).await {
            Outcome::Answered(answered) => match (answered.class, answer.read(&answered)) {
                (Class::Success, Ok(info)) => return Ok(info),
                (Class::Unauthorized, _) => return Err(DiscoveryError::Unauthorized),
                (Class::Forbidden | Class::NotFound | Class::Rejected, _) => {
                    return Err(DiscoveryError::Refused(answered.status.as_u16()));
                }
                (Class::RateLimited { retry_after, .. }, _) => ("it answered 429".to_owned(), Some(retry_after)),
                (class, _) => (format!("it answered {} ({})", answered.status.as_u16(), class.name()), None),
            },
            Outcome::NotSent(not_sent) => (not_sent.to_string(), not_sent.retry_after),
            Outcome::Unknown(unknown) => (unknown.to_string(), None),
        };
        let pause = retry_after.unwrap_or(wait).max(Duration::from_secs(1));
        part.not_ready(&format!("Discord has not said where the gateway is: {why}"));
        emit(GatewayNotFound { why: &why, retry_after: pause });
        tokio::time::sleep(pause).await;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}
