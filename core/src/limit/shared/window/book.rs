//! Booking: who gets which token, and when.

use std::time::Duration;

use super::{Epoch, SharedConfig, Standing, Sync, micros};
use crate::limit::shared::call::Slot;

impl Epoch {
    pub(super) fn book(&mut self, member: &str, sync: &Sync, rules: &SharedConfig, now: u64, standing: &mut Standing) {
        let interval = (self.away / u64::from(self.limit.max(1))).max(1);
        for place in 0..sync.want {
            let is_urgent = sync.urgent && place == 0;
            let Some((free_at, token, is_held)) = self.tokens.first() else {
                standing.again = Some(rules.retry);
                return;
            };
            let spaced = self.pace.saturating_sub(u64::from(rules.burst.saturating_sub(1)) * interval);
            let at = now.max(free_at).max(self.blocked).max(if is_urgent { 0 } else { spaced });
            if at > now + micros(rules.horizon) {
                standing.again = Some(self.ask_again(at, is_held && free_at > now, interval, rules, now));
                return;
            }
            let booking = self.tokens.hold(token, member, at, at + micros(rules.hold() + rules.window));
            if !is_urgent {
                self.pace = self.pace.max(at) + interval;
            }
            standing.slots.push(Slot { token, booking, wait: Duration::from_micros(at - now) });
        }
    }

    /// When somebody should ask again who cannot have a slot now. One after the other, so that each finds one then.
    fn ask_again(&mut self, at: u64, is_held: bool, interval: u64, rules: &SharedConfig, now: u64) -> Duration {
        // When a token comes back that is held, only its holder will tell.
        let ready = if is_held { self.blocked.max(now + interval) } else { at };
        let mut then = self.line.max(ready.saturating_sub(micros(rules.horizon))).max(now + interval);
        if !self.is_whole {
            then = then.min(now + micros(rules.retry));
        }
        self.line = then + interval;
        Duration::from_micros(then - now)
    }
}
