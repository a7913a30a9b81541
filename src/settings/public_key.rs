//! The public key that Discord's signatures are verified with.

use std::{fmt, str::FromStr};

use ed25519_dalek::VerifyingKey;

/// An application's public key, as Discord's developer portal displays it: 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// Returns the key that verifies signatures.
    #[must_use]
    pub fn verifying_key(&self) -> VerifyingKey {
        VerifyingKey::from_bytes(&self.0).expect("invariant: it was validated when it was parsed")
    }
}

/// A text is not a valid public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublicKeyError {
    /// It is not 64 hexadecimal digits.
    #[error("is not 64 hexadecimal digits")]
    Form,
    /// It is not a valid Ed25519 key.
    #[error("is not an Ed25519 key; copy it again from the General Information page of the application")]
    InvalidKey,
}

impl FromStr for PublicKey {
    type Err = PublicKeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes = from_hex(text.trim()).ok_or(PublicKeyError::Form)?;
        // A weak key would accept forged signatures.
        let key = VerifyingKey::from_bytes(&bytes).ok().filter(|key| !key.is_weak());
        key.map(|_| Self(bytes)).ok_or(PublicKeyError::InvalidKey)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Parses exactly `N` bytes in hexadecimal.
pub(crate) fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; N];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use ed25519_dalek::SigningKey;

    use super::*;

    #[test]
    fn only_valid_keys_parse() {
        let key = SigningKey::from_bytes(&[7; 32]).verifying_key();
        let written: String = key.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let read: PublicKey = written.to_uppercase().parse().unwrap();
        assert_eq!((read.verifying_key(), read.to_string()), (key, written.clone()));
        for invalid in ["", "00", &written[1..], &format!("{written}0"), &written.replace(&written[..1], "g")] {
            assert_eq!(invalid.parse::<PublicKey>(), Err(PublicKeyError::Form), "{invalid}");
        }
        // The neutral element: anyone can create a valid signature for any message.
        let weak = format!("01{}", "0".repeat(62));
        assert_eq!(weak.parse::<PublicKey>(), Err(PublicKeyError::InvalidKey));
    }
}
