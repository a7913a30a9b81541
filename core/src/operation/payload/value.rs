//! Reading single values.

use std::{collections::HashSet, hash::Hash};

use serde_json::Value;

use super::{
    field_reader::{listed, nearest, object},
    validation::{FieldContext, shown},
};
use crate::operation::{OperationId, Reference};

/// Ids end here: what lies beyond is kept for the names of queues, and Discord does not reach it before 2049.
const IDS_END: u64 = 1 << 62;
/// How long a key is at most.
const KEY: usize = 100;
/// How long an interaction's token is at most.
const TOKEN: usize = 512;

/// Text of so many characters.
pub(crate) fn text(min: usize, max: usize) -> impl FnOnce(&Value, &mut FieldContext<'_>) -> Option<String> {
    move |value, at| {
        let Some(text) = value.as_str() else {
            return at.wrong(format!("must be a string of {}", span(min, max, "characters")));
        };
        let length = text.chars().count();
        if (min..=max).contains(&length) {
            return Some(text.to_owned());
        }
        at.wrong(format!("must be a string of {}; this has {length}", span(min, max, "characters")))
    }
}

/// A name of 1 to 100 characters, as it will be read back.
pub(crate) fn name(value: &Value, at: &mut FieldContext<'_>) -> Option<String> {
    let name = text(1, 100)(value, at)?;
    if name.trim() == name {
        return Some(name);
    }
    at.wrong("must not begin or end with white space, which Discord would drop")
}

/// A key under which an object is managed.
pub(crate) fn key(value: &Value, at: &mut FieldContext<'_>) -> Option<String> {
    let key = text(1, KEY)(value, at)?;
    if key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte)) {
        return Some(key);
    }
    at.wrong("must consist of letters A to Z, digits and `_` `-` `.` `:` `/`")
}

/// An interaction's token. It is a secret, and becomes part of a path.
pub(crate) fn token(value: &Value, at: &mut FieldContext<'_>) -> Option<String> {
    let token = text(1, TOKEN)(value, at)?;
    let plain = token.bytes().all(|byte| byte.is_ascii_graphic() && !b"/\\?#%".contains(&byte));
    if plain && token != "." && token != ".." {
        return Some(token);
    }
    at.wrong("must be the token as Discord gave it, with nothing that would end a segment of a path")
}

/// `true` or `false`.
pub(crate) fn boolean(value: &Value, at: &mut FieldContext<'_>) -> Option<bool> {
    value.as_bool().or_else(|| at.wrong("must be true or false"))
}

/// A whole number.
pub(crate) fn integer<T: TryFrom<u64>>(min: u64, max: u64) -> impl FnOnce(&Value, &mut FieldContext<'_>) -> Option<T> {
    move |value, at| {
        let number = value.as_u64().filter(|number| (min..=max).contains(number));
        number
            .and_then(|number| T::try_from(number).ok())
            .or_else(|| at.wrong(format!("must be a whole number from {min} to {max}")))
    }
}

/// One of some names.
pub(crate) fn choice<T: Copy>(names: &[(&'static str, T)]) -> impl Fn(&Value, &mut FieldContext<'_>) -> Option<T> {
    move |value, at| {
        let all = || listed(names.iter().map(|(name, _)| *name));
        let Some(given) = value.as_str() else {
            return at.wrong(format!("must be one of {}", all()));
        };
        if let Some((_, chosen)) = names.iter().find(|(name, _)| *name == given) {
            return Some(*chosen);
        }
        match nearest(given, names.iter().map(|(name, _)| *name)) {
            Some(meant) => at.wrong(format!("must be one of {}; did you mean `{meant}`?", all())),
            None => at.wrong(format!("must be one of {}; this is `{}`", all(), shown(given))),
        }
    }
}

/// A Discord id.
pub(crate) fn id(value: &Value, at: &mut FieldContext<'_>) -> Option<u64> {
    match value {
        Value::String(text) => {
            digits(text).filter(|id| (1..IDS_END).contains(id)).or_else(|| at.wrong("must be an id, in digits"))
        }
        Value::Number(_) => {
            at.wrong("must be an id in quotes: as a number, JavaScript and others lose its last digits")
        }
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => {
            at.wrong("must be an id, as a string of digits")
        }
    }
}

/// Permissions, as Discord writes them.
pub(crate) fn permissions(value: &Value, at: &mut FieldContext<'_>) -> Option<u64> {
    match value {
        Value::String(text) => digits(text).or_else(|| at.wrong("must be permissions: one number, in digits")),
        Value::Number(_) => {
            at.wrong("must be permissions in quotes: as a number, JavaScript and others lose some of their bits")
        }
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => {
            at.wrong("must be permissions: one number, as a string of digits")
        }
    }
}

/// A number as Discord writes large ones: digits, and no zero before them.
fn digits(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if plain { text.parse().ok() } else { None }
}

/// An object of Discord, by its id or by what is known of it before it exists.
pub(crate) fn reference(value: &Value, at: &mut FieldContext<'_>) -> Option<Reference> {
    match value {
        Value::String(_) | Value::Number(_) => id(value, at).map(Reference::Id),
        Value::Object(_) => object(value, at, |form| {
            let key = form.optional("key", key);
            let operation = form.optional("operation", operation);
            match (form.says("key"), form.says("operation")) {
                (true, false) => key.map(Reference::Key),
                (false, true) => operation.map(Reference::Operation),
                (true, true) | (false, false) => {
                    form.wrong_here("must name either a `key` or an `operation`");
                    None
                }
            }
        }),
        Value::Null | Value::Bool(_) | Value::Array(_) => {
            at.wrong(r#"must be an id as a string, {"key": "…"} or {"operation": "…"}"#)
        }
    }
}

fn operation(value: &Value, at: &mut FieldContext<'_>) -> Option<OperationId> {
    let Some(text) = value.as_str() else {
        return at.wrong("must be an operation's id, as a string");
    };
    match text.parse() {
        Ok(id) => Some(id),
        Err(_) => at.wrong("must be an operation's id, as it was given when that was accepted"),
    }
}

/// A list of so many.
pub(crate) fn list<T>(
    min: usize,
    max: usize,
    mut read: impl FnMut(&Value, &mut FieldContext<'_>) -> Option<T>,
) -> impl FnOnce(&Value, &mut FieldContext<'_>) -> Option<Vec<T>> {
    move |value, at| {
        let Some(items) = value.as_array() else {
            return at.wrong(format!("must be a list of {}", span(min, max, "items")));
        };
        if !(min..=max).contains(&items.len()) {
            at.wrong::<()>(format!("must be a list of {}; this has {}", span(min, max, "items"), items.len()));
        }
        // Every one is read, so that all that is wrong is told.
        let read: Vec<Option<T>> =
            items.iter().take(max).enumerate().map(|(index, item)| read(item, &mut at.item(index))).collect();
        read.into_iter().collect()
    }
}

/// Notes which items of a list name what another one has named.
pub(crate) fn distinct<'v, T, K: Hash + Eq>(items: &'v [T], named: impl Fn(&'v T) -> K, at: &mut FieldContext<'_>) {
    let mut seen = HashSet::new();
    for (index, item) in items.iter().enumerate() {
        if !seen.insert(named(item)) {
            at.item(index).wrong::<()>("must not name what stands in this list already");
        }
    }
}

fn span(min: usize, max: usize, what: &str) -> String {
    if min == 0 { format!("at most {max} {what}") } else { format!("{min} to {max} {what}") }
}
