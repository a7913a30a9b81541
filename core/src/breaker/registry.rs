//! All breakers of a process, by key.

use std::time::Duration;

use crate::response::{Credential, ResponseClass};
use crate::route::TopLevelId;
use crate::time::Timestamp;

use super::call::CallPath;
use super::ended_targets::EndedTargets;
use super::failure_window::{FailureWindow, Sample};
use super::machine::{Admission, Breaker, Rejection, Transition, TransitionContext};
use super::refused_tokens::RefusedTokens;
use super::shared::ReplicationState;
use super::table::BreakerTable;
use super::{
    Attempt, BreakerConfig, BreakerEffect, BreakerKey, BreakerKind, BreakerReason, BreakerState, CallInfo, CallPermit,
    CallRejection, CallResult, ChangeOrigin, ReportOutcome,
};

/// Maximum number of own probes in flight for one credential.
const OWN_PROBES: usize = 3;

/// All breakers of a process. Time and the random seed are passed in.
///
/// [`Breakers::on_time`] must be called whenever [`Breakers::next_wake`] has come, and before any other method that is
/// called later than that.
///
/// Routes, ids and targets get a breaker at their first failure or slow call. It is removed when it has been closed and
/// quiet for a while, or, at the maximum number, when another one needs the room.
#[derive(Debug)]
pub struct Breakers {
    pub(super) table: BreakerTable,
    own_probes: Vec<OwnProbe>,
    pub(super) expired_interactions: EndedTargets,
    pub(super) gone_webhooks: EndedTargets,
    pub(super) refused_tokens: RefusedTokens,
    pub(super) shared: ReplicationState,
}

#[derive(Debug)]
struct OwnProbe {
    ticket: u64,
    credential: Credential,
    deadline: Timestamp,
}

/// There is no room for another breaker, because too many are not closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many breakers are open; reset some, or raise the maximum number of breakers in the settings")]
pub struct TooManyKeys;

/// Why a breaker was not forced open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForceError {
    /// There is no room.
    #[error(transparent)]
    TooManyKeys(#[from] TooManyKeys),
    /// It is forced open until it is reset, so it cannot be opened for a time.
    #[error("the breaker is already forced open until it is reset; reset it first")]
    Forced,
}

/// What the result of a call shows about one breaker.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Evidence {
    Success,
    Failed,
    /// Nothing.
    Inconclusive,
}

impl Breakers {
    /// Creates breakers that are all closed.
    #[must_use]
    pub fn new(config: BreakerConfig, seed: u64) -> Self {
        Self {
            table: BreakerTable::new(config, seed),
            own_probes: Vec::new(),
            expired_interactions: EndedTargets::default(),
            gone_webhooks: EndedTargets::default(),
            refused_tokens: RefusedTokens::default(),
            shared: ReplicationState::default(),
        }
    }

    /// Requests a permit for a call to Discord.
    ///
    /// # Errors
    ///
    /// Rejected if a breaker on its path is not closed and the call cannot probe it, if its interaction has expired, if
    /// its webhook does not exist, or if Discord has refused the caller's token. A rejection changes nothing.
    pub fn admit(&mut self, call: &CallInfo, now: Timestamp) -> Result<CallPermit, CallRejection> {
        if call.major != TopLevelId::NONE {
            if self.expired_interactions.until(call.major, now).is_some() {
                let key = format!("interaction {}", call.major);
                return Err(CallRejection { until: None, reason: "interaction_ended", key });
            }
            if let Some(until) = self.gone_webhooks.until(call.major, now) {
                let key = format!("webhook {}", call.major);
                return Err(CallRejection { until: Some(until), reason: "webhook_gone", key });
            }
        }
        let token = match call.credential {
            Credential::Token(token) => Some(token),
            Credential::Application(_) | Credential::Anonymous => None,
        };
        if let Some(Err(until)) = token.map(|token| self.refused_tokens.check(token, now)) {
            let key = BreakerKey::Discord(call.credential).to_string();
            return Err(CallRejection { until: Some(until), reason: "unauthorized", key });
        }
        let path = CallPath::Discord { credential: call.credential, route: call.route.clone(), major: call.major };
        // The token of a caller is not known here, so no probe of its own can be sent with it.
        let pass = self.enter(path, call.may_probe || token.is_some(), now)?;
        if let Some(token) = token {
            self.refused_tokens.admitted(token, pass.ticket, self.table.config.token_probe_interval, now);
        }
        Ok(pass)
    }

