//! Logs and metrics of shards.

use std::{collections::HashMap, time::Duration};

use foldhash::fast::RandomState;
use guildhall_actors::shard::FlowLimit;
use guildhall_core::event::{Event, EventClass, EventName, handler::trace as trace_of};
use metrics::{Counter, counter, gauge};
use tokio::time::Instant;
use tracing::{debug, error, info, trace, warn};

use super::connection_state::DisconnectReason;
use crate::{
    events::InternalEvent,
    metrics::{
        GATEWAY_DISCONNECTS, GATEWAY_EVENTS, GATEWAY_IDENTIFIES, GATEWAY_MALFORMED, GATEWAY_PAUSED, GATEWAY_RECONNECTS,
        GATEWAY_SESSIONS, GATEWAY_SHARD_CONNECTED, GATEWAY_SHED,
    },
};

/// A shard is about to connect for the first time.
pub(super) struct ShardStarted {
    pub(super) shard: u32,
    /// The sequence number that it resumes from, if it has a session.
    pub(super) resumes_from: Option<u64>,
}

impl InternalEvent for ShardStarted {
    fn emit(self) {
        debug!(shard = self.shard, resumes_from = self.resumes_from, "shard starting");
        gauge!(GATEWAY_SHARD_CONNECTED, "shard" => self.shard.to_string()).set(0);
    }
}

/// A shard has a session that receives events.
pub(super) struct ShardConnected {
    pub(super) shard: u32,
    /// `ready` for a new session, `resumed` for an existing one.
    pub(super) how: &'static str,
}

impl InternalEvent for ShardConnected {
    fn emit(self) {
        info!(shard = self.shard, how = self.how, "shard connected");
        counter!(GATEWAY_SESSIONS, "how" => self.how).increment(1);
        gauge!(GATEWAY_SHARD_CONNECTED, "shard" => self.shard.to_string()).set(1);
    }
}

/// A shard's connection ended or could not be made; another attempt follows.
pub(super) struct ShardDisconnected {
    pub(super) shard: u32,
    pub(super) why: DisconnectReason,
}

impl InternalEvent for ShardDisconnected {
    fn emit(self) {
        let (why, code) = (self.why.name(), self.why.code());
        match self.why {
            // Routine in Discord's operation, or expected because the shard was paused or restarted.
            DisconnectReason::Asked
            | DisconnectReason::InvalidSessionResumable
            | DisconnectReason::Paused
            | DisconnectReason::Restarted => {
                info!(shard = self.shard, why, code, "shard disconnected");
            }
            DisconnectReason::InvalidSession
            | DisconnectReason::Silent
            | DisconnectReason::Cut
            | DisconnectReason::Closed(_)
            | DisconnectReason::Unreachable
            | DisconnectReason::Unreadable => {
                warn!(shard = self.shard, why, code, "shard disconnected");
            }
        }
        counter!(GATEWAY_RECONNECTS, "why" => why).increment(1);
        let kind = if matches!(self.why, DisconnectReason::Unreachable | DisconnectReason::Unreadable) {
            "error"
        } else {
            "closed"
        };
        counter!(GATEWAY_DISCONNECTS, "why" => kind).increment(1);
        gauge!(GATEWAY_SHARD_CONNECTED, "shard" => self.shard.to_string()).set(0);
    }
}

/// A connection could not be made, or its data could not be decompressed.
pub(super) struct ShardConnectionFailed<'a> {
    pub(super) shard: u32,
    pub(super) error: &'a dyn std::error::Error,
}

impl InternalEvent for ShardConnectionFailed<'_> {
    fn emit(self) {
        let source = self.error.source().map(ToString::to_string);
        warn!(shard = self.shard, error = %self.error, source, "shard connection failed");
    }
}

/// Discord closed a shard permanently.
pub(super) struct ShardClosedFatally<'a> {
    pub(super) shard: u32,
    pub(super) code: u16,
    /// How to fix the cause.
    pub(super) advice: &'a str,
}

impl InternalEvent for ShardClosedFatally<'_> {
    fn emit(self) {
        error!(shard = self.shard, code = self.code, advice = self.advice, "Discord rejected the shard");
        counter!(GATEWAY_DISCONNECTS, "why" => "refused").increment(1);
        gauge!(GATEWAY_SHARD_CONNECTED, "shard" => self.shard.to_string()).set(0);
    }
}

/// A shard closed as requested.
pub(super) struct ShardClosed {
    pub(super) shard: u32,
    /// Whether it had a session, which stays resumable for a while.
    pub(super) resumable: bool,
}

impl InternalEvent for ShardClosed {
    fn emit(self) {
        info!(shard = self.shard, resumable = self.resumable, "shard closed");
        gauge!(GATEWAY_SHARD_CONNECTED, "shard" => self.shard.to_string()).set(0);
    }
}

/// The shard may soon belong to another process.
pub(super) struct ShardLeaseLost {
    pub(super) shard: u32,
}

impl InternalEvent for ShardLeaseLost {
    fn emit(self) {
        warn!(shard = self.shard, "shard closing: lease lost; another process may take it over");
    }
}

/// There is no room for the events of a shard: it closes until there is.
pub(super) struct ShardPaused {
    pub(super) shard: u32,
    /// Events and bytes that wait to be forwarded.
    pub(super) held: FlowLimit,
}

