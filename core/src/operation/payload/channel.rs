//! Channels, and who may do what in them.

use crate::operation::Reference;

/// What kind of channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChannelType {
    /// `text`.
    Text,
    /// `voice`.
    Voice,
    /// `category`.
    Category,
    /// `announcement`.
    Announcement,
    /// `stage`.
    Stage,
    /// `forum`.
    Forum,
}

impl ChannelType {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Text, Self::Voice, Self::Category, Self::Announcement, Self::Stage, Self::Forum];

    /// Its name in payloads.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Voice => "voice",
            Self::Category => "category",
            Self::Announcement => "announcement",
            Self::Stage => "stage",
            Self::Forum => "forum",
        }
    }

    /// Its number in Discord's API.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Text => 0,
            Self::Voice => 2,
            Self::Category => 4,
            Self::Announcement => 5,
            Self::Stage => 13,
            Self::Forum => 15,
        }
    }
}

/// Whose permissions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OverwriteTarget {
    /// `role_id`: those of a role's members.
    Role(Reference),
    /// `user_id`: those of one member.
    Member(u64),
}

/// What somebody may and may not do in a channel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Overwrite {
    /// Whose permissions.
    pub target: OverwriteTarget,
    /// `allow`: permissions, as a string.
    pub allow: u64,
    /// `deny`: permissions, as a string.
    pub deny: u64,
}

/// What a channel is like. What is not said is Discord's default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewChannel {
    /// `name`: 1 to 100 characters.
    pub name: String,
    /// `type`: `text` unless it is said.
    pub kind: ChannelType,
    /// `parent_id`: its category.
    pub parent: Option<Reference>,
    /// `topic`: at most 1024 characters (4096 in a forum).
    pub topic: Option<String>,
    /// `nsfw`.
    pub nsfw: Option<bool>,
    /// `position`.
    pub position: Option<u16>,
    /// `rate_limit_per_user`: 0 to 21600 seconds.
    pub rate_limit_per_user: Option<u16>,
    /// `bitrate` of a voice or stage channel: 8000 to 384000.
    pub bitrate: Option<u32>,
    /// `user_limit` of a voice or stage channel: 0 to 99 (10000 on a stage).
    pub user_limit: Option<u16>,
    /// `overwrites`: at most 100.
    pub overwrites: Option<Vec<Overwrite>>,
}

/// Makes a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateChannel {
    /// `key`: the name under which others may refer to it, if it is to have one.
    pub key: Option<String>,
    /// What it is like; its fields stand beside `key`.
    pub channel: NewChannel,
}

/// Sees to it that the guild has this channel, and that it is like this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnsureChannel {
    /// `key`: which channel.
    pub key: String,
    /// What it should be like; what is not said is left as it is.
    pub channel: NewChannel,
    /// `adopt`: if the key names nothing yet, take the one channel of this name, type and parent that has no key.
    /// Several are a conflict.
    pub adopt: bool,
}

/// Deletes a channel. Succeeds if there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteChannel {
    /// `channel_id`.
    pub channel: Reference,
}

/// What to do with the permissions that somebody already has in a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OverwriteMode {
    /// `replace`: these are the permissions.
    Replace,
    /// `merge`: these are laid over what there is; what is named in neither `allow` nor `deny` stays.
    Merge,
}

/// Changes what some may do in a channel; others are left as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdatePermissions {
    /// `channel_id`.
    pub channel: Reference,
    /// `overwrites`: 1 to 100.
    pub overwrites: Vec<Overwrite>,
    /// `mode`: `replace` unless it is said.
    pub mode: OverwriteMode,
}

/// Gives a channel exactly these overwrites.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplaceOverwrites {
    /// `channel_id`.
    pub channel: Reference,
    /// `overwrites`: at most 100.
    pub overwrites: Vec<Overwrite>,
}