    /// Forgets that a webhook does not exist: the next call to it is sent. Returns how many of its tokens were
    /// remembered.
    pub fn clear_webhook(&mut self, id: u64) -> usize {
        self.gone_webhooks.clear(id)
    }

    /// Requests a permit for a call to another upstream. Any such call may probe.
    ///
    /// # Errors
    ///
    /// Rejected if its breaker is open, or has all the probes it needs.
    pub fn admit_target(&mut self, name: &str, now: Timestamp) -> Result<CallPermit, CallRejection> {
        self.enter(CallPath::Target(name.to_owned()), true, now)
    }

    fn enter(&mut self, path: CallPath, may_probe: bool, now: Timestamp) -> Result<CallPermit, CallRejection> {
        let keys = path.keys();
        let mut worst: Option<(Rejection, &BreakerKey)> = None;
        let mut probes = 0;
        for (level, key) in keys.iter().enumerate() {
            let Some(breaker) = self.table.get(key) else { continue };
            match breaker.check(may_probe, &self.table.config, now) {
                Ok(Admission::Free) => {}
                Ok(Admission::Probe) => probes |= 1 << level,
                // Time does not close a forced breaker, so it ranks after any time.
                Err(barred) if worst.is_none_or(|(current, _)| is_later(barred.until, current.until)) => {
                    worst = Some((barred, key));
                }
                Err(_) => {}
            }
        }
        if let Some((Rejection { until, reason }, key)) = worst {
            return Err(CallRejection { until, reason, key: key.to_string() });
        }
        let pass = CallPermit { ticket: self.table.next_ticket(), path, probes };
        for (level, key) in keys.iter().enumerate() {
            if pass.probes_at(level) {
                self.table.change(key, now, |breaker, step| {
                    breaker.take_probe(pass.ticket, step);
                    None
                });
            }
        }
        Ok(pass)
    }

    /// Returns the permit of a call that has ended. `elapsed` is the time that the upstream took, without waiting
    /// before it.
    pub fn report(&mut self, pass: CallPermit, result: CallResult, elapsed: Duration, now: Timestamp) -> ReportOutcome {
        let is_probe = pass.is_probe();
        let CallPermit { ticket, path, probes } = pass;
        self.own_probes.retain(|probe| probe.ticket != ticket);
        if let CallPath::Discord { credential, major, .. } = path {
            self.remember_ended(credential, major, result, now);
            self.judge_token(credential, ticket, result, now);
        }
        let slow = elapsed >= self.table.config.slow_call;
        let keys = path.keys();
        let mut effects = Vec::new();
        let mut opened = false;
        for (level, key) in keys.iter().enumerate() {
            let evidence = evidence_of(result, key, &path);
            let is_problem = evidence == Evidence::Failed || (evidence == Evidence::Success && slow);
            if !self.table.is_current(key, ticket, is_problem, now) {
                continue;
            }
            let source = path.source(key).filter(|_| evidence != Evidence::Inconclusive);
            let mut counted = None;
            let change = self.table.change(key, now, |breaker, step| {
                if let Some(change) = special_transition(result, key, ticket, breaker, step) {
                    return Some(change);
                }
                if probes & (1 << level) != 0 {
                    return apply_probe_result(evidence, slow, ticket, breaker, step);
                }
                breaker.record(Sample { failed: evidence == Evidence::Failed, slow, source: source? }, step);
                // The widest breaker that opens is enough; it covers those below.
                let (change, counts) = if opened { None } else { breaker.evaluate(key.sources_needed(), step) }?;
                counted = Some(counts);
                Some(change)
            });
            if let Some(counted) = counted {
                for wider in &keys[..level] {
                    self.absorb(wider, &counted, &path, now);
                }
            }
            if let Some(change) = change {
                opened |= change.to != BreakerState::Closed;
                effects.push(self.record_transition(key, change, ChangeOrigin::Here));
            }
        }
        let failed = result.is_failure()
            || matches!(result, CallResult::Answered(ResponseClass::Blocked { .. } | ResponseClass::Unauthorized));
        let is_out = || keys.iter().any(|key| self.state(key) != BreakerState::Closed);
        let attempt = if is_probe || (failed && is_out()) { Attempt::Free } else { Attempt::Used };
        ReportOutcome { attempt, effects }
    }

