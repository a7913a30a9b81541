//! Events: from the text of a gateway frame to what handlers receive.
//!
//! ```text
//!  frame ─▶ envelope (op, t, s, ids; the rest stays text) ─▶ Event ─▶ handlers that match its name ─▶ confirmed
//! ```

mod class;
mod envelope;
mod event_type;
pub mod handler;
mod name;
mod read;

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::class::EventClass;
pub use self::envelope::{Envelope, FrameError, JsonString, PayloadIds};
pub use self::name::EventName;
pub use self::read::{Frame, HTTP_SESSION, read, read_interaction};
use crate::time::UnixMs;

/// What an event says about the guilds that the bot is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuildChange {
    /// The bot is in this guild, which has this name.
    Named {
        /// The guild.
        guild: u64,
        /// Its name.
        name: Arc<str>,
    },
    /// The bot is no longer in this guild.
    Left {
        /// The guild.
        guild: u64,
    },
}

impl GuildChange {
    /// The guild.
    #[must_use]
    pub const fn guild(&self) -> u64 {
        match self {
            Self::Named { guild, .. } | Self::Left { guild } => *guild,
        }
    }
}

/// All guilds of a shard, as a new session starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardGuilds {
    /// Number of the shard.
    pub shard: u32,
    /// Number of shards.
    pub shards: u32,
    /// The guilds.
    pub guilds: Vec<u64>,
}

impl ShardGuilds {
    /// Whether events of a guild come to this shard.
    #[must_use]
    pub fn covers(&self, guild: u64) -> bool {
        (guild >> 22) % u64::from(self.shards.max(1)) == u64::from(self.shard)
    }
}

/// What is read of a READY.
#[derive(Deserialize)]
struct Ready {
    guilds: Vec<ReadyGuild>,
    /// Missing if there is one shard.
    #[serde(default = "only_shard")]
    shard: (u32, u32),
}

#[derive(Deserialize)]
struct ReadyGuild {
    id: String,
}

const fn only_shard() -> (u32, u32) {
    (0, 1)
}

/// Maximum length of the name of a guild, in characters. Discord permits as many.
const MAX_GUILD_NAME: usize = 100;

/// Origin of an event. It is unique.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct EventOrigin {
    /// The gateway session; `http` for an interaction that came over HTTP.
    pub session: Arc<str>,
    /// The shard of the session.
    pub shard: u32,
    /// Its sequence number in the session; the interaction's id if it came over HTTP.
    pub seq: u64,
}

/// Text of an event: the frame as received, and the range of the payload in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventText {
    whole: String,
    data: Range<usize>,
}

impl EventText {
    /// Creates it from a text and the range of the payload.
    ///
    /// # Panics
    ///
    /// When the range is not valid for the text.
    #[must_use]
    pub fn new(whole: String, data: Range<usize>) -> Self {
        assert!(whole.get(data.clone()).is_some(), "the payload is a range of the text");
        Self { whole, data }
    }

    /// The payload, as JSON.
    #[must_use]
    pub fn data(&self) -> &str {
        &self.whole[self.data.clone()]
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.whole.len()
    }
}

/// Kind of an interaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum InteractionKind {
    /// A command.
    Command,
    /// A button or a menu of a message.
    Component,
    /// A command option that is being typed.
    Autocomplete,
    /// A submitted form.
    Modal,
}

/// What is needed to respond to an interaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interaction {
    /// Its id.
    pub id: u64,
    /// The token, valid for 15 minutes. A secret: everyone who has it can respond.
    pub token: String,
    /// The application.
    pub application: u64,
    /// Its kind.
    pub kind: InteractionKind,
}

/// An event from Discord. It is read once and shared from then on: cloning it copies its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its origin.
    pub origin: EventOrigin,
    /// Name for handlers: `member.join`, `interaction.command.hello`.
    pub name: EventName,
    /// Rank for load shedding.
    pub class: EventClass,
    /// The guild that it concerns.
    pub guild: Option<u64>,
    /// The channel that it concerns.
    pub channel: Option<u64>,
    /// The user who caused it, or whom it concerns.
    pub user: Option<u64>,
    /// What is needed to respond, if it is an interaction.
    pub interaction: Option<Arc<Interaction>>,
    /// When it was received.
    pub received_at: UnixMs,
    /// Its text.
    pub text: EventText,
}

impl Event {
    /// The guilds of a shard, if this is its READY.
    #[must_use]
    pub fn shard_guilds(&self) -> Option<ShardGuilds> {
        if self.name.as_str() != "gateway.ready" {
            return None;
        }
        let Ready { guilds, shard: (shard, shards) } = serde_json::from_str(self.text.data()).ok()?;
        let guilds = guilds.iter().map(|guild| guild.id.parse().ok()).collect::<Option<_>>()?;
        Some(ShardGuilds { shard, shards, guilds })
    }

    /// What it says about the guilds that the bot is in. Reads the payload of the three events that can, up to the name.
    #[must_use]
    pub fn guild_change(&self) -> Option<GuildChange> {
        let guild = self.guild?;
        match &self.name {
            EventName::Known("guild.create" | "guild.update") => {
                let name = envelope::name_of(self.text.data())?;
                Some(GuildChange::Named { guild, name: name.chars().take(MAX_GUILD_NAME).collect::<String>().into() })
            }
            EventName::Known("guild.delete") if !envelope::is_unavailable(self.text.data()) => {
                Some(GuildChange::Left { guild })
            }
            EventName::Known(_) | EventName::Other(_) => None,
        }
    }
}
