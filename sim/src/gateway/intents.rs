//! Intents: the events that a session has requested, and the parts of messages that it may read.

use bytes::Bytes;
use serde_json::{Value, json};

use super::close::Close;
use crate::id::Snowflake;

pub(crate) const GUILDS: u64 = 1;
pub(crate) const GUILD_MEMBERS: u64 = 1 << 1;
const GUILD_PRESENCES: u64 = 1 << 8;
pub(crate) const GUILD_MESSAGES: u64 = 1 << 9;
pub(crate) const GUILD_MESSAGE_TYPING: u64 = 1 << 11;
pub(crate) const MESSAGE_CONTENT: u64 = 1 << 15;
const PRIVILEGED: u64 = GUILD_MEMBERS | GUILD_PRESENCES | MESSAGE_CONTENT;
/// Bits 0 to 16, 20, 21, 24 and 25.
const KNOWN_INTENTS: u64 = 0x1_ffff | 1 << 20 | 1 << 21 | 1 << 24 | 1 << 25;

/// Parses the intents of an IDENTIFY.
pub(crate) fn read(intents: &Value, privileged_allowed: bool) -> Result<u64, Close> {
    let bits = intents.as_u64().filter(|bits| bits & !KNOWN_INTENTS == 0).ok_or(Close::INVALID_INTENTS)?;
    if !privileged_allowed && bits & PRIVILEGED != 0 {
        return Err(Close::DISALLOWED_INTENTS);
    }
    Ok(bits)
}

/// Whether a session with the intents `intents` receives an event that needs one of `needed`.
pub(crate) fn matches(intents: u64, needed: u64) -> bool {
    needed == 0 || intents & needed != 0
}

/// Whether the event contains a message, whose content has an intent of its own.
pub(crate) fn contains_message(event: &str) -> bool {
    matches!(event, "MESSAGE_CREATE" | "MESSAGE_UPDATE")
}

/// The message as a bot without the MESSAGE_CONTENT intent receives it; `None` if it receives all of it: its own
/// messages, those that mention it, and those outside guilds.
pub(crate) fn without_content(message: &Bytes, user: Snowflake) -> Option<Bytes> {
    let mut message: Value = serde_json::from_slice(message).ok()?;
    let is_reader = |someone: &Value| someone["id"].as_str().and_then(|id| id.parse().ok()) == Some(user);
    let mentions_reader = message["mentions"].as_array().is_some_and(|mentions| mentions.iter().any(is_reader));
    if message.get("guild_id").is_none() || is_reader(&message["author"]) || mentions_reader {
        return None;
    }
    let fields = message.as_object_mut()?;
    for (name, empty) in
        [("content", json!("")), ("embeds", json!([])), ("attachments", json!([])), ("components", json!([]))]
    {
        if fields.contains_key(name) {
            fields.insert(name.to_owned(), empty);
        }
    }
    fields.remove("poll");
    Some(Bytes::from(message.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOT: Snowflake = Snowflake::new(7);

    fn visible_message(message: &Value) -> Value {
        let bytes = Bytes::from(message.to_string());
        let bytes = without_content(&bytes, BOT).unwrap_or(bytes);
        serde_json::from_slice(&bytes).unwrap()
    }

    #[test]
    fn unknown_and_disallowed_intents_are_rejected() {
        assert_eq!(read(&json!(513), false), Ok(513));
        assert_eq!(read(&json!(GUILD_MEMBERS), true), Ok(GUILD_MEMBERS));
        assert_eq!(read(&json!(GUILD_MEMBERS), false), Err(Close::DISALLOWED_INTENTS));
        assert_eq!(read(&json!(1 << 17), true), Err(Close::INVALID_INTENTS));
        assert_eq!(read(&json!(-1), true), Err(Close::INVALID_INTENTS));
        assert_eq!(read(&Value::Null, true), Err(Close::INVALID_INTENTS));
    }

    #[test]
    fn content_is_hidden_except_own_mentioning_and_direct_messages() {
        let other = json!({"guild_id": "1", "author": {"id": "9"}, "content": "hi", "mentions": []});
        assert_eq!(visible_message(&other)["content"], "");
        let own = json!({"guild_id": "1", "author": {"id": "7"}, "content": "hi", "mentions": []});
        assert_eq!(visible_message(&own), own);
        let mention = json!({"guild_id": "1", "author": {"id": "9"}, "content": "hi", "mentions": [{"id": "7"}]});
        assert_eq!(visible_message(&mention), mention);
        let direct = json!({"author": {"id": "9"}, "content": "hi"});
        assert_eq!(visible_message(&direct), direct);
    }
}
