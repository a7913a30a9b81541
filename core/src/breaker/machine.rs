//! One breaker: its states and transitions.
//!
//! ```text
//!            too many failures                     cooled down
//!   closed ────────────────────▶ open ─────────────────────────▶ half-open
//!     ▲                           ▲                               │    │
//!     │                           └───────── a probe failed ──────┘    │
//!     └────────────────────────── enough probes succeeded ─────────────┘
//!
//!   any ──── manually, or an invalid token ────▶ forced open ──── manually, or a new token ────▶ closed
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

use super::BreakerConfig;
use super::failure_window::{FailureWindow, Sample};

/// The state of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum BreakerState {
    /// Calls are sent.
    Closed,
    /// No calls are sent.
    Open {
        /// When it becomes half-open.
        until: Timestamp,
    },
    /// Some calls are sent as probes.
    HalfOpen,
    /// No calls are sent until something other than time changes it.
    ForcedOpen {
        /// The reason.
        why: BreakerReason,
    },
}

impl BreakerState {
    /// Name in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open { .. } => "open",
            Self::HalfOpen => "half_open",
            Self::ForcedOpen { .. } => "forced_open",
        }
    }

    /// Severity for a gauge: 0 closed, 1 half-open, 2 open, 3 forced open.
    #[must_use]
    pub const fn severity(self) -> u8 {
        match self {
            Self::Closed => 0,
            Self::HalfOpen => 1,
            Self::Open { .. } => 2,
            Self::ForcedOpen { .. } => 3,
        }
    }
}

/// Reason of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakerReason {
    /// It is new.
    Fresh,
    /// Too many consecutive failures.
    FailuresInRow,
    /// The failure rate is too high.
    FailureRate,
    /// The slow rate is too high.
    SlowRate,
    /// A probe failed or was slow.
    ProbeFailed,
    /// A probe had no result in time.
    ProbeTimedOut,
    /// Cloudflare bans this address.
    Blocked,
    /// The token is invalid.
    Unauthorized,
    /// Forced open manually.
    Forced,
    /// The cooldown has ended.
    CooledDown,
    /// All probes succeeded.
    ProbesSucceeded,
    /// Reset manually.
    Reset,
    /// The token has changed.
    TokenChanged,
}

impl BreakerReason {
    /// Name in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::FailuresInRow => "failures_in_row",
            Self::FailureRate => "failure_rate",
            Self::SlowRate => "slow_rate",
            Self::ProbeFailed => "probe_failed",
            Self::ProbeTimedOut => "probe_timed_out",
            Self::Blocked => "blocked",
            Self::Unauthorized => "unauthorized",
            Self::Forced => "forced",
            Self::CooledDown => "cooled_down",
            Self::ProbesSucceeded => "probes_succeeded",
            Self::Reset => "reset",
            Self::TokenChanged => "token_changed",
        }
    }
}

/// Context of a transition: settings, time, a random number, and the number of permits issued so far.
#[derive(Clone, Copy)]
pub(super) struct TransitionContext<'a> {
    pub(super) config: &'a BreakerConfig,
    pub(super) now: Timestamp,
    /// In `[0, 1)`.
    pub(super) random: f64,
    pub(super) latest: u64,
}

/// A state transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transition {
    pub(super) from: BreakerState,
    pub(super) to: BreakerState,
    pub(super) reason: BreakerReason,
}

/// How a call is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Free,
    Probe,
}

/// Why a call is rejected, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rejection {
    pub(super) until: Option<Timestamp>,
    pub(super) reason: &'static str,
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    ticket: u64,
    deadline: Timestamp,
}

/// Whether this process may probe a half-open breaker that several processes share: one of them probes for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClaimState {
    /// The breaker is not shared.
    NotNeeded,
    /// It must be requested.
    Needed,
    /// This process holds it until then.
    Held { until: Timestamp },
    /// Another process holds it until then.
    HeldElsewhere { until: Timestamp },
}

