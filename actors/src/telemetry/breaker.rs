//! Logs and metrics of breakers and of the ledger of invalid requests.

use std::borrow::Cow;
use std::time::Duration;

use guildhall_core::breaker::{BreakerKey, BreakerReason, BreakerState, CallRejection, ChangeOrigin, ClaimResponse};
use guildhall_core::invalid::ShareExceeded;
use guildhall_core::lane::Lane;
use metrics::{counter, gauge};
use tracing::{debug, info, warn};

use super::{InternalEvent, Metric};

/// State of a breaker: 0 closed, 1 half-open, 2 open, 3 forced open. Routes and ids share one series for each kind,
/// which shows the worst of them.
pub const STATE: &str = "guildhall_breaker_state";
/// Transitions of breakers, by new state.
pub const TRANSITIONS: &str = "guildhall_breaker_transitions_total";
/// Number of breakers.
pub const WATCHED: &str = "guildhall_breakers_watched";
/// Breakers evicted early to make room for others.
pub const EVICTED: &str = "guildhall_breakers_evicted_total";
/// Failures without a breaker, because there was no room for one.
pub const UNWATCHED: &str = "guildhall_breakers_unwatched_total";
/// Used share of the invalid requests that Discord allows.
pub const INVALID_RATIO: &str = "guildhall_invalid_requests_used_ratio";
/// Whether the ledger is in sync with the other processes that share the budget of invalid requests: 1, or 0 while
/// nothing may be sent because it is not. Absent if nothing is shared.
pub const INVALID_IN_SYNC: &str = "guildhall_invalid_requests_heard";
/// Used part of its share of the invalid requests, for the largest key, tenant or guild.
pub const INVALID_LARGEST_SHARE: &str = "guildhall_invalid_requests_largest_share_ratio";
/// Calls delayed because a key, tenant or guild has used up its share of the invalid requests.
pub const INVALID_SHARE_HELD: &str = "guildhall_invalid_requests_share_held_total";
/// Calls to Discord that were refused, by reason.
pub const REFUSED: &str = "guildhall_rest_refused_total";
/// Calls to other upstreams that were refused, by reason.
pub const TARGET_REFUSED: &str = "guildhall_target_refused_total";
/// Probes sent by breakers.
pub const PROBES: &str = "guildhall_breaker_probes_sent_total";
/// Responses to claims to probe a shared breaker, by result: `granted`, `elsewhere`, or `unreachable` if this process
/// probes because it cannot reach the others.
pub const PROBE_CLAIMS: &str = "guildhall_breaker_probe_claims_total";

/// All metrics of this module.
pub(super) const METRICS: &[Metric] = &[
    Metric::gauge(STATE, &["key"], "State of a breaker: 0 closed, 1 half-open, 2 open, 3 forced open."),
    Metric::counter(TRANSITIONS, &["key", "to"], "Transitions of breakers."),
    Metric::gauge(WATCHED, &[], "Number of breakers."),
    Metric::counter(EVICTED, &[], "Breakers evicted early to make room for others."),
    Metric::counter(UNWATCHED, &[], "Failures without a breaker, because there was no room for one."),
    Metric::gauge(INVALID_RATIO, &[], "Used share of the invalid requests that Discord allows."),
    Metric::gauge(
        INVALID_IN_SYNC,
        &[],
        "1 while the use of a shared budget of invalid requests by other processes is known, else 0: then nothing is \
         sent.",
    ),
    Metric::gauge(
        INVALID_LARGEST_SHARE,
        &[],
        "Used part of its share of the invalid requests, for the largest key, tenant or guild.",
    ),
    Metric::counter(
        INVALID_SHARE_HELD,
        &["by"],
        "Calls delayed because a key, tenant or guild has used up its share of the invalid requests.",
    ),
    Metric::counter(REFUSED, &["reason"], "Calls to Discord that were refused."),
    Metric::counter(TARGET_REFUSED, &["reason"], "Calls to other upstreams that were refused."),
    Metric::counter(PROBES, &[], "Probes sent by breakers."),
    Metric::counter(
        PROBE_CLAIMS,
        &["result"],
        "Responses to claims to probe a shared breaker: granted, elsewhere, unreachable.",
    ),
];

/// The breakers started, all closed. Creates the series that alerts use.
pub(crate) struct BreakersStarted;

impl InternalEvent for BreakersStarted {
    fn emit(self) {
        debug!("breakers started");
        gauge!(STATE, "key" => "discord").set(0.0);
        gauge!(WATCHED).set(0.0);
        gauge!(INVALID_RATIO).set(0.0);
        gauge!(INVALID_LARGEST_SHARE).set(0.0);
    }
}

/// A breaker changed its state.
pub(crate) struct BreakerTransitioned<'a> {
    pub(crate) key: &'a BreakerKey,
    pub(crate) from: BreakerState,
    pub(crate) to: BreakerState,
    pub(crate) reason: BreakerReason,
    pub(crate) origin: ChangeOrigin,
    /// Time in the open state.
    pub(crate) retry_after_ms: Option<u64>,
    /// The key as a label, out of a bounded set.
    pub(crate) label: Cow<'static, str>,
    /// The worst state under that label.
    pub(crate) severity: u8,
}

impl InternalEvent for BreakerTransitioned<'_> {
    fn emit(self) {
        let (key, from, to, why) = (self.key, self.from.name(), self.to.name(), self.reason.name());
        let origin = self.origin.name();
        match self.to {
            BreakerState::Open { .. } | BreakerState::ForcedOpen { .. } => {
                warn!(%key, from, to, why, origin, retry_after_ms = self.retry_after_ms, "breaker opened");
            }
            BreakerState::HalfOpen => info!(%key, from, to, why, origin, "breaker half-open; probing"),
            BreakerState::Closed => info!(%key, from, to, why, origin, "breaker closed"),
        }
        counter!(TRANSITIONS, "key" => self.label.clone(), "to" => to).increment(1);
        gauge!(STATE, "key" => self.label).set(f64::from(self.severity));
    }
}