    /// Returns the permit of a call that was never sent, or whose result is unknown. Frees the slot of a probe.
    pub fn abandon(&mut self, pass: CallPermit, now: Timestamp) {
        let CallPermit { ticket, path, probes } = pass;
        self.own_probes.retain(|probe| probe.ticket != ticket);
        if let CallPath::Discord { credential: Credential::Token(token), .. } = path {
            self.refused_tokens.unsent(token, ticket, now);
        }
        for (level, key) in path.keys().iter().enumerate() {
            if probes & (1 << level) != 0 {
                self.table.change(key, now, |breaker, _| {
                    breaker.release_probe(ticket);
                    None
                });
            }
        }
    }

    /// Remembers what a result says about the interaction or the webhook of the call.
    fn remember_ended(&mut self, credential: Credential, major: TopLevelId, result: CallResult, now: Timestamp) {
        let config = &self.table.config;
        let max = config.max_expired_interactions;
        if ends_interaction(result, credential) {
            self.expired_interactions.insert(major, config.expired_interaction_ttl, max, now);
        }
        // Without a token in the path, the id could be that of another object: calls to a channel would be refused.
        if result == CallResult::Answered(ResponseClass::WebhookGone) && major.has_token() {
            self.gone_webhooks.insert(major, config.gone_webhook_ttl, max, now);
        }
    }

    /// Records what a result says about the token of a caller.
    fn judge_token(&mut self, credential: Credential, ticket: u64, result: CallResult, now: Timestamp) {
        let Credential::Token(token) = credential else { return };
        let config = &self.table.config;
        match result {
            CallResult::Answered(ResponseClass::Unauthorized) => {
                let max = config.max_expired_interactions;
                self.refused_tokens.refused(token, config.token_probe_interval, max, now);
            }
            // Neither is a response to the token.
            CallResult::Answered(
                ResponseClass::InteractionEnded | ResponseClass::Blocked { .. } | ResponseClass::ServerError,
            )
            | CallResult::TimedOut
            | CallResult::Broken => {}
            CallResult::Unreachable => self.refused_tokens.unsent(token, ticket, now),
            CallResult::Answered(_) => self.refused_tokens.accepted(token),
        }
    }

    /// When [`Breakers::on_time`] must be called.
    #[must_use]
    pub fn next_wake(&self) -> Option<Timestamp> {
        self.table.next_wake()
    }

    /// Applies what changes by time: cooldowns end, lost probes fail, missing probes are requested, quiet breakers are
    /// removed.
    pub fn on_time(&mut self, now: Timestamp) -> Vec<BreakerEffect> {
        let mut effects = Vec::new();
        for key in self.table.due(now) {
            if let Some(change) = self.table.change(&key, now, Breaker::on_time) {
                effects.push(self.record_transition(&key, change, ChangeOrigin::Here));
                self.require_claim(&key, now);
            }
            effects.extend(self.poll_claim_request(&key, now));
            effects.extend(self.own_probe(&key, now));
        }
        self.table.forget_quiet(now);
        effects
    }

    /// Opens a breaker until it is reset.
    ///
    /// # Errors
    ///
    /// When there is no room for another breaker that is not closed.
    pub fn force(&mut self, key: &BreakerKey, now: Timestamp) -> Result<Vec<BreakerEffect>, TooManyKeys> {
        if !self.table.ensure(key, now) {
            return Err(TooManyKeys);
        }
        let change = self.table.change(key, now, |breaker, step| {
            (breaker.state() != BreakerState::ForcedOpen { why: BreakerReason::Forced })
                .then(|| breaker.force(BreakerReason::Forced, step))
        });
        Ok(change.map(|change| self.record_transition(key, change, ChangeOrigin::Here)).into_iter().collect())
    }

    /// Opens a breaker for at least this time; then it is probed, as after any cooldown.
    ///
    /// # Errors
    ///
    /// As [`Breakers::may_force`].
    pub fn force_for(
        &mut self,
        key: &BreakerKey,
        duration: Duration,
        now: Timestamp,
    ) -> Result<Vec<BreakerEffect>, ForceError> {
        self.may_force(key, Some(duration))?;
        if !self.table.ensure(key, now) {
            return Err(TooManyKeys.into());
        }
        let until = now + duration;
        let change = self.table.change(key, now, |breaker, step| {
            let is_longer = matches!(breaker.state(), BreakerState::Open { until: known } if known >= until);
            (!is_longer).then(|| breaker.open_for(duration, BreakerReason::Forced, step))
        });
        Ok(change.map(|change| self.record_transition(key, change, ChangeOrigin::Here)).into_iter().collect())
    }

