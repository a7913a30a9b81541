//! Messages.

use serde_json::Value;

use super::{
    field_reader::FieldReader,
    rich_content::{allowed_mentions, components, embeds},
    value::{boolean, id, key, reference, text},
    write::{self, FieldWriter},
};
use crate::operation::Reference;

/// Content of a message. At least one field has visible content.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MessageBody {
    /// `content`: at most 2000 characters.
    pub content: Option<String>,
    /// `embeds`: at most 10 objects, as Discord takes them.
    pub embeds: Option<Vec<Value>>,
    /// `components`: objects, as Discord takes them.
    pub components: Option<Vec<Value>>,
    /// `allowed_mentions`: an object, as Discord takes it. Without it, mentions do not notify.
    pub allowed_mentions: Option<Value>,
}

/// Sends a message to a channel.
#[derive(Clone, Debug, PartialEq)]
pub struct SendMessage {
    /// `channel_id`.
    pub channel: Reference,
    /// `key`: the key by which other operations can refer to it.
    pub key: Option<String>,
    /// `reply_to`: the message that it replies to.
    pub reply_to: Option<Reference>,
    /// Its content; in JSON these fields are beside `channel_id`.
    pub body: MessageBody,
}

/// Ensures that the channel has this message with this content.
#[derive(Clone, Debug, PartialEq)]
pub struct EnsureMessage {
    /// `key`: which message.
    pub key: String,
    /// `channel_id`.
    pub channel: Reference,
    /// Desired content.
    pub body: MessageBody,
    /// `pin`: whether it should be pinned; omitted, it stays as it is.
    pub pin: Option<bool>,
}

/// Edits a message of the bot.
#[derive(Clone, Debug, PartialEq)]
pub struct EditMessage {
    /// `channel_id`.
    pub channel: Reference,
    /// `message_id`.
    pub message: Reference,
    /// New content; omitted fields stay as they are.
    pub body: MessageBody,
}

/// Deletes a message. Succeeds if it does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteMessage {
    /// `channel_id`.
    pub channel: Reference,
    /// `message_id`.
    pub message: Reference,
}

/// Sends a message to a user.
#[derive(Clone, Debug, PartialEq)]
pub struct SendDm {
    /// `user_id`.
    pub user: u64,
    /// Its content.
    pub body: MessageBody,
}

/// What a message body must contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyRequirement {
    /// Visible content, as a new message.
    VisibleContent,
    /// At least one field to change, even if to an empty value.
    Change,
}

impl MessageBody {
    pub(super) fn from_form(form: &mut FieldReader<'_, '_>, requirement: BodyRequirement) -> Self {
        let content = form.optional("content", text(0, 2000));
        let embeds = form.optional("embeds", embeds);
        let components = form.optional("components", components);
        let allowed_mentions = form.optional("allowed_mentions", allowed_mentions);
        let body = Self { content, embeds, components, allowed_mentions };
        let parts = ["content", "embeds", "components"];
        match requirement {
            BodyRequirement::Change if !parts.iter().any(|part| form.has_value(part)) => {
                form.invalid_here("must change something: `content`, `embeds` or `components`");
            }
            // An invalid field counts as content.
            BodyRequirement::VisibleContent if body.is_blank() && !parts.iter().any(|part| form.is_invalid(part)) => {
                form.invalid_here("must have content: `content`, `embeds` or `components`");
            }
            BodyRequirement::Change | BodyRequirement::VisibleContent => {}
        }
        body
    }

    /// Whether it has no visible content.
    fn is_blank(&self) -> bool {
        self.content.as_ref().is_none_or(|content| content.trim().is_empty())
            && self.embeds.as_ref().is_none_or(Vec::is_empty)
            && self.components.as_ref().is_none_or(Vec::is_empty)
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.optional("content", self.content.as_deref(), FieldWriter::text);
        for (name, values) in [("embeds", &self.embeds), ("components", &self.components)] {
            if let Some(values) = values {
                fields.with(name, |out| write::list(out, values, write::value));
            }
        }
        if let Some(mentions) = &self.allowed_mentions {
            fields.with("allowed_mentions", |out| write::value(out, mentions));
        }
    }
}

impl SendMessage {
    pub(super) fn from_form(form: &mut FieldReader<'_, '_>) -> Option<Self> {
        let channel = form.required("channel_id", reference);
        let key = form.optional("key", key);
        let reply_to = form.optional("reply_to", reference);
        let body = MessageBody::from_form(form, BodyRequirement::VisibleContent);
        Some(Self { channel: channel?, key, reply_to, body })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.reference("channel_id", &self.channel);
        fields.optional("key", self.key.as_deref(), FieldWriter::text);
        fields.optional("reply_to", self.reply_to.as_ref(), FieldWriter::reference);
        self.body.write(fields);
    }
}

impl EnsureMessage {
    pub(super) fn from_form(form: &mut FieldReader<'_, '_>) -> Option<Self> {
        let key = form.required("key", key);
        let channel = form.required("channel_id", reference);
        let body = MessageBody::from_form(form, BodyRequirement::VisibleContent);
        let pin = form.optional("pin", boolean);
        Some(Self { key: key?, channel: channel?, body, pin })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.text("key", &self.key);
        fields.reference("channel_id", &self.channel);
        self.body.write(fields);
        fields.optional("pin", self.pin, FieldWriter::plain);
    }
}

impl EditMessage {
    pub(super) fn from_form(form: &mut FieldReader<'_, '_>) -> Option<Self> {
        let channel = form.required("channel_id", reference);
        let message = form.required("message_id", reference);
        let body = MessageBody::from_form(form, BodyRequirement::Change);
        Some(Self { channel: channel?, message: message?, body })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.reference("channel_id", &self.channel);
        fields.reference("message_id", &self.message);
        self.body.write(fields);
    }
}

impl DeleteMessage {
    pub(super) fn from_form(form: &mut FieldReader<'_, '_>) -> Option<Self> {
        let channel = form.required("channel_id", reference);
        let message = form.required("message_id", reference);
        Some(Self { channel: channel?, message: message? })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.reference("channel_id", &self.channel);
        fields.reference("message_id", &self.message);
    }
}

impl SendDm {
    pub(super) fn from_form(form: &mut FieldReader<'_, '_>) -> Option<Self> {
        let user = form.required("user_id", id);
        let body = MessageBody::from_form(form, BodyRequirement::VisibleContent);
        Some(Self { user: user?, body })
    }

    pub(super) fn write(&self, fields: &mut FieldWriter<'_>) {
        fields.quoted("user_id", self.user);
        self.body.write(fields);
    }
}
