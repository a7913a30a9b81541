//! Requests to the service, and how an operation is written as JSON.

use std::time::Duration;

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

/// Maximum length of an idempotency key.
const MAX_KEY_LENGTH: usize = 255;
/// Maximum length of a reason: what Discord stores, minus the marker.
const MAX_REASON_LENGTH: usize = 480;
/// Maximum number of attempts.
const MAX_ATTEMPTS: u64 = 20;
/// Maximum delay or deadline: thirty days.
const MAX_DELAY_MS: u64 = 30 * 24 * 3_600_000;

/// Fields of an operation in JSON.
const FIELDS: [&str; 8] = ["kind", "payload", "key", "max_attempts", "delay_ms", "deadline_ms", "reason", "trace"];

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
        for name in fields.keys().filter(|name| !FIELDS.contains(&name.as_str())).take(10) {
            let shortened: String = name.chars().take(64).collect();
            errors.push(FieldError::new(
                shortened,
                format!("is not a field of an operation; the fields are {}", FIELDS.join(", ")),
            ));
        }
        let kind = kind(&mut fields, &mut errors);
        let payload = fields.remove("payload").unwrap_or_else(|| Value::Object(Map::new()));
        let key = text(&mut fields, "key", &mut errors, key_problem);
        let reason = text(&mut fields, "reason", &mut errors, reason_problem);
        let trace = text(&mut fields, "trace", &mut errors, trace_problem).and_then(|trace| TraceContext::read(&trace));
        let max_attempts = number(&mut fields, "max_attempts", 1, MAX_ATTEMPTS, &mut errors);
        let delay = number(&mut fields, "delay_ms", 0, MAX_DELAY_MS, &mut errors).unwrap_or(0);
        let deadline = number(&mut fields, "deadline_ms", 1, MAX_DELAY_MS, &mut errors);
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

/// A string that may be missing or `null`.
fn text(
    fields: &mut Map<String, Value>,
    name: &str,
    errors: &mut Vec<FieldError>,
    problem: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let message = match fields.remove(name) {
        None | Some(Value::Null) => return None,
        Some(Value::String(text)) => match problem(&text) {
            None => return Some(text),
            Some(message) => message,
        },
        Some(_) => "must be a string".to_owned(),
    };
    errors.push(FieldError::new(name, message));
    None
}

/// A whole number that may be missing or `null`.
fn number(
    fields: &mut Map<String, Value>,
    name: &str,
    min: u64,
    max: u64,
    errors: &mut Vec<FieldError>,
) -> Option<u64> {
    let given = match fields.remove(name) {
        None | Some(Value::Null) => return None,
        Some(given) => given.as_u64().filter(|number| (min..=max).contains(number)),
    };
    if given.is_none() {
        errors.push(FieldError::new(name, format!("must be a whole number from {min} to {max}")));
    }
    given
}

/// The error in an idempotency key, if any.
#[must_use]
pub fn key_problem(key: &str) -> Option<String> {
    let fits = (1..=MAX_KEY_LENGTH).contains(&key.len()) && key.bytes().all(|byte| (0x20..0x7f).contains(&byte));
    (!fits).then(|| format!("must be 1 to {MAX_KEY_LENGTH} printable ASCII characters"))
}

fn reason_problem(reason: &str) -> Option<String> {
    let fits = reason.chars().count() <= MAX_REASON_LENGTH && !reason.chars().any(char::is_control);
    (!fits).then(|| format!("must be at most {MAX_REASON_LENGTH} characters, none of them a control character"))
}

fn trace_problem(trace: &str) -> Option<String> {
    (TraceContext::read(trace).is_none())
        .then(|| "must be a W3C traceparent such as 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned())
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
