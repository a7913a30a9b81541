//! A secret as a type of its own, so that it cannot be printed by accident.

use secrecy::{ExposeSecret, SecretString};

/// The bot's token, or another secret. Its `Debug` output is redacted, and its memory is wiped when it is dropped.
#[derive(Clone, Debug)]
pub struct SecretValue(SecretString);

impl SecretValue {
    /// Takes a secret as it is; a token without a leading `Bot `.
    pub fn new(token: impl Into<String>) -> Self {
        Self(SecretString::from(token.into()))
    }

    /// The secret itself. Whoever calls this must not let it reach a log, an error or an answer.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}
