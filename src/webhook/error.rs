//! Errors of webhook requests.

use std::time::Duration;

use guildhall_actors::ports::WebhookCallError;
use http::StatusCode;

use super::trust::UntrustedResponse;

/// Reason why there is no usable response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum WebhookRequestError {
    #[error("this handler has no webhook; set its url in the handlers file")]
    Unknown,
    #[error("the event's id is not valid in a header")]
    Malformed,
    #[error("too many requests to this webhook are in flight; it responds more slowly than its events arrive")]
    Busy,
    #[error("the webhook's breaker is open ({reason}): too many requests failed")]
    Open { reason: &'static str, retry_after: Option<Duration> },
    #[error("{0}; set allow_private for this handler to permit it")]
    NotPublic(String),
    #[error("cannot connect to the webhook: {0}")]
    Unreachable(String),
    #[error("the webhook did not respond within {} ms", .0.as_millis())]
    TimedOut(Duration),
    #[error("the connection to the webhook failed: {0}")]
    Broken(String),
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

    /// Its name in metrics and logs.
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

    /// Whether it counts against the webhook's breaker: an outage, not a rejection.
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
