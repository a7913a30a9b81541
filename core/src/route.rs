//! Routes: derives from a call's method and path which limits apply to it. Uses the path alone, so it works for calls
//! of any client.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};

/// A method and a path with its ids replaced: `POST /guilds/{id}/roles`. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteKey(Arc<str>);

impl RouteKey {
    /// Creates a route key from its text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Method and template, separated by a space.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The template alone.
    #[must_use]
    pub fn template(&self) -> &str {
        self.0.split_once(' ').map_or("", |(_, template)| template)
    }

    /// Whether the method only reads.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.0.starts_with("GET ") || self.0.starts_with("HEAD ")
    }
}

impl fmt::Display for RouteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for RouteKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// The top-level object that a bucket belongs to: a guild, a channel, a webhook or an interaction with its token. A
/// token is stored as a fingerprint, so it cannot leak from here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopLevelId {
    id: u64,
    token: u64,
}

impl TopLevelId {
    /// No top-level object.
    pub const NONE: Self = Self { id: 0, token: 0 };

    /// A guild or a channel.
    #[must_use]
    pub const fn of(id: u64) -> Self {
        Self { id, token: 0 }
    }

    /// A webhook or an interaction, with its token.
    #[must_use]
    pub fn with_token(id: u64, token: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        token.hash(&mut hasher);
        // Zero means "no token".
        Self { id, token: hasher.finish() | 1 }
    }

    /// Id and token fingerprint, to be saved across a restart.
    pub(crate) const fn parts(self) -> (u64, u64) {
        (self.id, self.token)
    }

    /// Inverse of `parts`.
    pub(crate) const fn from_parts((id, token): (u64, u64)) -> Self {
        Self { id, token }
    }

    /// Whether it is a webhook or an interaction with its token.
    #[must_use]
    pub const fn has_token(self) -> bool {
        self.token != 0
    }

    /// Id of the object; 0 if none.
    #[must_use]
    pub const fn id(self) -> u64 {
        self.id
    }
}

impl fmt::Display for TopLevelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id.fmt(f)
    }
}

impl Serialize for TopLevelId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A limit inside a route's limit that applies to some of its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SublimitKind {
    /// A channel's name or topic: 2 per 10 minutes.
    ChannelName,
}

/// The parts of a call's target that limits depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Method and template.
    pub key: RouteKey,
    /// The top-level object.
    pub major: TopLevelId,
    /// The sublimit, if one applies to the call.
    pub sub: Option<SublimitKind>,
    /// Whether the call goes to an interaction endpoint, which is exempt from the global limit.
    pub interaction: bool,
}

/// Messages older than this have a separate delete limit.
const OLD_MESSAGE: Duration = Duration::from_secs(14 * 86_400);

/// Messages older than this, but not older than `OLD_MESSAGE`, have another one.
const RECENT_MESSAGE: Duration = Duration::from_secs(10);

/// Prefix of interaction tokens: `interaction:` in base64.
const INTERACTION_TOKEN: &str = "aW50ZXJhY3Rpb246";

/// Milliseconds from the Unix epoch to Discord's epoch.
const DISCORD_EPOCH_MS: u64 = 1_420_070_400_000;

impl Route {
    /// Parses the route of a call. `path` is relative to the API version and has no query. `application` is the bot's
    /// own application, whose webhooks belong to its interactions (0 if unknown). `unix_ms` is the wall-clock time,
    /// used to compute the age of a message.
    #[must_use]
    pub fn parse(method: &str, path: &str, application: u64, unix_ms: u64) -> Self {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let number = |at: usize| parts.get(at).and_then(|part| part.parse::<u64>().ok());
        let (major, interaction) = match (parts.first().copied(), number(1), parts.get(2)) {
            (Some("guilds" | "channels"), Some(id), _) => (TopLevelId::of(id), false),
            (Some("webhooks"), Some(id), Some(token)) => {
                (TopLevelId::with_token(id, token), id == application || token.starts_with(INTERACTION_TOKEN))
            }
            (Some("webhooks"), Some(id), None) => (TopLevelId::of(id), false),
            (Some("interactions"), Some(id), Some(token)) => (TopLevelId::with_token(id, token), true),
            _ => (TopLevelId::NONE, false),
        };
        let mut text = String::with_capacity(method.len() + path.len() + 8);
        text.push_str(method);
        text.push(' ');
        for (at, part) in parts.iter().enumerate() {
            text.push('/');
            // Some libraries encode the `@` of `@me` and `@original`: for Discord it is the same route.
            let part = match part.strip_prefix("%40") {
                Some(word) if is_word(word) => {
                    text.push('@');
                    word
                }
                Some(_) | None => part,
            };
            let before = at.checked_sub(1).and_then(|at| parts.get(at)).copied();
            let is_token = at == 2 && matches!(parts[0], "webhooks" | "interactions");
            text.push_str(match () {
                () if is_token => "{token}",
                () if before == Some("reactions") => "{emoji}",
                () if part.bytes().all(|byte| byte.is_ascii_digit()) => "{id}",
                () if is_word(part) => part,
                () => "{text}",
            });
        }
        if let ("DELETE", ["channels", _, "messages", message]) = (method, parts.as_slice())
            && let Ok(id) = message.parse::<u64>()
        {
            let made = (id >> 22) + DISCORD_EPOCH_MS;
            let age = Duration::from_millis(unix_ms.saturating_sub(made));
            // Discord has one bucket for each age, under the same path.
            text.push_str(match () {
                () if age > OLD_MESSAGE => " (old)",
                () if age > RECENT_MESSAGE => " (recent)",
                () => " (fresh)",
            });
        }
        Self { key: RouteKey::new(&text), major, sub: None, interaction }
    }