/// A claim to probe a shared breaker was answered.
pub(crate) struct ProbeClaimAnswered<'a> {
    pub(crate) key: &'a BreakerKey,
    /// `None` if the other processes cannot be reached.
    pub(crate) response: Option<ClaimResponse>,
}

impl InternalEvent for ProbeClaimAnswered<'_> {
    fn emit(self) {
        let result = match self.response {
            Some(ClaimResponse::Granted) => "granted",
            Some(ClaimResponse::HeldElsewhere { .. }) => "elsewhere",
            None => "unreachable",
        };
        info!(key = %self.key, result, "breaker probe claimed");
        counter!(PROBE_CLAIMS, "result" => result).increment(1);
    }
}

/// A breaker sends a probe, because no suitable call came.
pub(crate) struct ProbeSent<'a> {
    pub(crate) key: &'a BreakerKey,
}

impl InternalEvent for ProbeSent<'_> {
    fn emit(self) {
        debug!(key = %self.key, "breaker probe sent");
        counter!(PROBES).increment(1);
    }
}

/// A call to Discord was refused.
pub(crate) struct CallRefused<'a> {
    pub(crate) refused: &'a CallRejection,
    pub(crate) lane: Lane,
    pub(crate) guild: Option<u64>,
}

impl InternalEvent for CallRefused<'_> {
    fn emit(self) {
        let CallRejection { key, reason, .. } = self.refused;
        debug!(key, reason, lane = self.lane.name(), guild_id = self.guild, "call refused");
        counter!(REFUSED, "reason" => *reason).increment(1);
    }
}

/// A call to another upstream was refused.
pub(crate) struct TargetRefused<'a> {
    pub(crate) refused: &'a CallRejection,
}

impl InternalEvent for TargetRefused<'_> {
    fn emit(self) {
        let CallRejection { key, reason, .. } = self.refused;
        debug!(key, reason, "call refused");
        counter!(TARGET_REFUSED, "reason" => *reason).increment(1);
    }
}

/// The number of breakers changed.
pub(crate) struct BreakersCounted {
    pub(crate) watched: usize,
    pub(crate) evicted: u64,
    pub(crate) unwatched: u64,
}

impl InternalEvent for BreakersCounted {
    fn emit(self) {
        debug!(watched = self.watched, evicted = self.evicted, unwatched = self.unwatched, "breakers counted");
        gauge!(WATCHED).set(self.watched as f64);
        counter!(EVICTED).absolute(self.evicted);
        counter!(UNWATCHED).absolute(self.unwatched);
    }
}

/// The used part of the budget of invalid requests has changed.
pub(crate) struct InvalidRatioChanged {
    pub(crate) ratio: f64,
}

impl InternalEvent for InvalidRatioChanged {
    fn emit(self) {
        gauge!(INVALID_RATIO).set(self.ratio);
    }
}

/// The use of its share by the largest holder has changed.
pub(crate) struct LargestShareChanged {
    pub(crate) ratio: f64,
}

impl InternalEvent for LargestShareChanged {
    fn emit(self) {
        gauge!(INVALID_LARGEST_SHARE).set(self.ratio);
    }
}

/// A call was delayed because its key, tenant or guild has used up its share.
pub(crate) struct CallHeldByShare<'a> {
    pub(crate) exceeded: &'a ShareExceeded,
    pub(crate) wait: Duration,
}

impl InternalEvent for CallHeldByShare<'_> {
    fn emit(self) {
        let ShareExceeded { holder, used, cap, is_first } = self.exceeded;
        let (by, id, wait_ms) = (holder.kind().name(), holder.id(), self.wait.as_millis());
        if *is_first {
            warn!(by, id, used, cap, wait_ms, "share of invalid requests used up");
        } else {
            debug!(by, id, used, cap, wait_ms, "call delayed by its share of invalid requests");
        }
        counter!(INVALID_SHARE_HELD, "by" => by).increment(1);
    }
}

/// The lanes that the budget of invalid requests stops have changed.
pub(crate) struct InvalidThresholdCrossed {
    pub(crate) ratio: f64,
    /// The most urgent stopped lane.
    pub(crate) stopped: Option<Lane>,
}

impl InternalEvent for InvalidThresholdCrossed {
    fn emit(self) {
        match self.stopped {
            Some(lane) => {
                warn!(
                    ratio = self.ratio,
                    stopped = lane.name(),
                    "invalid requests stop this lane and less urgent \
                    ones"
                );
            }
            None => info!(ratio = self.ratio, "invalid requests no longer stop any lane"),
        }
    }
}

/// The ledger had no update of the other processes for too long.
pub(crate) struct LedgerOutOfSync;

impl InternalEvent for LedgerOutOfSync {
    fn emit(self) {
        // Also at the start and the end of a process, so not a warning. An unreachable Redis is reported elsewhere.
        info!("invalid requests of other processes unknown until the next sync");
        gauge!(INVALID_IN_SYNC).set(0.0);
    }
}

/// The ledger is in sync with the other processes.
pub(crate) struct LedgerInSync;

impl InternalEvent for LedgerInSync {
    fn emit(self) {
        info!("invalid requests of other processes known");
        gauge!(INVALID_IN_SYNC).set(1.0);
    }
}
