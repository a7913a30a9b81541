//! Errors of API requests, with messages that say what to do.

use std::{fmt, time::Duration};

use http::{HeaderMap, StatusCode};
use serde_json::Value;

use super::{ApiUrl, ClientKey};
use crate::{net::retry_after, terminal_text::escape_controls};

/// Prefix of Guildhall's problem types.
const PROBLEM_TYPE_PREFIX: &str = "urn:guildhall:problem:";
/// Maximum number of field errors in a message.
const MAX_FIELD_ERRORS: usize = 50;
/// Start of the daemon's detail text for an unknown path.
const UNKNOWN_PATH_DETAIL: &str = "No resource exists at this path";
/// Delay before a retry, if the daemon does not send one.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Error of an API request.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection could be made.
    #[error(
        "cannot connect to {api_url}: {reason}; start the daemon there with `guildhall serve`, or set its address with \
         --api URL or GUILDHALL_API{}",
        CaFileHint(reason)
    )]
    Unreachable {
        /// Address of the daemon.
        api_url: ApiUrl,
        /// Cause of the failure.
        reason: String,
    },
    /// The request timed out.
    #[error("{api_url} did not respond within {} ms{}; use --timeout to wait longer", timeout.as_millis(), OutcomeHint(*may_have_applied))]
    TimedOut {
        /// Address of the daemon.
        api_url: ApiUrl,
        /// The timeout.
        timeout: Duration,
        /// Whether the request may have changed something.
        may_have_applied: bool,
    },
    /// The connection failed during the request.
    #[error("the connection to {api_url} failed: {reason}{}", OutcomeHint(*may_have_applied))]
    ConnectionFailed {
        /// Address of the daemon.
        api_url: ApiUrl,
        /// Cause of the failure.
        reason: String,
        /// Whether the request may have changed something.
        may_have_applied: bool,
    },
    /// The response is not from Guildhall.
    #[error("{api_url} returned a {status} that is not from Guildhall; check the URL and any proxy")]
    NotGuildhall {
        /// Address that was called.
        api_url: ApiUrl,
        /// Status code of the response.
        status: u16,
    },
    /// The daemon does not support the feature.
    #[error("the daemon at {api_url} does not support {feature}; it may be older than this program")]
    Unsupported {
        /// Address of the daemon.
        api_url: ApiUrl,
        /// The feature.
        feature: String,
    },
    /// The request cannot be encoded.
    #[error("cannot request {}: it is not valid in a URL or a header", escape_controls(path))]
    Malformed {
        /// The path of the request.
        path: String,
    },
    /// The daemon rejected the request.
    #[error("{0}")]
    Rejected(Box<ProblemDetails>),
}

impl ClientError {
    /// Returns when to retry; `None` if a retry is not useful.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::ConnectionFailed { .. } => Some(RETRY_DELAY),
            Self::Rejected(refusal) => match refusal.status {
                StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                    Some(refusal.retry_after.unwrap_or(RETRY_DELAY))
                }
                _ => None,
            },
            Self::Unreachable { .. }
            | Self::TimedOut { .. }
            | Self::NotGuildhall { .. }
            | Self::Unsupported { .. }
            | Self::Malformed { .. } => None,
        }
    }

    /// Returns the daemon's problem response, if there is one.
    #[must_use]
    pub fn problem(&self) -> Option<&ProblemDetails> {
        match self {
            Self::Rejected(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// Whether the daemon responded with 404.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.problem().is_some_and(|refusal| refusal.status == StatusCode::NOT_FOUND)
    }

    /// Whether it is unknown if the request changed something.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Self::TimedOut { may_have_applied: left, .. } | Self::ConnectionFailed { may_have_applied: left, .. } => {
                *left
            }
            Self::Rejected(refusal) => refusal.status.is_server_error(),
            Self::Unreachable { .. }
            | Self::NotGuildhall { .. }
            | Self::Unsupported { .. }
            | Self::Malformed { .. } => false,
        }
    }
}

