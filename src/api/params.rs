//! Parses the path, the query and the body of a request.

use actix_web::{HttpRequest, http::header::CONTENT_TYPE, web::Bytes};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use chrono::DateTime;
use guildhall_core::{
    access::KeyId,
    budget::Points,
    operation::{OperationId, OperationKind, OperationState},
    time::UnixMs,
};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};
use url::form_urlencoded;
use uuid::Uuid;

use super::middleware;
use crate::api::handlers::budgets::MAX_POINTS;
use crate::api::problem::{ProblemResponse, ProblemType};

/// Snowflakes do not reach this before 2049; the store depends on it.
const SNOWFLAKE_END: u64 = 1 << 62;
/// Default number of entries in a list.
const DEFAULT_PAGE_SIZE: usize = 50;
/// Maximum number of entries in a list.
const MAX_PAGE_SIZE: usize = 500;

/// The body as JSON.
pub(crate) fn json(request: &HttpRequest) -> Result<Value, ProblemResponse> {
    let body: Bytes = middleware::body_of(request);
    let kind = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if essence != "application/json" && !(essence.starts_with("application/") && essence.ends_with("+json")) {
        return Err(ProblemType::NotJson.into());
    }
    serde_json::from_slice(&body)
        .map_err(|error| ProblemType::BadRequest.with_detail(format!("The request body is not valid JSON: {error}.")))
}

/// The variable segment of a request's path.
pub(crate) fn path_parameter(request: &HttpRequest, name: &str) -> Result<String, ProblemResponse> {
    let given = middleware::path_parameter(request);
    let text = percent_decode_str(&given).decode_utf8().map_err(|_| parameter(name, "must be UTF-8"))?;
    Ok(text.into_owned())
}

/// A guild id, from the path.
pub(crate) fn guild(request: &HttpRequest) -> Result<u64, ProblemResponse> {
    snowflake(&path_parameter(request, "guild_id")?)
        .ok_or_else(|| parameter("guild_id", "must be a guild id, a number such as 1571715189416398849"))
}

/// The id of an operation or a dead letter, from the path.
pub(crate) fn id(request: &HttpRequest) -> Result<OperationId, ProblemResponse> {
    path_parameter(request, "id")?
        .parse()
        .map_err(|error: guildhall_core::operation::ParseOperationIdError| parameter("id", error.to_string()))
}

pub(crate) fn snowflake(text: &str) -> Option<u64> {
    // As Discord writes them, so that an id has only one form.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|id| digits && (1..SNOWFLAKE_END).contains(id))
}

pub(crate) fn parameter(name: &str, message: impl Into<String>) -> ProblemResponse {
    let message = message.into();
    ProblemType::BadRequest.with_detail(format!("{name} {message}.")).errors([(name.to_owned(), message)])
}

/// The parameters of a request, taken out one by one; the remaining ones are unknown.
pub(crate) struct Params {
    given: Vec<(String, Value)>,
    known_names: Vec<&'static str>,
    errors: Vec<(String, String)>,
}

impl Params {
    /// The query of a request.
    pub(crate) fn query(request: &HttpRequest) -> Self {
        let pairs = form_urlencoded::parse(request.query_string().as_bytes());
        Self::new(pairs.map(|(name, value)| (name.into_owned(), Value::String(value.into_owned()))).collect())
    }

    /// The body of a request, which must be an object.
    pub(crate) fn body(request: &HttpRequest) -> Result<Self, ProblemResponse> {
        match json(request)? {
            Value::Object(fields) => Ok(Self::new(fields.into_iter().collect())),
            _ => {
                Err(ProblemType::BadRequest
                    .with_detail("The request body must be a JSON object; `{}` selects everything."))
            }
        }
    }

    /// The body of a request, which may be omitted.
    pub(crate) fn optional_body(request: &HttpRequest) -> Result<Self, ProblemResponse> {
        if middleware::body_of(request).is_empty() { Ok(Self::new(Vec::new())) } else { Self::body(request) }
    }

    fn new(given: Vec<(String, Value)>) -> Self {
        Self { given, known_names: Vec::new(), errors: Vec::new() }
    }

