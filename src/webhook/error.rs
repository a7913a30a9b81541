//! Why a brain's answer could not be had, or not be used.

use std::time::Duration;

use guildhall_actors::ports::WebhookCallError;
use http::StatusCode;

use super::trust::UntrustedResponse;

/// Why there is no answer that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum WebhookRequestError {
    #[error("no webhook is known for this handler; give it a url in the settings")]
    Unknown,
    #[error("the event's id cannot stand in a header")]
    Malformed,
    #[error("too many requests to this webhook are under way already; it is slower than its events come")]
    Busy,
    #[error("the webhook's breaker does not let requests out ({reason}): it failed too often")]
    Open { reason: &'static str, retry_after: Option<Duration> },
    #[error("{0}; set allow_private for this handler if that is meant")]
    NotPublic(String),
    #[error("the webhook cannot be reached: {0}")]
    Unreachable(String),
    #[error("the webhook did not answer within {} ms", .0.as_millis())]
    TimedOut(Duration),
    #[error("the connection to the webhook broke: {0}")]
    Broken(String),
    #[error("the webhook answered {status}")]
    Failed { status: StatusCode, retry_after: Option<Duration> },
    #[error("the webhook answered {status}, which asks to try again")]
    Deferred { status: StatusCode, retry_after: Option<Duration> },
    #[error(
        "the webhook answered {0}, which points elsewhere; that is not followed: set the final url for this handler"
    )]
    Redirected(StatusCode),
    #[error("the webhook answered 410: it is gone for good; remove the handler, or change its url")]
    Gone,
    #[error("the webhook answered {0}: it will not have this event")]
    Rejected(StatusCode),
    #[error("the webhook's answer is larger than {0} bytes")]
    TooLarge(usize),
    #[error("the webhook's answer is encoded ({0}), which was not asked for; answer with plain JSON")]
    Encoded(String),
    #[error("the webhook's answer cannot be used: {0}")]
    Unusable(String),
    #[error("the webhook's answer was refused: {0}")]
    Untrusted(#[from] UntrustedResponse),
}

impl WebhookRequestError {
    /// What a status means, unless it is a success.
    pub(super) fn of(status: StatusCode, retry_after: Option<Duration>) -> Option<Self> {
        match status.as_u16() {
            200..=299 => None,
            300..=399 => Some(Self::Redirected(status)),
            408 | 425 | 429 => Some(Self::Deferred { status, retry_after }),
            410 => Some(Self::Gone),
            500..=599 => Some(Self::Failed { status, retry_after }),
            _ => Some(Self::Rejected(status)),
        }
    }

    /// Its name, as metrics and logs have it.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Unknown => "unknown_handler",
            Self::Malformed => "malformed",
            Self::Busy => "busy",
            Self::Open { .. } => "breaker_open",
            Self::NotPublic(_) => "not_public",
            Self::Unreachable(_) => "unreachable",
            Self::TimedOut(_) => "timed_out",
            Self::Broken(_) => "broken",
            Self::Failed { .. } => "server_error",
            Self::Deferred { .. } => "deferred",
            Self::Redirected(_) => "redirected",
            Self::Gone => "gone",
            Self::Rejected(_) => "rejected",
            Self::TooLarge(_) => "too_large",
            Self::Encoded(_) => "encoded",
            Self::Unusable(_) => "unusable",
            Self::Untrusted(_) => "untrusted",
        }
    }

    /// Whether it counts against the webhook's breaker: it is out, and not merely of another mind.
    pub(super) const fn is_outage(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::TimedOut(_) | Self::Broken(_) | Self::Failed { .. } => true,
            Self::Unknown
            | Self::Malformed
            | Self::Busy
            | Self::Open { .. }
            | Self::NotPublic(_)
            | Self::Deferred { .. }
            | Self::Redirected(_)
            | Self::Gone
            | Self::Rejected(_)
            | Self::TooLarge(_)
            | Self::Encoded(_)
            | Self::Unusable(_)
            | Self::Untrusted(_) => false,
        }
    }
}

impl From<WebhookRequestError> for WebhookCallError {
    fn from(fault: WebhookRequestError) -> Self {
        let why = fault.to_string();
        match fault {
            WebhookRequestError::Busy
            | WebhookRequestError::Unreachable(_)
            | WebhookRequestError::TimedOut(_)
            | WebhookRequestError::Broken(_) => Self::Later { why, retry_after: None },
            WebhookRequestError::Open { retry_after, .. }
            | WebhookRequestError::Failed { retry_after, .. }
            | WebhookRequestError::Deferred { retry_after, .. } => Self::Later { why, retry_after },
            WebhookRequestError::Unknown
            | WebhookRequestError::Malformed
            | WebhookRequestError::NotPublic(_)
            | WebhookRequestError::Redirected(_)
            | WebhookRequestError::Gone
            | WebhookRequestError::Rejected(_)
            | WebhookRequestError::TooLarge(_)
            | WebhookRequestError::Encoded(_)
            | WebhookRequestError::Unusable(_)
            | WebhookRequestError::Untrusted(_) => Self::Never { why },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_tried_again_only_where_that_may_help() {
        let wait = Some(Duration::from_secs(3));
        for status in 100..=999 {
            let fault = WebhookRequestError::of(StatusCode::from_u16(status).unwrap(), wait);
            let outage = fault.as_ref().is_some_and(WebhookRequestError::is_outage);
            assert_eq!(outage, (500..600).contains(&status), "{status}");
            let again = match fault.map(WebhookCallError::from) {
                None => None,
                Some(WebhookCallError::Later { retry_after, .. }) => {
                    assert_eq!(retry_after, wait);
                    Some(true)
                }
                Some(WebhookCallError::Never { .. }) => Some(false),
            };
            let expected = match status {
                200..300 => None,
                408 | 425 | 429 | 500..600 => Some(true),
                _ => Some(false),
            };
            assert_eq!(again, expected, "{status}");
        }
    }
}
