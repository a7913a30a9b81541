//! Requests to the service, and how an operation is written as JSON.

use std::{fmt, ops::RangeInclusive, time::Duration};

use guildhall_core::operation::{OperationId, OperationKind, OperationState};
use guildhall_core::time::UnixMs;
use guildhall_core::trace::TraceContext;
use serde_json::{Map, Value};

use crate::access::Caller;
use crate::ports::DelayedBy;

/// Operations that are submitted together: all of them are accepted, or none.
#[derive(Clone, Debug)]
pub struct Submission {
    /// The caller. Each caller has its own idempotency keys.
    pub caller: Caller,
    /// The guild that they concern, if any.
    pub guild: Option<u64>,
    /// The operations in the order of execution; unreadable ones as their errors.
    pub operations: Vec<Result<OperationRequest, Vec<FieldError>>>,
}

/// An operation to submit.
#[derive(Clone, Debug)]
pub struct OperationRequest {
    /// Kind of the operation.
    pub kind: OperationKind,
    /// Payload, not validated yet.
    pub payload: Value,
    /// Idempotency key of the caller.
    pub key: Option<String>,
    /// Maximum number of attempts, if not the default.
    pub max_attempts: Option<u32>,
    /// Minimum delay from now.
    pub delay: Duration,
    /// Where the delay comes from.
    pub delayed_by: DelayedBy,
    /// Maximum time from now.
    pub deadline: Option<Duration>,
    /// Reason for Discord's audit log.
    pub reason: Option<String>,
    /// Trace context, if it is not that of the caller.
    pub trace: Option<TraceContext>,
}

/// An error in one field of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// The field: `payload.role_id`; empty for the operation itself.
    pub field: String,
    /// What is wrong, and what is expected.
    pub message: String,
}

impl FieldError {
    /// Creates an error for a field.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

/// Result for one submitted operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedOperation {
    /// Id of the operation.
    pub id: OperationId,
    /// Kind of the operation.
    pub kind: OperationKind,
    /// The guild that it concerns.
    pub guild: Option<u64>,
    /// Current state.
    pub state: OperationState,
    /// When it is due. `None` if it existed before.
    pub eligible_at: Option<UnixMs>,
    /// Result of the operation, as JSON.
    pub result: Option<String>,
    /// Whether its idempotency key was used before with the same payload, so that nothing new was accepted.
    pub replayed: bool,
}

/// A field of a submitted operation besides its kind and payload. The parser and the description of the API are derived
/// from it. It may be missing or `null`.
#[derive(Debug)]
pub struct EnvelopeField {
    /// Name of the field.
    pub name: &'static str,
    /// What it is for, in Markdown.
    pub description: &'static str,
    /// Values that are accepted.
    pub format: FieldFormat,
    /// The value of a missing field.
    pub default: Option<u64>,
}

/// The values of a field that are accepted.
#[derive(Debug)]
pub enum FieldFormat {
    /// 1 to this many printable ASCII characters.
    Printable(usize),
    /// At most this many characters, none of them a control character.
    Line(usize),
    /// A whole number in this range.
    Number(RangeInclusive<u64>),
    /// A W3C `traceparent`.
    Traceparent,
}

/// Maximum number of operations in one submission.
pub const MAX_BATCH: usize = 1_000;
/// Maximum number of attempts, if the operation does not say.
pub const DEFAULT_ATTEMPTS: u32 = 3;
/// Maximum delay or deadline: thirty days.
const MAX_DELAY_MS: u64 = 30 * 24 * 3_600_000;

const KEY: EnvelopeField = EnvelopeField {
    name: "key",
    description: "The idempotency key: the same key with the same kind, guild and payload is accepted once.",
    format: FieldFormat::Printable(255),
    default: None,
};
const REASON: EnvelopeField = EnvelopeField {
    name: "reason",
    description: "Reason for Discord's audit log. No control characters.",
    // What Discord stores, minus the marker.
    format: FieldFormat::Line(480),
    default: None,
};
const ATTEMPTS: EnvelopeField = EnvelopeField {
    name: "max_attempts",
    description: "Maximum number of attempts.",
    format: FieldFormat::Number(1..=20),
    default: Some(DEFAULT_ATTEMPTS as u64),
};
const DELAY: EnvelopeField = EnvelopeField {
    name: "delay_ms",
    description: "Not executed before so long from now: it is `scheduled`, and joins its queue then.",
    format: FieldFormat::Number(0..=MAX_DELAY_MS),
    default: Some(0),
};
const DEADLINE: EnvelopeField = EnvelopeField {
    name: "deadline_ms",
    description: "Not executed after so long from now; must be more than `delay_ms`.",
    format: FieldFormat::Number(1..=MAX_DELAY_MS),
    default: None,
};
const TRACE: EnvelopeField = EnvelopeField {
    name: "trace",
    description: "A W3C `traceparent`; the header of that name is used as well.",
    format: FieldFormat::Traceparent,
    default: None,
};

