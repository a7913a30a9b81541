//! What there is to say about shards.

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
    /// The session that it resumes, and from where, if there is one.
    pub(super) resumes_from: Option<u64>,
}

impl InternalEvent for ShardStarted {
    fn emit(self) {
        debug!(shard = self.shard, resumes_from = self.resumes_from, "shard starts");
        gauge!(GATEWAY_SHARD_CONNECTED, "shard" => self.shard.to_string()).set(0);
    }
}

/// A shard has a session that receives events.
pub(super) struct ShardConnected {
    pub(super) shard: u32,
    /// `ready` for a new session, `resumed` for an old one.
    pub(super) how: &'static str,
}

impl InternalEvent for ShardConnected {
    fn emit(self) {
        info!(shard = self.shard, how = self.how, "shard is connected");
        counter!(GATEWAY_SESSIONS, "how" => self.how).increment(1);
        gauge!(GATEWAY_SHARD_CONNECTED, "shard" => self.shard.to_string()).set(1);
    }
}

/// A shard's line ended or could not be made, and another one will be.
pub(super) struct ShardDisconnected {
    pub(super) shard: u32,
    pub(super) why: DisconnectReason,
}

impl InternalEvent for ShardDisconnected {
    fn emit(self) {
        let (why, code) = (self.why.name(), self.why.code());
        match self.why {
            // Every day's business of Discord's, and what was said when it was paused or was to be restarted.
            DisconnectReason::Asked
            | DisconnectReason::InvalidSessionResumable
            | DisconnectReason::Paused
            | DisconnectReason::Restarted => {
                info!(shard = self.shard, why, code, "shard lost its connection");
            }
            DisconnectReason::InvalidSession
            | DisconnectReason::Silent
            | DisconnectReason::Cut
            | DisconnectReason::Closed(_)
            | DisconnectReason::Unreachable
            | DisconnectReason::Unreadable => {
                warn!(shard = self.shard, why, code, "shard lost its connection");
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

/// A connection could not be made, or what came over it could not be unpacked.
pub(super) struct ShardConnectionFailed<'a> {
    pub(super) shard: u32,
    pub(super) error: &'a dyn std::error::Error,
}

impl InternalEvent for ShardConnectionFailed<'_> {
    fn emit(self) {
        let source = self.error.source().map(ToString::to_string);
        warn!(shard = self.shard, error = %self.error, source, "shard has trouble");
    }
}

/// Discord ended a shard for good.
pub(super) struct ShardClosedFatally<'a> {
    pub(super) shard: u32,
    pub(super) code: u16,
    /// What to do about it.
    pub(super) advice: &'a str,
}

impl InternalEvent for ShardClosedFatally<'_> {
    fn emit(self) {
        error!(shard = self.shard, code = self.code, advice = self.advice, "Discord refused the shard");
        counter!(GATEWAY_DISCONNECTS, "why" => "refused").increment(1);
        gauge!(GATEWAY_SHARD_CONNECTED, "shard" => self.shard.to_string()).set(0);
    }
}

/// A shard closed because we asked it to.
pub(super) struct ShardClosed {
    pub(super) shard: u32,
    /// Whether it had a session, which then lives on for a while.
    pub(super) resumable: bool,
}

impl InternalEvent for ShardClosed {
    fn emit(self) {
        info!(shard = self.shard, resumable = self.resumable, "shard closed");
        gauge!(GATEWAY_SHARD_CONNECTED, "shard" => self.shard.to_string()).set(0);
    }
}

/// The shard may be another process's soon.
pub(super) struct ShardLeaseLost {
    pub(super) shard: u32,
}

impl InternalEvent for ShardLeaseLost {
    fn emit(self) {
        warn!(
            shard = self.shard,
            "shard closes: this process may not count as alive any more, and another may have it"
        );
    }
}

/// There is no room for what a shard reads: it closes until there is.
pub(super) struct ShardPaused {
    pub(super) shard: u32,
    /// What waits to be told.
    pub(super) held: FlowLimit,
}

