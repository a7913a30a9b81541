//! Logs and metrics of shards.

use std::{collections::HashMap, time::Duration};

use foldhash::fast::RandomState;
use guildhall_core::event::{Event, EventClass, EventName, handler::trace as trace_of};
use metrics::{Counter, counter, gauge};
use tokio::time::Instant;
use tracing::{debug, error, info, trace, warn};

use super::{InternalEvent, Metric};
use crate::shard::FlowLimit;
use crate::shard::connection_state::DisconnectReason;

/// Dispatches received, by type.
pub const GATEWAY_EVENTS: &str = "guildhall_gateway_events_total";

/// 1 while a shard has a session that receives events, else 0.
pub const GATEWAY_SHARD_CONNECTED: &str = "guildhall_gateway_shard_connected";

/// Sessions that started or resumed.
pub const GATEWAY_SESSIONS: &str = "guildhall_gateway_sessions_total";

/// Connections that ended or failed, by reason.
pub const GATEWAY_DISCONNECTS: &str = "guildhall_gateway_disconnects_total";

/// Reconnects, by the reason why the previous connection ended or failed.
pub const GATEWAY_RECONNECTS: &str = "guildhall_gateway_reconnects_total";

/// Frames that could not be parsed.
pub const GATEWAY_MALFORMED: &str = "guildhall_gateway_malformed_total";

/// Times that a shard disconnected because its event buffer was full.
pub const GATEWAY_PAUSED: &str = "guildhall_gateway_paused_total";

/// Events that were dropped because the buffer was full, by class.
pub const GATEWAY_SHED: &str = "guildhall_gateway_shed_total";

/// All metrics of this module.
pub(super) const METRICS: &[Metric] = &[
    Metric::counter(GATEWAY_EVENTS, &["type"], "Gateway dispatches received, by type."),
    Metric::gauge(GATEWAY_SHARD_CONNECTED, &["shard"], "1 while a shard has a session that receives events, else 0."),
    Metric::counter(GATEWAY_SESSIONS, &["how"], "Gateway sessions that started (ready) or resumed (resumed)."),
    Metric::counter(GATEWAY_DISCONNECTS, &["why"], "Gateway connections that ended or failed, by reason."),
    Metric::counter(
        GATEWAY_RECONNECTS,
        &["why"],
        "Gateway reconnects, by the reason why the previous connection ended or failed.",
    ),
    Metric::counter(GATEWAY_MALFORMED, &[], "Gateway frames that could not be parsed and were skipped."),
    Metric::counter(GATEWAY_PAUSED, &[], "Times that a shard disconnected because its event buffer was full."),
    Metric::counter(
        GATEWAY_SHED,
        &["class"],
        "Gateway events that were dropped because the buffer was full, by \
        class.",
    ),
];

/// A shard is about to connect for the first time.
pub(crate) struct ShardStarted {
    pub(crate) shard: u32,
    /// The sequence number that it resumes from, if it has a session.
    pub(crate) resumes_from: Option<u64>,
}

impl InternalEvent for ShardStarted {
    fn emit(self) {
        debug!(shard = self.shard, resumes_from = self.resumes_from, "shard starting");
        gauge!(GATEWAY_SHARD_CONNECTED, "shard" => self.shard.to_string()).set(0);
    }
}

/// A shard has a session that receives events.
pub(crate) struct ShardConnected {
    pub(crate) shard: u32,
    /// `ready` for a new session, `resumed` for an existing one.
    pub(crate) how: &'static str,
}

impl InternalEvent for ShardConnected {
    fn emit(self) {
        info!(shard = self.shard, how = self.how, "shard connected");
        counter!(GATEWAY_SESSIONS, "how" => self.how).increment(1);
        gauge!(GATEWAY_SHARD_CONNECTED, "shard" => self.shard.to_string()).set(1);
    }
}

/// A shard's connection ended or could not be made; another attempt follows.
pub(crate) struct ShardDisconnected {
    pub(crate) shard: u32,
    pub(crate) reason: DisconnectReason,
}

impl InternalEvent for ShardDisconnected {
    fn emit(self) {
        let (why, code) = (self.reason.name(), self.reason.code());
        match self.reason {
            // Routine in Discord's operation, or expected because the shard was paused or restarted.
            DisconnectReason::ReconnectRequested
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
        let kind = if matches!(self.reason, DisconnectReason::Unreachable | DisconnectReason::Unreadable) {
            "error"
        } else {
            "closed"
        };
        counter!(GATEWAY_DISCONNECTS, "why" => kind).increment(1);
        gauge!(GATEWAY_SHARD_CONNECTED, "shard" => self.shard.to_string()).set(0);
    }
}

/// A connection could not be made, or its data could not be decompressed.
pub(crate) struct ShardConnectionFailed<'a> {
    pub(crate) shard: u32,
    pub(crate) error: &'a dyn std::error::Error,
}

