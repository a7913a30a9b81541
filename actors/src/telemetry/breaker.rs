//! Logs and metrics of breakers and of the ledger of invalid requests.

use std::borrow::Cow;
use std::time::Duration;

use guildhall_core::breaker::{BreakerKey, BreakerReason, BreakerState, CallRejection, ChangeOrigin, ClaimResponse};
use guildhall_core::invalid::{ShareExceeded, Spender};
use guildhall_core::lane::Lane;
use tracing::{debug, error, info, warn};

use super::{counter, event, gauge, metrics};
use crate::circuit_breaker::SendBlock;

metrics! {
    Gate {
        // Routes and ids share one series for each kind, which shows the worst of them.
        /// State of a breaker: 0 closed, 1 half-open, 2 open, 3 forced open.
        STATE = gauge "guildhall_breaker_state" [key];
        /// Transitions of breakers.
        TRANSITIONS = counter "guildhall_breaker_transitions_total" [key, to];
        /// Number of breakers.
        WATCHED = gauge "guildhall_breakers_watched";
        /// Breakers evicted early to make room for others.
        EVICTED = counter "guildhall_breakers_evicted_total";
        /// Failures without a breaker, because there was no room for one.
        UNWATCHED = counter "guildhall_breakers_unwatched_total";
        /// Used share of the invalid requests that Discord allows.
        INVALID_RATIO = gauge "guildhall_invalid_requests_used_ratio";
        // Absent if nothing is shared.
        /// 1 while the use of a shared budget of invalid requests by other processes is known, else 0: then nothing is
        /// sent.
        INVALID_IN_SYNC = gauge "guildhall_invalid_requests_heard";
        /// Used part of its share of the invalid requests, for the largest key, tenant or guild.
        INVALID_LARGEST_SHARE = gauge "guildhall_invalid_requests_largest_share_ratio";
        /// Calls delayed because a key, tenant or guild has used up its share of the invalid requests.
        INVALID_SHARE_HELD = counter "guildhall_invalid_requests_share_held_total" [by];
        /// Calls to Discord that were refused.
        REFUSED = counter "guildhall_rest_refused_total" [reason];
        /// Calls to other upstreams that were refused.
        TARGET_REFUSED = counter "guildhall_target_refused_total" [reason];
        /// Probes sent by breakers.
        PROBES = counter "guildhall_breaker_probes_sent_total";
        // `unreachable`: this process probes, because it cannot reach the others.
        /// Responses to claims to probe a shared breaker: granted, elsewhere, unreachable.
        PROBE_CLAIMS = counter "guildhall_breaker_probe_claims_total" [result];
    }
}

event! {
    /// The breakers started, all closed. Creates the series that alerts use.
    pub(crate) struct BreakersStarted;
    debug!("breakers started");
    gauge!(STATE, "key" => "discord").set(0.0);
    gauge!(WATCHED).set(0.0);
    gauge!(INVALID_RATIO).set(0.0);
    gauge!(INVALID_LARGEST_SHARE).set(0.0);
}

event! {
    /// A breaker changed its state.
    pub(crate) struct BreakerTransitioned<'a> {
        key: &'a BreakerKey,
        from: BreakerState,
        to: BreakerState,
        reason: BreakerReason,
        origin: ChangeOrigin,
        /// Time in the open state.
        retry_after_ms: Option<u64>,
        /// The key as a label, out of a bounded set.
        label: Cow<'static, str>,
        /// The worst state under that label.
        severity: u8,
    }
    let (state, from, to, why, origin) = (to, from.name(), to.name(), reason.name(), origin.name());
    match state {
        BreakerState::Open { .. } | BreakerState::ForcedOpen { .. } => {
            warn!(%key, from, to, why, origin, retry_after_ms, "breaker opened");
        }
        BreakerState::HalfOpen => info!(%key, from, to, why, origin, "breaker half-open; probing"),
        BreakerState::Closed => info!(%key, from, to, why, origin, "breaker closed"),
    }
    counter!(TRANSITIONS, "key" => label.clone(), "to" => to).increment(1);
    gauge!(STATE, "key" => label).set(f64::from(severity));
}

event! {
    /// A claim to probe a shared breaker was answered.
    pub(crate) struct ProbeClaimAnswered<'a> {
        key: &'a BreakerKey,
        /// `None` if the other processes cannot be reached.
        response: Option<ClaimResponse>,
    }
    let result = match response {
        Some(ClaimResponse::Granted) => "granted",
        Some(ClaimResponse::HeldElsewhere { .. }) => "elsewhere",
        None => "unreachable",
    };
    info!(%key, result, "breaker probe claimed");
    counter!(PROBE_CLAIMS, "result" => result).increment(1);
}

