//! Saved state of breakers: which of them are not closed, for how long, and why.
//!
//! An invalid token stays invalid only while it is the same: its fingerprint is saved, never the token, and the state
//! of another token is ignored.

use std::cmp::Reverse;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::response::Credential;
use crate::snapshot::{SnapshotAge, duration_ms};
use crate::time::Timestamp;

use super::machine::{Breaker, Transition, TransitionContext};
use super::{BreakerEffect, BreakerKey, BreakerReason, BreakerState, Breakers, ChangeOrigin};

/// Maximum number of saved breakers: the worst.
const MAX_SAVED: usize = 1_000;

/// Saved state of breakers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SavedBreakers(Vec<SavedBreaker>);

impl SavedBreakers {
    /// Number of breakers that are not closed.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// The breakers that are still open after this time, each with its reason and how much longer it is open; without
    /// a time if it does not close by itself.
    pub fn open(&self, age: SnapshotAge) -> impl Iterator<Item = (&str, BreakerReason, Option<Duration>)> {
        self.0.iter().filter_map(move |saved| match saved.state {
            SavedBreakerState::Open { lasting_ms } => {
                let remaining = age.remaining(lasting_ms)?;
                Some((saved.key.as_str(), saved.why, Some(remaining)))
            }
            SavedBreakerState::ForcedOpen => Some((saved.key.as_str(), saved.why, None)),
        })
    }

    /// Whether all were closed.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedBreaker {
    key: String,
    #[serde(flatten)]
    state: SavedBreakerState,
    why: BreakerReason,
    /// Cooldowns since it was last calm.
    cooldowns: u32,
    /// Fingerprint of the token, if the token is invalid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
enum SavedBreakerState {
    /// Open for this time; 0 if it was being probed.
    Open {
        lasting_ms: u64,
    },
    ForcedOpen,
}

impl Breakers {
    /// Returns the state to save.
    #[must_use]
    pub fn save(&self, now: Timestamp) -> SavedBreakers {
        let mut saved: Vec<(Reverse<u8>, Reverse<u64>, SavedBreaker)> = self
            .table
            .iter()
            .filter_map(|(key, breaker)| {
                let saved = self.saved(key, breaker, now)?;
                let remaining_ms = match saved.state {
                    SavedBreakerState::Open { lasting_ms } => lasting_ms,
                    SavedBreakerState::ForcedOpen => u64::MAX,
                };
                Some((Reverse(u8::from(key.is_permanent())), Reverse(remaining_ms), saved))
            })
            .collect();
        saved.sort_by(|a, b| (a.0, a.1, &a.2.key).cmp(&(b.0, b.1, &b.2.key)));
        SavedBreakers(saved.into_iter().map(|(_, _, saved)| saved).take(MAX_SAVED).collect())
    }

    fn saved(&self, key: &BreakerKey, breaker: &Breaker, now: Timestamp) -> Option<SavedBreaker> {
        let (state, token) = match breaker.state() {
            BreakerState::Closed => return None,
            BreakerState::Open { until } => {
                (SavedBreakerState::Open { lasting_ms: duration_ms(until.since(now)) }, None)
            }
            BreakerState::HalfOpen => (SavedBreakerState::Open { lasting_ms: 0 }, None),
            // Without a fingerprint, the token cannot be recognized later.
            BreakerState::ForcedOpen { why: BreakerReason::Unauthorized } => {
                (SavedBreakerState::ForcedOpen, Some(self.shared.token_of(key)?))
            }
            BreakerState::ForcedOpen { .. } => (SavedBreakerState::ForcedOpen, None),
        };
        let text = key.to_string();
        // Without its token, a webhook would be mistaken for another.
        let is_whole = text.parse().is_ok_and(|read: BreakerKey| read == *key);
        is_whole.then(|| SavedBreaker {
            key: text,
            state,
            why: breaker.reason(),
            cooldowns: breaker.cooldowns(),
            token,
        })
    }

    /// Restores the state of an earlier run of this process. `tokens` are the fingerprints of its current tokens. It
    /// never makes a breaker less strict, and is not sent to the other processes: their shared state is newer.
    pub fn restore<'a>(
        &mut self,
        saved: &SavedBreakers,
        tokens: impl IntoIterator<Item = (Credential, &'a str)>,
        age: SnapshotAge,
        now: Timestamp,
    ) -> Vec<BreakerEffect> {
        for (credential, fingerprint) in tokens {
            self.shared.set_token(credential, Some(fingerprint));
            // At least one credential must be known for probes, even if there is no call that may probe.
            self.table.ensure(&BreakerKey::Discord(credential), now);
        }
        let mut effects = Vec::new();
        for entry in saved.0.iter().take(MAX_SAVED) {
            let Ok(key) = entry.key.parse::<BreakerKey>() else { continue };
            let Some(to) = self.restored_state(entry, &key, age, now) else { continue };
            if !self.table.ensure(&key, now) {
                continue;
            }
            let change = self
                .table
                .change(&key, now, |breaker, step| restore_one(breaker, to, entry.why, entry.cooldowns, step));
            if let Some(change) = change {
                self.shared.restored(&key, change.to);
                effects.push(self.record_transition(&key, change, ChangeOrigin::Before));
            }
        }
        effects
    }

    /// The restored state of a breaker; `None` if it has ended, or concerns another token.
    fn restored_state(
        &self,
        saved: &SavedBreaker,
        key: &BreakerKey,
        age: SnapshotAge,
        now: Timestamp,
    ) -> Option<BreakerState> {
        match (saved.state, saved.why) {
            (SavedBreakerState::ForcedOpen, BreakerReason::Unauthorized) => {
                let is_same = saved.token.is_some() && saved.token == self.shared.token_of(key);
                is_same.then_some(BreakerState::ForcedOpen { why: BreakerReason::Unauthorized })
            }
            (SavedBreakerState::ForcedOpen, _) => Some(BreakerState::ForcedOpen { why: BreakerReason::Forced }),
            (SavedBreakerState::Open { lasting_ms }, _) => {
                match (age.remaining(lasting_ms), age.elapsed_since_end(lasting_ms)) {
                    (Some(remaining), _) => Some(BreakerState::Open { until: now + remaining }),
                    // It would be probed now. After a calm period it starts from the beginning.
                    (None, Some(elapsed)) if elapsed < self.table.config.reset_after => {
                        Some(BreakerState::Open { until: now })
                    }
                    (None, _) => None,
                }
            }
        }
    }
}

fn restore_one(
    breaker: &mut Breaker,
    to: BreakerState,
    reason: BreakerReason,
    cooldowns: u32,
    step: TransitionContext<'_>,
) -> Option<Transition> {
    let is_stricter = match (breaker.state(), to) {
        (BreakerState::Open { until: known }, BreakerState::Open { until }) => until > known,
        (from, to) => to.severity() > from.severity(),
    };
    if !is_stricter {
        return None;
    }
    Some(match to {
        BreakerState::ForcedOpen { why: reason } => breaker.force(reason, step),
        BreakerState::Open { until } => breaker.reopen(until.since(step.now), reason, cooldowns, step),
        BreakerState::Closed | BreakerState::HalfOpen => return None,
    })
}
