//! What breakers must not forget: which of them are not closed, for how long, and why.
//!
//! A token that is wrong stays so only for as long as it is the same: its fingerprint is kept, never the token, and what
//! was said of another one is no concern of this process.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use crate::answer::Credential;
use crate::memory::{Age, lasting_ms};
use crate::time::Timestamp;

use super::machine::{Breaker, Change, Step};
use super::{BreakerKey, Breakers, Effect, Origin, State, Why};

/// How many breakers are remembered: the worst.
const MOST: usize = 1_000;

/// What breakers must not forget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BreakersMemory(Vec<Kept>);

impl BreakersMemory {
    /// How many it knows not to be closed.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether all were closed.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    key: String,
    #[serde(flatten)]
    state: KeptState,
    why: Why,
    /// Cooldowns since it was last calm.
    cooldowns: u32,
    /// The fingerprint of the token, if that is what is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
enum KeptState {
    /// For so long; nothing is left of that if it was being probed.
    Open {
        lasting_ms: u64,
    },
    ForcedOpen,
}

impl Breakers {
    /// What must not be forgotten.
    #[must_use]
    pub fn remember(&self, now: Timestamp) -> BreakersMemory {
        let mut kept: Vec<(Reverse<u8>, Reverse<u64>, Kept)> = self
            .shelf
            .iter()
            .filter_map(|(key, breaker)| {
                let kept = self.kept(key, breaker, now)?;
                let lasting = match kept.state {
                    KeptState::Open { lasting_ms } => lasting_ms,
                    KeptState::ForcedOpen => u64::MAX,
                };
                Some((Reverse(u8::from(key.is_permanent())), Reverse(lasting), kept))
            })
            .collect();
        kept.sort_by(|a, b| (a.0, a.1, &a.2.key).cmp(&(b.0, b.1, &b.2.key)));
        BreakersMemory(kept.into_iter().map(|(_, _, kept)| kept).take(MOST).collect())
    }

    fn kept(&self, key: &BreakerKey, breaker: &Breaker, now: Timestamp) -> Option<Kept> {
        let (state, token) = match breaker.state() {
            State::Closed => return None,
            State::Open { until } => (KeptState::Open { lasting_ms: lasting_ms(until.since(now)) }, None),
            State::HalfOpen => (KeptState::Open { lasting_ms: 0 }, None),
            // Of a token that nothing is known of, nothing can be said later.
            State::ForcedOpen { why: Why::Unauthorized } => (KeptState::ForcedOpen, Some(self.shared.token_of(key)?)),
            State::ForcedOpen { .. } => (KeptState::ForcedOpen, None),
        };
        let text = key.to_string();
        // Without its token a webhook would be mistaken for another.
        let is_whole = text.parse().is_ok_and(|read: BreakerKey| read == *key);
        is_whole.then(|| Kept { key: text, state, why: breaker.why(), cooldowns: breaker.cooldowns(), token })
    }

    /// Takes over what an earlier life of this process remembered. `tokens` are the fingerprints of the tokens that it has
    /// now. Nothing becomes laxer by it, and the other processes are not told of it: what they share is newer.
    pub fn recall<'a>(
        &mut self,
        memory: &BreakersMemory,
        tokens: impl IntoIterator<Item = (Credential, &'a str)>,
        age: Age,
        now: Timestamp,
    ) -> Vec<Effect> {
        for (credential, fingerprint) in tokens {
            self.shared.set_token(credential, Some(fingerprint));
            // Somebody must be known who can probe, even if nobody makes a call that may.
            self.shelf.watch(&BreakerKey::Discord(credential), now);
        }
        let mut effects = Vec::new();
        for kept in memory.0.iter().take(MOST) {
            let Ok(key) = kept.key.parse::<BreakerKey>() else { continue };
            let Some(to) = self.recalled(kept, &key, age, now) else { continue };
            if !self.shelf.watch(&key, now) {
                continue;
            }
            let change =
                self.shelf.change(&key, now, |breaker, step| recall_one(breaker, to, kept.why, kept.cooldowns, step));
            if let Some(change) = change {
                self.shared.recalled(&key, change.to);
                effects.push(self.turned(&key, change, Origin::Before));
            }
        }
        effects
    }

    /// The state that a breaker is in by what is remembered; nothing if that is over, or about another token.
    fn recalled(&self, kept: &Kept, key: &BreakerKey, age: Age, now: Timestamp) -> Option<State> {
        match (kept.state, kept.why) {
            (KeptState::ForcedOpen, Why::Unauthorized) => {
                let is_same = kept.token.is_some() && kept.token == self.shared.token_of(key);
                is_same.then_some(State::ForcedOpen { why: Why::Unauthorized })
            }
            (KeptState::ForcedOpen, _) => Some(State::ForcedOpen { why: Why::Forced }),
            (KeptState::Open { lasting_ms }, _) => match (age.left(lasting_ms), age.over(lasting_ms)) {
                (Some(left), _) => Some(State::Open { until: now + left }),
                // It would be probed now. After a calm while it begins anew.
                (None, Some(over)) if over < self.shelf.config.calm => Some(State::Open { until: now }),
                (None, _) => None,
            },
        }
    }
}

fn recall_one(breaker: &mut Breaker, to: State, why: Why, cooldowns: u32, step: Step<'_>) -> Option<Change> {
    let is_stricter = match (breaker.state(), to) {
        (State::Open { until: known }, State::Open { until }) => until > known,
        (from, to) => to.severity() > from.severity(),
    };
    if !is_stricter {
        return None;
    }
    Some(match to {
        State::ForcedOpen { why } => breaker.force(why, step),
        State::Open { until } => breaker.reopen(until.since(step.now), why, cooldowns, step),
        State::Closed | State::HalfOpen => return None,
    })
}
