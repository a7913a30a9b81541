//! Messages, and their events.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::attachment::Attachment;
use super::member::MemberData;
use super::reaction::ReactionView;
use super::user::User;
use super::wire;
use crate::id::Snowflake;
use crate::time::At;

/// Visible to one user only: a response to an interaction.
pub(crate) const EPHEMERAL: u64 = 1 << 6;
/// The bot "is thinking": a deferred response.
pub(crate) const LOADING: u64 = 1 << 7;
pub(crate) const SUPPRESS_EMBEDS: u64 = 1 << 2;
pub(crate) const SUPPRESS_NOTIFICATIONS: u64 = 1 << 12;
pub(crate) const COMPONENTS_V2: u64 = 1 << 15;

/// Kinds of messages.
pub(crate) const DEFAULT: u8 = 0;
pub(crate) const PINNED: u8 = 6;
pub(crate) const REPLY: u8 = 19;
pub(crate) const COMMAND: u8 = 20;

/// A message; its JSON is Discord's message object. The nonce is not part of it: Discord shows it only when the message
/// is created.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Message {
    pub(crate) id: Snowflake,
    pub(crate) channel_id: Snowflake,
    #[serde(rename = "type")]
    pub(crate) kind: u8,
    pub(crate) content: String,
    pub(crate) author: Arc<User>,
    #[serde(with = "wire::iso")]
    pub(crate) timestamp: At,
    #[serde(with = "wire::iso_or_null")]
    pub(crate) edited_timestamp: Option<At>,
    pub(crate) tts: bool,
    pub(crate) pinned: bool,
    pub(crate) flags: u64,
    pub(crate) mention_everyone: bool,
    pub(crate) mentions: Vec<Arc<User>>,
    pub(crate) mention_roles: Vec<Snowflake>,
    pub(crate) attachments: Vec<Attachment>,
    pub(crate) embeds: Vec<Value>,
    pub(crate) components: Vec<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) message_reference: Option<Reference>,
    /// The application that sent it in response to an interaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) application_id: Option<Snowflake>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) webhook_id: Option<Snowflake>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) interaction_metadata: Option<Value>,
}

/// The message that another one replies to or refers to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reference {
    #[serde(rename = "type")]
    pub(crate) kind: u8,
    pub(crate) message_id: Snowflake,
    pub(crate) channel_id: Snowflake,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) guild_id: Option<Snowflake>,
}

impl Message {
    pub(crate) fn new(id: Snowflake, channel_id: Snowflake, author: Arc<User>, content: String, now: At) -> Self {
        Self {
            id,
            channel_id,
            kind: DEFAULT,
            content,
            author,
            timestamp: now,
            edited_timestamp: None,
            tts: false,
            pinned: false,
            flags: 0,
            mention_everyone: false,
            mentions: Vec::new(),
            mention_roles: Vec::new(),
            attachments: Vec::new(),
            embeds: Vec::new(),
            components: Vec::new(),
            message_reference: None,
            application_id: None,
            webhook_id: None,
            interaction_metadata: None,
        }
    }

    pub(crate) fn is_ephemeral(&self) -> bool {
        self.flags & EPHEMERAL != 0
    }
}

/// A message as one user reads it: with its reactions.
#[derive(Debug, Serialize)]
pub(crate) struct MessageView<'a> {
    #[serde(flatten)]
    pub(crate) message: &'a Message,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) reactions: Vec<ReactionView<'a>>,
}

/// A message in the response to its author, and in MESSAGE_CREATE and MESSAGE_UPDATE.
#[derive(Debug, Serialize)]
pub(crate) struct MessageEvent<'a> {
    #[serde(flatten)]
    pub(crate) message: &'a Message,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) guild_id: Option<Snowflake>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) member: Option<&'a MemberData>,
    /// In events only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) channel_type: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nonce: Option<&'a Value>,
}