/// A problem response of the daemon (RFC 9457).
#[derive(Clone, Debug)]
pub struct ProblemDetails {
    /// The status code.
    pub status: StatusCode,
    /// The last segment of the problem type.
    pub name: String,
    /// The title, which describes the problem type.
    pub title: String,
    /// The detail, which describes this occurrence.
    pub detail: String,
    /// Field errors: field and message. An error of the whole body has an empty field.
    pub errors: Vec<(String, String)>,
    /// The scope that the key lacks.
    pub needs: Option<String>,
    /// When to retry.
    pub retry_after: Option<Duration>,
    /// Address of the daemon that sent it.
    pub(super) api_url: Option<ApiUrl>,
    /// The key that was sent.
    pub(super) key: Option<ClientKey>,
}

impl ProblemDetails {
    /// Parses a problem; `None` if it is not one of Guildhall's.
    pub(super) fn parse(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Option<Self> {
        let body: Value = serde_json::from_slice(body).ok()?;
        let name = body["type"].as_str()?.strip_prefix(PROBLEM_TYPE_PREFIX)?.to_owned();
        let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        let error = |error: &Value| {
            let field = error["field"].as_str().unwrap_or_default();
            Some((field.to_owned(), error["message"].as_str()?.to_owned()))
        };
        Some(Self {
            status,
            name,
            title: text("title"),
            detail: text("detail"),
            errors: body["errors"].as_array().into_iter().flatten().filter_map(error).collect(),
            needs: body["needs"].as_str().map(str::to_owned),
            retry_after: retry_after::seconds(headers),
            api_url: None,
            key: None,
        })
    }

    /// Renames each field, for callers that use other field names than the API.
    pub fn rename_fields(&mut self, name: impl Fn(&str) -> String) {
        for (field, _) in &mut self.errors {
            *field = name(field);
        }
    }
}

impl fmt::Display for ProblemDetails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key.as_ref().map(ClientKey::origin);
        match (self.status, &self.needs, key) {
            (StatusCode::UNAUTHORIZED, _, Some(origin)) if matches!(&*self.name, "key-expired" | "key-revoked") => {
                let detail = escape_controls(self.detail.trim_end_matches('.'));
                return write!(
                    f,
                    "the key from {origin} is not accepted: {detail}, or with the admin key: `guildhall keys create`"
                );
            }
            (StatusCode::UNAUTHORIZED, _, Some(origin)) => {
                let endpoint = self.api_url.as_ref().map_or_else(String::new, |endpoint| format!(" at {endpoint}"));
                // An older daemon does not distinguish them.
                let why = if self.name == "key-invalid" { "invalid" } else { "invalid, expired" };
                return write!(
                    f,
                    "the daemon{endpoint} rejected the key from {origin}: it is {why}, or for another daemon; \
                     set one with --key-file PATH or GUILDHALL_KEY. Processes that share a store accept one generated \
                     key: their logs and `guildhall doctor` name its host and file"
                );
            }
            (StatusCode::UNAUTHORIZED, _, None) => {
                return f.write_str(
                    "the daemon requires a key, and none was found; set one with --key-file PATH or GUILDHALL_KEY. \
                     Without either, the key is api.admin_key of the settings, or the file admin.key beside the store. \
                     Processes that share a store have one such file: their logs and `guildhall doctor` name its host \
                     and path",
                );
            }
            (StatusCode::FORBIDDEN, Some(scope), origin) => {
                let scope = escape_controls(scope);
                let origin = origin.map_or_else(String::new, |origin| format!(" from {origin}"));
                return write!(
                    f,
                    "the key{origin} lacks the scope {scope}; use the admin key to create one that has it: `guildhall \
                     keys create --name NAME --scope {scope}`"
                );
            }
            _ => {}
        }
        let text =
            if self.errors.is_empty() || self.status == StatusCode::CONFLICT { &self.detail } else { &self.title };
        let text = escape_controls(text.trim_end_matches('.'));
        write!(
            f,
            "{} ({})",
            if text.is_empty() { "the daemon rejected the request" } else { &text },
            self.status.as_u16()
        )?;
        if self.detail.starts_with(UNKNOWN_PATH_DETAIL) {
            f.write_str("; the daemon may be older than this program")?;
        }
        if let Some(wait) = self.retry_after {
            write!(f, "; try again in {} s", wait.as_secs())?;
        }
        for (field, message) in self.errors.iter().take(MAX_FIELD_ERRORS) {
            let (separator, field) = if field.is_empty() { ("", field) } else { (": ", field) };
            write!(f, "\n  {}{separator}{}", escape_controls(field), escape_controls(message))?;
        }
        match self.errors.len().saturating_sub(MAX_FIELD_ERRORS) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

struct OutcomeHint(bool);

impl fmt::Display for OutcomeHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 { " (the change may or may not have been made)" } else { "" })
    }
}

