//! Queries of the limits and the score.

use super::World;
use super::channel::Home;
use crate::id::Snowflake;
use crate::score::InteractionScore;

impl World {
    /// The guild of a channel; `None` for a direct channel or an unknown channel.
    pub(crate) fn guild_of_channel(&self, channel: Snowflake) -> Option<Snowflake> {
        match self.homes.get(&channel)? {
            Home::Guild(guild) => Some(*guild),
            Home::Direct(_) => None,
        }
    }

    pub(crate) fn has_message(&self, channel: Snowflake, message: Snowflake) -> bool {
        self.feeds.get(&channel).is_some_and(|feed| feed.get(message).is_some())
    }

    /// Adds the counts of first responses to a score.
    pub(crate) fn score_interactions(&self, score: &mut InteractionScore) {
        score.answered = self.responses.answered;
        score.late = self.responses.late;
        score.doubled = self.responses.doubled;
        score.response_us = self.responses.times.iter().map(|(_, micros)| *micros).collect();
    }

    pub(crate) fn reset_interaction_score(&mut self) {
        self.responses = super::interaction::Responses::default();
    }
}
