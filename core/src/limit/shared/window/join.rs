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
        self.pass_time(rules, now);
        if self.seats.life(member).is_some_and(|life| life != call.life) {
            self.bury(member, rules, now);
        }
        let stays = join.epoch == self.name;
        if !stays && self.seats.live() == 0 {
            // No member was attached that would have noticed a jump of the clock: earlier calls count from now.
            self.tokens.free_not_before(now + micros(rules.window + rules.guard));
        }
        // The member's own report of its calls is authoritative; the stored bookings are no longer needed.
        let mut own = self.tokens.release_all(member, now);
        if self.seats.life(member).is_some() {
            self.seats.attach(member, now);
        } else {
            self.seats.take(member, call.life, 0, rules.limit, now);
            if !self.is_whole && !stays {
                let share = join.held.min(self.limit.saturating_sub(self.brought));
                self.brought += share;
                self.seats.tell(member, 0, share);
            }
        }
        self.count_limit();
        let target = self.target();
        own.extend(self.tokens.fit(target, now + micros(join.ready_in)));
        self.block(join.block, now);
        self.block_globally(join.global_block, now);
        let cooling = if stays { join.untold } else { join.cooling };
        let slots = self.lodge(member, own, join.flying, cooling, rules, now);
        let held = if stays { join.held } else { self.seats.claim(member) };
        MembershipState { slots, ..self.standing(call, held, join.wants_share, rules, now) }
    }

    /// Assigns tokens to the calls that a member has made, the member's own tokens first.
    fn lodge(
        &mut self,
        member: &str,
        own: Vec<u64>,
        flying: u32,
        cooling: u32,
        rules: &SharedLimitConfig,
        now: u64,
    ) -> Vec<Slot> {
        let mut own = own.into_iter();
        let mut slots = Vec::new();
        let mut is_short = false;
        for _ in 0..flying {
            let Some(token) = own.next().or_else(|| self.tokens.idle(now)) else {
                is_short = true;
                break;
            };
            let booking = self.tokens.hold(token, member, now, now + micros(rules.hold() + rules.window));
            slots.push(Slot { token, booking, wait: Duration::ZERO });
        }
        let cooled = now + micros(rules.window);
        for _ in 0..cooling {
            let Some(token) = own.next().or_else(|| self.tokens.idle(now)) else {
                is_short = true;
                break;
            };
            self.tokens.free_at(token, self.tokens.time_of(token).max(cooled));
        }
        if is_short {
            // There are fewer tokens than calls: no slot is booked until these calls have left the window.
            self.blocked = self.blocked.max(cooled + micros(rules.guard));
        }
        slots
    }
}
