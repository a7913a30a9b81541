//! A simulated Discord for tests, with its own counters.

use std::time::Duration;

use crate::response::RateHeaders;

/// The server side of a bucket, in microseconds of its own clock, which is `SKEW` ahead.
pub(super) struct TestBucketServer {
    name: String,
    limit: u32,
    per: u64,
    leaky: bool,
    /// Fixed: (end of window, taken). Leaky: (when it is empty, unused).
    state: (u64, u32),
}

const SKEW: u64 = 987_654_321_000;

impl TestBucketServer {
    pub(super) fn new(limit: u32, per_ms: u64, leaky: bool) -> Self {
        Self::named("b", limit, per_ms, leaky)
    }

    pub(super) fn named(name: &str, limit: u32, per_ms: u64, leaky: bool) -> Self {
        Self { name: name.into(), limit, per: per_ms * 1_000, leaky, state: (0, 0) }
    }

    /// A call arrives; `None` is a 429.
    pub(super) fn arrive(&mut self, now: u64) -> Option<RateHeaders> {
        let (remaining, free_at) = if self.leaky {
            let slot = self.per / u64::from(self.limit);
            let empty = self.state.0.max(now) + slot;
            if empty - now > slot * u64::from(self.limit) {
                return None;
            }
            self.state.0 = empty;
            let used = (empty - now).div_ceil(slot);
            (self.limit - u32::try_from(used).unwrap(), empty)
        } else {
            if now >= self.state.0 {
                self.state = (now + self.per, 0);
            }
            if self.state.1 >= self.limit {
                return None;
            }
            self.state.1 += 1;
            (self.limit - self.state.1, self.state.0)
        };
        let reset_after = Duration::from_millis((free_at - now).div_ceil(1_000));
        let reset_ms = (now + SKEW).div_ceil(1_000) + u64::try_from(reset_after.as_millis()).unwrap();
        Some(RateHeaders { bucket: self.name.clone(), limit: self.limit, remaining, reset_ms, reset_after })
    }
}
