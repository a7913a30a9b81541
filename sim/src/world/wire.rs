//! Values in JSON: permission bits as strings, times in ISO 8601, bytes in base64.

use crate::time::At;

/// Parses an ISO 8601 time with an offset; `None` if it is invalid or before 1970.
pub(crate) fn parse_iso(text: &str) -> Option<At> {
    let micros = chrono::DateTime::parse_from_rfc3339(text).ok()?.timestamp_micros();
    u64::try_from(micros).ok().map(At::from_micros)
}

/// Bits as a string of decimal digits.
pub(crate) mod bits {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(crate) fn serialize<S: Serializer>(bits: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(itoa::Buffer::new().format(*bits))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(u64),
            Text(String),
        }
        match Either::deserialize(deserializer)? {
            Either::Number(bits) => Ok(bits),
            Either::Text(text) => text.parse().map_err(de::Error::custom),
        }
    }
}

/// Bytes in base64.
pub(crate) mod base64 {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(crate) fn serialize<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        STANDARD.decode(String::deserialize(deserializer)?).map(Bytes::from).map_err(de::Error::custom)
    }
}

/// A time in ISO 8601.
pub(crate) mod iso {
    use serde::{Deserialize, Deserializer, Serializer, de};

    use crate::time::At;

    pub(crate) fn serialize<S: Serializer>(at: &At, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&at.iso8601())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<At, D::Error> {
        let text = String::deserialize(deserializer)?;
        super::parse_iso(&text).ok_or_else(|| de::Error::custom("not an ISO 8601 time"))
    }
}

/// A time in ISO 8601, or null.
pub(crate) mod iso_or_null {
    use serde::{Deserialize, Deserializer, Serializer, de};

    use crate::time::At;

    #[expect(clippy::ref_option, reason = "the signature is serde's")]
    pub(crate) fn serialize<S: Serializer>(at: &Option<At>, serializer: S) -> Result<S::Ok, S::Error> {
        match at {
            Some(at) => serializer.serialize_str(&at.iso8601()),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<At>, D::Error> {
        let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
        super::parse_iso(&text).map(Some).ok_or_else(|| de::Error::custom("not an ISO 8601 time"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iso_format_round_trips() {
        let at = At::from_micros(1_700_000_000_123_456);
        assert_eq!(parse_iso(&at.iso8601()), Some(at));
        assert_eq!(parse_iso("2015-01-01T00:00:00Z"), Some(At::from_micros(1_420_070_400_000_000)));
        assert_eq!(parse_iso("yesterday"), None);
    }
}
