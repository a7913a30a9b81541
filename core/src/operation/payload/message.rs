//! Messages.

use serde_json::Value;

use super::{
    field_reader::FieldReader,
    format::{ANY_OBJECT, BOOLEAN, ID, KEY, list, text},
    record::{flattened, optional, record, required},
    reference::REFERENCE,
    rich_content::{ALLOWED_MENTIONS, EMBEDS},
};
use crate::operation::Reference;

/// Fields of which a message has at least one.
const PARTS: [&str; 3] = ["content", "embeds", "components"];

record! {
    /// Content of a message. At least one field has visible content.
    #[derive(Default)]
    pub struct MessageBody {
        content: Option<String> = optional("content", text(0, 2000)),
        /// At most 6000 characters of text in all embeds.
        embeds: Option<Vec<Value>> = optional("embeds", EMBEDS),
        /// Components as defined by Discord.
        components: Option<Vec<Value>> = optional("components", list(0, 40, ANY_OBJECT)),
        /// Who may be mentioned. **Without it, no one is.**
        allowed_mentions: Option<Value> = optional("allowed_mentions", ALLOWED_MENTIONS),
    }
    any_of = &PARTS;
}

record! {
    /// Sends a message to a channel.
    pub struct SendMessage {
        channel: Reference = required("channel_id", REFERENCE),
        key: Option<String> = optional("key", KEY),
        /// The message to reply to.
        reply_to: Option<Reference> = optional("reply_to", REFERENCE),
        body: MessageBody = flattened().checked(has_content),
    }
}

record! {
    /// Sends the message if the key has none yet, otherwise edits it.
    pub struct EnsureMessage {
        key: String = required("key", KEY),
        channel: Reference = required("channel_id", REFERENCE),
        body: MessageBody = flattened().checked(has_content),
        /// Whether the message is pinned; unchanged if omitted.
        pin: Option<bool> = optional("pin", BOOLEAN),
    }
}

record! {
    /// Edits a message of the bot. Omitted fields stay unchanged; `""` and `[]` clear a field.
    pub struct EditMessage {
        channel: Reference = required("channel_id", REFERENCE),
        message: Reference = required("message_id", REFERENCE),
        body: MessageBody = flattened().checked(has_change),
    }
}

record! {
    /// Deletes a message. Succeeds if it does not exist.
    pub struct DeleteMessage {
        channel: Reference = required("channel_id", REFERENCE),
        message: Reference = required("message_id", REFERENCE),
    }
}

record! {
    /// Sends a direct message to a user. It is queued for that user, whichever guild it is submitted for.
    pub struct SendDm {
        user: u64 = required("user_id", ID),
        body: MessageBody = flattened().checked(has_content),
    }
}

/// A new message must have visible content. An invalid field counts as content.
pub(super) fn has_content(form: &mut FieldReader<'_, '_>) {
    let is_visible = |part: &&str| {
        form.is_invalid(part)
            || match form.valid(part) {
                Some(Value::String(text)) => !text.trim().is_empty(),
                Some(value) => value.as_array().is_some_and(|items| !items.is_empty()),
                None => false,
            }
    };
    if !PARTS.iter().any(is_visible) {
        form.invalid_here("must have content: `content`, `embeds` or `components`");
    }
}

/// An edit must change something, even if to an empty value.
pub(super) fn has_change(form: &mut FieldReader<'_, '_>) {
    if !PARTS.iter().any(|part| form.has_value(part)) {
        form.invalid_here("must change something: `content`, `embeds` or `components`");
    }
}