    /// Takes a value out, and parses it. Numbers and booleans may be strings, as a query requires.
    fn take<T>(&mut self, name: &'static str, allowed: &str, read: impl Fn(&str) -> Option<T>) -> Option<T> {
        self.known_names.push(name);
        let mut values = Vec::new();
        self.given.retain_mut(|(given, value)| {
            let is_it = given == name;
            if is_it {
                values.push(value.take());
            }
            !is_it
        });
        let text = match values.as_slice() {
            [] | [Value::Null] => return None,
            [Value::String(text)] => text.clone(),
            [value @ (Value::Bool(_) | Value::Number(_))] => value.to_string(),
            _ => String::new(),
        };
        let read = read(&text);
        if read.is_none() {
            self.errors.push((name.to_owned(), format!("must be {allowed}, given once")));
        }
        read
    }

    pub(crate) fn guild(&mut self) -> Option<u64> {
        self.take("guild_id", "a guild id as a string", snowflake)
    }

    pub(crate) fn user(&mut self) -> Option<u64> {
        self.take("user_id", "a user id as a string", snowflake)
    }

    pub(crate) fn state(&mut self) -> Option<OperationState> {
        let names = OperationState::ALL.map(OperationState::name).join(", ");
        self.take("state", &format!("one of {names}"), OperationState::from_name)
    }

    pub(crate) fn kind(&mut self) -> Option<OperationKind> {
        let names = OperationKind::ALL.map(OperationKind::name).join(", ");
        self.take("kind", &format!("one of {names}"), OperationKind::from_name)
    }

    pub(crate) fn class(&mut self) -> Option<String> {
        let names = guildhall_core::operation::FailureClass::ALL.map(guildhall_core::operation::FailureClass::name);
        let allowed = format!("one of {}", names.join(", "));
        self.take("class", &allowed, |name| names.contains(&name).then(|| name.to_owned()))
    }

    /// A deployment id.
    pub(crate) fn deployment(&mut self) -> Option<OperationId> {
        self.take("deployment_id", "a deployment id", |text| text.parse().ok())
    }

    /// A time.
    pub(crate) fn time(&mut self, name: &'static str) -> Option<UnixMs> {
        self.take(name, "a time such as 2026-01-31T12:00:00Z", |text| {
            let at = DateTime::parse_from_rfc3339(text).ok()?;
            u64::try_from(at.timestamp_millis()).ok().map(UnixMs::new)
        })
    }

    pub(crate) fn boolean(&mut self, name: &'static str) -> Option<bool> {
        self.take(name, "true or false", |text| text.parse().ok())
    }

    /// Maximum number of entries.
    pub(crate) fn limit(&mut self) -> usize {
        self.limit_up_to(MAX_PAGE_SIZE).unwrap_or(DEFAULT_PAGE_SIZE)
    }

    pub(crate) fn limit_up_to(&mut self, max: usize) -> Option<usize> {
        let read = |text: &str| text.parse().ok().filter(|limit| (1..=max).contains(limit));
        self.take("limit", &format!("a whole number from 1 to {max}"), read)
    }

    /// A number in a range.
    pub(crate) fn number(&mut self, name: &'static str, min: u64, max: u64) -> Option<u64> {
        let read = |text: &str| text.parse().ok().filter(|number| (min..=max).contains(number));
        self.take(name, &format!("a whole number from {min} to {max}"), read)
    }

    /// A number of points, which may be a fraction: at least this many.
    pub(crate) fn points(&mut self, name: &'static str, min: Points) -> Option<Points> {
        let read = |text: &str| {
            let points = text.parse().ok().and_then(Points::new);
            points.filter(|points| (min..=MAX_POINTS).contains(points))
        };
        let from = if min == Points::ZERO { "from 0" } else { "above 0" };
        self.take(name, &format!("a number {from} up to {MAX_POINTS}"), read)
    }

