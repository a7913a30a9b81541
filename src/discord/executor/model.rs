//! Discord's objects, reduced to the fields that operations read. Other fields cannot make decoding fail.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// An id or a set of permissions: digits in a string, or a number.
fn digits<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    maybe_digits(deserializer)?.ok_or_else(|| serde::de::Error::custom("missing digits"))
}

fn maybe_digits<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(None),
        Value::String(text) => text.parse().map(Some).map_err(serde::de::Error::custom),
        Value::Number(number) => Ok(number.as_u64()),
        Value::Bool(_) | Value::Array(_) | Value::Object(_) => Err(serde::de::Error::custom("expected digits or null")),
    }
}

/// An object of which only the id is read.
#[derive(Debug, Deserialize)]
pub(crate) struct DiscordObject {
    #[serde(deserialize_with = "digits")]
    pub(crate) id: u64,
}

/// An object that belongs to a guild, or to none.
#[derive(Debug, Deserialize)]
pub(crate) struct DiscordGuildObject {
    #[serde(default, deserialize_with = "maybe_digits")]
    pub(crate) guild_id: Option<u64>,
}

/// A role.
#[derive(Debug, Deserialize)]
pub(crate) struct DiscordRole {
    #[serde(deserialize_with = "digits")]
    pub(crate) id: u64,
    pub(crate) name: String,
    #[serde(deserialize_with = "digits")]
    pub(crate) permissions: u64,
    #[serde(default)]
    pub(crate) color: u32,
    #[serde(default)]
    pub(crate) hoist: bool,
    #[serde(default)]
    pub(crate) mentionable: bool,
    #[serde(default)]
    pub(crate) position: i64,
    /// Whether it belongs to an integration, and cannot be changed.
    #[serde(default)]
    pub(crate) managed: bool,
}

/// A channel or a category.
#[derive(Debug, Deserialize)]
pub(crate) struct DiscordChannel {
    #[serde(deserialize_with = "digits")]
    pub(crate) id: u64,
    #[serde(rename = "type")]
    pub(crate) kind: u8,
    #[serde(default)]
    pub(crate) name: Option<String>,
    #[serde(default, deserialize_with = "maybe_digits")]
    pub(crate) parent_id: Option<u64>,
    #[serde(default)]
    pub(crate) topic: Option<String>,
    #[serde(default)]
    pub(crate) nsfw: bool,
    #[serde(default)]
    pub(crate) position: Option<i64>,
    #[serde(default)]
    pub(crate) rate_limit_per_user: Option<u16>,
    #[serde(default)]
    pub(crate) bitrate: Option<u32>,
    #[serde(default)]
    pub(crate) user_limit: Option<u16>,
    #[serde(default)]
    pub(crate) permission_overwrites: Vec<DiscordOverwrite>,
}

/// Permissions of a role or a member in a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(crate) struct DiscordOverwrite {
    #[serde(deserialize_with = "digits")]
    pub(crate) id: u64,
    /// 0 for a role, 1 for a member.
    #[serde(rename = "type")]
    pub(crate) kind: u8,
    #[serde(deserialize_with = "digits")]
    pub(crate) allow: u64,
    #[serde(deserialize_with = "digits")]
    pub(crate) deny: u64,
}

/// A message.
#[derive(Debug, Deserialize)]
pub(crate) struct DiscordMessage {
    #[serde(deserialize_with = "digits")]
    pub(crate) id: u64,
    pub(crate) author: DiscordObject,
    #[serde(default)]
    pub(crate) content: String,
    #[serde(default)]
    pub(crate) embeds: Vec<Value>,
    #[serde(default)]
    pub(crate) components: Vec<Value>,
    #[serde(default)]
    pub(crate) pinned: bool,
    #[serde(default)]
    pub(crate) flags: u64,
    /// Set on messages of an interaction or a webhook.
    #[serde(default, deserialize_with = "maybe_digits")]
    pub(crate) webhook_id: Option<u64>,
    #[serde(default)]
    pub(crate) message_reference: Option<DiscordMessageReference>,
}

impl DiscordMessage {
    /// Whether it is a deferred response to an interaction: users see "thinking…".
    pub(crate) const fn is_deferred(&self) -> bool {
        const LOADING: u64 = 1 << 7;
        self.flags & LOADING != 0
    }

    /// A message that was just sent.
    pub(crate) fn unpinned(id: u64) -> Self {
        Self {
            id,
            author: DiscordObject { id: 0 },
            content: String::new(),
            embeds: Vec::new(),
            components: Vec::new(),
            pinned: false,
            flags: 0,
            webhook_id: None,
            message_reference: None,
        }
    }
}

/// The message that another one replies to.
#[derive(Debug, Deserialize)]
pub(crate) struct DiscordMessageReference {
    #[serde(default, deserialize_with = "maybe_digits")]
    pub(crate) message_id: Option<u64>,
}

/// A page of the audit log.
#[derive(Debug, Deserialize)]
pub(crate) struct AuditLogPage {
    pub(crate) audit_log_entries: Vec<AuditLogEntry>,
}

/// One entry of the audit log.
#[derive(Debug, Deserialize)]
pub(crate) struct AuditLogEntry {
    #[serde(deserialize_with = "digits")]
    pub(crate) id: u64,
    #[serde(default, deserialize_with = "maybe_digits")]
    pub(crate) target_id: Option<u64>,
    #[serde(default)]
    pub(crate) reason: Option<String>,
}

/// A member of a guild.
#[derive(Debug, Deserialize)]
pub(crate) struct DiscordMember {
    #[serde(deserialize_with = "all_digits")]
    pub(crate) roles: Vec<u64>,
}

fn all_digits<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
    let texts: Vec<String> = Vec::deserialize(deserializer)?;
    texts.iter().map(|text| text.parse().map_err(serde::de::Error::custom)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_decode_with_missing_and_unknown_fields() {
        let channel = r#"{"id":"5","type":99,"name":null,"parent_id":null,"brand_new":{},"permission_overwrites":
            [{"id":"1","type":0,"allow":"1024","deny":"0"}]}"#;
        let channel: DiscordChannel = serde_json::from_str(channel).unwrap();
        assert_eq!((channel.id, channel.kind, channel.parent_id), (5, 99, None));
        assert_eq!(channel.permission_overwrites[0].allow, 1_024);
        let message: DiscordMessage = serde_json::from_str(r#"{"id":"7","author":{"id":"8"},"pinned":true}"#).unwrap();
        assert_eq!((message.author.id, message.pinned, message.webhook_id), (8, true, None));
        assert!(serde_json::from_str::<DiscordObject>(r#"{"id":null}"#).is_err());
        assert!(serde_json::from_str::<DiscordObject>(r#"{"id":"x"}"#).is_err());
    }
}