    /// Whether a breaker can be opened until it is reset, or for a time.
    ///
    /// # Errors
    ///
    /// When there is no room for another breaker that is not closed; or when it is to be opened for a time and is
    /// forced open until a reset.
    pub fn may_force(&self, key: &BreakerKey, duration: Option<Duration>) -> Result<(), ForceError> {
        if duration.is_some() && matches!(self.state(key), BreakerState::ForcedOpen { .. }) {
            return Err(ForceError::Forced);
        }
        if self.table.has_room(key) { Ok(()) } else { Err(TooManyKeys.into()) }
    }

    /// Closes a breaker, whatever opened it.
    pub fn reset(&mut self, key: &BreakerKey, now: Timestamp) -> Vec<BreakerEffect> {
        let change = self.table.change(key, now, |breaker, step| {
            (breaker.state() != BreakerState::Closed).then(|| breaker.reset(BreakerReason::Reset, step))
        });
        // A reset applies to all processes, whatever the state is here.
        self.shared.queue_change(key, BreakerState::Closed, BreakerReason::Reset);
        change.map(|change| self.record_transition(key, change, ChangeOrigin::Here)).into_iter().collect()
    }

    /// The token of a credential has changed: responses to the old one do not count any more. Responses to the new one
    /// concern processes whose token has the same fingerprint; without a fingerprint, no others.
    pub fn token_changed(
        &mut self,
        credential: Credential,
        fingerprint: Option<&str>,
        now: Timestamp,
    ) -> Vec<BreakerEffect> {
        let key = BreakerKey::Discord(credential);
        self.shared.set_token(credential, fingerprint);
        self.table.ensure(&key, now);
        let change = self.table.change(&key, now, |breaker, step| {
            breaker.renew_token(step);
            (breaker.state() == BreakerState::ForcedOpen { why: BreakerReason::Unauthorized })
                .then(|| breaker.reset(BreakerReason::TokenChanged, step))
        });
        change.map(|change| self.record_transition(&key, change, ChangeOrigin::Here)).into_iter().collect()
    }

    /// Returns the effect of a transition, and queues it for the other processes unless it came from them.
    pub(super) fn record_transition(
        &mut self,
        key: &BreakerKey,
        change: Transition,
        origin: ChangeOrigin,
    ) -> BreakerEffect {
        let Transition { from, to, reason } = change;
        if origin == ChangeOrigin::Here {
            self.shared.queue_change(key, to, reason);
        }
        BreakerEffect::Transition { key: key.clone(), from, to, reason, origin }
    }

    /// The state of a breaker.
    #[must_use]
    pub fn state(&self, key: &BreakerKey) -> BreakerState {
        self.table.get(key).map_or(BreakerState::Closed, Breaker::state)
    }

    /// Severity of the worst state of a kind: see [`BreakerState::severity`].
    #[must_use]
    pub fn severity(&self, kind: BreakerKind) -> u8 {
        let of_kind = self.table.iter().filter(|(key, _)| key.kind() == kind);
        of_kind.map(|(_, breaker)| breaker.state().severity()).max().unwrap_or(0)
    }

    /// Number of breakers, including those of bots and of the address.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Number of breakers removed early because others needed the room.
    #[must_use]
    pub const fn evicted(&self) -> u64 {
        self.table.evicted()
    }