impl InternalEvent for ShardPaused {
    fn emit(self) {
        let FlowLimit { events, bytes } = self.held;
        warn!(
            shard = self.shard,
            events,
            bytes,
            "shard pauses: its events are not handled as fast as they come; it resumes when there is room"
        );
        counter!(GATEWAY_PAUSED).increment(1);
    }
}

/// Somebody wants a shard to connect anew: it closes, and resumes.
pub(super) struct ShardRestarting {
    pub(super) shard: u32,
    /// Whether it has a session to resume.
    pub(super) resumable: bool,
}

impl InternalEvent for ShardRestarting {
    fn emit(self) {
        info!(shard = self.shard, resumable = self.resumable, "shard restarts, as it was asked to");
    }
}

/// There is room again.
pub(super) struct ShardUnpaused {
    pub(super) shard: u32,
    pub(super) paused: Duration,
}

impl InternalEvent for ShardUnpaused {
    fn emit(self) {
        let paused_ms = u64::try_from(self.paused.as_millis()).unwrap_or(u64::MAX);
        info!(shard = self.shard, paused_ms, "shard goes on");
    }
}

/// Events were dropped, since there was no room.
pub(super) struct EventsShed {
    pub(super) shard: u32,
    pub(super) class: EventClass,
    pub(super) count: u64,
}

impl InternalEvent for EventsShed {
    fn emit(self) {
        debug!(shard = self.shard, class = self.class.name(), count = self.count, "events were shed");
        counter!(GATEWAY_SHED, "class" => self.class.name()).increment(self.count);
    }
}

/// A frame that cannot be read was skipped.
pub(super) struct FrameSkipped<'a> {
    pub(super) shard: u32,
    pub(super) error: &'a dyn std::error::Error,
    /// How many were skipped since the last line about it, if it is time for one.
    pub(super) since: Option<u64>,
}

impl InternalEvent for FrameSkipped<'_> {
    fn emit(self) {
        counter!(GATEWAY_MALFORMED).increment(1);
        if let Some(skipped) = self.since {
            warn!(shard = self.shard, error = %self.error, skipped, "a frame that cannot be read was skipped");
        }
    }
}

/// What became of a shard's wish to identify.
pub(super) enum IdentifyDecided<'a> {
    /// It may, and was counted.
    Granted { shard: u32 },
    /// The day's are used up.
    Spent { shard: u32, again_in: Duration },
    /// They cannot be counted.
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
                    "the day's session starts are used up, and past them Discord resets the token: the shard waits; find \
                     out what keeps starting sessions"
                );
                "spent"
            }
            Self::Uncounted { shard, error, again_in } => {
                let again_in_ms = ms(again_in);
                warn!(shard, error, again_in_ms, "session starts cannot be counted; the shard waits until they can be");
                "uncounted"
            }
        };
        counter!(GATEWAY_IDENTIFIES, "result" => result).increment(1);
    }
}

/// Counts events by their type.
#[derive(Default)]
pub(super) struct EventCounters {
    counters: HashMap<&'static str, Counter, RandomState>,
}

impl EventCounters {
    pub(super) fn count(&mut self, shard: u32, event: &Event) {
        // A fixed set, since it labels a metric.
        let kind = match (&event.name, event.class) {
            (EventName::Known(name), _) => name,
            (EventName::Other(_), EventClass::Interaction) => "interaction",
            (
                EventName::Other(_),
                EventClass::Fleeting | EventClass::Chatter | EventClass::Change | EventClass::Gateway,
            ) => "other",
        };
        let trace_id = || trace_of(&event.origin).id;
        // Counted before it is logged: a reader of the line finds the event in the metric.
        self.counters.entry(kind).or_insert_with(|| counter!(GATEWAY_EVENTS, "type" => kind)).increment(1);
        trace!(shard, kind, sequence = event.origin.seq, trace_id = %trace_id(), "dispatch received");
    }
}

/// Lets one line through in a while, and counts the others.
#[derive(Default)]
pub(super) struct LogThrottle {
    last: Option<Instant>,
    held: u64,
}

impl LogThrottle {
    const WHILE: Duration = Duration::from_secs(10);

    /// How many there were since the last line, this one included, if it is time for one.
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
