//! Errors of API requests, with messages that say what to do.

use std::{fmt, time::Duration};

use http::{HeaderMap, StatusCode, header};
use serde_json::Value;

use super::{ApiUrl, ClientKey};
use crate::terminal_text::plain;

/// Prefix of Guildhall's problem types.
const TYPE: &str = "urn:guildhall:problem:";
/// Maximum number of field errors in a message.
const TOLD: usize = 50;
/// Start of the daemon's detail text for an unknown path.
const NO_PATH: &str = "No resource exists at this path";
/// Delay before a retry, if the daemon does not send one.
const AGAIN: Duration = Duration::from_millis(500);

/// Error of an API request.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection could be made.
    #[error(
        "cannot connect to {place}: {why}; start the daemon there with `guildhall serve`, or set its address with \
         --api URL or GUILDHALL_API{}",
        Certificate(why)
    )]
    Unreachable {
        /// Address of the daemon.
        place: ApiUrl,
        /// Cause of the failure.
        why: String,
    },
    /// The request timed out.
    #[error("{place} did not respond within {} ms{}; use --timeout to wait longer", within.as_millis(), Left(*left))]
    TimedOut {
        /// Address of the daemon.
        place: ApiUrl,
        /// The timeout.
        within: Duration,
        /// Whether the request may have changed something.
        left: bool,
    },
    /// The connection failed during the request.
    #[error("the connection to {place} failed: {why}{}", Left(*left))]
    Broken {
        /// Address of the daemon.
        place: ApiUrl,
        /// Cause of the failure.
        why: String,
        /// Whether the request may have changed something.
        left: bool,
    },
    /// The response is not from Guildhall.
    #[error("{place} returned a {status} that is not from Guildhall; check the URL and any proxy")]
    NotOurs {
        /// Address that was called.
        place: ApiUrl,
        /// Status code of the response.
        status: u16,
    },
    /// The daemon does not support the feature.
    #[error("the daemon at {place} does not support {what}; it may be older than this program")]
    Unknown {
        /// Address of the daemon.
        place: ApiUrl,
        /// The feature.
        what: String,
    },
    /// The request cannot be encoded.
    #[error("cannot request {}: it is not valid in a URL or a header", plain(what))]
    Malformed {
        /// The path of the request.
        what: String,
    },
    /// The daemon rejected the request.
    #[error("{0}")]
    Refused(Box<ProblemDetails>),
}

impl ClientError {
    /// Returns when to retry; `None` if a retry is not useful.
    #[must_use]
    pub fn again_after(&self) -> Option<Duration> {
        match self {
            Self::Broken { .. } => Some(AGAIN),
            Self::Refused(refusal) => match refusal.status {
                StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                    Some(refusal.retry_after.unwrap_or(AGAIN))
                }
                _ => None,
            },
            Self::Unreachable { .. }
            | Self::TimedOut { .. }
            | Self::NotOurs { .. }
            | Self::Unknown { .. }
            | Self::Malformed { .. } => None,
        }
    }

    /// Returns the daemon's problem response, if there is one.
    #[must_use]
    pub fn refusal(&self) -> Option<&ProblemDetails> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// Whether the daemon responded with 404.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.refusal().is_some_and(|refusal| refusal.status == StatusCode::NOT_FOUND)
    }

    /// Whether it is unknown if the request changed something.
    #[must_use]
    pub fn is_unclear(&self) -> bool {
        match self {
            Self::TimedOut { left, .. } | Self::Broken { left, .. } => *left,
            Self::Refused(refusal) => refusal.status.is_server_error(),
            Self::Unreachable { .. } | Self::NotOurs { .. } | Self::Unknown { .. } | Self::Malformed { .. } => false,
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
    /// Field errors: field and message.
    pub errors: Vec<(String, String)>,
    /// The scope that the key lacks.
    pub needs: Option<String>,
    /// When to retry.
    pub retry_after: Option<Duration>,
    /// Address of the daemon that sent it.
    pub(super) place: Option<ApiUrl>,
    /// The key that was sent.
    pub(super) key: Option<ClientKey>,
}

impl ProblemDetails {
    /// Parses a problem; `None` if it is not one of Guildhall's.
    pub(super) fn read(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Option<Self> {
        let body: Value = serde_json::from_slice(body).ok()?;
        let name = body["type"].as_str()?.strip_prefix(TYPE)?.to_owned();
        let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        let error = |error: &Value| Some((error["field"].as_str()?.to_owned(), error["message"].as_str()?.to_owned()));
        let seconds = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        Some(Self {
            status,
            name,
            title: text("title"),
            detail: text("detail"),
            errors: body["errors"].as_array().into_iter().flatten().filter_map(error).collect(),
            needs: body["needs"].as_str().map(str::to_owned),
            retry_after: seconds.map(Duration::from_secs),
            place: None,
            key: None,
        })
    }

    /// Renames each field, for callers that use other field names than the API.
    pub fn rename(&mut self, name: impl Fn(&str) -> String) {
        for (field, _) in &mut self.errors {
            *field = name(field);
        }
    }
}

impl fmt::Display for ProblemDetails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key.as_ref().map(ClientKey::origin);
        match (self.status, &self.needs, key) {
            (StatusCode::UNAUTHORIZED, _, Some(origin)) => {
                let place = self.place.as_ref().map_or_else(String::new, |place| format!(" at {place}"));
                return write!(
                    f,
                    "the daemon{place} rejected the key from {origin}: it is invalid, expired, or for another daemon; \
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
                let scope = plain(scope);
                let origin = origin.map_or_else(String::new, |origin| format!(" from {origin}"));
                return write!(
                    f,
                    "the key{origin} lacks the scope {scope}; use the admin key to create one that has it: `guildhall \
                     keys create --name NAME --scope {scope}`"
                );
            }
            _ => {}
        }
        let says =
            if self.errors.is_empty() || self.status == StatusCode::CONFLICT { &self.detail } else { &self.title };
        let says = plain(says.trim_end_matches('.'));
        write!(
            f,
            "{} ({})",
            if says.is_empty() { "the daemon rejected the request" } else { &says },
            self.status.as_u16()
        )?;
        if self.detail.starts_with(NO_PATH) {
            f.write_str("; the daemon may be older than this program")?;
        }
        if let Some(wait) = self.retry_after {
            write!(f, "; try again in {} s", wait.as_secs())?;
        }
        for (field, message) in self.errors.iter().take(TOLD) {
            write!(f, "\n  {}: {}", plain(field), plain(message))?;
        }
        match self.errors.len().saturating_sub(TOLD) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

struct Left(bool);

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 { " (the change may or may not have been made)" } else { "" })
    }
}

