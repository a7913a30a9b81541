//! Interactions that this deployment has received, and which operations may respond to them.
//!
//! Discord returns 401 for a response with an invalid interaction token, and blocks an address after 10,000 such
//! responses in 10 minutes. A caller without the scope `interactions:any` may therefore respond only to interactions
//! that this deployment has received.

use std::time::Duration;

use sha2::{Digest as _, Sha256};

use crate::event::{Event, InteractionKind};
use crate::operation::payload::InteractionTarget;
use crate::time::UnixMs;

/// How long Discord accepts an interaction's token.
pub const TOKEN_LIFETIME: Duration = Duration::from_secs(15 * 60);

/// Milliseconds from the Unix epoch to Discord's epoch.
const DISCORD_EPOCH_MS: u64 = 1_420_070_400_000;

/// The SHA-256 digest of an interaction's token. Tokens themselves are not stored here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenDigest(pub [u8; 32]);

impl TokenDigest {
    /// The digest of a token.
    #[must_use]
    pub fn of(token: &str) -> Self {
        Self(Sha256::digest(token).into())
    }
}

/// An interaction that this deployment has received, from the gateway or over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedInteraction {
    /// The digest of its token.
    pub token: TokenDigest,
    /// Its id.
    pub id: u64,
    /// The application that it belongs to.
    pub application: u64,
    /// The guild in which it was created, if any.
    pub guild: Option<u64>,
    /// When this deployment received it.
    pub received_at: UnixMs,
    /// When its token expires.
    pub expires_at: UnixMs,
}

impl ReceivedInteraction {
    /// The interaction of an event that operations can respond to. An autocomplete interaction has no later response,
    /// so there is nothing to record.
    #[must_use]
    pub fn of(event: &Event) -> Option<Self> {
        let interaction = event.interaction.as_ref()?;
        match interaction.kind {
            InteractionKind::Command | InteractionKind::Component | InteractionKind::Modal => {}
            InteractionKind::Autocomplete => return None,
        }
        let created_at = UnixMs::new((interaction.id >> 22) + DISCORD_EPOCH_MS);
        Some(Self {
            token: TokenDigest::of(&interaction.token),
            id: interaction.id,
            application: interaction.application,
            guild: event.guild,
            received_at: event.received_at,
            expires_at: created_at.min(event.received_at) + TOKEN_LIFETIME,
        })
    }

    /// Whether its token has expired.
    #[must_use]
    pub fn has_expired(&self, now: UnixMs) -> bool {
        self.expires_at <= now
    }

    /// Whether an operation for `guild` may respond to it through `target`.
    #[must_use]
    pub fn accepts(&self, target: &InteractionTarget, guild: Option<u64>, now: UnixMs) -> bool {
        let is_addressed = match *target {
            InteractionTarget { id: Some(id), .. } => self.id == id,
            InteractionTarget { application: Some(application), .. } => self.application == application,
            InteractionTarget { id: None, application: None, .. } => false,
        };
        is_addressed && self.token == target.token && self.guild == guild && !self.has_expired(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::read_interaction;

    const CREATED: u64 = 1_700_000_000_000;

    fn id() -> u64 {
        (CREATED - DISCORD_EPOCH_MS) << 22
    }

    fn received(kind: u8, after_ms: u64) -> Option<ReceivedInteraction> {
        let text = format!(
            r#"{{"type":{kind},"id":"{}","application_id":"9","token":"secret","guild_id":"42",
            "data":{{"name":"hello","custom_id":"a"}}}}"#,
            id()
        );
        ReceivedInteraction::of(&read_interaction(text, UnixMs::new(CREATED + after_ms)).unwrap())
    }

    fn target(token: &str) -> InteractionTarget {
        InteractionTarget { id: Some(id()), application: None, token: TokenDigest::of(token) }
    }

    #[test]
    fn token_expires_fifteen_minutes_after_creation() {
        let late = received(2, 60_000).unwrap();
        assert_eq!((late.received_at.millis(), late.expires_at.millis()), (CREATED + 60_000, CREATED + 900_000));
        let now = |after: u64| UnixMs::new(CREATED + after);
        assert!(late.accepts(&target("secret"), Some(42), now(899_999)));
        assert!(!late.accepts(&target("secret"), Some(42), now(900_000)));
    }

    #[test]
    fn clock_behind_discord_does_not_extend_the_lifetime() {
        let text = format!(r#"{{"type":2,"id":"{}","application_id":"9","token":"t","data":{{"name":"a"}}}}"#, id());
        let behind = ReceivedInteraction::of(&read_interaction(text, UnixMs::new(CREATED - 60_000)).unwrap()).unwrap();
        assert_eq!(behind.expires_at.millis(), CREATED + 840_000);
    }

    #[test]
    fn id_token_guild_and_application_must_all_match() {
        let (received, now) = (received(5, 0).unwrap(), UnixMs::new(CREATED));
        let accepts = |target: InteractionTarget, guild| received.accepts(&target, guild, now);
        assert!(accepts(target("secret"), Some(42)));
        assert!(!accepts(target("other"), Some(42)));
        assert!(!accepts(target("secret"), Some(43)) && !accepts(target("secret"), None));
        assert!(!accepts(InteractionTarget { id: Some(id() + 1), ..target("secret") }, Some(42)));
        let by_webhook = |application| InteractionTarget { id: None, application, ..target("secret") };
        assert!(accepts(by_webhook(Some(9)), Some(42)));
        assert!(!accepts(by_webhook(Some(8)), Some(42)) && !accepts(by_webhook(None), Some(42)));
    }

    #[test]
    fn autocomplete_interactions_are_not_recorded() {
        assert!([2, 3, 5].into_iter().all(|kind| received(kind, 0).is_some()));
        assert_eq!(received(4, 0), None);
    }
}