#[derive(Debug)]
pub(super) struct Breaker {
    state: BreakerState,
    reason: BreakerReason,
    changed: Timestamp,
    /// Permits up to this number belong to an older generation.
    generation: u64,
    /// Permits up to this number were issued for an older token.
    token_since: u64,
    /// Cooldowns since it was last calm.
    cooldowns: u32,
    /// When it last had a failure, a slow call or a transition.
    last_problem: Timestamp,
    failure_window: FailureWindow,
    probes: Vec<Probe>,
    successes: u32,
    claim: ClaimState,
    /// When it requests a probe of its own, or the claim to probe.
    request_at: Timestamp,
}

impl Breaker {
    pub(super) fn new(generation: u64, now: Timestamp) -> Self {
        Self {
            state: BreakerState::Closed,
            reason: BreakerReason::Fresh,
            changed: now,
            generation,
            token_since: 0,
            cooldowns: 0,
            last_problem: now,
            failure_window: FailureWindow::default(),
            probes: Vec::new(),
            successes: 0,
            claim: ClaimState::NotNeeded,
            request_at: now,
        }
    }

    pub(super) const fn state(&self) -> BreakerState {
        self.state
    }

    pub(super) const fn reason(&self) -> BreakerReason {
        self.reason
    }

    /// Since when it is in its state.
    pub(super) const fn changed(&self) -> Timestamp {
        self.changed
    }

    /// Cooldowns since it was last calm.
    pub(super) const fn cooldowns(&self) -> u32 {
        self.cooldowns
    }

