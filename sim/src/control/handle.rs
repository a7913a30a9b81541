//! The control API as Rust methods.

use super::{ControlError, Drive, DriveReport, FireSpec, GuildsSpec, JoinSpec, MessageSpec, ReactionSpec};
use crate::fault::Fault;
use crate::id::Snowflake;
use crate::limit::{LimitConfig, RouteLimit};
use crate::score::Score;
use crate::sim::SimHandle;

impl SimHandle {
    /// What arrived, and its effects.
    #[must_use]
    pub fn score(&self) -> Score {
        self.shared.score()
    }

    /// Resets the score.
    pub fn reset_score(&self) {
        self.shared.reset_score();
    }

    /// The guilds that the bots are in, oldest first.
    #[must_use]
    pub fn guilds(&self) -> Vec<Snowflake> {
        self.shared.lock().world.guilds.keys().copied().collect()
    }

    /// The application id of the bot with this token.
    #[must_use]
    pub fn application(&self, token: &str) -> Option<Snowflake> {
        self.shared.lock().world.bot_by_token(token).map(|bot| bot.application_id)
    }

    /// The public key for signatures of interactions posted to a URL, in hexadecimal.
    #[must_use]
    pub fn verify_key(&self) -> String {
        super::signed::public_key(&self.shared.signing_key)
    }

    /// Creates guilds.
    ///
    /// # Errors
    ///
    /// When a number is out of range.
    pub fn create_guilds(&self, spec: &GuildsSpec) -> Result<Vec<Snowflake>, ControlError> {
        self.shared.create_guilds(spec)
    }

    /// Lets members join a guild.
    ///
    /// # Errors
    ///
    /// When the guild is unknown, or the user is already a member.
    pub async fn join(&self, guild: Snowflake, spec: JoinSpec) -> Result<DriveReport, ControlError> {
        self.shared.drive(Drive::Join { guild, spec }).await
    }

    /// Lets a member leave a guild.
    ///
    /// # Errors
    ///
    /// When the guild or member is unknown.
    pub fn leave(&self, guild: Snowflake, user: Snowflake) -> Result<(), ControlError> {
        self.shared.leave(guild, user)
    }

    /// Lets a member send messages.
    ///
    /// # Errors
    ///
    /// When the channel or user is unknown.
    pub async fn send_messages(&self, spec: MessageSpec) -> Result<DriveReport, ControlError> {
        self.shared.drive(Drive::Message(spec)).await
    }

    /// Lets a member react to a message, or take a reaction back.
    ///
    /// # Errors
    ///
    /// When the channel, message or user is unknown, or the emoji is none.
    pub fn react(&self, spec: &ReactionSpec) -> Result<(), ControlError> {
        self.shared.react(spec)
    }

    /// Lets a member use a command, press a button or submit a modal.
    ///
    /// # Errors
    ///
    /// When the guild, channel or user is unknown, or the URL does not respond.
    pub async fn fire(&self, spec: FireSpec) -> Result<DriveReport, ControlError> {
        self.shared.drive(Drive::Fire(spec)).await
    }

    /// Adds a REST fault; returns its id.
    ///
    /// # Errors
    ///
    /// When it matches no route, or a number is out of range.
    pub fn add_fault(&self, fault: Fault) -> Result<u64, ControlError> {
        self.shared.add_fault(fault)
    }

    /// Removes a REST fault, or all of them; returns the number removed.
    pub fn remove_faults(&self, id: Option<u64>) -> usize {
        self.shared.lock().faults.remove(id)
    }

    /// Replaces the table of limits; every window is reset.
    ///
    /// # Errors
    ///
    /// When a limit is out of range or for an unknown route.
    pub fn set_limits(&self, limits: LimitConfig) -> Result<(), ControlError> {
        self.shared.set_limits(limits)
    }

    /// Sets the limit of one route.
    ///
    /// # Errors
    ///
    /// When it is out of range or for an unknown route.
    pub fn set_route_limit(&self, limit: RouteLimit) -> Result<(), ControlError> {
        self.shared.set_route_limit(limit)
    }

    /// Resets the world, limits, faults and score to the start; sessions end.
    pub fn reset(&self) {
        self.shared.reset();
    }
}
