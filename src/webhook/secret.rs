//! Secrets that requests are signed with.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use secrecy::zeroize::Zeroizing;

/// Prefix of every secret.
const PREFIX: &str = "whsec_";
/// Permitted lengths of a secret, in bytes.
const BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// A secret shared with a brain, in the format of Standard Webhooks: `whsec_` and 24 to 64 bytes in base64. `Debug`
/// does not display it.
#[derive(Clone)]
pub struct Secret(hmac::Key);

/// A text is not a valid secret. The error does not contain the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// It does not start with the prefix.
    #[error("a webhook's secret must start with `whsec_`; create one with: echo whsec_$(openssl rand -base64 32)")]
    Prefix,
    /// The part after the prefix is not base64.
    #[error("the part after `whsec_` must be base64 with its padding, as `openssl rand -base64 32` prints it")]
    Base64,
    /// It is too short or too long.
    #[error("a webhook's secret must have 24 to 64 bytes, but has {0}; create one with: openssl rand -base64 32")]
    Length(
        /// Its length in bytes.
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
    /// Signs a text that is given in parts.
    pub(super) fn sign(&self, parts: &[&[u8]]) -> hmac::Tag {
        let mut signing = hmac::Context::with_key(&self.0);
        for part in parts {
            signing.update(part);
        }
        signing.sign()
    }

    /// Whether `tag` is the signature of a text. Compares in constant time.
    pub(super) fn verify(&self, text: &[u8], tag: &[u8]) -> bool {
        hmac::verify(&self.0, text, tag).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret_of(bytes: usize) -> String {
        format!("whsec_{}", STANDARD.encode(vec![7; bytes]))
    }

    #[test]
    fn secret_is_a_prefix_and_24_to_64_bytes_in_base64() {
        for fits in [24, 25, 32, 64] {
            secret_of(fits).parse::<Secret>().unwrap();
        }
        let invalid = [
            (secret_of(23), SecretError::Length(23)),
            (secret_of(65), SecretError::Length(65)),
            ("whsec_".to_owned(), SecretError::Length(0)),
            (STANDARD.encode([7; 32]), SecretError::Prefix),
            (String::new(), SecretError::Prefix),
            (secret_of(32).trim_end_matches('=').to_owned(), SecretError::Base64),
            (format!("{} ", secret_of(32)), SecretError::Base64),
            ("whsec_not base64 at all, but long enough".to_owned(), SecretError::Base64),
        ];
        for (text, error) in invalid {
            assert_eq!(text.parse::<Secret>().unwrap_err(), error, "{text}");
        }
    }

    #[test]
    fn secrets_and_errors_do_not_display_the_secret() {
        let text = "whsec_Y2FuYXJ5LWNhbmFyeS1jYW5hcnktY2FuYXJ5";
        let secret: Secret = text.parse().unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(whsec_…)");
        for invalid in ["canary", "whsec_canary!", "whsec_Y2FuYXJ5"] {
            let error = invalid.parse::<Secret>().unwrap_err();
            assert!(!format!("{error} {error:?}").contains(invalid.trim_start_matches("whsec_")), "{error}");
        }
    }
}