struct Certificate<'a>(&'a str);

impl fmt::Display for Certificate<'_> {
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
    use serde_json::json;

    use super::*;
    use crate::settings::SecretValue;

    fn refusal(status: u16, more: &Value) -> ProblemDetails {
        let mut body =
            json!({"type": "urn:guildhall:problem:x", "title": "It is odd", "detail": "Look at it.", "status": status});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let mut headers = HeaderMap::new();
        headers.insert(header::RETRY_AFTER, "7".parse().unwrap());
        let mut read =
            ProblemDetails::read(StatusCode::from_u16(status).unwrap(), &headers, body.to_string().as_bytes()).unwrap();
        read.key = ClientKey::new(&SecretValue::new("gh_1_2"), "the file k").ok();
        read
    }

    #[test]
    fn each_mistake_is_told_by_its_field_and_many_are_counted() {
        let errors: Vec<_> =
            (0..53).map(|n| json!({"field": format!("f{n}"), "message": "is \u{1b}[1m wrong"})).collect();
        let mut told = refusal(422, &json!({ "errors": errors }));
        told.rename(|field| format!("operations[7].{field}"));
        let says = told.to_string();
        assert!(
            says.starts_with("It is odd (422); try again in 7 s\n  operations[7].f0: is \\u{1b}[1m wrong\n"),
            "{says}"
        );
        assert!(says.ends_with("\n  and 3 more"), "{says}");
    }

    #[test]
    fn a_key_that_does_not_do_is_told_with_what_would() {
        let lacks = refusal(403, &json!({"needs": "keys:write"})).to_string();
        assert!(lacks.contains("the file k") && lacks.contains("--scope keys:write"), "{lacks}");
        let wrong = refusal(401, &json!({})).to_string();
        assert!(
            wrong.contains("the file k") && wrong.contains("GUILDHALL_KEY") && !wrong.contains("gh_1_2"),
            "{wrong}"
        );
        let mut none = refusal(401, &json!({}));
        none.key = None;
        assert!(none.to_string().contains("admin.key beside the store"));
    }

    #[test]
    fn what_is_worth_asking_again_says_when() {
        let after = |status| ClientError::Refused(Box::new(refusal(status, &json!({})))).again_after();
        assert_eq!(after(503), Some(Duration::from_secs(7)));
        assert_eq!(after(429), Some(Duration::from_secs(7)));
        assert_eq!((after(422), after(500)), (None, None));
    }

    #[test]
    fn only_a_problem_of_ours_is_one() {
        let none =
            |body: &str| ProblemDetails::read(StatusCode::BAD_GATEWAY, &HeaderMap::new(), body.as_bytes()).is_none();
        assert!(none("<html>") && none("{}") && none(r#"{"type": "about:blank"}"#));
    }
}
