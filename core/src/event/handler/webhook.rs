//! Webhooks: the brain decides what to do with an event.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Address of a webhook, and how to call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookSpec {
    /// `url`: `http://` or `https://`.
    pub url: String,
    /// `secrets`: keys to sign requests with; two during a rotation.
    pub secrets: Vec<Secret>,
    /// `timeout_ms`: timeout; `None` for the default.
    pub timeout: Option<Duration>,
    /// `allow_private`: whether it may be in a private network.
    pub allow_private: bool,
    /// `answers`: which of its responses may have an effect.
    pub answers: ResponsePolicy,
}

/// Which responses of a webhook may have an effect. Handlers act with the operator's rights, so a response that a third
/// party could have written must not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResponsePolicy {
    /// Over https, from a loopback address, or signed with the handler's secret.
    #[default]
    Secure,
    /// Only if signed, on every connection.
    Signed,
    /// All responses, also unsigned ones over plain http.
    Any,
}

/// A secret in the format of Standard Webhooks: `whsec_` and base64. Redacted in debug output.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

/// Allowed length of a secret in bytes.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

impl Secret {
    /// Parses a secret.
    ///
    /// # Errors
    ///
    /// When it is not valid; the message does not contain it.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        const MESSAGE: &str = "must be `whsec_` and 24 to 64 random bytes in base64; create one with: echo \
            whsec_$(openssl rand -base64 32)";
        let encoded = text.strip_prefix("whsec_").ok_or(MESSAGE)?;
        let digits = encoded.trim_end_matches('=');
        let plain = digits.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/');
        let padded = encoded.len().is_multiple_of(4) && encoded.len() - digits.len() <= 2;
        if plain && padded && SECRET_BYTES.contains(&(digits.len() * 3 / 4)) {
            Ok(Self(text.into()))
        } else {
            Err(MESSAGE)
        }
    }

    /// The secret itself. Callers must keep it out of logs, errors and responses.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_needs_enough_bytes_and_is_redacted() {
        let text = format!("whsec_{}", "c2VjcmV0".repeat(4));
        let secret = Secret::parse(&text).unwrap();
        assert_eq!(secret.expose(), text);
        assert_eq!(format!("{secret:?}"), "Secret(redacted)");
        for invalid in
            ["", "secret", "whsec_", "whsec_c2VjcmV0", &text[6..], &format!("{text}!!!!"), &format!("{text}a")]
        {
            let error = Secret::parse(invalid).unwrap_err();
            assert!(error.contains("openssl"), "{invalid}");
        }
    }
}
