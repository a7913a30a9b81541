//! Channels.

use super::{
    field_reader::FieldReader,
    overwrite::{Overwrite, overwrites},
    value::{boolean, choice, integer, key, name, reference, text},
    write::{self, FieldWriter},
};
use crate::operation::Reference;

/// Type of a channel.
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
    /// All types.
    pub const ALL: [Self; 6] = [Self::Text, Self::Voice, Self::Category, Self::Announcement, Self::Stage, Self::Forum];

    /// Name in payloads.
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
}

/// Properties of a channel. Omitted ones have Discord's default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewChannel {
    /// `name`: 1 to 100 characters.
    pub name: String,
    /// `type`: `text` by default.
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

/// Creates a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateChannel {
    /// `key`: the key by which other operations can refer to it.
    pub key: Option<String>,
    /// Its properties; in JSON these fields are beside `key`.
    pub channel: NewChannel,
}

/// Ensures that the guild has this channel with these properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnsureChannel {
    /// `key`: which channel.
    pub key: String,
    /// Desired properties; omitted ones stay as they are.
    pub channel: NewChannel,
    /// `adopt`: if the key is not bound yet, adopt the one channel with this name, type and parent that has no key.
    /// Several such channels are a conflict.
    pub adopt: bool,
}

/// Deletes a channel. Succeeds if it does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteChannel {
    /// `channel_id`.
    pub channel: Reference,
}

impl ChannelType {
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
            Self::Forum => Some(4096),
            Self::Voice | Self::Category | Self::Stage => None,
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

impl NewChannel {
    fn from_form(form: &mut FieldReader<'_, '_>) -> Option<Self> {
        let name = form.required("name", name);
        let given = form.optional("type", choice(&ChannelType::ALL.map(|kind| (kind.name(), kind))));
        let kind = given.unwrap_or(ChannelType::Text);
        let parent = form.optional("parent_id", reference);
        let topic = form.optional("topic", text(0, kind.max_topic_length().unwrap_or(4096)));
        let nsfw = form.optional("nsfw", boolean);
        let position = form.optional("position", integer(0, u16::MAX.into()));
        let rate_limit_per_user = form.optional("rate_limit_per_user", integer(0, 21_600));
        let bitrate = form.optional("bitrate", integer(8_000, 384_000));
        let max_user_limit = if kind == ChannelType::Stage { 10_000 } else { 99 };
        let user_limit = form.optional("user_limit", integer(0, max_user_limit));
        let overwrites = form.optional("overwrites", overwrites(0));
        if given.is_some() || !form.has_value("type") {
            reject_unsupported_fields(form, kind);
        }
        Some(Self {
            name: name?,
            kind,
            parent,
            topic,
            nsfw,
            position,
            rate_limit_per_user,
            bitrate,
            user_limit,
            overwrites,
        })
    }

    fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.text("name", &self.name);
        fields.text("type", self.kind.name());
        fields.optional("parent_id", self.parent.as_ref(), FieldWriter::reference);
        fields.optional("topic", self.topic.as_deref(), FieldWriter::text);
        fields.optional("nsfw", self.nsfw, FieldWriter::plain);
        fields.optional("position", self.position, FieldWriter::plain);
        fields.optional("rate_limit_per_user", self.rate_limit_per_user, FieldWriter::plain);
        fields.optional("bitrate", self.bitrate, FieldWriter::plain);
        fields.optional("user_limit", self.user_limit, FieldWriter::plain);
        if let Some(overwrites) = &self.overwrites {
            fields.with("overwrites", |out| write::list(out, overwrites, Overwrite::write));
        }
    }
}

/// Rejects fields that this type of channel does not have. Discord ignores them silently, so they could never take
/// effect.
fn reject_unsupported_fields(form: &mut FieldReader<'_, '_>, kind: ChannelType) {
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

impl CreateChannel {
    pub(super) fn from_form(form: &mut FieldReader<'_, '_>) -> Option<Self> {
        let key = form.optional("key", key);
        Some(Self { key, channel: NewChannel::from_form(form)? })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.optional("key", self.key.as_deref(), FieldWriter::text);
        self.channel.write(fields);
    }
}

impl EnsureChannel {
    pub(super) fn from_form(form: &mut FieldReader<'_, '_>) -> Option<Self> {
        let key = form.required("key", key);
        let channel = NewChannel::from_form(form);
        let adopt = form.optional("adopt", boolean).unwrap_or(false);
        Some(Self { key: key?, channel: channel?, adopt })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.text("key", &self.key);
        self.channel.write(fields);
        fields.plain("adopt", self.adopt);
    }
}

impl DeleteChannel {
    pub(super) fn from_form(form: &mut FieldReader<'_, '_>) -> Option<Self> {
        Some(Self { channel: form.required("channel_id", reference)? })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.reference("channel_id", &self.channel);
    }
}
