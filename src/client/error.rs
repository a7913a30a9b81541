//! Why there is no answer of use, in words that say what to do.

use std::{fmt, time::Duration};

use http::{HeaderMap, StatusCode, header};
use serde_json::Value;

use super::{ApiUrl, ClientKey};
use crate::terminal_text::plain;

/// What the type of every problem of ours begins with.
const TYPE: &str = "urn:guildhall:problem:";
/// How many mistakes are told.
const TOLD: usize = 50;
/// What the daemon says of a path that it does not have.
const NO_PATH: &str = "There is nothing at this path";
/// How long to wait before asking again, if the daemon does not say.
const AGAIN: Duration = Duration::from_millis(500);

/// Why there is no answer of use.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody is there.
    #[error(
        "nobody answers at {place}: {why}; start the daemon there with `guildhall serve`, or say where it is with --api URL \
         or GUILDHALL_API{}",
        Certificate(why)
    )]
    Unreachable {
        /// Where.
        place: ApiUrl,
        /// Why not.
        why: String,
    },
    /// It took too long.
    #[error("{place} has not answered within {} ms{}; --timeout gives it longer", within.as_millis(), Left(*left))]
    TimedOut {
        /// Where.
        place: ApiUrl,
        /// How long it had.
        within: Duration,
        /// Whether it may have been done.
        left: bool,
    },
    /// The connection broke.
    #[error("the connection to {place} broke: {why}{}", Left(*left))]
    Broken {
        /// Where.
        place: ApiUrl,
        /// Why.
        why: String,
        /// Whether it may have been done.
        left: bool,
    },
    /// Something else listens there.
    #[error(
        "{place} answered {status} in words that are not Guildhall's; is it the right address, and nothing between?"
    )]
    NotOurs {
        /// Where.
        place: ApiUrl,
        /// The status.
        status: u16,
    },
    /// The daemon has no such thing.
    #[error("the daemon at {place} does not know {what}; it may be older than this program")]
    Unknown {
        /// Where.
        place: ApiUrl,
        /// What.
        what: String,
    },
    /// The question itself cannot be written down.
    #[error("{} cannot be asked for: it is no part of a URL or of a header", plain(what))]
    Malformed {
        /// What.
        what: String,
    },
    /// The daemon says no.
    #[error("{0}")]
    Refused(Box<ProblemDetails>),
}

impl ClientError {
    /// When it may go right, if it is worth asking again.
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

    /// What the daemon said, if it did.
    #[must_use]
    pub fn refusal(&self) -> Option<&ProblemDetails> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// Whether the daemon says that there is no such thing.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.refusal().is_some_and(|refusal| refusal.status == StatusCode::NOT_FOUND)
    }

    /// Whether nobody knows if it was done.
    #[must_use]
    pub fn is_unclear(&self) -> bool {
        match self {
            Self::TimedOut { left, .. } | Self::Broken { left, .. } => *left,
            Self::Refused(refusal) => refusal.status.is_server_error(),
            Self::Unreachable { .. } | Self::NotOurs { .. } | Self::Unknown { .. } | Self::Malformed { .. } => false,
        }
    }
}

/// A problem that the daemon told (RFC 9457).
#[derive(Clone, Debug)]
pub struct ProblemDetails {
    /// The status.
    pub status: StatusCode,
    /// The last part of its type.
    pub name: String,
    /// What it is, in general.
    pub title: String,
    /// What there is to say about this case.
    pub detail: String,
    /// What is wrong with which field.
    pub errors: Vec<(String, String)>,
    /// The scope that the key lacks.
    pub needs: Option<String>,
    /// When to ask again.
    pub retry_after: Option<Duration>,
    /// Who said it.
    pub(super) place: Option<ApiUrl>,
    /// The key that was shown.
    pub(super) key: Option<ClientKey>,
}

impl ProblemDetails {
    /// Reads a problem; nothing if it is none of ours.
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

    /// Names each field anew, for whoever has asked in other words.
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
                    "the daemon{place} does not take the key from {origin}: it is wrong, over or of another daemon; give one \
                     with --key-file PATH or GUILDHALL_KEY. Processes that share a store accept one generated key: their logs and \
                     `guildhall doctor` name its host and file"
                );
            }
            (StatusCode::UNAUTHORIZED, _, None) => {
                return f.write_str(
                    "the daemon asks for a key, and none was found; give one with --key-file PATH or GUILDHALL_KEY. Without \
                     either it is api.admin_key of the settings, or the file admin.key beside the store. Processes that share a \
                     store have one such file: their logs and `guildhall doctor` name its host and path",
                );
            }
            (StatusCode::FORBIDDEN, Some(scope), origin) => {
                let scope = plain(scope);
                let origin = origin.map_or_else(String::new, |origin| format!(" from {origin}"));
                return write!(
                    f,
                    "the key{origin} lacks the scope {scope}; whoever has the admin key makes one that has it: `guildhall keys \
                     create --name NAME --scope {scope}`"
                );
            }
            _ => {}
        }
        let says =
            if self.errors.is_empty() || self.status == StatusCode::CONFLICT { &self.detail } else { &self.title };
        let says = plain(says.trim_end_matches('.'));
        write!(f, "{} ({})", if says.is_empty() { "the daemon refused" } else { &says }, self.status.as_u16())?;
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
        f.write_str(if self.0 { ", and it may have been done or not" } else { "" })
    }
}

struct Certificate<'a>(&'a str);

impl fmt::Display for Certificate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_it = self.0.contains("certificate");
        f.write_str(if is_it {
            ". If its certificate comes from an authority of your own, name that with --ca-file"
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
