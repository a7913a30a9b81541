//! What an answer of Discord says to the gate: its rate headers, its error code, and what kind of answer it is.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The five headers of a route's bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateHeaders {
    /// `X-RateLimit-Bucket`.
    pub bucket: String,
    /// `X-RateLimit-Limit`.
    pub limit: u32,
    /// `X-RateLimit-Remaining`.
    pub remaining: u32,
    /// `X-RateLimit-Reset`, in milliseconds by Discord's own clock.
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
    /// The resource, for everybody. No invalid request.
    Shared,
    /// This bot's global limit.
    Global,
}

impl RateLimitScope {
    /// Its name, as metrics and logs have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Shared => "shared",
            Self::Global => "global",
        }
    }
}

/// What kind of answer it is, and so what is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ResponseClass {
    /// 2xx.
    Success,
    /// A 429 of Discord.
    RateLimited {
        /// Whose limit.
        scope: RateLimitScope,
        /// How long to wait.
        retry_after: Duration,
    },
    /// 401 with the bot's token: the token is wrong, and every further call would be, too.
    Unauthorized,
    /// 401 with code 50027: this interaction's token has run out.
    InteractionEnded,
    /// 403.
    Forbidden,
    /// 404.
    NotFound,
    /// Any other 4xx: the call itself is wrong.
    Rejected,
    /// 5xx.
    ServerError,
    /// Cloudflare's ban: not an answer of Discord at all.
    Blocked {
        /// How long it says that it lasts.
        retry_after: Option<Duration>,
    },
}

impl ResponseClass {
    /// Whether Discord counts it towards the ban: 401, 403, and 429 unless shared.
    #[must_use]
    pub const fn is_invalid(self) -> bool {
        match self {
            Self::Unauthorized | Self::InteractionEnded | Self::Forbidden => true,
            Self::RateLimited { scope, .. } => !matches!(scope, RateLimitScope::Shared),
            Self::Success | Self::NotFound | Self::Rejected | Self::ServerError | Self::Blocked { .. } => false,
        }
    }

    /// Its name, as metrics and logs have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::RateLimited { .. } => "rate_limited",
            Self::Unauthorized => "unauthorized",
            Self::InteractionEnded => "interaction_ended",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::Rejected => "rejected",
            Self::ServerError => "server_error",
            Self::Blocked { .. } => "blocked",
        }
    }
}

/// What the gate learns from an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseInfo {
    /// What kind it is.
    pub class: ResponseClass,
    /// The bucket's headers, if it had them.
    pub rate: Option<RateHeaders>,
}

/// Who a call is made as. Limits and breakers are kept apart by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Credential {
    /// A bot, by its application's id.
    Application(u64),
    /// Nobody: the token in the path is enough, and the address is what is counted.
    Anonymous,
}
