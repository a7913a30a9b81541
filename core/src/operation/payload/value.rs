//! Reads single values.

use std::{collections::HashSet, hash::Hash};

use serde_json::Value;

use super::{
    field_reader::{nearest, quoted_list},
    validation::{FieldContext, truncated},
};
use crate::operation::OperationId;

/// Upper bound of ids: larger numbers are reserved for queues, and Discord does not reach them before 2049.
const IDS_END: u64 = 1 << 62;
/// Maximum length of a name.
pub(super) const MAX_NAME_CHARS: usize = 100;
/// Maximum length of a key.
pub(super) const MAX_KEY_CHARS: usize = 100;
/// Maximum length of an interaction token.
pub(super) const MAX_TOKEN_CHARS: usize = 512;

/// Reads a string of `min` to `max` characters.
pub(crate) fn text(min: usize, max: usize) -> impl FnOnce(&Value, &mut FieldContext<'_>) -> Option<String> {
    move |value, at| {
        let Some(text) = value.as_str() else {
            return at.invalid(format!("must be a string of {}", span(min, max, "characters")));
        };
        let length = text.chars().count();
        if (min..=max).contains(&length) {
            return Some(text.to_owned());
        }
        at.invalid(format!("must be a string of {}; found {length}", span(min, max, "characters")))
    }
}

/// Reads a name without surrounding white space.
pub(crate) fn name(value: &Value, at: &mut FieldContext<'_>) -> Option<String> {
    let name = text(1, MAX_NAME_CHARS)(value, at)?;
    if name.trim() == name {
        return Some(name);
    }
    at.invalid("must not start or end with white space, because Discord removes it")
}

/// Reads the key of a managed object.
pub(crate) fn key(value: &Value, at: &mut FieldContext<'_>) -> Option<String> {
    let key = text(1, MAX_KEY_CHARS)(value, at)?;
    if key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte)) {
        return Some(key);
    }
    at.invalid("must contain only letters A to Z, digits and `_` `-` `.` `:` `/`")
}

/// Reads an interaction token. It is a secret, and becomes part of a path.
pub(crate) fn token(value: &Value, at: &mut FieldContext<'_>) -> Option<String> {
    let token = text(1, MAX_TOKEN_CHARS)(value, at)?;
    let plain = token.bytes().all(|byte| byte.is_ascii_graphic() && !b"/\\?#%".contains(&byte));
    if plain && token != "." && token != ".." {
        return Some(token);
    }
    at.invalid("must be the token as Discord sent it, without characters that end a path segment")
}

/// Reads `true` or `false`.
pub(crate) fn boolean(value: &Value, at: &mut FieldContext<'_>) -> Option<bool> {
    value.as_bool().or_else(|| at.invalid("must be true or false"))
}

/// Reads an integer.
pub(crate) fn integer<T: TryFrom<u64>>(min: u64, max: u64) -> impl FnOnce(&Value, &mut FieldContext<'_>) -> Option<T> {
    move |value, at| {
        let number = value.as_u64().filter(|number| (min..=max).contains(number));
        number
            .and_then(|number| T::try_from(number).ok())
            .or_else(|| at.invalid(format!("must be a whole number from {min} to {max}")))
    }
}

/// Reads one of several names.
pub(crate) fn choice<T: Copy>(names: &[(&'static str, T)]) -> impl Fn(&Value, &mut FieldContext<'_>) -> Option<T> {
    move |value, at| {
        let all = || quoted_list(names.iter().map(|(name, _)| *name));
        let Some(given) = value.as_str() else {
            return at.invalid(format!("must be one of {}", all()));
        };
        if let Some((_, chosen)) = names.iter().find(|(name, _)| *name == given) {
            return Some(*chosen);
        }
        match nearest(given, names.iter().map(|(name, _)| *name)) {
            Some(meant) => at.invalid(format!("must be one of {}; did you mean `{meant}`?", all())),
            None => at.invalid(format!("must be one of {}; found `{}`", all(), truncated(given))),
        }
    }
}

/// Reads a Discord id.
pub(crate) fn id(value: &Value, at: &mut FieldContext<'_>) -> Option<u64> {
    match value {
        Value::String(text) => digits(text)
            .filter(|id| (1..IDS_END).contains(id))
            .or_else(|| at.invalid("must be an id, as a string of digits")),
        Value::Number(_) => {
            at.invalid("must be an id in quotes: JavaScript and other languages lose the last digits of a number")
        }
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => {
            at.invalid("must be an id, as a string of digits")
        }
    }
}

/// Reads permissions, as Discord writes them.
pub(crate) fn permissions(value: &Value, at: &mut FieldContext<'_>) -> Option<u64> {
    match value {
        Value::String(text) => digits(text).or_else(|| at.invalid("must be permissions, as a string of digits")),
        Value::Number(_) => {
            at.invalid("must be permissions in quotes: JavaScript and other languages lose bits of a number")
        }
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => {
            at.invalid("must be permissions, as a string of digits")
        }
    }
}

/// Parses a number as Discord writes large ones: digits without leading zeros.
pub(super) fn digits(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if plain { text.parse().ok() } else { None }
}

/// Reads the id of an operation.
pub(super) fn operation_id(value: &Value, at: &mut FieldContext<'_>) -> Option<OperationId> {
    let Some(text) = value.as_str() else {
        return at.invalid("must be an operation id, as a string");
    };
    match text.parse() {
        Ok(id) => Some(id),
        Err(_) => at.invalid("must be an operation id, as returned when the operation was accepted"),
    }
}

/// Reads any object.
pub(super) fn any_object(value: &Value, at: &mut FieldContext<'_>) -> Option<Value> {
    if value.is_object() { Some(value.clone()) } else { at.invalid("must be an object") }
}

/// Reads a list of `min` to `max` items.
pub(crate) fn list<T>(
    min: usize,
    max: usize,
    mut read: impl FnMut(&Value, &mut FieldContext<'_>) -> Option<T>,
) -> impl FnOnce(&Value, &mut FieldContext<'_>) -> Option<Vec<T>> {
    move |value, at| {
        let Some(items) = value.as_array() else {
            return at.invalid(format!("must be a list of {}", span(min, max, "items")));
        };
        if !(min..=max).contains(&items.len()) {
            at.invalid::<()>(format!("must be a list of {}; found {}", span(min, max, "items"), items.len()));
        }
        // Reads every item, so that all errors are reported.
        let read: Vec<Option<T>> =
            items.iter().take(max).enumerate().map(|(index, item)| read(item, &mut at.item(index))).collect();
        read.into_iter().collect()
    }
}

/// Records an error for each item with the same key as an earlier one.
pub(crate) fn distinct<'v, T, K: Hash + Eq>(items: &'v [T], key_of: impl Fn(&'v T) -> K, at: &mut FieldContext<'_>) {
    let mut seen = HashSet::new();
    for (index, item) in items.iter().enumerate() {
        if !seen.insert(key_of(item)) {
            at.item(index).invalid::<()>("must not repeat an earlier entry of this list");
        }
    }
}

fn span(min: usize, max: usize, unit: &str) -> String {
    if min == 0 { format!("at most {max} {unit}") } else { format!("{min} to {max} {unit}") }
}
