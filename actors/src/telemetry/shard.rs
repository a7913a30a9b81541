//! Logs and metrics of shards.

use std::{collections::HashMap, time::Duration};

use foldhash::fast::RandomState;
use guildhall_core::event::{Event, EventClass, EventName, handler::trace as trace_of};
use guildhall_core::failure_streak::{FailureSummary, Recovery};
use guildhall_core::time::millis;
use metrics::Counter;
use tracing::{debug, error, info, trace, warn};

use super::{counter, event, gauge, metrics};
use crate::ports::StoreError;
use crate::shard::FlowLimit;
use crate::shard::connection_state::{DisconnectClass, DisconnectReason};

metrics! {
    Gateway {
        /// Gateway dispatches received, by type.
        pub GATEWAY_EVENTS = counter "guildhall_gateway_events_total" [type];
        /// 1 while a shard has a session that receives events, else 0.
        pub GATEWAY_SHARD_CONNECTED = gauge "guildhall_gateway_shard_connected" [shard];
        /// Gateway sessions that started (ready) or resumed (resumed).
        GATEWAY_SESSIONS = counter "guildhall_gateway_sessions_total" [how];
        /// Gateway connections that ended or failed, by reason.
        GATEWAY_DISCONNECTS = counter "guildhall_gateway_disconnects_total" [why];
        /// Gateway reconnects, by the reason why the previous connection ended or failed.
        GATEWAY_RECONNECTS = counter "guildhall_gateway_reconnects_total" [why];
        /// Gateway frames that could not be parsed and were skipped.
        GATEWAY_MALFORMED = counter "guildhall_gateway_malformed_total";
        /// Times that a shard disconnected because its event buffer was full.
        GATEWAY_PAUSED = counter "guildhall_gateway_paused_total";
        /// Gateway events that were dropped because the buffer was full, by class.
        GATEWAY_SHED = counter "guildhall_gateway_shed_total" [class];
    }
}

event! {
    /// A shard is about to connect for the first time.
    pub(crate) struct ShardStarted {
        shard: u32,
        /// The sequence number that it resumes from, if it has a session.
        resumes_from: Option<u64>,
    }
    debug!(shard, resumes_from, "shard starting");
    gauge!(GATEWAY_SHARD_CONNECTED, "shard" => shard.to_string()).set(0);
}

event! {
    /// A shard has a session that receives events.
    pub(crate) struct ShardConnected {
        shard: u32,
        /// `ready` for a new session, `resumed` for an existing one.
        how: &'static str,
        /// The failures before, if they were logged.
        recovery: Option<Recovery>,
    }
    let failures = recovery.map(|recovery| recovery.failures);
    let failed_for_s = recovery.map(|recovery| recovery.failed_for.as_secs());
    info!(shard, how, failures, failed_for_s, "shard connected");
    counter!(GATEWAY_SESSIONS, "how" => how).increment(1);
    gauge!(GATEWAY_SHARD_CONNECTED, "shard" => shard.to_string()).set(1);
}

event! {
    /// A shard's connection ended or could not be made; another attempt follows.
    pub(crate) struct ShardDisconnected {
        shard: u32,
        reason: DisconnectReason,
        /// What to log if it is a failure, and a line is due.
        summary: Option<FailureSummary>,
    }
    let (why, code) = (reason.name(), reason.code());
    let (failures, failing_for_s) = summary.map_or((None, None), |summary| summary.repeated());
    match (reason.class(), summary) {
        (DisconnectClass::Routine, _) => info!(shard, why, code, "shard disconnected"),
        (DisconnectClass::Lost, Some(_)) => {
            warn!(shard, why, code, failures, failing_for_s, "shard disconnected");
        }
        // A later line counts it, or the line about the failed connection reports it.
        (DisconnectClass::Lost, None) | (DisconnectClass::Failed, _) => {
            debug!(shard, why, code, "shard disconnected");
        }
    }
    counter!(GATEWAY_RECONNECTS, "why" => why).increment(1);
    let kind = if reason.class() == DisconnectClass::Failed { "error" } else { "closed" };
    counter!(GATEWAY_DISCONNECTS, "why" => kind).increment(1);
    gauge!(GATEWAY_SHARD_CONNECTED, "shard" => shard.to_string()).set(0);
}

