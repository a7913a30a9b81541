//! The server side of the shared limit: the algorithm of the Redis script, in Rust.
//!
//! There are as many tokens as the limit allows. A token is *free at* a time. A member that books it holds it. It is
//! free again one window after the response of its call or, if the response is never reported, one window after the
//! call can have arrived at the latest. A detached member removes as many tokens as its share, and returns them when it
//! joins again.
//!
//! An *epoch* is a period in which Redis has lost no data. A new epoch starts without tokens: members bring as many as
//! the shares that they had before. When they have brought as many as the limit, no other process can have any: the
//! epoch is *whole*.

mod booking;
mod join;
mod member_queue;
mod membership;
mod tokens;

use super::clock_sample::micros;
use super::config::SharedLimitConfig;
use super::script::{
    JoinRequest, MembershipState, ScriptCall, ScriptCommand, ScriptReply, SlotOutcome, SlotReport, SyncRequest,
};
use member_queue::MemberQueue;
use membership::Membership;
use tokens::Tokens;

/// A clock that goes back by at most this much is treated as standing still.
const MAX_STEP_BACK: u64 = 50_000;

/// The state in Redis.
#[derive(Clone, Debug, Default)]
pub struct ReferenceWindow {
    epoch: Option<Epoch>,
}

#[derive(Clone, Debug)]
struct Epoch {
    name: String,
    /// The server that it started on: another server, or the same one after a restart, may have lost the last writes.
    server: String,
    started: u64,
    /// The latest time seen.
    last: u64,
    /// Whether all shares of the previous epoch are accounted for.
    is_complete: bool,
    /// Sum of the shares of the previous epoch that members brought.
    contributed: u32,
    limit: u32,
    /// No slot is booked before this time.
    blocked: u64,
    /// When the last global 429 ends.
    global_block: u64,
    /// When the next slot is due by even spacing.
    next_due: u64,
    /// Moving average of the time that a token stays taken.
    token_time: u64,
    tokens: Tokens,
    members: Membership,
    queue: MemberQueue,
}

/// How an epoch became whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EpochCompletion {
    /// All shares were brought.
    Together,
    /// No member with a share joined.
    Newcomers,
    /// Members that did not join may no longer use their shares.
    Late,
}

impl ReferenceWindow {
    /// The state of an empty Redis.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    /// When the epoch started, whether it is whole, and the sum of the shares brought.
    #[cfg(test)]
    pub(super) fn age(&self) -> Option<(u64, bool, u32)> {
        self.epoch.as_ref().map(|epoch| (epoch.started, epoch.is_complete, epoch.contributed))
    }

    /// All members, attached or not.
    #[cfg(test)]
    pub(super) fn members(&self) -> Vec<String> {
        self.epoch.as_ref().map_or_else(Vec::new, |epoch| epoch.members.ids())
    }

    /// Executes a call at the given time on Redis's clock. `server` is the server that the caller is connected to.
    pub fn call(&mut self, call: &ScriptCall, rules: &SharedLimitConfig, server: &str, now: u64) -> ScriptReply {
        let current = self.epoch.as_mut().filter(|epoch| epoch.server == server && now + MAX_STEP_BACK >= epoch.last);
        let now = current.as_ref().map_or(now, |epoch| now.max(epoch.last));
        if call.not_after > 0 && now > call.not_after {
            return ScriptReply::Stale { now };
        }
        match &call.command {
            ScriptCommand::Probe => {
                ScriptReply::Status { now, epoch: current.map_or_else(String::new, |epoch| epoch.name.clone()) }
            }
            ScriptCommand::Sync(sync) => match current.filter(|epoch| epoch.name == sync.epoch) {
                Some(epoch) => epoch.sync(call, sync, rules, now),
                None => ScriptReply::Rejoin { now, replaced: false },
            },
            ScriptCommand::Leave(sync) => match current.filter(|epoch| epoch.name == sync.epoch) {
                Some(epoch) => epoch.leave(call, sync, rules, now),
                None => ScriptReply::Rejoin { now, replaced: false },
            },
            ScriptCommand::Join(join) => {
                let is_same_epoch = current.is_some_and(|epoch| epoch.name != join.renew);
                if !is_same_epoch {
                    self.epoch = None;
                }
                let start = || Epoch::start(format!("{now}-{:x}", call.incarnation), server, rules, now);
                ScriptReply::Done(self.epoch.get_or_insert_with(start).join(call, join, rules, now))
            }
        }
    }
}

