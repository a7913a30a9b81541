//! Joining: a member joins, or returns, with its calls in flight.

use std::time::Duration;

use super::{Epoch, JoinRequest, MembershipState, ScriptCall, SharedLimitConfig, micros};
use crate::limit::shared::script::Slot;

impl Epoch {
    pub(super) fn join(
        &mut self,
        call: &ScriptCall,
        join: &JoinRequest,
        rules: &SharedLimitConfig,
        now: u64,
    ) -> MembershipState {
        let member = &call.member;
        self.advance(rules, now);
        if self.members.incarnation(member).is_some_and(|life| life != call.incarnation) {
            self.remove_dead(member, rules, now);
        }
        let is_same_epoch = join.epoch == self.name;
        if !is_same_epoch && self.members.live() == 0 {
            // No member was attached that would have noticed a jump of the clock: earlier calls count from now.
            self.tokens.free_not_before(now + micros(rules.window + rules.guard));
        }
        // The member's own report of its calls is authoritative; the stored bookings are no longer needed.
        let mut own_tokens = self.tokens.release_all(member, now);
        if self.members.incarnation(member).is_some() {
            self.members.attach(member, now);
        } else {
            self.members.add(member, call.incarnation, 0, rules.limit, now);
            if !self.is_complete && !is_same_epoch {
                let share = join.held.min(self.limit.saturating_sub(self.contributed));
                self.contributed += share;
                self.members.record_share(member, 0, share);
            }
        }
        self.update_limit();
        let target = self.target();
        own_tokens.extend(self.tokens.resize(target, now + micros(join.ready_in)));
        self.block(join.block, now);
        self.block_globally(join.global_block, now);
        let cooling = if is_same_epoch { join.unreported } else { join.cooling };
        let slots = self.assign_tokens(member, own_tokens, join.in_flight, cooling, rules, now);
        let held = if is_same_epoch { join.held } else { self.members.claim(member) };
        MembershipState { slots, ..self.membership_state(call, held, join.uses_share, rules, now) }
    }

    /// Assigns tokens to the calls that a member has made, the member's own tokens first.
    fn assign_tokens(
        &mut self,
        member: &str,
        own_tokens: Vec<u64>,
        in_flight: u32,
        cooling: u32,
        rules: &SharedLimitConfig,
        now: u64,
    ) -> Vec<Slot> {
        let mut own_tokens = own_tokens.into_iter();
        let mut slots = Vec::new();
        let mut is_short = false;
        for _ in 0..in_flight {
            let Some(token) = own_tokens.next().or_else(|| self.tokens.find_idle(now)) else {
                is_short = true;
                break;
            };
            let booking = self.tokens.hold(token, member, now, now + micros(rules.hold() + rules.window));
            slots.push(Slot { token, booking, wait: Duration::ZERO });
        }
        let cooled = now + micros(rules.window);
        for _ in 0..cooling {
            let Some(token) = own_tokens.next().or_else(|| self.tokens.find_idle(now)) else {
                is_short = true;
                break;
            };
            self.tokens.set_free_at(token, self.tokens.time_of(token).max(cooled));
        }
        if is_short {
            // There are fewer tokens than calls: no slot is booked until these calls have left the window.
            self.blocked = self.blocked.max(cooled + micros(rules.guard));
        }
        slots
    }
}
