//! What requests are signed with.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use secrecy::zeroize::Zeroizing;

/// What every secret begins with.
const PREFIX: &str = "whsec_";
/// How many bytes a secret may have.
const BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// A secret that a brain shares with us, as Standard Webhooks writes it: `whsec_` and 24 to 64 bytes in base64. It is not
/// shown by `Debug`.
#[derive(Clone)]
pub struct Secret(hmac::Key);

/// A text that is no secret. The text itself is not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// It does not begin as a secret does.
    #[error("a webhook's secret begins with `whsec_`; make one with: echo whsec_$(openssl rand -base64 32)")]
    Prefix,
    /// What follows is not base64.
    #[error("what follows `whsec_` must be base64 with its padding, as `openssl rand -base64 32` writes it")]
    Base64,
    /// It is too short or too long.
    #[error("a webhook's secret has 24 to 64 bytes, and this one has {0}; make one with: openssl rand -base64 32")]
    Length(
        /// How many it has.
        usize,
    ),
}

impl FromStr for Secret {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Self, SecretError> {
        let encoded = text.strip_prefix(PREFIX).ok_or(SecretError::Prefix)?;
        let bytes = Zeroizing::new(STANDARD.decode(encoded).map_err(|_| SecretError::Base64)?);
        if !BYTES.contains(&bytes.len()) {
            return Err(SecretError::Length(bytes.len()));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(whsec_…)")
    }
}

impl Secret {
    /// The signature of a text that is given in parts.
    pub(super) fn sign(&self, parts: &[&[u8]]) -> hmac::Tag {
        let mut signing = hmac::Context::with_key(&self.0);
        for part in parts {
            signing.update(part);
        }
        signing.sign()
    }

    /// Whether this is the signature of a text, in constant time.
    pub(super) fn verify(&self, text: &[u8], tag: &[u8]) -> bool {
        hmac::verify(&self.0, text, tag).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: usize) -> String {
        format!("whsec_{}", STANDARD.encode(vec![7; bytes]))
    }

    #[test]
    fn a_secret_has_24_to_64_bytes_in_base64_behind_its_prefix() {
        for fits in [24, 25, 32, 64] {
            of(fits).parse::<Secret>().unwrap();
        }
        let wrong = [
            (of(23), SecretError::Length(23)),
            (of(65), SecretError::Length(65)),
            ("whsec_".to_owned(), SecretError::Length(0)),
            (STANDARD.encode([7; 32]), SecretError::Prefix),
            (String::new(), SecretError::Prefix),
            (of(32).trim_end_matches('=').to_owned(), SecretError::Base64),
            (format!("{} ", of(32)), SecretError::Base64),
            ("whsec_not base64 at all, but long enough".to_owned(), SecretError::Base64),
        ];
        for (text, error) in wrong {
            assert_eq!(text.parse::<Secret>().unwrap_err(), error, "{text}");
        }
    }

    #[test]
    fn neither_a_secret_nor_what_is_wrong_with_one_shows_it() {
        let text = "whsec_Y2FuYXJ5LWNhbmFyeS1jYW5hcnktY2FuYXJ5";
        let secret: Secret = text.parse().unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(whsec_…)");
        for wrong in ["canary", "whsec_canary!", "whsec_Y2FuYXJ5"] {
            let error = wrong.parse::<Secret>().unwrap_err();
            assert!(!format!("{error} {error:?}").contains(wrong.trim_start_matches("whsec_")), "{error}");
        }
    }
}
