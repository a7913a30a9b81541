//! What the gate reads from a Discord response: rate limit headers, error code, and class of the response.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The five rate limit headers of a route's bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateHeaders {
    /// `X-RateLimit-Bucket`.
    pub bucket: String,
    /// `X-RateLimit-Limit`.
    pub limit: u32,
    /// `X-RateLimit-Remaining`.
    pub remaining: u32,
    /// `X-RateLimit-Reset`, in milliseconds of Discord's clock.
    pub reset_ms: u64,
    /// `X-RateLimit-Reset-After`.
    pub reset_after: Duration,
}

/// `X-RateLimit-Scope` of a 429.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RateLimitScope {
    /// This bot's bucket.
    User,
    /// The resource, for all clients. Does not count as an invalid request.
    Shared,
    /// This bot's global limit.
    Global,
}

impl RateLimitScope {
    /// Name in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Shared => "shared",
            Self::Global => "global",
        }
    }
}

/// Class of a response. It determines how the response is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ResponseClass {
    /// 2xx.
    Success,
    /// A 429 from Discord.
    RateLimited {
        /// Which limit was exceeded.
        scope: RateLimitScope,
        /// How long to wait.
        retry_after: Duration,
    },
    /// 401 with the bot's token: the token is invalid, and every further call would fail, too.
    Unauthorized,
    /// 401 with code 50027: the token of this interaction has expired.
    InteractionEnded,
    /// 403.
    Forbidden,
    /// 404.
    NotFound,
    /// 404 with code 10015: the webhook does not exist (any more).
    WebhookGone,
    /// Any other 4xx: the request itself is invalid.
    Rejected,
    /// 5xx.
    ServerError,
    /// Cloudflare's ban: not a response from Discord.
    Blocked {
        /// Duration of the ban, if the response states it.
        retry_after: Option<Duration>,
    },
}

impl ResponseClass {
    /// Whether Discord counts the response as an invalid request: 401, 403, and 429 unless shared.
    #[must_use]
    pub const fn is_invalid(self) -> bool {
        match self {
            Self::Unauthorized | Self::InteractionEnded | Self::Forbidden => true,
            Self::RateLimited { scope, .. } => !matches!(scope, RateLimitScope::Shared),
            Self::Success
            | Self::NotFound
            | Self::WebhookGone
            | Self::Rejected
            | Self::ServerError
            | Self::Blocked { .. } => false,
        }
    }

    /// Name in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::RateLimited { .. } => "rate_limited",
            Self::Unauthorized => "unauthorized",
            Self::InteractionEnded => "interaction_ended",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::WebhookGone => "webhook_gone",
            Self::Rejected => "rejected",
            Self::ServerError => "server_error",
            Self::Blocked { .. } => "blocked",
        }
    }
}

/// What the gate learns from a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseInfo {
    /// Class of the response.
    pub class: ResponseClass,
    /// Headers of the bucket, if present.
    pub rate: Option<RateHeaders>,
}

/// Identity that a call is made with. Limits and breakers are separate for each credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Credential {
    /// A bot, identified by its application id.
    Application(u64),
    /// No credential: the token in the path is sufficient, and Discord counts by address.
    Anonymous,
    /// A token of another bot or of a user, identified by its fingerprint. It is valid or not as Discord says, and
    /// only its calls carry it.
    Token(u64),
}

impl fmt::Display for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Application(id) => id.fmt(f),
            Self::Anonymous => f.write_str("anonymous"),
            Self::Token(fingerprint) => write!(f, "token-{fingerprint:016x}"),
        }
    }
}

/// Text that is not a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown credential: expected an application id, `anonymous` or `token-<fingerprint>`")]
pub struct ParseCredentialError;

impl FromStr for Credential {
    type Err = ParseCredentialError;

    fn from_str(text: &str) -> Result<Self, ParseCredentialError> {
        match (text, text.strip_prefix("token-")) {
            ("anonymous", _) => Ok(Self::Anonymous),
            (_, Some(fingerprint)) if fingerprint.len() == 16 => {
                u64::from_str_radix(fingerprint, 16).map(Self::Token).map_err(|_| ParseCredentialError)
            }
            (id, _) => id.parse().map(Self::Application).map_err(|_| ParseCredentialError),
        }
    }
}
