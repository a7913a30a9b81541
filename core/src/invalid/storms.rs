//! Storms of 403: a caller that repeats a call which the bot may not make.
//!
//! Each such response counts towards the ban of the address, and the next one will be the same. So after a number of them
//! for one caller, route and object, further calls are refused for a while, then probed by one call: a success ends it, and
//! another 403 makes the next wait twice as long.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::route::{RouteKey, TopLevelId};
use crate::time::Timestamp;

/// Settings of storms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StormConfig {
    /// Number of 403s in the window that begin a storm.
    pub max: u32,
    /// The window.
    pub window: Duration,
    /// First time for which calls are refused; doubled each time.
    pub backoff: Duration,
    /// Longest time for which calls are refused.
    pub max_backoff: Duration,
    /// How long a probe may take before another one may be sent.
    pub probe_timeout: Duration,
    /// Maximum number of routes that are remembered.
    pub max_len: usize,
}

impl Default for StormConfig {
    fn default() -> Self {
        Self {
            max: 10,
            window: Duration::from_secs(60),
            backoff: Duration::from_secs(60),
            max_backoff: Duration::from_secs(900),
            probe_timeout: Duration::from_secs(60),
            max_len: 4_096,
        }
    }
}

/// Whose calls, and where to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StormKey {
    /// The caller.
    pub caller: Arc<str>,
    /// The route.
    pub route: RouteKey,
    /// Its top-level object.
    pub major: TopLevelId,
}

/// A call of a storm is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StormRefusal {
    /// When the next call may be sent.
    pub until: Timestamp,
    /// Discord's error code of the last 403.
    pub code: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Forbidden {
    /// Number of 403s since the start of the window.
    count: u32,
    since: Timestamp,
    last: Timestamp,
    code: Option<u32>,
    storm: Option<Storm>,
}

#[derive(Clone, Copy, Debug)]
struct Storm {
    /// When the next call may be sent.
    until: Timestamp,
    /// How often calls were refused in a row.
    number: u32,
    /// Whether a probe is in flight.
    is_probing: bool,
}

/// The storms of all callers.
#[derive(Debug)]
pub struct ForbiddenStorms {
    config: StormConfig,
    all: HashMap<StormKey, Forbidden>,
}

impl ForbiddenStorms {
    /// Creates it without storms.
    #[must_use]
    pub fn new(config: StormConfig) -> Self {
        Self { config, all: HashMap::new() }
    }

