//! REQUEST_GUILD_MEMBERS: chunks of a guild's members; all of them only every thirty seconds.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;

use super::frame::Event;
use super::gateway_state::GatewayState;
use super::inbound::{OneOrMany, RequestMembers};
use super::intents;
use super::session::SessionKey;
use crate::id::Snowflake;
use crate::time::At;
use crate::world::{MemberQuery, World};

/// Minimum time between two requests for all members of a guild.
const MIN_INTERVAL: Duration = Duration::from_secs(30);

/// When each bot last requested all members of a guild.
#[derive(Debug, Default)]
pub(crate) struct MemberRequests {
    last: HashMap<(Snowflake, Snowflake), At>,
    /// Number of entries at which expired ones are removed.
    sweep_at: usize,
}

impl MemberRequests {
    /// Allows a request for all members, or returns how long to wait.
    fn acquire(&mut self, application: Snowflake, guild: Snowflake, now: At) -> Result<(), Duration> {
        if let Some(last) = self.last.get(&(application, guild)) {
            let elapsed = now.since(*last);
            if elapsed < MIN_INTERVAL {
                return Err(MIN_INTERVAL - elapsed);
            }
        }
        if self.last.len() >= self.sweep_at {
            self.last.retain(|_, last| now.since(*last) < MIN_INTERVAL);
            self.sweep_at = (self.last.len() * 2).max(1_024);
        }
        self.last.insert((application, guild), now);
        Ok(())
    }
}

impl GatewayState {
    pub(super) fn request_members(&mut self, world: &World, key: SessionKey, request: RequestMembers, now: At) {
        self.scores.score.member_requests += 1;
        let Some(session) = self.sessions.get(&key) else { return };
        let guild = request.guild_id;
        let is_own_guild =
            guild.shard(session.shard.of) == session.shard.id && world.has_bot(guild, session.application);
        let query = MemberQuery {
            query: request.query.unwrap_or_default(),
            limit: usize::try_from(request.limit).unwrap_or(usize::MAX),
            user_ids: request.user_ids.map(OneOrMany::into_vec).unwrap_or_default(),
            nonce: request.nonce,
        };
        let wants_all = query.query.is_empty() && query.limit == 0 && query.user_ids.is_empty();
        let may_list_all = session.intents & intents::GUILD_MEMBERS != 0;
        // Discord responds to neither of these.
        if !is_own_guild || (wants_all && !may_list_all) {
            tracing::warn!(%guild, "request for guild members ignored: guild not in this session, or intent missing");
            return;
        }
        if wants_all && let Err(wait) = self.member_requests.acquire(session.application, guild, now) {
            self.scores.score.member_requests_limited += 1;
            let limited = json!({
                "opcode": 8,
                "retry_after": wait.as_secs_f64(),
                "meta": { "guild_id": guild, "nonce": query.nonce },
            });
            return self.queue_event(key, Event { name: "RATE_LIMITED", data: Bytes::from(limited.to_string()) }, now);
        }
        for data in world.member_chunks(guild, &query) {
            self.queue_event(key, Event { name: "GUILD_MEMBERS_CHUNK", data }, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_members_can_be_requested_every_thirty_seconds() {
        let start = At::from_micros(1_700_000_000_000_000);
        let (bot, guild) = (Snowflake::new(1), Snowflake::new(2));
        let mut requests = MemberRequests::default();
        assert_eq!(requests.acquire(bot, guild, start), Ok(()));
        assert_eq!(requests.acquire(bot, guild, start.after(MIN_INTERVAL / 3)), Err(MIN_INTERVAL * 2 / 3));
        assert_eq!(requests.acquire(bot, Snowflake::new(3), start), Ok(()));
        assert_eq!(requests.acquire(Snowflake::new(4), guild, start), Ok(()));
        assert_eq!(requests.acquire(bot, guild, start.after(MIN_INTERVAL)), Ok(()));
    }
}
