//! Channels of guilds, direct channels, and where each belongs.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::permissions::Overwrite;
use super::user::User;
use super::{World, wire};
use crate::id::Snowflake;
use crate::time::At;

/// Maximum number of channels in a guild.
pub(crate) const MAX_CHANNELS: usize = 500;
/// Maximum number of channels in a category.
pub(crate) const MAX_IN_CATEGORY: usize = 50;
/// Maximum number of overwrites of a channel.
pub(crate) const MAX_OVERWRITES: usize = 1_000;

pub(crate) const TEXT: u8 = 0;
pub(crate) const DIRECT: u8 = 1;
pub(crate) const VOICE: u8 = 2;
pub(crate) const CATEGORY: u8 = 4;
pub(crate) const ANNOUNCEMENT: u8 = 5;
pub(crate) const STAGE: u8 = 13;
pub(crate) const FORUM: u8 = 15;

/// A guild's channel; its JSON is Discord's channel object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Channel {
    pub(crate) id: Snowflake,
    #[serde(rename = "type")]
    pub(crate) kind: u8,
    pub(crate) guild_id: Snowflake,
    pub(crate) name: String,
    pub(crate) position: u32,
    pub(crate) flags: u32,
    pub(crate) parent_id: Option<Snowflake>,
    pub(crate) permission_overwrites: Vec<Overwrite>,
    pub(crate) nsfw: bool,
    pub(crate) topic: Option<String>,
    pub(crate) rate_limit_per_user: u32,
    pub(crate) last_message_id: Option<Snowflake>,
    #[serde(with = "wire::iso_or_null")]
    pub(crate) last_pin_timestamp: Option<At>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bitrate: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) user_limit: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) default_auto_archive_duration: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) available_tags: Option<Vec<Value>>,
}

impl Channel {
    pub(crate) fn new(id: Snowflake, kind: u8, guild_id: Snowflake, name: String, position: u32) -> Self {
        let voice = matches!(kind, VOICE | STAGE);
        Self {
            id,
            kind,
            guild_id,
            name,
            position,
            flags: 0,
            parent_id: None,
            permission_overwrites: Vec::new(),
            nsfw: false,
            topic: None,
            rate_limit_per_user: 0,
            last_message_id: None,
            last_pin_timestamp: None,
            bitrate: voice.then_some(64_000),
            user_limit: voice.then_some(0),
            default_auto_archive_duration: None,
            available_tags: (kind == FORUM).then(Vec::new),
        }
    }
}

/// Whether channels of this kind accept messages.
pub(crate) fn accepts_messages(kind: u8) -> bool {
    matches!(kind, TEXT | DIRECT | VOICE | ANNOUNCEMENT | STAGE)
}

/// A name in Discord's form for channels of this kind: text-like ones are lowercase, without spaces.
pub(crate) fn normalize_name(kind: u8, name: &str) -> String {
    match kind {
        TEXT | ANNOUNCEMENT | FORUM => name.split_whitespace().collect::<Vec<_>>().join("-").to_lowercase(),
        _ => name.trim().to_owned(),
    }
}

/// Whether two kinds are ordered together: categories, voice, and all others.
pub(crate) fn same_order_group(one: u8, other: u8) -> bool {
    let group = |kind| match kind {
        CATEGORY => 0,
        VOICE | STAGE => 1,
        _ => 2,
    };
    group(one) == group(other)
}

/// The direct messages of one bot and one user.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Direct {
    pub(crate) id: Snowflake,
    /// The bot's application; the other side is the recipient.
    pub(crate) application: Snowflake,
    pub(crate) recipient: Arc<User>,
    pub(crate) last_message_id: Option<Snowflake>,
}

/// A direct channel as its bot sees it.
#[derive(Debug, Serialize)]
pub(crate) struct DirectView<'a> {
    id: Snowflake,
    #[serde(rename = "type")]
    kind: u8,
    flags: u32,
    last_message_id: Option<Snowflake>,
    recipients: [&'a User; 1],
}

impl Direct {
    pub(crate) fn view(&self) -> DirectView<'_> {
        DirectView {
            id: self.id,
            kind: DIRECT,
            flags: 0,
            last_message_id: self.last_message_id,
            recipients: [&self.recipient],
        }
    }
}

/// The guild or direct messages that a channel belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Home {
    Guild(Snowflake),
    /// Direct messages with the bot of this application.
    Direct(Snowflake),
}

impl Home {
    pub(crate) fn guild(self) -> Option<Snowflake> {
        match self {
            Self::Guild(guild) => Some(guild),
            Self::Direct(_) => None,
        }
    }
}

impl World {
    /// The direct channel of a bot with a user, if one was opened.
    pub(crate) fn find_direct(&self, application: Snowflake, user: Snowflake) -> Option<Snowflake> {
        self.directs_of.get(&user)?.iter().find(|(bot, _)| *bot == application).map(|(_, channel)| *channel)
    }

    /// Opens a direct channel without an event.
    pub(crate) fn create_direct(&mut self, application: Snowflake, recipient: Arc<User>, now: At) -> Snowflake {
        let id = self.mint.generate(now);
        self.homes.insert(id, Home::Direct(application));
        self.directs_of.entry(recipient.id).or_default().push((application, id));
        self.directs.insert(id, Direct { id, application, recipient, last_message_id: None });
        id
    }
}