event! {
    /// Names of guilds could not be stored; another attempt follows.
    pub(crate) struct GuildsNotRecorded<'a> { count: usize, error: &'a StoreError }
    warn!(count, %error, "cannot store the names of guilds; retrying");
}

event! {
    /// A connection could not be made, or its data could not be decompressed.
    pub(crate) struct ShardConnectionFailed<'a> {
        shard: u32,
        error: &'a dyn std::error::Error,
        /// What to log, if a line is due.
        summary: Option<FailureSummary>,
    }
    let source = error.source().map(ToString::to_string);
    match summary {
        Some(summary) => {
            let (failures, failing_for_s) = summary.repeated();
            warn!(shard, %error, source, failures, failing_for_s, "shard connection failed");
        }
        None => debug!(shard, %error, source, "shard connection failed"),
    }
}

event! {
    /// Discord closed a shard permanently.
    pub(crate) struct ShardClosedFatally<'a> {
        shard: u32,
        code: u16,
        /// How to fix the cause.
        advice: &'a str,
    }
    error!(shard, code, advice, "Discord rejected the shard");
    counter!(GATEWAY_DISCONNECTS, "why" => "refused").increment(1);
    gauge!(GATEWAY_SHARD_CONNECTED, "shard" => shard.to_string()).set(0);
}

event! {
    /// A shard closed as requested.
    pub(crate) struct ShardClosed {
        shard: u32,
        /// Whether it had a session, which stays resumable for a while.
        resumable: bool,
    }
    info!(shard, resumable, "shard closed");
    gauge!(GATEWAY_SHARD_CONNECTED, "shard" => shard.to_string()).set(0);
}

event! {
    /// The shard may soon belong to another process.
    pub(crate) struct ShardLeaseLost { shard: u32 }
    warn!(shard, "shard closing: lease lost; another process may take it over");
}

event! {
    /// There is no room for the events of a shard: it closes until there is.
    pub(crate) struct ShardPaused {
        shard: u32,
        /// Events and bytes that wait to be forwarded.
        held: FlowLimit,
    }
    let FlowLimit { events, bytes } = held;
    warn!(
        shard, events, bytes,
        "shard paused: events arrive faster than they are handled; it resumes when there is room"
    );
    counter!(GATEWAY_PAUSED).increment(1);
}

event! {
    /// A restart of a shard was requested: it closes, and resumes.
    pub(crate) struct ShardRestarting {
        shard: u32,
        /// Whether it has a session to resume.
        resumable: bool,
    }
    info!(shard, resumable, "shard restarting as requested");
}

event! {
    /// There is room again; the shard continues.
    pub(crate) struct ShardUnpaused { shard: u32, paused: Duration }
    info!(shard, paused_ms = millis(paused), "shard resumed after pause");
}

event! {
    /// Events were dropped because there was no room.
    pub(crate) struct EventsShed { shard: u32, class: EventClass, count: u64 }
    debug!(shard, class = class.name(), count, "events shed");
    counter!(GATEWAY_SHED, "class" => class.name()).increment(count);
}

event! {
    /// A malformed frame was skipped.
    pub(crate) struct FrameSkipped<'a> {
        shard: u32,
        error: &'a dyn std::error::Error,
        /// What to log, if a line is due.
        summary: Option<FailureSummary>,
    }
    counter!(GATEWAY_MALFORMED).increment(1);
    if let Some(summary) = summary {
        let (failures, failing_for_s) = summary.repeated();
        warn!(shard, %error, failures, failing_for_s, "malformed frame skipped");
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
