//! Reactions of members to messages.

use serde::Deserialize;

use super::ControlError;
use crate::id::Snowflake;
use crate::state::Shared;
use crate::world::drive::DriveError;

/// A reaction of a member.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReactionSpec {
    /// Channel of the message.
    pub channel_id: Snowflake,
    /// The message.
    pub message_id: Snowflake,
    /// The emoji: a Unicode one, or `name:id`.
    pub emoji: String,
    /// The user; the guild's owner by default.
    #[serde(default)]
    pub user_id: Option<Snowflake>,
    /// Takes the reaction back.
    #[serde(default)]
    pub remove: bool,
}

impl Shared {
    pub(crate) fn react(&self, spec: &ReactionSpec) -> Result<(), ControlError> {
        let now = self.now();
        let mut core = self.lock();
        core.world.user_reaction(spec.channel_id, spec.message_id, spec.user_id, &spec.emoji, spec.remove).map_err(
            |error| match error {
                DriveError::InvalidEmoji(_) | DriveError::TooManyReactions(_) => {
                    ControlError::Invalid(error.to_string())
                }
                other => ControlError::unknown(other),
            },
        )?;
        core.deliver(now);
        Ok(())
    }
}