    /// A string of at most this many bytes.
    pub(crate) fn text(&mut self, name: &'static str, max: usize) -> Option<String> {
        // A boolean or a number is not accepted as a string.
        let others = self.given.iter_mut().filter(|(given, value)| given == name && !value.is_string());
        others.filter(|(_, value)| !value.is_null()).for_each(|(_, value)| *value = Value::Array(Vec::new()));
        let read = |text: &str| (1..=max).contains(&text.len()).then(|| text.to_owned());
        self.take(name, &format!("a string of 1 to {max} bytes"), read)
    }

    /// One of these names.
    pub(crate) fn one_of<T>(&mut self, name: &'static str, names: &str, read: impl Fn(&str) -> Option<T>) -> Option<T> {
        self.take(name, &format!("one of {names}"), read)
    }

    /// A position in a numbered list.
    pub(crate) fn position(&mut self, name: &'static str) -> Option<i64> {
        self.take(name, "`next` of the previous response", |text| text.parse().ok())
    }

    /// The end of the previous page.
    pub(crate) fn cursor(&mut self) -> Option<OperationId> {
        self.take("cursor", "`next` of the previous response", read_cursor)
    }

    /// The end of the previous page of keys.
    pub(crate) fn key_cursor(&mut self) -> Option<(UnixMs, KeyId)> {
        self.take("cursor", "`next` of the previous response", |text| {
            let (at, id) = text.split_once('.')?;
            Some((UnixMs::new(at.parse().ok()?), id.parse().ok()?))
        })
    }

    /// Checks that all parameters are known and valid.
    pub(crate) fn finish(mut self) -> Result<(), ProblemResponse> {
        let names = self.known_names.join(", ");
        for (name, _) in self.given.iter().take(10) {
            let displayed: String = name.chars().take(64).collect();
            self.errors.push((displayed, format!("is unknown; expected one of: {names}")));
        }
        if self.errors.is_empty() {
            return Ok(());
        }
        let messages: Vec<_> = self.errors.iter().map(|(name, message)| format!("{name} {message}")).collect();
        Err(ProblemType::BadRequest.with_detail(format!("{}.", messages.join("; "))).errors(self.errors))
    }
}

/// The start of the next page. Its content is opaque to clients.
pub(crate) fn cursor(last: OperationId) -> String {
    let mut bytes = vec![1];
    bytes.extend_from_slice(last.uuid().as_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The start of the next page of keys.
pub(crate) fn key_cursor(at: UnixMs, id: KeyId) -> String {
    format!("{}.{id}", at.millis())
}

fn read_cursor(text: &str) -> Option<OperationId> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    match bytes.split_first() {
        Some((1, id)) => Uuid::from_slice(id).ok().map(OperationId::from_uuid),
        _ => None,
    }
}

/// Takes a list out of an object that must contain nothing else.
pub(crate) fn only_list(mut object: Map<String, Value>, name: &str) -> Result<Vec<Value>, ProblemResponse> {
    let list = object.remove(name);
    let mut errors = Vec::new();
    for other in object.keys().take(10) {
        let displayed: String = other.chars().take(64).collect();
        errors.push((displayed, format!("is not permitted beside `{name}`; put it into each operation")));
    }
    match list {
        Some(Value::Array(list)) if errors.is_empty() => Ok(list),
        Some(Value::Array(_)) => Err(ProblemResponse::from(ProblemType::InvalidOperation).errors(errors)),
        _ => {
            errors.push((name.to_owned(), "must be a list of operations".to_owned()));
            Err(ProblemResponse::from(ProblemType::InvalidOperation).errors(errors))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_round_trips_and_rejects_other_text() {
        let id = OperationId::new(1_700_000_000_000, [7; 10]);
        assert_eq!(read_cursor(&cursor(id)), Some(id));
        for invalid in ["", "AQ", "!", &id.to_string(), &URL_SAFE_NO_PAD.encode([2; 17])] {
            assert_eq!(read_cursor(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn snowflake_is_digits_within_discords_range() {
        assert_eq!(snowflake("1571715189416398849"), Some(1_571_715_189_416_398_849));
        for invalid in ["", "0", "01", "+1", "-1", "1.0", " 1", "4611686018427387904", "999999999999999999999999", "x"]
        {
            assert_eq!(snowflake(invalid), None, "{invalid}");
        }
    }
}
