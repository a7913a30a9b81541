//! Strings with placeholders: `Welcome, {data.user.username}!`
//!
//! A placeholder has a JSON value. A string that is exactly one placeholder becomes that value; anywhere else the value
//! becomes text within the string. Values are never inserted into JSON text, so an event can only affect the string
//! that contains the placeholder.

use std::collections::BTreeMap;

use serde_json::Value;

use super::placeholder::Placeholder;
use super::view::EventView;
use crate::operation::payload::validation::truncated;
use crate::state_key::{MAX_BYTES, ReservedKey, check_reserved};

/// Stored values by key.
pub(super) type StateValues = BTreeMap<String, Value>;

/// Why a template has no value for an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A placeholder has no value.
    #[error(
        "`{{{placeholder}}}` has no value in this event: write `{{{placeholder}?}}` if it may be missing, or add a \
         condition to `when`"
    )]
    Missing {
        /// The placeholder, without braces.
        placeholder: String,
    },
    /// The event's payload cannot be parsed.
    #[error("`{{{placeholder}}}` cannot be resolved: the event's payload is not JSON")]
    NotJson {
        /// The placeholder, without braces.
        placeholder: String,
    },
    /// The key of a stored value or a cooldown has an invalid length.
    #[error("the key `{pattern}` has {length} bytes in this event; allowed are 1 to {max}")]
    Key {
        /// The template.
        pattern: String,
        /// Actual length.
        length: usize,
        /// Maximum length.
        max: usize,
    },
    /// The key of a stored value is reserved for the daemon.
    #[error("the key `{pattern}` starts with `{prefix}` in this event, which is reserved for the daemon")]
    Reserved {
        /// The template.
        pattern: String,
        /// The reserved prefix.
        prefix: &'static str,
    },
}

/// Names that placeholders may use.
#[derive(Clone, Copy, Debug)]
pub(super) enum PlaceholderScope<'a> {
    /// Only the event.
    Event,
    /// Also these stored values, as written in `needs`.
    EventAndState(&'a [String]),
}

/// A string with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Placeholder(Placeholder),
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    ///
    /// When a brace is unbalanced or a placeholder is unknown; the message says what to write instead.
    pub(super) fn parse(text: &str, names: PlaceholderScope<'_>) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            plain.push_str(&rest[..at]);
            rest = &rest[at..];
            if let Some(after) = rest.strip_prefix("{{") {
                plain.push('{');
                rest = after;
            } else if let Some(after) = rest.strip_prefix("}}") {
                plain.push('}');
                rest = after;
            } else if let Some(after) = rest.strip_prefix('{') {
                let end = closing_brace(after).ok_or("has a `{` that is not closed; write `{{` for a literal brace")?;
                if !plain.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut plain)));
                }
                parts.push(Part::Placeholder(Placeholder::parse(&after[..end], names)?));
                rest = &after[end + 1..];
            } else {
                return Err("has a `}` without a `{`; write `}}` for a literal brace".to_owned());
            }
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(Self { text: text.to_owned(), parts })
    }

    /// The text of the template.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The text, if it is the same for every event.
    pub(super) fn fixed(&self) -> Option<String> {
        match self.parts.as_slice() {
            [] => Some(String::new()),
            [Part::Text(text)] => Some(text.clone()),
            [Part::Placeholder(_) | Part::Text(_), ..] => None,
        }
    }

    /// The value for an event: the value of the placeholder if there is nothing else.
    pub(super) fn value(&self, view: &EventView<'_>, state: &StateValues) -> Result<Value, TemplateError> {
        match self.parts.as_slice() {
            [Part::Placeholder(hole)] => hole.value(view, state),
            parts => text(parts, view, state).map(Value::String),
        }
    }

    /// The text for an event.
    pub(super) fn text(&self, view: &EventView<'_>, state: &StateValues) -> Result<String, TemplateError> {
        text(&self.parts, view, state)
    }

    /// The text for an event, as a key.
    pub(super) fn key(&self, view: &EventView<'_>, state: &StateValues) -> Result<String, TemplateError> {
        let key = self.text(view, state)?;
        if (1..=MAX_BYTES).contains(&key.len()) {
            return Ok(key);
        }
        Err(TemplateError::Key { pattern: truncated(&self.text), length: key.len(), max: MAX_BYTES })
    }

    /// The text for an event, as the key of a stored value.
    pub(super) fn state_key(&self, view: &EventView<'_>, state: &StateValues) -> Result<String, TemplateError> {
        let key = self.key(view, state)?;
        match check_reserved(&key) {
            Ok(()) => Ok(key),
            Err(ReservedKey { prefix }) => Err(TemplateError::Reserved { pattern: truncated(&self.text), prefix }),
        }
    }

    /// Rejects a template that is a reserved key in every event, by its text before the first placeholder.
    pub(super) fn check_reserved(&self) -> Result<(), ReservedKey> {
        match self.parts.first() {
            Some(Part::Text(text)) => check_reserved(text),
            Some(Part::Placeholder(_)) | None => Ok(()),
        }
    }

    /// A sample value to check against its position, and whether the type of the value is known.
    pub(super) fn sample(&self) -> (Value, TypeKnowledge) {
        let whole = matches!(self.parts.as_slice(), [Part::Placeholder(_)]);
        let mut knowledge = TypeKnowledge::Kind;
        let mut sample = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => sample.push_str(text),
                Part::Placeholder(hole) => {
                    match hole.type_knowledge() {
                        TypeKnowledge::Kind => {}
                        TypeKnowledge::Nothing => knowledge = TypeKnowledge::Nothing,
                    }
                    if whole && hole.is_number() {
                        return (Value::from(0), knowledge);
                    }
                    sample.push_str(hole.sample());
                }
            }
        }
        (Value::String(sample), knowledge)
    }
}

/// What is known about the value of a template without an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TypeKnowledge {
    /// Its type.
    Kind,
    /// Nothing: it depends on the event.
    Nothing,
}

/// Position of the closing brace of a placeholder, past nested ones.
fn closing_brace(text: &str) -> Option<usize> {
    let mut open = 0_usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => open += 1,
            b'}' if open == 0 => return Some(at),
            b'}' => open -= 1,
            _ => {}
        }
    }
    None
}

fn text(parts: &[Part], view: &EventView<'_>, state: &StateValues) -> Result<String, TemplateError> {
    let mut out = String::new();
    for part in parts {
        match part {
            Part::Text(text) => out.push_str(text),
            Part::Placeholder(hole) => match hole.value(view, state)? {
                Value::Null => {}
                Value::String(text) => out.push_str(&text),
                value @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                    out.push_str(&value.to_string());
                }
            },
        }
    }
    Ok(out)
}
