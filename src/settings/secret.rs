//! A type for secrets, so that they cannot be printed by accident.

use secrecy::{ExposeSecret, SecretString};

/// The bot's token, or another secret. Its `Debug` output is redacted, and its memory is wiped when it is dropped.
#[derive(Clone, Debug)]
pub struct SecretValue(SecretString);

impl SecretValue {
    /// Creates a secret; a token without a leading `Bot `.
    pub fn new(token: impl Into<String>) -> Self {
        Self(SecretString::from(token.into()))
    }

    /// Returns the secret itself. Callers must not let it reach a log, an error or a response.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}