impl Epoch {
    fn start(name: String, server: &str, rules: &SharedLimitConfig, now: u64) -> Self {
        Self {
            name,
            server: server.to_owned(),
            started: now,
            last: now,
            is_complete: false,
            contributed: 0,
            limit: rules.limit,
            blocked: 0,
            global_block: 0,
            next_due: 0,
            token_time: micros(rules.window),
            tokens: Tokens::default(),
            members: Membership::default(),
            queue: MemberQueue::default(),
        }
    }

    fn sync(&mut self, call: &ScriptCall, sync: &SyncRequest, rules: &SharedLimitConfig, now: u64) -> ScriptReply {
        self.advance(rules, now);
        if !self.members.is_live(&call.member, call.incarnation) {
            let replaced = self.members.incarnation(&call.member).is_some_and(|life| life != call.incarnation);
            return ScriptReply::Rejoin { now, replaced };
        }
        self.members.touch(&call.member, now);
        self.apply_reports(&call.member, &sync.reports, rules, now);
        self.block_globally(sync.block, now);
        for dead in sync.dead.iter().filter(|dead| **dead != call.member) {
            self.remove_dead(dead, rules, now);
        }
        self.resize(now + micros(rules.window + rules.guard));
        let mut state = self.membership_state(call, sync.held, sync.uses_share, rules, now);
        if self.members.is_unknown_to_others(&call.member, now.saturating_sub(micros(rules.silence))) {
            // Earlier members would have noticed a jump of the clock; this member could not.
            state.retry_after = (sync.requested_slots > 0).then_some(rules.retry);
        } else {
            self.book(&call.member, sync, rules, now, &mut state);
            state.free = self.tokens.free(now);
        }
        ScriptReply::Done(state)
    }

    fn leave(&mut self, call: &ScriptCall, sync: &SyncRequest, rules: &SharedLimitConfig, now: u64) -> ScriptReply {
        self.advance(rules, now);
        if self.members.is_live(&call.member, call.incarnation) {
            self.apply_reports(&call.member, &sync.reports, rules, now);
            self.block_globally(sync.block, now);
            self.members.remove(&call.member);
            self.queue.remove(&call.member);
            if sync.requested_slots == 0 {
                // It does not know of the slots that it still holds, so it will not use them.
                self.tokens.release_all(&call.member, now);
            }
            self.tokens.free_held_by(&call.member, u64::MAX);
            self.update_limit();
            self.resize(now + micros(rules.window + rules.guard));
        }
        ScriptReply::Status { now, epoch: self.name.clone() }
    }

    /// Applies the changes that are due at `now`: detaches silent members, removes those detached too long, and
    /// completes the epoch.
    fn advance(&mut self, rules: &SharedLimitConfig, now: u64) {
        self.last = now;
        let silent = self.members.detach_silent(now.saturating_sub(micros(rules.silence)), now + micros(rules.forget));
        let forgotten = self.members.remove_expired(now);
        for (member, _) in &silent {
            self.queue.remove(member);
        }
        if silent.is_empty() && !forgotten && self.is_complete {
            return;
        }
        self.update_limit();
        let target = self.target();
        for (member, share) in silent {
            // The tokens that it holds are counted as its share.
            self.tokens.drop_held_by(&member, share, target);
        }
        match self.try_complete(rules, now) {
            // No process can use slots that were booked before the epoch started, except calls that have just been
            // sent.
            Some(EpochCompletion::Together) => {
                let last_sent = self.started + micros(rules.horizon + rules.grace + rules.guard);
                self.tokens.free_unheld_by(now.max(last_sent) + micros(rules.window));
            }
            Some(EpochCompletion::Newcomers) => self.resize(now),
            Some(EpochCompletion::Late) | None => {}
        }
        self.resize(now + micros(rules.window + rules.guard));
    }