/// All fields of a submitted operation besides its kind and payload.
pub const ENVELOPE: [EnvelopeField; 6] = [KEY, REASON, ATTEMPTS, DELAY, DEADLINE, TRACE];

impl FieldFormat {
    /// What is wrong with a text; `None` if it is accepted.
    fn text_problem(&self, text: &str) -> Option<String> {
        let fits = match self {
            Self::Printable(max) => {
                (1..=*max).contains(&text.len()) && text.bytes().all(|byte| (0x20..0x7f).contains(&byte))
            }
            Self::Line(max) => text.chars().count() <= *max && !text.chars().any(char::is_control),
            Self::Traceparent => TraceContext::read(text).is_some(),
            Self::Number(_) => false,
        };
        (!fits).then(|| format!("must be {self}"))
    }
}

impl fmt::Display for FieldFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Printable(max) => write!(f, "1 to {max} printable ASCII characters"),
            Self::Line(max) => write!(f, "at most {max} characters, none of them a control character"),
            Self::Number(range) => write!(f, "a whole number from {} to {}", range.start(), range.end()),
            Self::Traceparent => {
                f.write_str("a W3C traceparent such as 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
            }
        }
    }
}

impl OperationRequest {
    /// Creates an operation with defaults.
    #[must_use]
    pub fn new(kind: OperationKind, payload: Value) -> Self {
        Self {
            kind,
            payload,
            key: None,
            max_attempts: None,
            delay: Duration::ZERO,
            delayed_by: DelayedBy::Caller,
            deadline: None,
            reason: None,
            trace: None,
        }
    }

    /// Reads an operation: `{"kind": …, "payload": {…}, "key"?, "max_attempts"?, "delay_ms"?, "deadline_ms"?,
    /// "reason"?, "trace"?}`. The payload itself is validated at submission.
    ///
    /// # Errors
    ///
    /// All errors at once.
    pub fn read(value: Value) -> Result<Self, Vec<FieldError>> {
        let Value::Object(mut fields) = value else {
            return Err(vec![FieldError::new("", "must be an object with `kind` and `payload`")]);
        };
        let mut errors = Vec::new();
        let known: Vec<&str> = ["kind", "payload"].into_iter().chain(ENVELOPE.iter().map(|field| field.name)).collect();
        for name in fields.keys().filter(|name| !known.contains(&name.as_str())).take(10) {
            let shortened: String = name.chars().take(64).collect();
            let message = format!("is not a field of an operation; the fields are {}", known.join(", "));
            errors.push(FieldError::new(shortened, message));
        }
        let kind = kind(&mut fields, &mut errors);
        let payload = fields.remove("payload").unwrap_or_else(|| Value::Object(Map::new()));
        let key = text(&mut fields, &KEY, &mut errors);
        let reason = text(&mut fields, &REASON, &mut errors);
        let trace = text(&mut fields, &TRACE, &mut errors).and_then(|trace| TraceContext::read(&trace));
        let max_attempts = number(&mut fields, &ATTEMPTS, &mut errors);
        let delay = number(&mut fields, &DELAY, &mut errors).unwrap_or(0);
        let deadline = number(&mut fields, &DEADLINE, &mut errors);
        if deadline.is_some_and(|deadline| deadline <= delay) {
            errors.push(FieldError::new("deadline_ms", "must be later than `delay_ms`; both count from now"));
        }
        match kind {
            Some(kind) if errors.is_empty() => Ok(Self {
                kind,
                payload,
                key,
                max_attempts: max_attempts.and_then(|max| u32::try_from(max).ok()),
                delay: Duration::from_millis(delay),
                delayed_by: DelayedBy::Caller,
                deadline: deadline.map(Duration::from_millis),
                reason,
                trace,
            }),
            Some(_) | None => Err(errors),
        }
    }
}

