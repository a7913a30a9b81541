//! Snowflakes: ids that contain their creation time.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::time::At;

/// Milliseconds from the Unix epoch to Discord's epoch, the first second of 2015.
const DISCORD_EPOCH_MS: u64 = 1_420_070_400_000;

/// A Discord id. One type serves all objects, because Discord uses the same id for different objects: a guild's
/// `@everyone` role has the guild's id. In JSON it is a string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Snowflake(u64);

impl Snowflake {
    /// The snowflake with these bits.
    #[must_use]
    pub const fn new(bits: u64) -> Self {
        Self(bits)
    }

    /// The id as a number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// When it was created, to the millisecond.
    #[must_use]
    pub const fn created_at(self) -> At {
        At::from_micros(((self.0 >> 22) + DISCORD_EPOCH_MS) * 1_000)
    }

    /// The bot id in a token of Discord's form: in base64, before the first dot.
    #[must_use]
    pub(crate) fn from_token(token: &str) -> Option<Self> {
        let (first, _) = token.split_once('.')?;
        let id = STANDARD_NO_PAD.decode(first.trim_end_matches('=')).ok()?;
        std::str::from_utf8(&id).ok()?.parse().ok().filter(|id: &Self| id.0 != 0)
    }

    /// The shard, of `shards`, of the guild with this id.
    #[must_use]
    pub const fn shard(self, shards: u32) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "a remainder modulo a u32 fits in a u32")]
        if shards == 0 { 0 } else { ((self.0 >> 22) % shards as u64) as u32 }
    }
}

/// A text that is not a snowflake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an id must be a number below 2^64, in digits only")]
pub struct NotAnId;

impl fmt::Display for Snowflake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Snowflake {
    type Err = NotAnId;

    /// Accepts only the canonical spelling: buckets are identified by the text of an id, so `07` and `+7` must not be
    /// 7.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
        if is_plain { text.parse().map(Self).map_err(|_| NotAnId) } else { Err(NotAnId) }
    }
}

impl Serialize for Snowflake {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(itoa::Buffer::new().format(self.0))
    }
}

impl<'de> Deserialize<'de> for Snowflake {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Snowflake;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a snowflake, as a string of digits or a number")
            }

            fn visit_u64<E: de::Error>(self, bits: u64) -> Result<Snowflake, E> {
                Ok(Snowflake(bits))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Snowflake, E> {
                text.parse().map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// Generates snowflakes: no id twice, and each greater than the one before.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SnowflakeGenerator {
    last: u64,
}

impl SnowflakeGenerator {
    /// A new id with the timestamp `now`. Beyond 4,096 in one millisecond, ids use the next one.
    pub(crate) fn generate(&mut self, now: At) -> Snowflake {
        let stamp = now.millis().saturating_sub(DISCORD_EPOCH_MS) << 22;
        // The low twelve bits are a counter; the ten above them identify a worker, and this simulator is worker 1.
        const WORKER: u64 = 1 << 12;
        let next = if stamp | WORKER > self.last {
            stamp | WORKER
        } else if self.last & 0xfff < 0xfff {
            self.last + 1
        } else {
            (((self.last >> 22) + 1) << 22) | WORKER
        };
        self.last = next;
        Snowflake(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_of_discords_form_contains_its_bot_id() {
        assert_eq!(Snowflake::from_token("MTIzNDU2Nzg5MDEyMzQ1Njc4.a.b"), Some(Snowflake(123_456_789_012_345_678)));
        assert_eq!(Snowflake::from_token("sim-bot-token"), None);
        assert_eq!(Snowflake::from_token("MTIzNDU2Nzg5MDEyMzQ1Njc4"), None);
        assert_eq!(Snowflake::from_token("MA.a.b"), None);
    }

    #[test]
    fn id_contains_its_creation_time() {
        let now = At::from_micros(1_700_000_000_123_456);
        let id = SnowflakeGenerator::default().generate(now);
        assert_eq!(id.created_at().millis(), now.millis());
    }

    #[test]
    fn ids_of_one_millisecond_are_unique_and_increase() {
        let now = At::from_micros(1_700_000_000_000_000);
        let mut mint = SnowflakeGenerator::default();
        let ids: Vec<_> = (0..10_000).map(|_| mint.generate(now)).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn no_id_repeats_when_the_clock_goes_back() {
        let mut mint = SnowflakeGenerator::default();
        let first = mint.generate(At::from_micros(1_700_000_000_000_000));
        assert!(mint.generate(At::from_micros(1_600_000_000_000_000)) > first);
    }

    #[test]
    fn id_is_a_json_string_and_parses_from_string_or_number() {
        assert_eq!(serde_json::to_string(&Snowflake(7)).unwrap(), "\"7\"");
        assert_eq!(serde_json::from_str::<Snowflake>("7").unwrap(), Snowflake(7));
        assert_eq!(serde_json::from_str::<Snowflake>("\"7\"").unwrap(), Snowflake(7));
        assert!(serde_json::from_str::<Snowflake>("\"seven\"").is_err());
    }

    #[test]
    fn an_id_has_one_spelling() {
        assert_eq!("18446744073709551615".parse(), Ok(Snowflake(u64::MAX)));
        assert_eq!("0".parse(), Ok(Snowflake(0)));
        for text in ["", "+7", "07", "-7", " 7", "7 ", "7.0", "0x7", "18446744073709551616"] {
            assert_eq!(text.parse::<Snowflake>(), Err(NotAnId), "{text:?}");
        }
    }
}
