//! Fired interactions, their tokens, and their response times.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::Snowflake;
use crate::time::At;

pub(crate) const COMMAND: u8 = 2;
pub(crate) const COMPONENT: u8 = 3;
pub(crate) const AUTOCOMPLETE: u8 = 4;
pub(crate) const MODAL: u8 = 5;

/// Maximum number of response times for the score; beyond it, the oldest half is dropped.
const MAX_TIMES: usize = 1 << 20;

/// An interaction, from its firing until its token expires.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Interaction {
    pub(crate) id: Snowflake,
    pub(crate) application: Snowflake,
    pub(crate) kind: u8,
    pub(crate) token: String,
    pub(crate) fired: At,
    pub(crate) guild: Option<Snowflake>,
    pub(crate) channel: Snowflake,
    pub(crate) user: Snowflake,
    /// The message whose component was used.
    pub(crate) source: Option<Snowflake>,
    /// The command that showed the modal.
    pub(crate) trigger: Option<Snowflake>,
    pub(crate) state: ResponseState,
}

/// First response of an interaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ResponseState {
    NotYet,
    /// With a message, a deferred one, or an update of the component's.
    WithMessage(Snowflake),
    /// With a modal, choices, or a pong: no original message.
    Otherwise,
}

/// The interactions whose tokens are valid.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Interactions {
    by_id: BTreeMap<Snowflake, Interaction>,
    by_token: HashMap<String, Snowflake>,
}

impl Interactions {
    pub(crate) fn get(&self, id: Snowflake) -> Option<&Interaction> {
        self.by_id.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: Snowflake) -> Option<&mut Interaction> {
        self.by_id.get_mut(&id)
    }

    pub(crate) fn by_token(&self, token: &str) -> Option<&Interaction> {
        self.by_token.get(token).and_then(|id| self.by_id.get(id))
    }

    pub(crate) fn insert(&mut self, interaction: Interaction) {
        self.by_token.insert(interaction.token.clone(), interaction.id);
        self.by_id.insert(interaction.id, interaction);
    }

    /// Removes the interactions whose tokens have expired.
    pub(crate) fn prune(&mut self, life: Duration, now: At) {
        while let Some(oldest) = self.by_id.first_entry() {
            if now.since(oldest.get().fired) < life {
                break;
            }
            self.by_token.remove(&oldest.remove().token);
        }
    }
}

/// Counts of first responses, for the score.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Responses {
    /// First responses in time.
    pub(crate) answered: u64,
    /// Microseconds from the firing to the first response, by interaction.
    pub(crate) times: Vec<(Snowflake, u64)>,
    /// First responses after the deadline (10062).
    pub(crate) late: u64,
    /// Repeated first responses (40060).
    pub(crate) doubled: u64,
}

impl Responses {
    pub(crate) fn record(&mut self, interaction: Snowflake, delay: Duration) {
        self.answered += 1;
        if self.times.len() == MAX_TIMES {
            self.times.drain(..MAX_TIMES / 2);
        }
        self.times.push((interaction, u64::try_from(delay.as_micros()).unwrap_or(u64::MAX)));
    }
}

/// A token that is hard to guess: four random numbers from the seed and the id, so that runs are repeatable.
pub(crate) fn token_of(seed: u64, id: Snowflake) -> String {
    let mut rng = fastrand::Rng::with_seed(seed ^ id.get().rotate_left(32));
    (0..4).map(|_| format!("{:016x}", rng.u64(..))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fired(number: u64) -> Interaction {
        let id = Snowflake::new(number);
        Interaction {
            id,
            application: id,
            kind: COMMAND,
            token: token_of(1, id),
            fired: At::from_micros(number * 1_000_000),
            guild: None,
            channel: id,
            user: id,
            source: None,
            trigger: None,
            state: ResponseState::NotYet,
        }
    }

    #[test]
    fn pruning_removes_only_expired_interactions() {
        let mut interactions = Interactions::default();
        for number in 0..10 {
            interactions.insert(fired(number));
        }
        interactions.prune(Duration::from_secs(4), At::from_micros(9_000_000));
        assert!(interactions.get(Snowflake::new(5)).is_none());
        assert!(interactions.get(Snowflake::new(6)).is_some());
        assert!(interactions.by_token(&token_of(1, Snowflake::new(5))).is_none());
        assert_eq!(interactions.by_token(&token_of(1, Snowflake::new(6))).unwrap().id, Snowflake::new(6));
    }

    #[test]
    fn tokens_repeat_with_the_seed_and_differ_by_id() {
        assert_eq!(token_of(1, Snowflake::new(2)), token_of(1, Snowflake::new(2)));
        assert_ne!(token_of(1, Snowflake::new(2)), token_of(1, Snowflake::new(3)));
        assert_ne!(token_of(1, Snowflake::new(2)), token_of(2, Snowflake::new(2)));
    }
}
