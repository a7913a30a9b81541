//! Keys in the format that callers send: `gh_<id>_<secret>`.

use std::{fmt, str::FromStr};

/// Prefix of every key, so that people and secret scanners recognize it.
const PREFIX: &str = "gh_";
/// Length of an id.
const ID_LENGTH: usize = 12;
/// Length of the secret: 32 bytes in base64 without padding.
const SECRET_LENGTH: usize = 43;

/// Id of a key. It is not a secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId([u8; ID_LENGTH]);

/// Text that is not a key id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key id has {ID_LENGTH} characters, lower-case letters and digits; list the keys to find it")]
pub struct ParseKeyIdError;

impl KeyId {
    /// Creates an id from a random number.
    #[must_use]
    pub fn from_random(random: u128) -> Self {
        const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
        let mut id = [0; ID_LENGTH];
        for (index, letter) in id.iter_mut().enumerate() {
            *letter = LETTERS[usize::try_from((random >> (index * 5)) & 31).unwrap_or(0)];
        }
        Self(id)
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("invariant: an id contains only ASCII letters and digits")
    }
}

impl FromStr for KeyId {
    type Err = ParseKeyIdError;

    fn from_str(text: &str) -> Result<Self, ParseKeyIdError> {
        let bytes: [u8; ID_LENGTH] = text.as_bytes().try_into().map_err(|_| ParseKeyIdError)?;
        let is_plain = bytes.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        if is_plain { Ok(Self(bytes)) } else { Err(ParseKeyIdError) }
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A parsed key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ParsedKey<'a> {
    /// Its id.
    pub id: KeyId,
    /// Its secret.
    pub secret: &'a str,
}

impl<'a> ParsedKey<'a> {
    /// Parses a key. Whether the key exists is not checked.
    #[must_use]
    pub fn read(text: &'a str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let is_plain = secret.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
        let id = id.parse().ok()?;
        (secret.len() == SECRET_LENGTH && is_plain).then_some(Self { id, secret })
    }

    /// The key as text.
    #[must_use]
    pub fn write(&self) -> String {
        format!("{PREFIX}{}_{}", self.id, self.secret)
    }
}

impl fmt::Debug for ParsedKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParsedKey").field("id", &self.id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECRET: &str = "abcdefghijklmnopqrstuvwxyz-ABCDEFGHIJK_0123";

    #[test]
    fn invalid_key_is_not_parsed() {
        let good = ParsedKey { id: KeyId::from_random(7), secret: SECRET }.write();
        assert!(ParsedKey::read(&good).is_some());
        for invalid in ["", "gh_", "gh__", "gh_admin", &good[1..], &good[..good.len() - 1], &format!("{good}a")] {
            assert_eq!(ParsedKey::read(invalid), None, "{invalid}");
        }
        assert_eq!(ParsedKey::read(&good.replace('-', "+")), None);
        assert_eq!(ParsedKey::read(&good.to_uppercase()), None);
    }

    #[test]
    fn debug_redacts_the_secret() {
        let key = ParsedKey { id: KeyId::from_random(7), secret: SECRET };
        assert!(!format!("{key:?}").contains(SECRET));
    }

    proptest! {
        #[test]
        fn key_round_trips(chance: u128, secret in "[A-Za-z0-9_-]{43}") {
            let key = ParsedKey { id: KeyId::from_random(chance), secret: &secret };
            let written = key.write();
            prop_assert_eq!(ParsedKey::read(&written), Some(key));
            prop_assert_eq!(key.id.as_str().parse(), Ok(key.id));
        }

        #[test]
        fn nothing_makes_it_panic(text in ".*") {
            let _ = ParsedKey::read(&text);
        }
    }
}
