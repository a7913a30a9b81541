//! Counters of the gateway.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::session::Session;
use crate::id::Snowflake;

/// Ended sessions that are stored individually; the oldest are removed first.
const MAX_ENDED_SESSIONS: usize = 1_000;

/// The gateway's score since the start, or since it was last reset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayScore {
    /// IDENTIFYs received, accepted or not.
    pub identifies: u64,
    /// The same by shard id.
    pub identifies_by_shard: BTreeMap<u32, u64>,
    /// IDENTIFYs that got op 9 because they came too soon after another.
    pub identify_refusals: u64,
    /// Sessions started while another session of the same bot and shard existed.
    pub duplicate_shards: u64,
    /// RESUMEs accepted.
    pub resumes: u64,
    /// RESUMEs refused.
    pub resumes_refused: u64,
    /// Sessions started with a READY.
    pub sessions_started: u64,
    /// Sessions that can no longer be resumed.
    pub sessions_ended: u64,
    /// Connections open now.
    pub connections: u64,
    /// Maximum number of connections open at the same time.
    pub connections_most: u64,
    /// Connections that ended without a close frame from either side.
    pub connections_lost: u64,
    /// Heartbeats received.
    pub heartbeats: u64,
    /// Connections closed because of missing heartbeats.
    pub heartbeat_timeouts: u64,
    /// Connections that a fault turned into zombies.
    pub zombies: u64,
    /// Close frames sent, by code.
    pub closes_sent: BTreeMap<u16, u64>,
    /// Close frames that clients sent first, by code.
    pub closes_received: BTreeMap<u16, u64>,
    /// Sessions by their id: all live ones, and the last thousand that ended.
    pub sessions: BTreeMap<String, SessionScore>,
    /// Events queued for sessions, by type; once for each session that receives it.
    pub events_by_type: BTreeMap<String, u64>,
    /// All events queued for sessions.
    pub events_total: u64,
    /// Events dropped by a fault.
    pub events_muted: u64,
    /// Sessions that ended because their reader was too far behind.
    pub slow_readers: u64,
    /// Tokens reset because of too many session starts in a day.
    pub token_resets: u64,
    /// REQUEST_GUILD_MEMBERS received.
    pub member_requests: u64,
    /// Those of them that got RATE_LIMITED.
    pub member_requests_limited: u64,
}

/// One session in the score.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionScore {
    /// The bot's application id.
    pub application: Snowflake,
    /// Its shard.
    pub shard: u32,
    /// The number of shards.
    pub shards: u32,
    /// Number of the IDENTIFY that started it, counted from 1 since the simulator started.
    pub identify: u64,
    /// Events that got a sequence number.
    pub events: u64,
    /// Events that were sent again after a RESUME.
    pub replayed: u64,
    /// The highest sequence number sent.
    pub sent_seq: u64,
    /// The highest sequence number assigned.
    pub last_seq: u64,
    /// Whether it can still be resumed.
    pub live: bool,
}

/// Maintains the score of the gateway.
#[derive(Debug, Default)]
pub(crate) struct GatewayScoreCounters {
    pub(crate) score: GatewayScore,
    ended: VecDeque<(String, SessionScore)>,
}

impl GatewayScoreCounters {
    pub(crate) fn record_event(&mut self, name: &'static str) {
        self.score.events_total += 1;
        match self.score.events_by_type.get_mut(name) {
            Some(count) => *count += 1,
            None => drop(self.score.events_by_type.insert(name.to_owned(), 1)),
        }
    }

    pub(crate) fn record_connection(&mut self) {
        self.score.connections += 1;
        self.score.connections_most = self.score.connections_most.max(self.score.connections);
    }

    pub(crate) fn record_close_sent(&mut self, code: u16) {
        *self.score.closes_sent.entry(code).or_default() += 1;
    }

    pub(crate) fn record_close_received(&mut self, code: u16) {
        *self.score.closes_received.entry(code).or_default() += 1;
    }

    pub(crate) fn record_session_end(&mut self, session: &Session) {
        self.score.sessions_ended += 1;
        if self.ended.len() == MAX_ENDED_SESSIONS {
            self.ended.pop_front();
        }
        self.ended.push_back((session.id.clone(), session.score(false)));
    }

    pub(crate) fn report<'a>(&self, live: impl Iterator<Item = &'a Session>) -> GatewayScore {
        let mut score = self.score.clone();
        score.sessions = self.ended.iter().cloned().collect();
        score.sessions.extend(live.map(|session| (session.id.clone(), session.score(true))));
        score
    }

    /// Resets the counters; open connections stay counted.
    pub(crate) fn reset(&mut self) {
        let connections = self.score.connections;
        *self = Self::default();
        self.score.connections = connections;
        self.score.connections_most = connections;
    }
}
