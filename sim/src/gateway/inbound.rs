//! Frames that a client may send.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::close::Close;
use crate::id::Snowflake;

/// Largest payload that a client may send.
const MAX_PAYLOAD: usize = 4_096;

/// A parsed frame of a client.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Inbound {
    Heartbeat,
    Identify(Identify),
    Resume(Resume),
    RequestMembers(RequestMembers),
    /// Valid but without effect here: presence, voice state, soundboard.
    Ignored,
}

/// Op 2.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Identify {
    pub(crate) token: String,
    /// Not parsed here: an invalid value has its own close code.
    #[serde(default)]
    pub(crate) intents: Value,
    /// Shard id and number of shards; one shard by default.
    #[serde(default)]
    pub(crate) shard: Option<[u64; 2]>,
}

/// Op 6.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Resume {
    pub(crate) token: String,
    pub(crate) session_id: String,
    pub(crate) seq: u64,
}

/// Op 8.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct RequestMembers {
    pub(crate) guild_id: Snowflake,
    pub(crate) query: Option<String>,
    #[serde(default)]
    pub(crate) limit: u32,
    #[serde(default)]
    pub(crate) user_ids: Option<OneOrMany>,
    #[serde(default)]
    pub(crate) nonce: Option<String>,
}

/// Discord accepts a single id in place of a list.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub(crate) enum OneOrMany {
    One(Snowflake),
    Many(Vec<Snowflake>),
}

impl OneOrMany {
    pub(crate) fn into_vec(self) -> Vec<Snowflake> {
        match self {
            Self::One(id) => vec![id],
            Self::Many(ids) => ids,
        }
    }
}

/// Parses the JSON of a frame, or returns the close code of the error.
pub(crate) fn read(frame: &[u8]) -> Result<Inbound, Close> {
    if frame.len() > MAX_PAYLOAD {
        return Err(Close::TOO_LONG);
    }
    let Ok(Value::Object(mut frame)) = serde_json::from_slice(frame) else { return Err(Close::DECODE) };
    let op = frame.get("op").and_then(Value::as_u64).ok_or(Close::DECODE)?;
    let d = frame.remove("d").unwrap_or_default();
    match op {
        1 => Ok(Inbound::Heartbeat),
        2 => Ok(Inbound::Identify(payload(d)?)),
        6 => Ok(Inbound::Resume(payload(d)?)),
        8 => Ok(Inbound::RequestMembers(payload(d)?)),
        3 | 4 | 31 => Ok(Inbound::Ignored),
        _ => Err(Close::UNKNOWN_OPCODE),
    }
}

fn payload<T: DeserializeOwned>(d: Value) -> Result<T, Close> {
    // Serde would accept a list for a struct.
    if !d.is_object() {
        return Err(Close::DECODE);
    }
    serde_json::from_value(d).map_err(|_| Close::DECODE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_from_numbers_and_from_strings() {
        for guild in ["123456789012345678", "\"123456789012345678\""] {
            let text = format!(r#"{{"op":8,"d":{{"guild_id":{guild},"query":"","limit":0,"user_ids":"7"}}}}"#);
            let Ok(Inbound::RequestMembers(request)) = read(text.as_bytes()) else { panic!("not parsed: {text}") };
            assert_eq!(request.guild_id, Snowflake::new(123_456_789_012_345_678));
            assert_eq!(request.user_ids.unwrap().into_vec(), [Snowflake::new(7)]);
        }
    }

    #[test]
    fn invalid_frames_have_their_close_code() {
        assert_eq!(read(b"{"), Err(Close::DECODE));
        assert_eq!(read(b"[1]"), Err(Close::DECODE));
        assert_eq!(read(&[131, 116, 0]), Err(Close::DECODE), "ETF in a binary frame");
        assert_eq!(read(br#"{"op":6,"d":["token","session",1]}"#), Err(Close::DECODE));
        assert_eq!(read(br#"{"op":2,"d":{"intents":1}}"#), Err(Close::DECODE), "an IDENTIFY without a token");
        assert_eq!(read(br#"{"op":5,"d":null}"#), Err(Close::UNKNOWN_OPCODE));
        assert_eq!(read(br#"{"op":99}"#), Err(Close::UNKNOWN_OPCODE));
        let long = format!(r#"{{"op":1,"d":null,"x":"{}"}}"#, "x".repeat(MAX_PAYLOAD));
        assert_eq!(read(long.as_bytes()), Err(Close::TOO_LONG));
    }

    #[test]
    fn a_heartbeat_needs_no_sequence() {
        assert_eq!(read(br#"{"op":1,"d":null}"#), Ok(Inbound::Heartbeat));
        assert_eq!(read(br#"{"op":1,"d":251}"#), Ok(Inbound::Heartbeat));
    }
}
