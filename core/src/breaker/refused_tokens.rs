//! Tokens of callers that Discord has refused.
//!
//! Each 401 counts towards the ban of the address, and a client with a wrong token repeats it. So further calls with the
//! token are refused, except one probe at a time and per interval: a token that works again heals by itself.

use std::collections::HashMap;
use std::time::Duration;

use crate::time::Timestamp;

#[derive(Clone, Copy, Debug)]
struct RefusedToken {
    /// When the next call may probe it.
    probe_at: Timestamp,
    /// The permit of the probe in flight.
    probe: Option<u64>,
}

/// Remembers refused tokens by fingerprint, up to a maximum number.
#[derive(Debug, Default)]
pub(super) struct RefusedTokens(HashMap<u64, RefusedToken>);

impl RefusedTokens {
    /// Whether a call with the token may be sent now; otherwise when one may.
    pub(super) fn check(&self, token: u64, now: Timestamp) -> Result<(), Timestamp> {
        match self.0.get(&token) {
            Some(refused) if now < refused.probe_at => Err(refused.probe_at),
            Some(_) | None => Ok(()),
        }
    }

    /// A call with the token got this permit: if the token is refused, it is the probe, and no other call passes within
    /// the interval.
    pub(super) fn admitted(&mut self, token: u64, permit: u64, interval: Duration, now: Timestamp) {
        if let Some(refused) = self.0.get_mut(&token) {
            *refused = RefusedToken { probe_at: now + interval, probe: Some(permit) };
        }
    }

    /// Discord refused the token.
    pub(super) fn refused(&mut self, token: u64, interval: Duration, max_len: usize, now: Timestamp) {
        if self.0.len() >= max_len && !self.0.contains_key(&token) {
            let oldest =
                self.0.iter().min_by_key(|(token, refused)| (refused.probe_at, **token)).map(|(token, _)| *token);
            if let Some(oldest) = oldest {
                self.0.remove(&oldest);
            }
        }
        if self.0.len() < max_len || self.0.contains_key(&token) {
            self.0.insert(token, RefusedToken { probe_at: now + interval, probe: None });
        }
    }

    /// Discord accepted the token.
    pub(super) fn accepted(&mut self, token: u64) {
        self.0.remove(&token);
    }

    /// A call was never sent: if it was the probe, the next call is.
    pub(super) fn unsent(&mut self, token: u64, permit: u64, now: Timestamp) {
        if let Some(refused) = self.0.get_mut(&token).filter(|refused| refused.probe == Some(permit)) {
            *refused = RefusedToken { probe_at: now, probe: None };
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(600);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    #[test]
    fn refused_token_is_probed_once_and_heals() {
        let mut tokens = RefusedTokens::default();
        assert_eq!(tokens.check(7, at(0)), Ok(()));
        tokens.admitted(7, 1, INTERVAL, at(0));
        tokens.refused(7, INTERVAL, 10, at(0));
        assert_eq!(tokens.check(7, at(599)), Err(at(600)));
        assert_eq!(tokens.check(8, at(599)), Ok(()), "other tokens are not affected");
        assert_eq!(tokens.check(7, at(600)), Ok(()));
        tokens.admitted(7, 2, INTERVAL, at(600));
        assert_eq!(tokens.check(7, at(601)), Err(at(1_200)), "one probe at a time");
        tokens.accepted(7);
        assert_eq!((tokens.check(7, at(601)), tokens.len()), (Ok(()), 0));
    }

    #[test]
    fn probe_that_was_not_sent_is_replaced_by_the_next_call() {
        let mut tokens = RefusedTokens::default();
        tokens.refused(7, INTERVAL, 10, at(0));
        tokens.admitted(7, 2, INTERVAL, at(600));
        tokens.unsent(7, 1, at(601));
        assert_eq!(tokens.check(7, at(601)), Err(at(1_200)), "another call was not sent");
        tokens.unsent(7, 2, at(601));
        assert_eq!(tokens.check(7, at(601)), Ok(()));
    }

    #[test]
    fn refused_tokens_are_bounded() {
        let mut tokens = RefusedTokens::default();
        for token in 0..5 {
            tokens.refused(token, INTERVAL, 3, at(token));
        }
        assert_eq!(tokens.len(), 3);
        assert_eq!((tokens.check(0, at(5)), tokens.check(4, at(5))), (Ok(()), Err(at(604))));
        tokens.refused(9, INTERVAL, 0, at(5));
        assert_eq!(tokens.len(), 2, "the oldest was dropped, and there is no room for another");
    }

    proptest! {
        /// Calls at any times, with a token that Discord always refuses, and responses after any delay up to a minute.
        #[test]
        fn invalid_token_reaches_discord_once_per_interval(gaps in prop::collection::vec((0u64..400, 0u64..60), 1..80)) {
            let mut tokens = RefusedTokens::default();
            // The first call is answered before any other begins.
            tokens.refused(1, INTERVAL, 10, at(0));
            let (mut now, mut sent, mut pending): (u64, Vec<u64>, Option<u64>) = (0, Vec::new(), None);
            for (permit, (gap, delay)) in gaps.into_iter().enumerate() {
                now += gap;
                if let Some(then) = pending.filter(|then| *then <= now) {
                    tokens.refused(1, INTERVAL, 10, at(then));
                    pending = None;
                }
                if tokens.check(1, at(now)).is_ok() {
                    prop_assert!(pending.is_none(), "one probe at a time");
                    tokens.admitted(1, permit as u64, INTERVAL, at(now));
                    sent.push(now);
                    pending = Some(now + delay);
                }
            }
            prop_assert!(sent.windows(2).all(|pair| pair[1] - pair[0] >= 600), "{sent:?}");
        }
    }
}