    pub(super) const fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) const fn last_problem(&self) -> Timestamp {
        self.last_problem
    }

    pub(super) fn failure_window(&self) -> &FailureWindow {
        &self.failure_window
    }

    pub(super) fn probes_in_flight(&self) -> usize {
        self.probes.len()
    }

    /// Whether the result of this permit still counts.
    pub(super) const fn is_current(&self, ticket: u64) -> bool {
        ticket > self.generation
    }

    /// Whether and how a call is admitted. Changes nothing.
    pub(super) fn check(
        &self,
        may_probe: bool,
        config: &BreakerConfig,
        now: Timestamp,
    ) -> Result<Admission, Rejection> {
        match self.state {
            BreakerState::Closed => Ok(Admission::Free),
            BreakerState::HalfOpen if may_probe && self.has_claim(now) && self.has_room(config) => Ok(Admission::Probe),
            BreakerState::HalfOpen => {
                Err(Rejection { until: Some(now + config.probe_after), reason: "breaker_half_open" })
            }
            BreakerState::Open { until } => {
                let reason = if self.reason == BreakerReason::Blocked { "blocked" } else { "breaker_open" };
                Err(Rejection { until: Some(until), reason })
            }
            BreakerState::ForcedOpen { why: BreakerReason::Unauthorized } => {
                Err(Rejection { until: None, reason: "unauthorized" })
            }
            BreakerState::ForcedOpen { .. } => Err(Rejection { until: None, reason: "breaker_forced_open" }),
        }
    }

    fn has_room(&self, config: &BreakerConfig) -> bool {
        self.probes.len() as u64 + u64::from(self.successes) < u64::from(config.probes.max(1))
    }

    /// Whether this process may probe it.
    fn has_claim(&self, now: Timestamp) -> bool {
        match self.claim {
            ClaimState::NotNeeded => true,
            ClaimState::Held { until } => now < until,
            ClaimState::Needed | ClaimState::HeldElsewhere { .. } => false,
        }
    }

    /// From now on it is shared and probed only with a claim.
    pub(super) fn require_claim(&mut self, step: TransitionContext<'_>) {
        if self.state == BreakerState::HalfOpen && self.claim == ClaimState::NotNeeded {
            self.claim = ClaimState::Needed;
            self.request_at = step.now;
        }
    }

    /// Whether the claim to probe must be requested.
    pub(super) fn needs_claim(&self) -> bool {
        self.state == BreakerState::HalfOpen && self.claim == ClaimState::Needed
    }

    /// Whether it is time to report that the claim must be requested; then not again for a while.
    pub(super) fn poll_claim_request(&mut self, step: TransitionContext<'_>) -> bool {
        let is_due = self.needs_claim() && self.request_at <= step.now;
        if is_due {
            self.request_at = step.now + step.config.probe_after;
        }
        is_due
    }

    /// This process probes it until then. If no suitable call arrives, it requests a probe of its own after a while.
    pub(super) fn claim_granted(&mut self, until: Timestamp, step: TransitionContext<'_>) {
        if self.needs_claim() {
            self.claim = ClaimState::Held { until };
            self.request_at = step.now + step.config.probe_after;
        }
    }

    /// Another process probes it until then.
    pub(super) fn claimed_elsewhere(&mut self, until: Timestamp) {
        if self.needs_claim() {
            self.claim = ClaimState::HeldElsewhere { until };
        }
    }

    /// Takes a probe slot for a permit, after [`Breaker::check`] has found one.
    pub(super) fn take_probe(&mut self, ticket: u64, step: TransitionContext<'_>) {
        self.probes.push(Probe { ticket, deadline: step.now + step.config.probe_timeout });
        self.request_at = step.now + step.config.probe_after;
    }

    /// Frees the slot of a probe that ended without a usable result.
    pub(super) fn release_probe(&mut self, ticket: u64) {
        self.probes.retain(|probe| probe.ticket != ticket);
    }

    pub(super) fn probe_succeeded(&mut self, ticket: u64, step: TransitionContext<'_>) -> Option<Transition> {
        self.release_probe(ticket);
        self.successes += 1;
        (self.successes >= step.config.probes.max(1))
            .then(|| self.enter(BreakerState::Closed, BreakerReason::ProbesSucceeded, step))
    }

    pub(super) fn probe_failed(&mut self, reason: BreakerReason, step: TransitionContext<'_>) -> Transition {
        self.open(reason, step)
    }

    /// Counts a call that was sent in the closed state.
    pub(super) fn record(&mut self, sample: Sample, step: TransitionContext<'_>) {
        if sample.failed || sample.slow {
            self.last_problem = step.now;
        }
        self.failure_window.record(sample, step.config.window, step.now);
    }

    /// Opens it if its counts require that. `sources` is the number of its parts from which failures must come. Returns
    /// its counts, which its own opening now explains.
    pub(super) fn evaluate(
        &mut self,
        sources: u32,
        step: TransitionContext<'_>,
    ) -> Option<(Transition, FailureWindow)> {
        if self.state != BreakerState::Closed {
            return None;
        }
        let reason = self.failure_window.reason_to_open(step.config, sources, step.now)?;
        let counted = std::mem::take(&mut self.failure_window);
        Some((self.open(reason, step), counted))
    }

    /// A part of it has opened because of what that part has counted.
    pub(super) fn absorb(&mut self, counted: &FailureWindow, source: u64, step: TransitionContext<'_>) {
        if self.state == BreakerState::Closed {
            self.failure_window.absorb(counted, source, step.config.window, step.now);
        }
    }

    fn open(&mut self, reason: BreakerReason, step: TransitionContext<'_>) -> Transition {
        if self.state == BreakerState::Closed && step.now.since(self.changed) >= step.config.reset_after {
            self.cooldowns = 0;
        }
        let cooldown = step.config.cooldown(self.cooldowns, step.random);
        self.cooldowns = self.cooldowns.saturating_add(1);
        self.enter(BreakerState::Open { until: step.now + cooldown }, reason, step)
    }

    /// Opens it for a given time.
    pub(super) fn open_for(
        &mut self,
        time: Duration,
        reason: BreakerReason,
        step: TransitionContext<'_>,
    ) -> Transition {
        self.enter(BreakerState::Open { until: step.now + time }, reason, step)
    }

    /// Opens it because another process did. It counts as a cooldown here too, since the cause is the same.
    pub(super) fn open_from_remote(
        &mut self,
        time: Duration,
        reason: BreakerReason,
        step: TransitionContext<'_>,
    ) -> Transition {
        if self.state == BreakerState::Closed && step.now.since(self.changed) >= step.config.reset_after {
            self.cooldowns = 0;
        }
        if reason != BreakerReason::Blocked {
            self.cooldowns = self.cooldowns.saturating_add(1);
        }
        self.enter(BreakerState::Open { until: step.now + time }, reason, step)
    }

    /// Opens it as in an earlier run of this process.
    pub(super) fn reopen(
        &mut self,
        time: Duration,
        reason: BreakerReason,
        cooldowns: u32,
        step: TransitionContext<'_>,
    ) -> Transition {
        self.cooldowns = self.cooldowns.max(cooldowns);
        self.enter(BreakerState::Open { until: step.now + time }, reason, step)
    }

    /// Takes the remaining open time from another process. Does nothing if it is not open.
    pub(super) fn set_remaining(&mut self, time: Duration, reason: BreakerReason, step: TransitionContext<'_>) {
        if let BreakerState::Open { until } = &mut self.state {
            *until = step.now + time;
            self.reason = reason;
        }
    }

    /// Closes it because another process did.
    pub(super) fn close_from_remote(&mut self, reason: BreakerReason, step: TransitionContext<'_>) -> Transition {
        if reason != BreakerReason::ProbesSucceeded {
            self.cooldowns = 0;
        }
        self.enter(BreakerState::Closed, reason, step)
    }

    pub(super) fn force(&mut self, reason: BreakerReason, step: TransitionContext<'_>) -> Transition {
        self.enter(BreakerState::ForcedOpen { why: reason }, reason, step)
    }

    /// Closes it and clears its history.
    pub(super) fn reset(&mut self, reason: BreakerReason, step: TransitionContext<'_>) -> Transition {
        self.cooldowns = 0;
        self.enter(BreakerState::Closed, reason, step)
    }

    /// The token has changed: permits so far were issued for the old one.
    pub(super) fn renew_token(&mut self, step: TransitionContext<'_>) {
        self.token_since = step.latest;
    }

    /// Whether a permit was issued for the current token.
    pub(super) const fn has_current_token(&self, ticket: u64) -> bool {
        ticket > self.token_since
    }

    /// Applies what changes by time alone.
    pub(super) fn on_time(&mut self, step: TransitionContext<'_>) -> Option<Transition> {
        if let ClaimState::Held { until } | ClaimState::HeldElsewhere { until } = self.claim
            && until <= step.now
        {
            self.claim = ClaimState::Needed;
            self.request_at = step.now;
        }
        match self.state {
            BreakerState::Open { until } if until <= step.now => {
                self.request_at = step.now + step.config.probe_after;
                Some(self.enter(BreakerState::HalfOpen, BreakerReason::CooledDown, step))
            }
            BreakerState::HalfOpen if self.probes.iter().any(|probe| probe.deadline <= step.now) => {
                Some(self.probe_failed(BreakerReason::ProbeTimedOut, step))
            }
            BreakerState::Closed
            | BreakerState::Open { .. }
            | BreakerState::HalfOpen
            | BreakerState::ForcedOpen { .. } => None,
        }
    }

    /// Whether it is time to send a probe of its own.
    pub(super) fn needs_probe(&self, config: &BreakerConfig, now: Timestamp) -> bool {
        self.state == BreakerState::HalfOpen && self.request_at <= now && self.has_claim(now) && self.has_room(config)
    }

    /// No probe can be sent before then.
    pub(super) fn postpone_probe(&mut self, at: Timestamp) {
        self.request_at = at;
    }

    /// When something changes by time alone.
    pub(super) fn next_wake(&self, sends_probes: bool, config: &BreakerConfig) -> Option<Timestamp> {
        match self.state {
            BreakerState::Closed | BreakerState::ForcedOpen { .. } => None,
            BreakerState::Open { until } => Some(until),
            BreakerState::HalfOpen => {
                let lost = self.probes.iter().map(|probe| probe.deadline).min();
                let own_probe = (sends_probes && self.has_room(config)).then_some(self.request_at);
                let (claim_at, claim_ends) = match self.claim {
                    ClaimState::NotNeeded => (own_probe, None),
                    ClaimState::Needed => (Some(self.request_at), None),
                    ClaimState::Held { until } => (own_probe, Some(until)),
                    ClaimState::HeldElsewhere { until } => (None, Some(until)),
                };
                [lost, claim_at, claim_ends].into_iter().flatten().min()
            }
        }
    }

    fn enter(&mut self, to: BreakerState, reason: BreakerReason, step: TransitionContext<'_>) -> Transition {
        let from = std::mem::replace(&mut self.state, to);
        self.reason = reason;
        self.changed = step.now;
        self.last_problem = step.now;
        self.generation = step.latest;
        self.failure_window = FailureWindow::default();
        self.probes.clear();
        self.successes = 0;
        self.claim = ClaimState::NotNeeded;
        Transition { from, to, reason }
    }
}
