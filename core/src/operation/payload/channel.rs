//! Channels.

use super::{
    field_reader::FieldReader,
    format::{BOOLEAN, KEY, NAME, Named, choice, integer, text},
    overwrite::{Overwrite, overwrites},
    record::{defaulted, flattened, names, optional, record, required},
    reference::REFERENCE,
};
use crate::operation::Reference;

names! {
    /// Type of a channel.
    pub enum ChannelType {
        Text = "text",
        Voice = "voice",
        Category = "category",
        Announcement = "announcement",
        Stage = "stage",
        Forum = "forum",
    }
}

record! {
    /// Properties of a channel. Omitted ones have Discord's default.
    pub struct NewChannel {
        name: String = required("name", NAME),
        /// Fields that a channel of this type does not have are rejected.
        kind: ChannelType = defaulted("type", choice(), ChannelType::Text),
        /// The category. Not for categories.
        parent: Option<Reference> = optional("parent_id", REFERENCE),
        /// At most 1024 characters, except in a forum. For text, announcement and forum channels.
        topic: Option<String> = optional("topic", text(0, MAX_TOPIC_CHARS))
            .narrowed(|form| text(0, ChannelType::read(form).max_topic_length().unwrap_or(MAX_TOPIC_CHARS))),
        /// Not for categories.
        nsfw: Option<bool> = optional("nsfw", BOOLEAN),
        position: Option<u16> = optional("position", integer(0, 65_535)),
        /// Seconds. For text, voice, stage and forum channels.
        rate_limit_per_user: Option<u16> = optional("rate_limit_per_user", integer(0, 21_600)),
        /// For voice and stage channels.
        bitrate: Option<u32> = optional("bitrate", integer(8_000, 384_000)),
        /// At most 99, except on a stage. For voice and stage channels.
        user_limit: Option<u16> = optional("user_limit", integer(0, MAX_STAGE_USERS))
            .narrowed(|form| integer(0, ChannelType::read(form).max_user_limit())),
        /// At most one for each role or member.
        overwrites: Option<Vec<Overwrite>> = optional("overwrites", overwrites(0)),
    }
    check = reject_unsupported_fields;
}

record! {
    /// Creates a channel or a category.
    pub struct CreateChannel {
        key: Option<String> = optional("key", KEY),
        channel: NewChannel = flattened(),
    }
}

record! {
    /// Creates the channel if the key has none yet, otherwise updates it; omitted fields stay unchanged.
    pub struct EnsureChannel {
        key: String = required("key", KEY),
        channel: NewChannel = flattened(),
        /// Adopts the only channel with this name, type and parent that has no key, if the key has no channel yet.
        /// Several such channels are a conflict.
        adopt: bool = defaulted("adopt", BOOLEAN, false),
    }
}

record! {
    /// Deletes a channel. Succeeds if it does not exist.
    pub struct DeleteChannel {
        channel: Reference = required("channel_id", REFERENCE),
    }
}

/// Maximum length of a topic, of any type of channel.
const MAX_TOPIC_CHARS: usize = 4096;
/// Maximum number of users on a stage.
const MAX_STAGE_USERS: u64 = 10_000;

impl ChannelType {
    /// Number in Discord's API.
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

    /// The type of a channel that is being read; the default if it is invalid.
    fn read(form: &FieldReader<'_, '_>) -> Self {
        let given = form.valid("type").and_then(|value| value.as_str());
        Self::NAMES.iter().find(|(name, _)| Some(*name) == given).map_or(Self::Text, |(_, kind)| *kind)
    }

    /// Whether it is a voice channel.
    const fn is_voice(self) -> bool {
        match self {
            Self::Voice | Self::Stage => true,
            Self::Text | Self::Category | Self::Announcement | Self::Forum => false,
        }
    }

    /// Maximum length of its topic; `None` if it has no topic.
    const fn max_topic_length(self) -> Option<usize> {
        match self {
            Self::Text | Self::Announcement => Some(1024),
            Self::Forum => Some(MAX_TOPIC_CHARS),
            Self::Voice | Self::Category | Self::Stage => None,
        }
    }

    /// Maximum number of its users, if it is a voice channel.
    const fn max_user_limit(self) -> u64 {
        match self {
            Self::Stage => MAX_STAGE_USERS,
            Self::Text | Self::Voice | Self::Category | Self::Announcement | Self::Forum => 99,
        }
    }

    /// Whether it supports slow mode.
    const fn supports_slow_mode(self) -> bool {
        match self {
            Self::Text | Self::Voice | Self::Stage | Self::Forum => true,
            Self::Category | Self::Announcement => false,
        }
    }
}

/// Rejects fields that this type of channel does not have. Discord ignores them silently, so they could never take
/// effect.
fn reject_unsupported_fields(form: &mut FieldReader<'_, '_>) {
    if form.is_invalid("type") {
        return;
    }
    let kind = ChannelType::read(form);
    let is_category = kind == ChannelType::Category;
    for (field, unsupported) in [
        ("parent_id", is_category),
        ("topic", kind.max_topic_length().is_none()),
        ("nsfw", is_category),
        ("rate_limit_per_user", !kind.supports_slow_mode()),
        ("bitrate", !kind.is_voice()),
        ("user_limit", !kind.is_voice()),
    ] {
        if unsupported && form.has_value(field) {
            form.invalid(field, format!("is not supported by a channel of type `{}`", kind.name()));
        }
    }
}