fn kind(fields: &mut Map<String, Value>, errors: &mut Vec<FieldError>) -> Option<OperationKind> {
    let names = || OperationKind::ALL.map(OperationKind::name).join(", ");
    let message = match fields.remove("kind") {
        Some(Value::String(name)) => match OperationKind::from_name(&name) {
            Some(kind) => return Some(kind),
            None => {
                let shortened: String = name.chars().take(64).collect();
                format!("`{shortened}` is not a kind of operation; the kinds are {}", names())
            }
        },
        Some(_) => format!("must be a string, one of {}", names()),
        None => format!("is missing; it must be one of {}", names()),
    };
    errors.push(FieldError::new("kind", message));
    None
}

fn text(fields: &mut Map<String, Value>, field: &EnvelopeField, errors: &mut Vec<FieldError>) -> Option<String> {
    let message = match fields.remove(field.name) {
        None | Some(Value::Null) => return None,
        Some(Value::String(text)) => match field.format.text_problem(&text) {
            None => return Some(text),
            Some(message) => message,
        },
        Some(_) => "must be a string".to_owned(),
    };
    errors.push(FieldError::new(field.name, message));
    None
}

fn number(fields: &mut Map<String, Value>, field: &EnvelopeField, errors: &mut Vec<FieldError>) -> Option<u64> {
    let FieldFormat::Number(range) = &field.format else { return None };
    let given = match fields.remove(field.name) {
        None | Some(Value::Null) => return None,
        Some(given) => given.as_u64().filter(|number| range.contains(number)),
    };
    if given.is_none() {
        errors.push(FieldError::new(field.name, format!("must be {}", field.format)));
    }
    given
}

/// The error in an idempotency key, if any.
#[must_use]
pub fn key_problem(key: &str) -> Option<String> {
    KEY.format.text_problem(key)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: Value) -> Vec<String> {
        OperationRequest::read(value).unwrap_err().into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn operation_is_read_with_all_its_fields() {
        let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let request = OperationRequest::read(json!({
            "kind": "delete_role", "payload": {"role_id": "1"}, "key": "k", "max_attempts": 5, "delay_ms": 10,
            "deadline_ms": 20, "reason": "tidying", "trace": trace,
        }))
        .unwrap();
        assert_eq!(
            (request.kind, request.key.as_deref(), request.max_attempts),
            (OperationKind::DeleteRole, Some("k"), Some(5))
        );
        assert_eq!((request.delay.as_millis(), request.deadline), (10, Some(Duration::from_millis(20))));
        assert_eq!((request.reason.as_deref(), request.trace), (Some("tidying"), TraceContext::read(trace)));
    }

    #[test]
    fn missing_and_null_fields_have_defaults() {
        let request = OperationRequest::read(json!({"kind": "send_dm", "key": null, "delay_ms": null})).unwrap();
        assert_eq!(
            (request.payload, request.key, request.delay, request.deadline),
            (json!({}), None, Duration::ZERO, None)
        );
    }

    #[test]
    fn all_errors_are_reported_at_once() {
        let invalid = json!({
            "kind": "make_role", "key": "", "max_attempts": 0, "delay_ms": -1, "deadline_ms": "soon", "reason": "a\nb",
            "trace": "00-0-0-0", "playload": {},
        });
        let mut reported = fields(invalid);
        reported.sort();
        assert_eq!(reported, ["deadline_ms", "delay_ms", "key", "kind", "max_attempts", "playload", "reason", "trace"]);
        assert_eq!(fields(json!([])), [""]);
        assert_eq!(fields(json!({"kind": 7})), ["kind"]);
        assert_eq!(fields(json!({"kind": "send_dm", "delay_ms": 5, "deadline_ms": 5})), ["deadline_ms"]);
    }

    #[test]
    fn errors_about_huge_input_stay_short() {
        let huge = "x".repeat(100_000);
        let mut object = Map::new();
        for n in 0..1_000 {
            object.insert(format!("{n}{huge}"), Value::Null);
        }
        object.insert("kind".to_owned(), Value::String(huge));
        let error = OperationRequest::read(Value::Object(object)).unwrap_err();
        let length: usize = error.iter().map(|error| error.field.len() + error.message.len()).sum();
        assert!(length < 8_000, "{length}");
    }
}
