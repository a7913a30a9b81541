//! The table of limits by route, as known from Discord. Tests change it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::window::{Algorithm, Rate};

/// All limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitConfig {
    /// If false, nothing is limited and no rate limit headers are sent; invalid requests are still counted.
    pub enabled: bool,
    /// The global limit of a token, or of an address that sends none.
    pub global: Rate,
    /// Whether interaction callbacks and interaction webhooks are exempt from the global limit, as with Discord.
    pub interactions_exempt: bool,
    /// Limits by route; a route that is not listed has none, and its responses have no rate limit headers.
    pub routes: Vec<RouteLimit>,
    /// Invalid requests (401, 403, 429 but not `shared`) of one address before it is banned.
    pub invalid: InvalidLimit,
}

/// Limit of a route.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteLimit {
    /// The method, or `*`.
    pub method: String,
    /// The template of the path, as `GET /sim/routes` lists it.
    pub path: String,
    /// The calls of the route that it applies to.
    #[serde(default)]
    pub case: Case,
    /// Routes with the same bucket share it, by top-level id; without one, the route has its own.
    #[serde(default)]
    pub bucket: Option<String>,
    /// Requests per window.
    pub limit: u32,
    /// The window in milliseconds.
    pub per_ms: u64,
    /// How requests are counted: `fixed` or `leaky`.
    pub algorithm: Algorithm,
}

/// Calls of a route that have a limit of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Case {
    /// All calls without a case of their own.
    #[default]
    Any,
    /// Deleting a message older than 14 days.
    OldMessage,
    /// Deleting a message older than 10 s.
    Message,
    /// Changing a channel's name or topic: limited in addition to the route's own limit, and a refusal leaves
    /// `remaining` above 0.
    NameOrTopic,
}

/// The limit of invalid requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InvalidLimit {
    /// The number that causes a ban.
    pub limit: u32,
    /// The window in milliseconds.
    pub per_ms: u64,
    /// Duration of the ban in milliseconds.
    pub ban_ms: u64,
}

impl InvalidLimit {
    pub(crate) fn per(&self) -> Duration {
        Duration::from_millis(self.per_ms)
    }

    pub(crate) fn ban(&self) -> Duration {
        Duration::from_millis(self.ban_ms)
    }
}

impl Default for InvalidLimit {
    fn default() -> Self {
        Self { limit: 10_000, per_ms: 600_000, ban_ms: 3_600_000 }
    }
}

impl LimitConfig {
    /// No limits.
    #[must_use]
    pub fn off() -> Self {
        Self { enabled: false, ..Self::default() }
    }

    /// What is invalid in it, if anything: a limit of 0 or a window without length.
    pub(crate) fn validation_error(&self) -> Option<String> {
        let rate = |name: &str, limit: u32, per_ms: u64| {
            (limit == 0 || limit > 1_000_000 || per_ms == 0 || per_ms > 30 * 86_400_000).then(|| {
                format!(
                    "{name}: `limit` must be from 1 to 1000000 and `per_ms` from 1 to 2592000000, not {limit} and \
                    {per_ms}"
                )
            })
        };
        let global = self.global.algorithm;
        if !matches!(global, Algorithm::Sliding | Algorithm::Aligned) {
            return Some("global: `algorithm` must be `sliding` or `aligned`".into());
        }
        rate("global", self.global.limit, self.global.per_ms)
            .or_else(|| rate("invalid", self.invalid.limit, self.invalid.per_ms))
            .or_else(|| self.routes.iter().find_map(RouteLimit::validation_error))
    }
}

impl RouteLimit {
    pub(crate) fn rate(&self) -> Rate {
        Rate::new(self.limit, self.per_ms, self.algorithm)
    }

    pub(crate) fn validation_error(&self) -> Option<String> {
        let name = format!("{} {}", self.method, self.path);
        if self.limit == 0 || self.limit > 1_000_000 || self.per_ms == 0 || self.per_ms > 30 * 86_400_000 {
            return Some(format!("{name}: `limit` must be from 1 to 1000000 and `per_ms` from 1 to 2592000000"));
        }
        if !matches!(self.algorithm, Algorithm::Fixed | Algorithm::Leaky) {
            return Some(format!("{name}: `algorithm` must be `fixed` or `leaky`"));
        }
        None
    }

    fn new(route: &str, limit: u32, per_ms: u64, algorithm: Algorithm) -> Self {
        let (method, path) = route.split_once(' ').unwrap_or(("*", route));
        Self { method: method.into(), path: path.into(), case: Case::Any, bucket: None, limit, per_ms, algorithm }
    }

    fn with_case(mut self, case: Case) -> Self {
        self.case = case;
        self
    }

    fn with_bucket(mut self, bucket: &str) -> Self {
        self.bucket = Some(bucket.into());
        self
    }
}