    /// How often a breaker was not created because there was no room.
    #[must_use]
    pub const fn unwatched(&self) -> u64 {
        self.table.unwatched()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    /// Sends a probe for a half-open breaker, if it needs one and no breaker on the path forbids it.
    fn own_probe(&mut self, key: &BreakerKey, now: Timestamp) -> Option<BreakerEffect> {
        if !self.table.get(key)?.needs_probe(&self.table.config, now) {
            return None;
        }
        let soon = now + self.table.config.probe_after;
        self.own_probes.retain(|probe| probe.deadline > now);
        // Calls with the token of a caller may all probe.
        let retry_at = match self.probe_credential(key, now).filter(|with| !matches!(with, Credential::Token(_))) {
            None => now + self.table.config.cooldown,
            Some(credential)
                if self.own_probes.iter().filter(|probe| probe.credential == credential).count() >= OWN_PROBES =>
            {
                soon
            }
            Some(credential) => match self.enter(CallPath::Own { key: key.clone(), credential }, true, now) {
                Ok(pass) => {
                    let deadline = now + self.table.config.probe_timeout;
                    self.own_probes.push(OwnProbe { ticket: pass.ticket, credential, deadline });
                    return Some(BreakerEffect::SendProbe { key: key.clone(), credential, permit: pass });
                }
                // A wider breaker is open: its own probes come first.
                Err(refused) => refused.until.unwrap_or(now + self.table.config.cooldown).max(soon),
            },
        };
        self.table.change(key, now, |breaker, _| {
            breaker.postpone_probe(retry_at);
            None
        });
        None
    }

    /// The credential for the probe of a breaker: its own; for the address, any that is permitted.
    fn probe_credential(&self, key: &BreakerKey, now: Timestamp) -> Option<Credential> {
        match key {
            BreakerKey::Discord(credential) | BreakerKey::Route(credential, _) | BreakerKey::Pair(credential, ..) => {
                Some(*credential)
            }
            BreakerKey::Address => {
                let may = self.table.iter().filter_map(|(key, breaker)| match key {
                    BreakerKey::Discord(Credential::Token(_)) => None,
                    BreakerKey::Discord(credential) => {
                        breaker.check(true, &self.table.config, now).ok().map(|_| *credential)
                    }
                    BreakerKey::Address | BreakerKey::Route(..) | BreakerKey::Pair(..) | BreakerKey::Target(_) => None,
                });
                // Always the same one, and a bot rather than no credential.
                may.min()
            }
            BreakerKey::Target(_) => None,
        }
    }

    fn absorb(&mut self, key: &BreakerKey, counted: &FailureWindow, path: &CallPath, now: Timestamp) {
        if let Some(source) = path.source(key) {
            self.table.change(key, now, |breaker, step| {
                breaker.absorb(counted, source, step);
                None
            });
        }
    }
}

/// Responses that open a breaker by themselves: a ban, and an invalid token.
fn special_transition(
    result: CallResult,
    key: &BreakerKey,
    ticket: u64,
    breaker: &mut Breaker,
    step: TransitionContext<'_>,
) -> Option<Transition> {
    match (result, key) {
        (CallResult::Answered(ResponseClass::Blocked { retry_after }), BreakerKey::Address) => {
            Some(breaker.open_for(retry_after.unwrap_or(step.config.ban_duration), BreakerReason::Blocked, step))
        }
        (CallResult::Answered(ResponseClass::Unauthorized), BreakerKey::Discord(Credential::Application(_)))
            if breaker.has_current_token(ticket) =>
        {
            Some(breaker.force(BreakerReason::Unauthorized, step))
        }
        _ => None,
    }
}

/// Applies the result of a probe. A slow success is a failure: the problem still exists.
fn apply_probe_result(
    evidence: Evidence,
    slow: bool,
    ticket: u64,
    breaker: &mut Breaker,
    step: TransitionContext<'_>,
) -> Option<Transition> {
    match evidence {
        Evidence::Inconclusive => {
            breaker.release_probe(ticket);
            None
        }
        Evidence::Success if !slow => breaker.probe_succeeded(ticket, step),
        Evidence::Success | Evidence::Failed => Some(breaker.probe_failed(BreakerReason::ProbeFailed, step)),
    }
}

/// What a result shows about the breaker of `key`.
fn evidence_of(result: CallResult, key: &BreakerKey, path: &CallPath) -> Evidence {
    match result {
        // A ban concerns the address, an invalid token concerns the bot. The rest of the path learns nothing.
        CallResult::Answered(ResponseClass::Blocked { .. }) => Evidence::Inconclusive,
        CallResult::Answered(ResponseClass::Unauthorized) if !matches!(path, CallPath::Target(_)) => match key.kind() {
            BreakerKind::Address => Evidence::Success,
            BreakerKind::Discord | BreakerKind::Route | BreakerKind::Pair | BreakerKind::Target => {
                Evidence::Inconclusive
            }
        },
        CallResult::Answered(_) | CallResult::Unreachable | CallResult::TimedOut | CallResult::Broken => {
            if result.is_failure() { Evidence::Failed } else { Evidence::Success }
        }
    }
}

/// Whether the call's interaction or webhook has expired. A 401 without a credential means the same: the only token is
/// the one in the path.
fn ends_interaction(result: CallResult, credential: Credential) -> bool {
    result == CallResult::Answered(ResponseClass::InteractionEnded)
        || (result == CallResult::Answered(ResponseClass::Unauthorized) && credential == Credential::Anonymous)
}

/// Whether a retry at `one` is later than at `other`; never is the latest.
fn is_later(one: Option<Timestamp>, other: Option<Timestamp>) -> bool {
    match (one, other) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(one), Some(other)) => one > other,
    }
}