event! {
    /// A breaker sends a probe, because no suitable call came.
    pub(crate) struct ProbeSent<'a> { key: &'a BreakerKey }
    debug!(%key, "breaker probe sent");
    counter!(PROBES).increment(1);
}

event! {
    /// A call to Discord was refused.
    pub(crate) struct CallRefused<'a> { refused: &'a CallRejection, lane: Lane, guild: Option<u64> }
    let CallRejection { key, reason, .. } = refused;
    debug!(key, reason, lane = lane.name(), guild_id = guild, "call refused");
    counter!(REFUSED, "reason" => *reason).increment(1);
}

event! {
    /// A call to another upstream was refused.
    pub(crate) struct TargetRefused<'a> { refused: &'a CallRejection }
    let CallRejection { key, reason, .. } = refused;
    debug!(key, reason, "call refused");
    counter!(TARGET_REFUSED, "reason" => *reason).increment(1);
}

event! {
    /// The number of breakers changed.
    pub(crate) struct BreakersCounted { watched: usize, evicted: u64, unwatched: u64 }
    debug!(watched, evicted, unwatched, "breakers counted");
    gauge!(WATCHED).set(watched as f64);
    counter!(EVICTED).absolute(evicted);
    counter!(UNWATCHED).absolute(unwatched);
}

event! {
    /// The used part of the budget of invalid requests has changed.
    pub(crate) struct InvalidRatioChanged { ratio: f64 }
    gauge!(INVALID_RATIO).set(ratio);
}

event! {
    /// The use of its share by the largest holder has changed.
    pub(crate) struct LargestShareChanged { ratio: f64 }
    gauge!(INVALID_LARGEST_SHARE).set(ratio);
}

event! {
    /// A call was delayed because its key, tenant or guild has used up its share.
    pub(crate) struct CallHeldByShare<'a> { exceeded: &'a ShareExceeded, wait: Duration }
    let ShareExceeded { holder, used, cap, is_first } = exceeded;
    let (by, id, wait_ms) = (holder.kind().name(), holder.id(), wait.as_millis());
    if *is_first {
        warn!(by, id, used, cap, wait_ms, "share of invalid requests used up");
    } else {
        debug!(by, id, used, cap, wait_ms, "call delayed by its share of invalid requests");
    }
    counter!(INVALID_SHARE_HELD, "by" => by).increment(1);
}

event! {
    /// The lanes that the budget of invalid requests stops have changed.
    pub(crate) struct InvalidThresholdCrossed {
        ratio: f64,
        /// The most urgent stopped lane.
        stopped: Option<Lane>,
    }
    match stopped {
        Some(lane) => warn!(ratio, stopped = lane.name(), "invalid requests stop this lane and less urgent ones"),
        None => info!(ratio, "invalid requests no longer stop any lane"),
    }
}

/// Number of sources of invalid requests in a log line.
const NAMED_SPENDERS: usize = 3;

event! {
    /// No call can be sent to Discord.
    pub(crate) struct SendingBlocked<'a> {
        block: &'a SendBlock,
        /// The largest sources of invalid requests, if they matter.
        spenders: &'a [Spender],
    }
    let spent_by: Vec<String> = spenders.iter().take(NAMED_SPENDERS).map(describe_spender).collect();
    let spent_by = (!spent_by.is_empty()).then(|| spent_by.join(", "));
    error!(cause = block.name(), reason = %block, spent_by, advice = block.advice(), "no call can be sent to Discord");
}

fn describe_spender(Spender { guild, route, count, .. }: &Spender) -> String {
    match guild {
        Some(guild) => format!("{route} in guild {guild}: {count}"),
        None => format!("{route}: {count}"),
    }
}

event! {
    /// Calls can be sent again.
    pub(crate) struct SendingResumed { blocked: Duration }
    info!(blocked_s = blocked.as_secs(), "calls can be sent to Discord again");
}

event! {
    /// The ledger had no update of the other processes for too long.
    pub(crate) struct LedgerOutOfSync;
    // Also at the start and the end of a process, so not a warning. An unreachable Redis is reported elsewhere.
    info!("invalid requests of other processes unknown until the next sync");
    gauge!(INVALID_IN_SYNC).set(0.0);
}

event! {
    /// The ledger is in sync with the other processes.
    pub(crate) struct LedgerInSync;
    info!("invalid requests of other processes known");
    gauge!(INVALID_IN_SYNC).set(1.0);
}
