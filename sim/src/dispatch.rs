//! Events that the world produces for the gateway.

use bytes::Bytes;
use serde::Serialize;

use crate::id::Snowflake;

/// One gateway event, encoded once for all sessions that receive it.
#[derive(Clone, Debug)]
pub(crate) struct Dispatch {
    /// The event's name, such as `GUILD_ROLE_CREATE`.
    pub(crate) name: &'static str,
    pub(crate) audience: Audience,
    /// A session receives it only with at least one of these intents; 0 means always.
    pub(crate) intents: u64,
    /// The `d` of the frame, as JSON.
    pub(crate) data: Bytes,
}

/// The sessions that receive an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audience {
    /// The shard of this guild, for each bot that is a member.
    Guild(Snowflake),
    /// The shard of the guild, for one bot: interactions.
    Member {
        /// The bot's application.
        application: Snowflake,
        guild: Snowflake,
    },
    /// Shard 0 of the bot with this application id: direct messages and the like.
    Application(Snowflake),
}

impl Dispatch {
    pub(crate) fn guild(name: &'static str, guild: Snowflake, intents: u64, data: &impl Serialize) -> Self {
        Self { name, audience: Audience::Guild(guild), intents, data: encode(data) }
    }

    pub(crate) fn application(name: &'static str, application: Snowflake, intents: u64, data: &impl Serialize) -> Self {
        Self { name, audience: Audience::Application(application), intents, data: encode(data) }
    }
}

fn encode(data: &impl Serialize) -> Bytes {
    serde_json::to_vec(data).expect("invariant: the simulator's own objects are plain JSON").into()
}
