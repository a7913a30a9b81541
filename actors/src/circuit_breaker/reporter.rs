//! Reports transitions to the log, metrics and subscribers, and values when they change.

use std::borrow::Cow;
use std::collections::HashSet;

use guildhall_core::breaker::{BreakerKey, BreakerReason, BreakerState, Breakers, ChangeOrigin};
use guildhall_core::invalid::InvalidLedger;
use guildhall_core::lane::Lane;
use guildhall_core::response::Credential;
use guildhall_core::time::Timestamp;
use serde::Serialize;
use tokio::sync::{broadcast, watch};

use super::send_block::{OpenGates, SendBlock};
use crate::telemetry::breaker::{
    BreakerTransitioned, BreakersCounted, InvalidRatioChanged, InvalidThresholdCrossed, LargestShareChanged,
    LedgerInSync, LedgerOutOfSync, SendingBlocked, SendingResumed,
};
use crate::telemetry::emit;
use crate::wall_clock::WallClock;

/// Number of transitions that a slow subscriber may lag behind before it misses some.
const EVENT_CAPACITY: usize = 256;

/// Number of targets with a metric label of their own.
const TARGET_LABELS: usize = 64;

/// A breaker changed its state. Subscribers and the log get the same data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BreakerChanged {
    /// The breaker.
    pub key: BreakerKey,
    /// Previous state.
    pub from: BreakerState,
    /// New state.
    pub to: BreakerState,
    /// Reason for the transition.
    pub why: BreakerReason,
    /// Whether this process or another one decided it.
    pub origin: ChangeOrigin,
    /// Remaining time in the open state. `None` if the breaker is not open, or the time is unknown.
    pub retry_after_ms: Option<u64>,
}

impl BreakerChanged {
    pub(super) fn new(
        key: BreakerKey,
        from: BreakerState,
        to: BreakerState,
        reason: BreakerReason,
        origin: ChangeOrigin,
        now: Timestamp,
    ) -> Self {
        let retry_after_ms = match to {
            BreakerState::Open { until } => u64::try_from(until.since(now).as_millis()).ok(),
            BreakerState::Closed | BreakerState::HalfOpen | BreakerState::ForcedOpen { .. } => None,
        };
        Self { key, from, to, why: reason, origin, retry_after_ms }
    }
}

pub(super) struct BreakerReporter {
    events: broadcast::Sender<BreakerChanged>,
    /// Targets with a metric label of their own.
    named: HashSet<String>,
    last: LastReported,
    open_gates: OpenGates,
    send_block: watch::Sender<Option<SendBlock>>,
    /// When calls could last be sent, if they cannot now.
    blocked_since: Option<Timestamp>,
}

/// Last reported values, so that each is reported once.
struct LastReported {
    watched: usize,
    evicted: u64,
    unwatched: u64,
    ratio: f64,
    largest_share: f64,
    stopped: Option<Lane>,
    in_sync: bool,
}

impl BreakerReporter {
    pub(super) fn new() -> Self {
        let last = LastReported {
            watched: 0,
            evicted: 0,
            unwatched: 0,
            ratio: 0.0,
            largest_share: 0.0,
            stopped: None,
            in_sync: true,
        };
        Self {
            events: broadcast::Sender::new(EVENT_CAPACITY),
            named: HashSet::new(),
            last,
            open_gates: OpenGates::default(),
            send_block: watch::Sender::new(None),
            blocked_since: None,
        }
    }

    pub(super) fn subscribe(&self) -> broadcast::Receiver<BreakerChanged> {
        self.events.subscribe()
    }

    /// Follows whether any call can be sent.
    pub(super) fn watch_send_block(&self) -> watch::Receiver<Option<SendBlock>> {
        self.send_block.subscribe()
    }

    /// Reports a transition. `worst` is the worst state among breakers of its kind.
    pub(super) fn on_transition(&mut self, changed: BreakerChanged, worst: u8, now: Timestamp) {
        self.open_gates.on_transition(&changed.key, changed.to, changed.why, now, WallClock::system().now());
        let BreakerChanged { ref key, from, to, why: reason, origin, retry_after_ms } = changed;
        let (label, severity) = self.label(key, to, worst);
        emit(BreakerTransitioned { key, from, to, reason, origin, retry_after_ms, label, severity });
        // There may be no subscribers.
        let _ = self.events.send(changed);
    }

    /// Returns the metric label of the key, and the worst state under that label. Routes and ids have no label of their
    /// own, because their number is unbounded.
    fn label(&mut self, key: &BreakerKey, to: BreakerState, worst: u8) -> (Cow<'static, str>, u8) {
        match key {
            // A caller may bring any token.
            BreakerKey::Discord(Credential::Token(_)) => ("token".into(), worst),
            BreakerKey::Address | BreakerKey::Discord(_) => (key.to_string().into(), to.severity()),
            BreakerKey::Target(name) if self.named.contains(name) || self.named.len() < TARGET_LABELS => {
                self.named.insert(name.clone());
                (key.to_string().into(), to.severity())
            }
            BreakerKey::Route(..) | BreakerKey::Pair(..) | BreakerKey::Target(_) => (key.kind().name().into(), worst),
        }
    }

    /// Reports the values that have changed since the last call.
    pub(super) fn report_changes(&mut self, breakers: &Breakers, ledger: &mut InvalidLedger, now: Timestamp) {
        let next = LastReported {
            watched: breakers.len(),
            evicted: breakers.evicted(),
            unwatched: breakers.unwatched(),
            ratio: ledger.used_ratio(now),
            largest_share: ledger.largest_share_ratio(),
            stopped: ledger.stopped_lane(now),
            in_sync: ledger.has_lease(),
        };
        let LastReported { watched, evicted, unwatched, ratio, largest_share, stopped, in_sync } = next;
        if (watched, evicted, unwatched) != (self.last.watched, self.last.evicted, self.last.unwatched) {
            emit(BreakersCounted { watched, evicted, unwatched });
        }
        if ratio != self.last.ratio {
            emit(InvalidRatioChanged { ratio });
        }
        if largest_share != self.last.largest_share {
            emit(LargestShareChanged { ratio: largest_share });
        }
        if stopped != self.last.stopped {
            emit(InvalidThresholdCrossed { ratio, stopped });
        }
        match (self.last.in_sync, in_sync) {
            (true, false) => emit(LedgerOutOfSync),
            (false, true) => emit(LedgerInSync),
            (true, true) | (false, false) => {}
        }
        self.last = next;
        self.report_send_block(ledger, now);
    }

    /// Reports that nothing can be sent, or that calls can be sent again.
    fn report_send_block(&mut self, ledger: &mut InvalidLedger, now: Timestamp) {
        let is_used_up = self.last.stopped == Some(Lane::Interactive);
        let block = self.open_gates.block().or_else(|| is_used_up.then_some(SendBlock::InvalidRequests));
        if block == *self.send_block.borrow() {
            return;
        }
        match &block {
            Some(block) => {
                let is_new = self.send_block.borrow().as_ref().is_none_or(|known| known.name() != block.name());
                if is_new {
                    let spenders =
                        if block.is_about_invalid_requests() { ledger.top_spenders(now) } else { Vec::new() };
                    emit(SendingBlocked { block, spenders: &spenders });
                }
                self.blocked_since.get_or_insert(now);
            }
            None => emit(SendingResumed { blocked: now.since(self.blocked_since.take().unwrap_or(now)) }),
        }
        self.send_block.send_replace(block);
    }
}
