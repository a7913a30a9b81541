//! Converts JSON to payloads and back.

use serde_json::Value;

use super::{
    InvalidPayload, Payload,
    field_reader::{FieldReader, object},
    validation::ErrorCollector,
    write,
};
use crate::operation::OperationKind;

/// Maximum length of a payload, as written by [`Payload::to_json`].
const MAX_PAYLOAD_BYTES: usize = 64 * 1024;
/// Maximum nesting depth of objects and lists.
const MAX_DEPTH: usize = 32;

impl Payload {
    /// Reads the payload of an operation that is submitted for this guild, or for none.
    ///
    /// # Errors
    ///
    /// When it is invalid: lists every invalid field, not only the first. A payload that is nested too deeply is not
    /// examined further.
    pub fn parse(kind: OperationKind, value: &Value, guild: Option<u64>) -> Result<Self, InvalidPayload> {
        let mut findings = ErrorCollector::new(kind.null_handling());
        let too_large = || format!("must be at most {MAX_PAYLOAD_BYTES} bytes of JSON");
        match SizeCheck::of(value) {
            SizeCheck::TooDeep => {
                findings.top().invalid::<()>(format!("must not be nested more than {MAX_DEPTH} levels deep"));
                return Err(findings.into_invalid());
            }
            SizeCheck::TooLarge => {
                findings.top().invalid::<()>(too_large());
            }
            SizeCheck::Fits => {}
        }
        if guild.is_none() && kind.needs_guild() {
            findings.top().invalid::<()>(format!("of `{}` needs a guild: submit it for one", kind.name()));
        }
        let read = object(value, &mut findings.top(), |form| {
            let read = Self::read(kind, form);
            if guild.is_some() {
                reject_other_queue(kind, form);
            }
            read
        });
        match read {
            Some(payload) if findings.is_empty() => {
                if payload.to_json().len() <= MAX_PAYLOAD_BYTES {
                    return Ok(payload);
                }
                findings.top().invalid::<()>(too_large());
            }
            Some(_) => {}
            None => debug_assert!(!findings.is_empty(), "a payload that is not read has errors"),
        }
        Err(findings.into_invalid())
    }

    /// The payload as JSON: the same text for the same payload, whatever the order of its fields was, with defaults
    /// filled in where they are unambiguous.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut out = String::new();
        write::object(&mut out, |fields| self.write(fields));
        out
    }
}

/// Rejects a field that only takes effect outside a guild.
fn reject_other_queue(kind: OperationKind, form: &mut FieldReader<'_, '_>) {
    if kind == OperationKind::Request && form.valid("user_id").is_some() {
        form.invalid("user_id", "must be omitted in a guild, because the call joins the queue of the guild");
    }
}

/// Whether a value is small enough to be examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SizeCheck {
    Fits,
    TooLarge,
    TooDeep,
}

impl SizeCheck {
    /// Iterates without recursion, so that no depth can exhaust the stack. The size is a lower bound.
    fn of(value: &Value) -> Self {
        let mut remaining = vec![(value, 1)];
        let mut size = 0;
        while let Some((value, depth)) = remaining.pop() {
            size += 1;
            match value {
                Value::Null | Value::Bool(_) | Value::Number(_) => {}
                Value::String(text) => size += text.len(),
                Value::Array(_) | Value::Object(_) if depth > MAX_DEPTH => return Self::TooDeep,
                Value::Array(items) => remaining.extend(items.iter().map(|item| (item, depth + 1))),
                Value::Object(map) => {
                    size += map.keys().map(String::len).sum::<usize>();
                    remaining.extend(map.values().map(|value| (value, depth + 1)));
                }
            }
        }
        if size > MAX_PAYLOAD_BYTES { Self::TooLarge } else { Self::Fits }
    }
}
