//! Messages, and answers to interactions.

use serde_json::Value;

use crate::operation::Reference;

/// What a message says. At least one of its fields says something.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MessageBody {
    /// `content`: at most 2000 characters.
    pub content: Option<String>,
    /// `embeds`: at most 10 objects, as Discord takes them.
    pub embeds: Option<Vec<Value>>,
    /// `components`: objects, as Discord takes them.
    pub components: Option<Vec<Value>>,
    /// `allowed_mentions`: an object, as Discord takes it. Without one, nobody is mentioned.
    pub allowed_mentions: Option<Value>,
}

/// Sends a message to a channel.
#[derive(Clone, Debug, PartialEq)]
pub struct SendMessage {
    /// `channel_id`.
    pub channel: Reference,
    /// `key`: the name under which others may refer to it, if it is to have one.
    pub key: Option<String>,
    /// `reply_to`: the message that it answers.
    pub reply_to: Option<Reference>,
    /// What it says; its fields stand beside `channel_id`.
    pub body: MessageBody,
}

/// Sees to it that the channel has this message, and that it says this.
#[derive(Clone, Debug, PartialEq)]
pub struct EnsureMessage {
    /// `key`: which message.
    pub key: String,
    /// `channel_id`.
    pub channel: Reference,
    /// What it says.
    pub body: MessageBody,
    /// `pin`: whether it should be pinned; not said, it is left as it is.
    pub pin: Option<bool>,
}

/// Changes a message of the bot's own.
#[derive(Clone, Debug, PartialEq)]
pub struct EditMessage {
    /// `channel_id`.
    pub channel: Reference,
    /// `message_id`.
    pub message: Reference,
    /// What it says from now on; what is not said is left as it is.
    pub body: MessageBody,
}

/// Deletes a message. Succeeds if there is none.
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
    /// What it says.
    pub body: MessageBody,
}

/// Tells Discord that an interaction's answer is on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeferReply {
    /// `interaction_id`.
    pub interaction: u64,
    /// `interaction_token`.
    pub token: String,
    /// `ephemeral`: only who asked sees the answer.
    pub ephemeral: bool,
    /// `update`: the answer changes the message that the component belongs to.
    pub update: bool,
}

/// Says something more in answer to an interaction.
#[derive(Clone, Debug, PartialEq)]
pub struct SendFollowup {
    /// `interaction_id`.
    pub interaction: u64,
    /// `interaction_token`.
    pub token: String,
    /// `ephemeral`: only who asked sees it.
    pub ephemeral: bool,
    /// What it says.
    pub body: MessageBody,
}

/// Changes the first answer to an interaction.
#[derive(Clone, Debug, PartialEq)]
pub struct EditOriginal {
    /// `interaction_id`.
    pub interaction: u64,
    /// `interaction_token`.
    pub token: String,
    /// What it says from now on.
    pub body: MessageBody,
}
