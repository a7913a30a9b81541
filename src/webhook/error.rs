//! Errors of webhook requests.

use std::time::Duration;

use guildhall_actors::ports::WebhookCallError;
use http::StatusCode;

use super::trust::UntrustedResponse;

/// Reason why there is no usable response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum WebhookRequestError {
    #[error("this handler has no webhook; set its url in the handlers file")]
    NoWebhook,
    #[error("the event's id is not valid in a header")]
    Malformed,
    #[error("too many requests to this webhook are in flight; it responds more slowly than its events arrive")]
    Busy,
    #[error("the webhook's breaker is open ({reason}): too many requests failed")]
    BreakerOpen { reason: &'static str, retry_after: Option<Duration> },
    #[error("{0}; set allow_private for this handler to permit it")]
    NotPublic(String),
    #[error("cannot connect to the webhook: {0}")]
    Unreachable(String),
    #[error("the webhook did not respond within {} ms", .0.as_millis())]
    TimedOut(Duration),
    #[error("the connection to the webhook failed: {0}")]
    ConnectionFailed(String),
    #[error("the webhook returned {status}")]
    Failed { status: StatusCode, retry_after: Option<Duration> },
    #[error("the webhook returned {status}, which requests a retry")]
    Deferred { status: StatusCode, retry_after: Option<Duration> },
    #[error("the webhook returned {0}, a redirect, which is not followed; set the final url for this handler")]
    Redirected(StatusCode),
    #[error("the webhook returned 410: it is permanently gone; remove the handler, or change its url")]
    Gone,
    #[error("the webhook returned {0}: it rejected the event")]
    Rejected(StatusCode),
    #[error("the webhook's response is larger than {0} bytes")]
    TooLarge(usize),
    #[error("the webhook's response is encoded ({0}), which was not requested; respond with plain JSON")]
    Encoded(String),
    #[error("the webhook's response is invalid: {0}")]
    Unusable(String),
    #[error("the webhook's response was rejected: {0}")]
    Untrusted(#[from] UntrustedResponse),
}

impl WebhookRequestError {
    /// Maps a status to an error; `None` if it is a success.
    pub(super) fn from_status(status: StatusCode, retry_after: Option<Duration>) -> Option<Self> {
        match status.as_u16() {
            200..=299 => None,
            300..=399 => Some(Self::Redirected(status)),
            408 | 425 | 429 => Some(Self::Deferred { status, retry_after }),
            410 => Some(Self::Gone),
            500..=599 => Some(Self::Failed { status, retry_after }),
            _ => Some(Self::Rejected(status)),
        }
    }

    /// Its name in metrics and logs.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::NoWebhook => "unknown_handler",
            Self::Malformed => "malformed",
            Self::Busy => "busy",
            Self::BreakerOpen { .. } => "breaker_open",
            Self::NotPublic(_) => "not_public",
            Self::Unreachable(_) => "unreachable",
            Self::TimedOut(_) => "timed_out",
            Self::ConnectionFailed(_) => "broken",
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

    /// Whether it counts against the webhook's breaker: an outage, not a rejection.
    pub(super) const fn is_outage(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::TimedOut(_) | Self::ConnectionFailed(_) | Self::Failed { .. } => true,
            Self::NoWebhook
            | Self::Malformed
            | Self::Busy
            | Self::BreakerOpen { .. }
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
    fn from(error: WebhookRequestError) -> Self {
        let reason = error.to_string();
        match error {
            WebhookRequestError::Busy
            | WebhookRequestError::Unreachable(_)
            | WebhookRequestError::TimedOut(_)
            | WebhookRequestError::ConnectionFailed(_) => Self::Retryable { reason, retry_after: None },
            WebhookRequestError::BreakerOpen { retry_after, .. }
            | WebhookRequestError::Failed { retry_after, .. }
            | WebhookRequestError::Deferred { retry_after, .. } => Self::Retryable { reason, retry_after },
            WebhookRequestError::NoWebhook
            | WebhookRequestError::Malformed
            | WebhookRequestError::NotPublic(_)
            | WebhookRequestError::Redirected(_)
            | WebhookRequestError::Gone
            | WebhookRequestError::Rejected(_)
            | WebhookRequestError::TooLarge(_)
            | WebhookRequestError::Encoded(_)
            | WebhookRequestError::Unusable(_)
            | WebhookRequestError::Untrusted(_) => Self::Permanent { reason },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_temporary_statuses_are_retried() {
        let wait = Some(Duration::from_secs(3));
        for status in 100..=999 {
            let error = WebhookRequestError::from_status(StatusCode::from_u16(status).unwrap(), wait);
            let outage = error.as_ref().is_some_and(WebhookRequestError::is_outage);
            assert_eq!(outage, (500..600).contains(&status), "{status}");
            let is_retried = match error.map(WebhookCallError::from) {
                None => None,
                Some(WebhookCallError::Retryable { retry_after, .. }) => {
                    assert_eq!(retry_after, wait);
                    Some(true)
                }
                Some(WebhookCallError::Permanent { .. }) => Some(false),
            };
            let expected = match status {
                200..300 => None,
                408 | 425 | 429 | 500..600 => Some(true),
                _ => Some(false),
            };
            assert_eq!(is_retried, expected, "{status}");
        }
    }
}