impl InternalEvent for ShardPaused {
    fn emit(self) {
        let FlowLimit { events, bytes } = self.held;
        warn!(
            shard = self.shard,
            events, bytes, "shard paused: events arrive faster than they are handled; it resumes when there is room"
        );
        counter!(GATEWAY_PAUSED).increment(1);
    }
}

/// A restart of a shard was requested: it closes, and resumes.
pub(super) struct ShardRestarting {
    pub(super) shard: u32,
    /// Whether it has a session to resume.
    pub(super) resumable: bool,
}

impl InternalEvent for ShardRestarting {
    fn emit(self) {
        info!(shard = self.shard, resumable = self.resumable, "shard restarting as requested");
    }
}

/// There is room again; the shard continues.
pub(super) struct ShardUnpaused {
    pub(super) shard: u32,
    pub(super) paused: Duration,
}

impl InternalEvent for ShardUnpaused {
    fn emit(self) {
        let paused_ms = u64::try_from(self.paused.as_millis()).unwrap_or(u64::MAX);
        info!(shard = self.shard, paused_ms, "shard resumed after pause");
    }
}

/// Events were dropped because there was no room.
pub(super) struct EventsShed {
    pub(super) shard: u32,
    pub(super) class: EventClass,
    pub(super) count: u64,
}

impl InternalEvent for EventsShed {
    fn emit(self) {
        debug!(shard = self.shard, class = self.class.name(), count = self.count, "events shed");
        counter!(GATEWAY_SHED, "class" => self.class.name()).increment(self.count);
    }
}

/// A malformed frame was skipped.
pub(super) struct FrameSkipped<'a> {
    pub(super) shard: u32,
    pub(super) error: &'a dyn std::error::Error,
    /// Number of skipped frames since the last log line, if a line is due.
    pub(super) since: Option<u64>,
}

impl InternalEvent for FrameSkipped<'_> {
    fn emit(self) {
        counter!(GATEWAY_MALFORMED).increment(1);
        if let Some(skipped) = self.since {
            warn!(shard = self.shard, error = %self.error, skipped, "malformed frame skipped");
        }
    }
}

/// Result of a shard's request to identify.
pub(super) enum IdentifyDecided<'a> {
    /// Permitted and counted.
    Granted { shard: u32 },
    /// The daily session starts are used up.
    Spent { shard: u32, again_in: Duration },
    /// Session starts cannot be counted.
    Uncounted { shard: u32, error: &'a str, again_in: Duration },
}

impl InternalEvent for IdentifyDecided<'_> {
    fn emit(self) {
        let ms = |wait: Duration| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let result = match self {
            Self::Granted { shard } => {
                debug!(shard, "shard may identify");
                "granted"
            }
            Self::Spent { shard, again_in } => {
                error!(
                    shard,
                    again_in_ms = ms(again_in),
                    "daily session starts used up; one more would make Discord reset the token, so the shard waits; \
                     find out what starts so many sessions"
                );
                "spent"
            }
            Self::Uncounted { shard, error, again_in } => {
                let again_in_ms = ms(again_in);
                warn!(shard, error, again_in_ms, "cannot count session starts; the shard waits");
                "uncounted"
            }
        };
        counter!(GATEWAY_IDENTIFIES, "result" => result).increment(1);
    }
}

/// Counts events by type.
#[derive(Default)]
pub(super) struct EventCounters {
    counters: HashMap<&'static str, Counter, RandomState>,
}

impl EventCounters {
    pub(super) fn count(&mut self, shard: u32, event: &Event) {
        // A fixed set, because it labels a metric.
        let kind = match (&event.name, event.class) {
            (EventName::Known(name), _) => name,
            (EventName::Other(_), EventClass::Interaction) => "interaction",
            (
                EventName::Other(_),
                EventClass::Fleeting | EventClass::Chatter | EventClass::Change | EventClass::Gateway,
            ) => "other",
        };
        let trace_id = || trace_of(&event.origin).id;
        // Counted before it is logged, so that a reader of the log line finds the event in the metric.
        self.counters.entry(kind).or_insert_with(|| counter!(GATEWAY_EVENTS, "type" => kind)).increment(1);
        trace!(shard, kind, sequence = event.origin.seq, trace_id = %trace_id(), "dispatch received");
    }
}

/// Permits one log line per interval, and counts the others.
#[derive(Default)]
pub(super) struct LogThrottle {
    last: Option<Instant>,
    held: u64,
}

impl LogThrottle {
    const WHILE: Duration = Duration::from_secs(10);

    /// Returns how many there were since the last line, including this one, if a line is due.
    pub(super) fn now(&mut self, now: Instant) -> Option<u64> {
        self.held += 1;
        if self.last.is_some_and(|last| now.duration_since(last) < Self::WHILE) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_lines_one_in_a_while_is_written_and_says_how_many_there_were() {
        let (mut seldom, start) = (LogThrottle::default(), Instant::now());
        assert_eq!(seldom.now(start), Some(1));
        assert_eq!(seldom.now(start + Duration::from_secs(1)), None);
        assert_eq!(seldom.now(start + Duration::from_secs(9)), None);
        assert_eq!(seldom.now(start + Duration::from_secs(10)), Some(3));
    }
}