    /// Marks the epoch as whole if possible.
    fn try_complete(&mut self, rules: &SharedLimitConfig, now: u64) -> Option<EpochCompletion> {
        if self.is_complete {
            return None;
        }
        let age = now.saturating_sub(self.started);
        let completion = if self.contributed >= self.limit && age >= micros(rules.gather_time()) {
            EpochCompletion::Together
        } else if self.contributed == 0 && age >= micros(rules.newcomer) {
            EpochCompletion::Newcomers
        } else if age >= micros(rules.forget) {
            EpochCompletion::Late
        } else {
            return None;
        };
        self.is_complete = true;
        Some(completion)
    }

    /// Target number of tokens.
    fn target(&self) -> u32 {
        self.total_tokens().saturating_sub(self.members.claimed_detached())
    }

    /// Number of tokens that belong to all members, detached ones included.
    fn total_tokens(&self) -> u32 {
        if self.is_complete { self.limit } else { self.contributed.min(self.limit) }
    }

    /// Adds or removes tokens to reach the target; new ones are free at `free_at`.
    fn resize(&mut self, free_at: u64) {
        let target = self.target();
        self.tokens.resize(target, free_at);
    }

    /// Sets the limit to the lowest limit of all attached members.
    fn update_limit(&mut self) {
        if let Some(limit) = self.members.min_limit() {
            self.limit = limit;
        }
    }

    /// Applies reports of slots.
    fn apply_reports(&mut self, member: &str, reports: &[SlotReport], rules: &SharedLimitConfig, now: u64) {
        for report in reports {
            let Some(at) = self.tokens.release(report.token, member, report.booking) else { continue };
            let free_at = match report.outcome {
                SlotOutcome::Answered(ago) => {
                    let back = now.saturating_sub(micros(ago)) + micros(rules.window);
                    self.token_time = (self.token_time * 15 + back.saturating_sub(at)) / 16;
                    back
                }
                // Not before the start of its slot: the previous use of the token counts until then.
                SlotOutcome::Unused => now.max(at),
            };
            self.tokens.set_free_at(report.token, free_at);
        }
    }

    fn block(&mut self, block: std::time::Duration, now: u64) {
        if !block.is_zero() {
            self.blocked = self.blocked.max(now + micros(block));
        }
    }

    /// A global 429.
    fn block_globally(&mut self, block: std::time::Duration, now: u64) {
        self.block(block, now);
        if !block.is_zero() {
            self.global_block = self.global_block.max(now + micros(block));
        }
    }

    /// Removes a member that is certainly dead: its calls arrive within the guard time.
    fn remove_dead(&mut self, member: &str, rules: &SharedLimitConfig, now: u64) {
        let gone = now + micros(rules.window + rules.guard);
        if self.members.remove(member) {
            self.queue.remove(member);
            self.tokens.free_held_by(member, gone);
            self.update_limit();
            self.resize(gone);
        }
    }

    /// The state of a membership, with a new share.
    fn membership_state(
        &mut self,
        call: &ScriptCall,
        held: u32,
        wants_share: bool,
        rules: &SharedLimitConfig,
        now: u64,
    ) -> MembershipState {
        let known_since = now.saturating_sub(micros(rules.silence));
        let share =
            if wants_share { self.members.fair_share(&call.member, self.total_tokens(), known_since) } else { 0 };
        self.members.record_share(&call.member, held, share);
        MembershipState {
            now,
            epoch: self.name.clone(),
            share,
            members: self.members.members(),
            live: self.members.live(),
            pool: self.tokens.len(),
            free: self.tokens.free(now),
            blocked: std::time::Duration::from_micros(self.blocked.saturating_sub(now)),
            global_block: std::time::Duration::from_micros(self.global_block.saturating_sub(now)),
            retry_after: None,
            slots: Vec::new(),
        }
    }
}