impl Default for LimitConfig {
    fn default() -> Self {
        use Algorithm::{Fixed, Leaky};
        let limit = RouteLimit::new;
        let message = "DELETE /channels/{channel.id}/messages/{message.id}";
        Self {
            enabled: true,
            global: Rate::new(50, 1_000, Algorithm::Sliding),
            interactions_exempt: true,
            routes: vec![
                limit("GET /gateway/bot", 2, 5_000, Fixed),
                limit("GET /users/@me", 5, 5_000, Leaky),
                limit("POST /users/@me/channels", 10, 10_000, Fixed),
                limit("GET /guilds/{guild.id}", 5, 5_000, Leaky),
                limit("GET /guilds/{guild.id}/roles", 5, 5_000, Leaky),
                limit("POST /guilds/{guild.id}/roles", 250, 28 * 3_600_000, Fixed),
                limit("PATCH /guilds/{guild.id}/roles", 5, 10_000, Leaky),
                limit("PATCH /guilds/{guild.id}/roles/{role.id}", 10, 10_000, Leaky).with_bucket("role"),
                limit("DELETE /guilds/{guild.id}/roles/{role.id}", 10, 10_000, Leaky).with_bucket("role"),
                limit("GET /guilds/{guild.id}/channels", 5, 5_000, Leaky),
                limit("POST /guilds/{guild.id}/channels", 10, 15_000, Leaky),
                limit("PATCH /guilds/{guild.id}/channels", 5, 10_000, Leaky),
                limit("GET /guilds/{guild.id}/members", 10, 10_000, Fixed),
                limit("GET /guilds/{guild.id}/members/{user.id}", 5, 1_000, Fixed),
                limit("PATCH /guilds/{guild.id}/members/{user.id}", 10, 10_000, Fixed),
                limit("PUT /guilds/{guild.id}/members/{user.id}/roles/{role.id}", 10, 10_000, Fixed)
                    .with_bucket("member_role"),
                limit("DELETE /guilds/{guild.id}/members/{user.id}/roles/{role.id}", 10, 10_000, Fixed)
                    .with_bucket("member_role"),
                limit("GET /guilds/{guild.id}/audit-logs", 5, 5_000, Leaky),
                limit("GET /channels/{channel.id}", 5, 5_000, Leaky),
                limit("PATCH /channels/{channel.id}", 5, 15_000, Fixed),
                limit("PATCH /channels/{channel.id}", 2, 600_000, Fixed).with_case(Case::NameOrTopic),
                limit("DELETE /channels/{channel.id}", 5, 15_000, Fixed),
                limit("PUT /channels/{channel.id}/permissions/{overwrite.id}", 10, 15_000, Leaky)
                    .with_bucket("overwrite"),
                limit("DELETE /channels/{channel.id}/permissions/{overwrite.id}", 10, 15_000, Leaky)
                    .with_bucket("overwrite"),
                limit("GET /channels/{channel.id}/messages", 5, 5_000, Leaky),
                limit("POST /channels/{channel.id}/messages", 5, 5_000, Fixed),
                limit("GET /channels/{channel.id}/messages/{message.id}", 5, 5_000, Leaky),
                limit("PATCH /channels/{channel.id}/messages/{message.id}", 5, 5_000, Fixed),
                limit(message, 5, 1_000, Fixed),
                limit(message, 3, 333, Fixed).with_case(Case::Message),
                limit(message, 30, 4_000, Fixed).with_case(Case::OldMessage),
                limit("PUT /channels/{channel.id}/pins/{message.id}", 5, 4_000, Fixed).with_bucket("pin"),
                limit("DELETE /channels/{channel.id}/pins/{message.id}", 5, 4_000, Fixed).with_bucket("pin"),
                limit("PUT /channels/{channel.id}/messages/{message.id}/reactions/{emoji}/@me", 1, 250, Fixed)
                    .with_bucket("reaction"),
                limit("DELETE /channels/{channel.id}/messages/{message.id}/reactions/{emoji}/@me", 1, 250, Fixed)
                    .with_bucket("reaction"),
                limit("DELETE /channels/{channel.id}/messages/{message.id}/reactions/{emoji}/{user.id}", 1, 250, Fixed)
                    .with_bucket("reaction"),
                limit("GET /channels/{channel.id}/messages/{message.id}/reactions/{emoji}", 5, 5_000, Leaky),
                limit("DELETE /channels/{channel.id}/messages/{message.id}/reactions/{emoji}", 1, 250, Fixed)
                    .with_bucket("reaction"),
                limit("DELETE /channels/{channel.id}/messages/{message.id}/reactions", 1, 250, Fixed)
                    .with_bucket("reaction"),
                limit("POST /webhooks/{application.id}/{interaction.token}", 5, 2_000, Leaky),
                limit("PATCH /webhooks/{application.id}/{interaction.token}/messages/{message.id}", 5, 2_000, Leaky),
                limit("PATCH /webhooks/{application.id}/{interaction.token}/messages/@original", 5, 2_000, Leaky),
            ],
            invalid: InvalidLimit::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_table_is_valid() {
        assert_eq!(LimitConfig::default().validation_error(), None);
    }

    #[test]
    fn limit_of_zero_is_an_error() {
        let mut limits = LimitConfig::default();
        limits.routes[0].limit = 0;
        assert!(limits.validation_error().unwrap().contains("GET /gateway/bot"));
    }
}