impl InternalEvent for ShardConnectionFailed<'_> {
    fn emit(self) {
        let source = self.error.source().map(ToString::to_string);
        warn!(shard = self.shard, error = %self.error, source, "shard connection failed");
    }
}

/// Discord closed a shard permanently.
pub(crate) struct ShardClosedFatally<'a> {
    pub(crate) shard: u32,
    pub(crate) code: u16,
    /// How to fix the cause.
    pub(crate) advice: &'a str,
}

impl InternalEvent for ShardClosedFatally<'_> {
    fn emit(self) {
        error!(shard = self.shard, code = self.code, advice = self.advice, "Discord rejected the shard");
        counter!(GATEWAY_DISCONNECTS, "why" => "refused").increment(1);
        gauge!(GATEWAY_SHARD_CONNECTED, "shard" => self.shard.to_string()).set(0);
    }
}

/// A shard closed as requested.
pub(crate) struct ShardClosed {
    pub(crate) shard: u32,
    /// Whether it had a session, which stays resumable for a while.
    pub(crate) resumable: bool,
}

impl InternalEvent for ShardClosed {
    fn emit(self) {
        info!(shard = self.shard, resumable = self.resumable, "shard closed");
        gauge!(GATEWAY_SHARD_CONNECTED, "shard" => self.shard.to_string()).set(0);
    }
}

/// The shard may soon belong to another process.
pub(crate) struct ShardLeaseLost {
    pub(crate) shard: u32,
}

impl InternalEvent for ShardLeaseLost {
    fn emit(self) {
        warn!(shard = self.shard, "shard closing: lease lost; another process may take it over");
    }
}

/// There is no room for the events of a shard: it closes until there is.
pub(crate) struct ShardPaused {
    pub(crate) shard: u32,
    /// Events and bytes that wait to be forwarded.
    pub(crate) held: FlowLimit,
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
pub(crate) struct ShardRestarting {
    pub(crate) shard: u32,
    /// Whether it has a session to resume.
    pub(crate) resumable: bool,
}

impl InternalEvent for ShardRestarting {
    fn emit(self) {
        info!(shard = self.shard, resumable = self.resumable, "shard restarting as requested");
    }
}

/// There is room again; the shard continues.
pub(crate) struct ShardUnpaused {
    pub(crate) shard: u32,
    pub(crate) paused: Duration,
}

impl InternalEvent for ShardUnpaused {
    fn emit(self) {
        let paused_ms = u64::try_from(self.paused.as_millis()).unwrap_or(u64::MAX);
        info!(shard = self.shard, paused_ms, "shard resumed after pause");
    }
}

/// Events were dropped because there was no room.
pub(crate) struct EventsShed {
    pub(crate) shard: u32,
    pub(crate) class: EventClass,
    pub(crate) count: u64,
}

impl InternalEvent for EventsShed {
    fn emit(self) {
        debug!(shard = self.shard, class = self.class.name(), count = self.count, "events shed");
        counter!(GATEWAY_SHED, "class" => self.class.name()).increment(self.count);
    }
}

/// A malformed frame was skipped.
pub(crate) struct FrameSkipped<'a> {
    pub(crate) shard: u32,
    pub(crate) error: &'a dyn std::error::Error,
    /// Number of skipped frames since the last log line, if a line is due.
    pub(crate) skipped: Option<u64>,
}

impl InternalEvent for FrameSkipped<'_> {
    fn emit(self) {
        counter!(GATEWAY_MALFORMED).increment(1);
        if let Some(skipped) = self.skipped {
            warn!(shard = self.shard, error = %self.error, skipped, "malformed frame skipped");
        }
    }
}

/// Counts events by type.
#[derive(Default)]
pub(crate) struct EventCounters {
    counters: HashMap<&'static str, Counter, RandomState>,
}

impl EventCounters {
    pub(crate) fn count(&mut self, shard: u32, event: &Event) {
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
pub(crate) struct LogThrottle {
    last: Option<Instant>,
    suppressed: u64,
}

impl LogThrottle {
    const INTERVAL: Duration = Duration::from_secs(10);

    /// Returns how many there were since the last line, including this one, if a line is due.
    pub(crate) fn record(&mut self, now: Instant) -> Option<u64> {
        self.suppressed += 1;
        if self.last.is_some_and(|last| now.duration_since(last) < Self::INTERVAL) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttle_permits_one_line_per_interval_with_the_count() {
        let (mut seldom, start) = (LogThrottle::default(), Instant::now());
        assert_eq!(seldom.record(start), Some(1));
        assert_eq!(seldom.record(start + Duration::from_secs(1)), None);
        assert_eq!(seldom.record(start + Duration::from_secs(9)), None);
        assert_eq!(seldom.record(start + Duration::from_secs(10)), Some(3));
    }
}