    /// Returns the same route with a sublimit.
    #[must_use]
    pub fn with_sublimit(mut self, sub: SublimitKind) -> Self {
        self.sub = Some(sub);
        self
    }
}

/// Path segments that belong to the route: short words defined by Discord. A caller could choose anything else, which
/// would create routes without bound.
fn is_word(part: &str) -> bool {
    part.len() <= 32 && part.bytes().all(|byte| byte.is_ascii_lowercase() || matches!(byte, b'-' | b'_' | b'@'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_700_000_000_000;

    fn key(method: &str, path: &str) -> String {
        Route::parse(method, path, 5, NOW_MS).key.to_string()
    }

    #[test]
    fn ids_and_tokens_are_replaced_in_the_key() {
        assert_eq!(key("POST", "/guilds/123/roles"), "POST /guilds/{id}/roles");
        assert_eq!(key("GET", "/users/@me"), "GET /users/@me");
        assert_eq!(
            key("PUT", "/channels/1/messages/2/reactions/%F0%9F%91%8D/@me"),
            "PUT /channels/{id}/messages/{id}/reactions/{emoji}/@me"
        );
        assert_eq!(key("POST", "/webhooks/1/secret-token"), "POST /webhooks/{id}/{token}");
        assert_eq!(
            key("PATCH", "/webhooks/1/tok/messages/@original"),
            "PATCH /webhooks/{id}/{token}/messages/@original"
        );
        assert_eq!(key("GET", "/invites/AbCdEf"), "GET /invites/{text}");
        assert_eq!(key("GET", "/users/%40me"), "GET /users/@me");
        assert_eq!(key("GET", "/users/%40Me"), "GET /users/{text}");
    }

    #[test]
    fn top_level_object_distinguishes_calls() {
        let major = |path: &str| Route::parse("GET", path, 5, NOW_MS).major;
        assert_eq!(major("/guilds/7/roles"), major("/guilds/7/channels"));
        assert_ne!(major("/guilds/7/roles"), major("/guilds/8/roles"));
        assert_ne!(major("/webhooks/7/a"), major("/webhooks/7/b"));
        assert_eq!(major("/users/@me"), TopLevelId::NONE);
    }

    #[test]
    fn a_token_cannot_be_read_from_a_route() {
        let route = Route::parse("POST", "/webhooks/7/very-secret-token", 5, NOW_MS);
        assert!(!format!("{route:?}").contains("secret"));
    }

    #[test]
    fn the_age_of_a_message_is_part_of_its_deletion() {
        let message = |age_ms: u64| (NOW_MS - age_ms - DISCORD_EPOCH_MS) << 22;
        for (age_ms, tail) in [(1_000, "(fresh)"), (60_000, "(recent)"), (15 * 86_400_000, "(old)")] {
            let path = format!("/channels/1/messages/{}", message(age_ms));
            assert!(key("DELETE", &path).ends_with(tail), "{age_ms}");
        }
    }

    #[test]
    fn interaction_endpoints_are_found_by_path_application_or_token() {
        let is_interaction = |path: &str| Route::parse("POST", path, 5, NOW_MS).interaction;
        assert!(is_interaction("/interactions/1/t/callback"));
        assert!(is_interaction("/webhooks/5/short"));
        assert!(is_interaction("/webhooks/6/aW50ZXJhY3Rpb246MTIzNDU2"));
        assert!(!is_interaction("/webhooks/6/short"));
    }
}
