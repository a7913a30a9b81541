//! The strings as Rust methods.

use super::{ControlError, Drive, DriveReport, FireSpec, GuildsSpec, JoinSpec, MessageSpec};
use crate::fault::Fault;
use crate::id::Snowflake;
use crate::limit::{LimitConfig, RouteLimit};
use crate::score::Score;
use crate::sim::SimHandle;

impl SimHandle {
    /// What arrived and what came of it.
    #[must_use]
    pub fn score(&self) -> Score {
        self.shared.score()
    }

    /// Starts the score anew.
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

    /// The public key that interactions posted to a URL are signed for, in hexadecimal.
    #[must_use]
    pub fn verify_key(&self) -> String {
        super::signed::public_key(&self.shared.signing_key)
    }

    /// Makes guilds.
    ///
    /// # Errors
    ///
    /// When a number is out of its range.
    pub fn make_guilds(&self, spec: &GuildsSpec) -> Result<Vec<Snowflake>, ControlError> {
        self.shared.make_guilds(spec)
    }

    /// Members join a guild.
    ///
    /// # Errors
    ///
    /// When there is no such guild, or the user is a member already.
    pub async fn join(&self, guild: Snowflake, spec: JoinSpec) -> Result<DriveReport, ControlError> {
        self.shared.drive(Drive::Join { guild, spec }).await
    }

    /// A member leaves a guild.
    ///
    /// # Errors
    ///
    /// When there is no such guild or member.
    pub fn leave(&self, guild: Snowflake, user: Snowflake) -> Result<(), ControlError> {
        self.shared.leave(guild, user)
    }

    /// A member writes.
    ///
    /// # Errors
    ///
    /// When there is no such channel or user.
    pub async fn write(&self, spec: MessageSpec) -> Result<DriveReport, ControlError> {
        self.shared.drive(Drive::Message(spec)).await
    }

    /// A command is used, a button pressed, a modal sent.
    ///
    /// # Errors
    ///
    /// When the guild, channel or user is unknown, or the URL does not answer.
    pub async fn fire(&self, spec: FireSpec) -> Result<DriveReport, ControlError> {
        self.shared.drive(Drive::Fire(spec)).await
    }

    /// Adds a REST fault; returns its id.
    ///
    /// # Errors
    ///
    /// When it fits no route, or a number is out of its range.
    pub fn add_fault(&self, fault: Fault) -> Result<u64, ControlError> {
        self.shared.add_fault(fault)
    }

    /// Removes a REST fault, or all of them.
    pub fn remove_faults(&self, id: Option<u64>) -> usize {
        self.shared.lock().faults.remove(id)
    }

    /// Sets the whole table of limits; every window starts anew.
    ///
    /// # Errors
    ///
    /// When a limit is out of its range or for no route.
    pub fn set_limits(&self, limits: LimitConfig) -> Result<(), ControlError> {
        self.shared.set_limits(limits)
    }

    /// Sets one route's limit.
    ///
    /// # Errors
    ///
    /// When it is out of its range or for no route.
    pub fn set_route_limit(&self, limit: RouteLimit) -> Result<(), ControlError> {
        self.shared.set_route_limit(limit)
    }

    /// The world, limits, faults and score as at the start; sessions end.
    pub fn reset(&self) {
        self.shared.reset();
    }
}
