//! Booking: which member gets which token, and when.

use std::time::Duration;

use super::{Epoch, MembershipState, SharedLimitConfig, SyncRequest, micros};
use crate::limit::shared::script::Slot;

impl Epoch {
    pub(super) fn book(
        &mut self,
        member: &str,
        sync: &SyncRequest,
        rules: &SharedLimitConfig,
        now: u64,
        state: &mut MembershipState,
    ) {
        if sync.requested_slots == 0 {
            return;
        }
        // A slot is booked up to one horizon ahead, so waiting that long for an absent member wastes no slot.
        self.queue.remove_late(now.saturating_sub(micros(rules.horizon)));
        let interval = (self.token_time / u64::from(self.limit.max(1))).max(1);
        for index in 0..sync.requested_slots {
            let is_urgent = sync.urgent && index == 0;
            let Some((free_at, token, _)) = self.tokens.first() else {
                state.retry_after = Some(rules.retry);
                return;
            };
            let spaced = self.next_due.saturating_sub(u64::from(rules.burst.saturating_sub(1)) * interval);
            let spaced = if is_urgent { 0 } else { spaced };
            // There must be a slot for each member that is ahead in the queue, too.
            let ahead = self.queue.ahead_of(member);
            let before = ahead as u64 * interval;
            let last = self.tokens.nth(ahead).map(|(free_at, is_held)| {
                let at = now.max(free_at).max(self.blocked).max(if is_urgent { 0 } else { spaced + before });
                (at, is_held && free_at > now)
            });
            if last.is_none_or(|(at, _)| at > now + micros(rules.horizon)) {
                let (ready, earliest) = match last {
                    Some((at, false)) => (at, now + interval),
                    // When a held token returns depends on the report of its holder.
                    Some((_, true)) | None => (0, now + before + interval),
                };
                let ready = ready.max(self.blocked + before).saturating_sub(micros(rules.horizon));
                state.retry_after = Some(self.schedule_retry(member, ready.max(earliest), rules, now));
                return;
            }
            let at = now.max(free_at).max(self.blocked).max(spaced);
            let booking = self.tokens.hold(token, member, at, at + micros(rules.hold() + rules.window));
            if !is_urgent {
                self.next_due = self.next_due.max(at) + interval;
            }
            self.queue.remove(member);
            state.slots.push(Slot { token, booking, wait: Duration::from_micros(at - now) });
        }
    }

    /// When a member without a slot should request again. It keeps its position in the queue until then.
    fn schedule_retry(&mut self, member: &str, then: u64, rules: &SharedLimitConfig, now: u64) -> Duration {
        let then = if self.is_complete { then } else { then.min(now + micros(rules.retry)) };
        if !self.queue.contains(member) {
            let ticket = self.tokens.next_number();
            self.queue.push(member, ticket);
        }
        self.queue.set_due(member, then);
        Duration::from_micros(then - now)
    }
}
