//! Checks whether the output of a rule can be valid, as far as possible without an event.

use serde_json::{Map, Value};

use super::json_template::JsonTemplate;
use super::template::PlaceholderScope;
use crate::operation::payload::{
    FieldError,
    field_reader::{UNKNOWN_FIELD, nearest, object},
    validation::{FieldContext, truncated},
    value::{integer, text},
};
use crate::operation::{OperationKind, Payload};

/// Maximum delay or deadline: 30 days, in milliseconds.
const MAX_DELAY_MS: u64 = 30 * 24 * 3_600_000;
/// Where to find the kinds, for messages.
const KINDS_HINT: &str = "docs/operations.md lists the kinds";

/// Reads an operation, in the format of the API.
pub(super) fn operation(value: &Value, names: PlaceholderScope<'_>, at: &mut FieldContext<'_>) -> Option<JsonTemplate> {
    object(value, at, |form| {
        let kind = form.required("kind", kind);
        let payload = form.required("payload", |value, at| {
            let shape = JsonTemplate::read(value, names, at)?;
            if let Some(kind) = kind {
                payload(kind, &shape, at);
            }
            Some(shape)
        });
        let key = form.optional("key", |value, at| templated(value, names, at, text(1, 255)));
        let reason = form.optional("reason", |value, at| templated(value, names, at, text(0, 480)));
        let attempts = form.optional("max_attempts", |value, at| templated(value, names, at, integer::<u32>(1, 20)));
        let delay = form.optional("delay_ms", |value, at| templated(value, names, at, integer::<u64>(0, MAX_DELAY_MS)));
        let deadline =
            form.optional("deadline_ms", |value, at| templated(value, names, at, integer::<u64>(1, MAX_DELAY_MS)));
        if let (Some(JsonTemplate::Fixed(delay)), Some(JsonTemplate::Fixed(deadline))) = (&delay, &deadline)
            && deadline.as_u64() <= delay.as_u64()
        {
            form.invalid("deadline_ms", "must be later than `delay_ms`; both count from the event");
        }
        let mut fields = vec![("kind".to_owned(), JsonTemplate::Fixed(Value::from(kind?.name())))];
        let optional_fields = [
            ("payload", payload),
            ("key", key),
            ("reason", reason),
            ("max_attempts", attempts),
            ("delay_ms", delay),
            ("deadline_ms", deadline),
        ];
        fields.extend(optional_fields.into_iter().filter_map(|(name, shape)| Some((name.to_owned(), shape?))));
        Some(JsonTemplate::Object(fields))
    })
}

fn kind(value: &Value, at: &mut FieldContext<'_>) -> Option<OperationKind> {
    let Some(name) = value.as_str() else {
        return at.invalid("must be a kind of operation, as a string; docs/operations.md lists them");
    };
    OperationKind::from_name(name).or_else(|| match nearest(name, OperationKind::ALL.iter().map(|kind| kind.name())) {
        Some(meant) => at.invalid(format!("`{}` is not a kind of operation; did you mean `{meant}`?", truncated(name))),
        None => at.invalid(format!("`{}` is not a kind of operation; {KINDS_HINT}", truncated(name))),
    })
}

/// Records the errors of an operation's payload.
fn payload(kind: OperationKind, shape: &JsonTemplate, at: &mut FieldContext<'_>) {
    let (sample, unknown) = shape.sample();
    if let Err(invalid) = Payload::parse(kind, &sample, Some(1)) {
        record_errors(invalid.errors, &unknown, at);
    }
}

/// Records errors, except those of values that are unknown without an event.
fn record_errors(errors: Vec<FieldError>, unknown: &[String], at: &mut FieldContext<'_>) {
    let prefixed = |field: &str, path: &str| {
        field.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    for error in errors {
        let is_unknown = unknown.iter().any(|path| prefixed(&error.field, path));
        if !is_unknown || error.message.starts_with(UNKNOWN_FIELD) {
            at.below(&error.field).invalid::<()>(error.message);
        }
    }
}

/// Reads a value that may contain placeholders.
fn templated<T>(
    value: &Value,
    names: PlaceholderScope<'_>,
    at: &mut FieldContext<'_>,
    read: impl FnOnce(&Value, &mut FieldContext<'_>) -> Option<T>,
) -> Option<JsonTemplate> {
    let shape = JsonTemplate::read(value, names, at)?;
    let (sample, unknown) = shape.sample();
    if unknown.is_empty() {
        read(&sample, at)?;
    }
    Some(shape)
}

/// Reads the response to an interaction: a message, or what only the synchronous path can respond with. A string is a
/// message.
pub(super) fn reply(value: &Value, names: PlaceholderScope<'_>, at: &mut FieldContext<'_>) -> Option<JsonTemplate> {
    let shape = match value {
        Value::String(_) => JsonTemplate::Object(vec![("content".to_owned(), JsonTemplate::read(value, names, at)?)]),
        Value::Object(_) => JsonTemplate::read(value, names, at)?,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
            return at.invalid("must be a string or a message, such as { content = \"Hello!\" }");
        }
    };
    let (sample, unknown) = shape.sample();
    let Value::Object(mut message) = sample else { return Some(shape) };
    // Autocomplete choices and modals are Discord's own objects.
    if message.contains_key("choices") || message.contains_key("custom_id") {
        return Some(shape);
    }
    let interaction = [("interaction_id", "1"), ("interaction_token", "token")];
    if let Some((name, _)) = interaction.iter().find(|(name, _)| message.contains_key(*name)) {
        return at.field(name).invalid("is not a known field here; the response goes to the interaction of the event");
    }
    message.extend(
        interaction.map(|(name, value)| (name.to_owned(), Value::from(value))).into_iter().collect::<Map<_, _>>(),
    );
    if let Err(invalid) = Payload::parse(OperationKind::EditOriginal, &Value::Object(message), None) {
        record_errors(invalid.errors, &unknown, at);
    }
    Some(shape)
}
