//! Writes payloads: the same payload gives the same text, whatever order its fields came in.

use std::fmt::{Display, Write};

use serde_json::Value;

/// An object that is being written. Fields keep the order of the calls.
#[derive(Debug)]
pub(super) struct FieldWriter<'o> {
    out: &'o mut String,
    empty: bool,
}

/// Writes an object.
pub(super) fn object(out: &mut String, write: impl FnOnce(&mut FieldWriter<'_>)) {
    out.push('{');
    write(&mut FieldWriter { out, empty: true });
    out.push('}');
}

/// Writes a list.
pub(super) fn list<T>(out: &mut String, items: &[T], mut write: impl FnMut(&mut String, &T)) {
    out.push('[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write(out, item);
    }
    out.push(']');
}

/// Writes text.
pub(super) fn text(out: &mut String, text: &str) {
    out.push_str(&Value::from(text).to_string());
}

/// Writes any value with sorted keys.
pub(super) fn value(out: &mut String, given: &Value) {
    match given {
        Value::Array(items) => list(out, items, value),
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_unstable_by_key(|(name, _)| *name);
            object(out, |fields| {
                for (name, entry) in entries {
                    fields.with(name, |out| value(out, entry));
                }
            });
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => out.push_str(&given.to_string()),
    }
}

/// Writes text.
#[expect(clippy::ptr_arg, reason = "the writer of a format for `String`")]
pub(super) fn string(out: &mut String, content: &String) {
    text(out, content);
}

/// Writes a number or a boolean.
pub(super) fn plain(out: &mut String, plain: &impl Display) {
    write!(out, "{plain}").expect("invariant: writing to a string cannot fail");
}

/// Writes a number or an id in quotes.
pub(super) fn quoted(out: &mut String, plain: &impl Display) {
    write!(out, "\"{plain}\"").expect("invariant: writing to a string cannot fail");
}

impl FieldWriter<'_> {
    /// Writes a field; `write` writes its value.
    pub(super) fn with(&mut self, name: &str, write: impl FnOnce(&mut String)) {
        if !self.empty {
            self.out.push(',');
        }
        self.empty = false;
        text(self.out, name);
        self.out.push(':');
        write(self.out);
    }
}