    /// Whether a call would be refused now. Changes nothing.
    ///
    /// # Errors
    ///
    /// During a storm.
    pub fn check(&self, key: &StormKey, now: Timestamp) -> Result<(), StormRefusal> {
        match self.all.get(key) {
            Some(Forbidden { storm: Some(storm), code, .. }) if now < storm.until => {
                Err(StormRefusal { until: storm.until, code: *code })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Admits a call that is about to be sent. After a storm it is the probe, and others wait for its response.
    ///
    /// # Errors
    ///
    /// During a storm.
    pub fn admit(&mut self, key: &StormKey, now: Timestamp) -> Result<(), StormRefusal> {
        self.check(key, now)?;
        if let Some(storm) = self.all.get_mut(key).and_then(|forbidden| forbidden.storm.as_mut()) {
            (storm.until, storm.is_probing) = (now + self.config.probe_timeout, true);
        }
        Ok(())
    }

    /// Records a 403, with Discord's error code.
    pub fn on_forbidden(&mut self, key: &StormKey, code: Option<u32>, now: Timestamp) {
        if !self.all.contains_key(key) {
            if self.all.len() >= self.config.max_len {
                self.make_room(now);
            }
            let fresh = Forbidden { count: 0, since: now, last: now, code, storm: None };
            self.all.insert(key.clone(), fresh);
        }
        let config = self.config;
        let Some(forbidden) = self.all.get_mut(key) else { return };
        (forbidden.last, forbidden.code) = (now, code);
        let waits = Backoff::exact(config.backoff, config.max_backoff);
        match &mut forbidden.storm {
            None => {
                if now.since(forbidden.since) >= config.window {
                    (forbidden.count, forbidden.since) = (0, now);
                }
                forbidden.count += 1;
                if forbidden.count >= config.max {
                    let until = now + waits.delay_without_jitter(1);
                    forbidden.storm = Some(Storm { until, number: 1, is_probing: false });
                }
            }
            Some(storm) if storm.is_probing => {
                let number = storm.number.saturating_add(1);
                *storm = Storm { until: now + waits.delay_without_jitter(number), number, is_probing: false };
            }
            // It was in flight when the storm began.
            Some(_) => {}
        }
    }

    /// Records a success: the caller may make the call.
    pub fn on_success(&mut self, key: &StormKey) {
        self.all.remove(key);
    }

    /// Whether there was a 403 for this since the last success.
    #[must_use]
    pub fn is_watched(&self, key: &StormKey) -> bool {
        self.all.contains_key(key)
    }

    /// Discord's error code of the last 403.
    #[must_use]
    pub fn code(&self, key: &StormKey) -> Option<u32> {
        self.all.get(key)?.code
    }

    /// Number of storms.
    #[must_use]
    pub fn storms(&self, now: Timestamp) -> usize {
        self.all.values().filter(|forbidden| forbidden.storm.is_some_and(|storm| now < storm.until)).count()
    }

    /// Drops what is out of date, or else the oldest.
    fn make_room(&mut self, now: Timestamp) {
        let keep = self.config.window + self.config.max_backoff;
        self.all.retain(|_, forbidden| now.since(forbidden.last) < keep);
        if self.all.len() >= self.config.max_len {
            let oldest = self.all.iter().min_by_key(|(_, forbidden)| forbidden.last).map(|(key, _)| key.clone());
            if let Some(oldest) = oldest {
                self.all.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    fn key(caller: &str, id: u64) -> StormKey {
        let route = RouteKey::new("POST /channels/{id}/messages");
        StormKey { caller: caller.into(), route, major: TopLevelId::of(id) }
    }

    fn storms() -> ForbiddenStorms {
        ForbiddenStorms::new(StormConfig::default())
    }

    fn refused_until(until: u64) -> Result<(), StormRefusal> {
        Err(StormRefusal { until: at(until), code: Some(50_013) })
    }

    #[test]
    fn repeated_403_is_refused_with_growing_waits_until_a_success() {
        let (mut storms, one) = (storms(), key("one", 7));
        for number in 0..10 {
            assert_eq!(storms.admit(&one, at(0)), Ok(()), "{number}");
            storms.on_forbidden(&one, Some(50_013), at(0));
        }
        assert_eq!(storms.check(&one, at(59)), refused_until(60));
        for other in [key("two", 7), key("one", 8)] {
            assert_eq!(storms.check(&other, at(0)), Ok(()), "another caller or object");
        }
        // One probe; the others wait for its response.
        assert_eq!(storms.admit(&one, at(60)), Ok(()));
        assert_eq!(storms.admit(&one, at(61)), refused_until(120));
        storms.on_forbidden(&one, Some(50_013), at(62));
        assert_eq!(storms.check(&one, at(62)), refused_until(62 + 120));
        // Late responses change nothing.
        storms.on_forbidden(&one, Some(50_013), at(63));
        assert_eq!(storms.check(&one, at(63)), refused_until(62 + 120));
        assert_eq!((storms.storms(at(63)), storms.storms(at(182))), (1, 0));
        assert_eq!(storms.admit(&one, at(182)), Ok(()));
        storms.on_success(&one);
        assert_eq!((storms.admit(&one, at(183)), storms.admit(&one, at(183))), (Ok(()), Ok(())));
    }

    #[test]
    fn rare_403s_are_no_storm() {
        let (mut storms, one) = (storms(), key("one", 7));
        for number in 0..100 {
            assert_eq!(storms.admit(&one, at(number * 7)), Ok(()), "{number}");
            storms.on_forbidden(&one, None, at(number * 7));
        }
    }

    #[test]
    fn remembered_routes_are_bounded() {
        let mut storms = ForbiddenStorms::new(StormConfig { max_len: 3, max: 1, ..StormConfig::default() });
        for id in 0..10 {
            storms.on_forbidden(&key("one", id), None, at(id));
        }
        assert_eq!(storms.all.len(), 3);
        assert!(storms.check(&key("one", 9), at(10)).is_err() && storms.check(&key("one", 0), at(10)).is_ok());
    }

    proptest! {
        /// A caller that calls at any times and always gets 403: in any 15 minutes at most 20 calls reach Discord.
        #[test]
        fn caller_that_never_succeeds_reaches_discord_rarely(gaps in prop::collection::vec(0u64..120, 1..400)) {
            let (mut storms, one) = (storms(), key("one", 7));
            let (mut now, mut sent) = (0, Vec::new());
            for gap in gaps {
                now += gap % 8;
                if gap > 100 {
                    now += gap;
                }
                if storms.admit(&one, at(now)).is_ok() {
                    storms.on_forbidden(&one, None, at(now));
                    sent.push(now);
                }
            }
            for (index, first) in sent.iter().enumerate() {
                let within = sent[index..].iter().take_while(|then| **then < first + 60).count();
                prop_assert!(within <= 20, "{sent:?}");
            }
            let refused_at = sent.windows(10).position(|calls| calls[9] - calls[0] < 53 && calls[0] < 60);
            if let Some(index) = refused_at.filter(|index| *index == 0) {
                // From the tenth on, each is a probe.
                prop_assert!(sent[index + 9..].windows(2).all(|pair| pair[1] - pair[0] >= 60), "{sent:?}");
            }
        }
    }
}