struct CaFileHint<'a>(&'a str);

impl fmt::Display for CaFileHint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_it = self.0.contains("certificate");
        f.write_str(if is_it {
            ". If its certificate is from a private authority, set the authority's certificate with --ca-file"
        } else {
            ""
        })
    }
}

#[cfg(test)]
mod tests {
    use http::header;
    use serde_json::json;

    use super::*;
    use crate::settings::SecretValue;

    fn problem(status: u16, more: &Value) -> ProblemDetails {
        let mut body =
            json!({"type": "urn:guildhall:problem:x", "title": "It is odd", "detail": "Look at it.", "status": status});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let mut headers = HeaderMap::new();
        headers.insert(header::RETRY_AFTER, "7".parse().unwrap());
        let mut read =
            ProblemDetails::parse(StatusCode::from_u16(status).unwrap(), &headers, body.to_string().as_bytes())
                .unwrap();
        read.key = ClientKey::new(&SecretValue::new("gh_1_2"), "the file k").ok();
        read
    }

    #[test]
    fn field_errors_are_listed_and_the_rest_counted() {
        let errors: Vec<_> =
            (0..53).map(|n| json!({"field": format!("f{n}"), "message": "is \u{1b}[1m wrong"})).collect();
        let mut problem = problem(422, &json!({ "errors": errors }));
        problem.rename_fields(|field| format!("operations[7].{field}"));
        let message = problem.to_string();
        assert!(
            message.starts_with("It is odd (422); try again in 7 s\n  operations[7].f0: is \\u{1b}[1m wrong\n"),
            "{message}"
        );
        assert!(message.ends_with("\n  and 3 more"), "{message}");
    }

    #[test]
    fn error_of_the_whole_body_has_no_field_name() {
        let errors = json!([{"message": "must be an object"}, {"field": "", "message": "of an older daemon"}]);
        let message = problem(422, &json!({ "errors": errors })).to_string();
        assert!(message.ends_with("\n  must be an object\n  of an older daemon"), "{message}");
    }

    #[test]
    fn rejected_key_names_its_origin_and_the_fix() {
        let expired = json!({"type": "urn:guildhall:problem:key-expired", "detail": "The key has expired at noon."});
        let expired = problem(401, &expired).to_string();
        assert!(expired.contains("the key from the file k is not accepted: The key has expired at noon"), "{expired}");
        let invalid = json!({"type": "urn:guildhall:problem:key-invalid", "detail": "The key is invalid."});
        let invalid = problem(401, &invalid).to_string();
        assert!(
            invalid.contains("rejected the key from the file k: it is invalid, or for another daemon"),
            "{invalid}"
        );
        let lacks = problem(403, &json!({"needs": "keys:write"})).to_string();
        assert!(lacks.contains("the file k") && lacks.contains("--scope keys:write"), "{lacks}");
        let rejected = problem(401, &json!({})).to_string();
        assert!(
            rejected.contains("the file k") && rejected.contains("GUILDHALL_KEY") && !rejected.contains("gh_1_2"),
            "{rejected}"
        );
        let mut none = problem(401, &json!({}));
        none.key = None;
        assert!(none.to_string().contains("admin.key beside the store"));
    }

    #[test]
    fn retryable_statuses_have_a_retry_time() {
        let after = |status| ClientError::Rejected(Box::new(problem(status, &json!({})))).retry_after();
        assert_eq!(after(503), Some(Duration::from_secs(7)));
        assert_eq!(after(429), Some(Duration::from_secs(7)));
        assert_eq!((after(422), after(500)), (None, None));
    }

    #[test]
    fn foreign_bodies_are_not_problems() {
        let none =
            |body: &str| ProblemDetails::parse(StatusCode::BAD_GATEWAY, &HeaderMap::new(), body.as_bytes()).is_none();
        assert!(none("<html>") && none("{}") && none(r#"{"type": "about:blank"}"#));
    }
}
