//! Texts with placeholders: `Welcome, {data.user.username}!`
//!
//! A placeholder stands for a JSON value. A text that is nothing but one placeholder becomes that value; anywhere else
//! the value becomes text within a string. Nothing is ever pasted into JSON, so that no event can write more of an
//! operation than the string that it stands in.

use std::collections::BTreeMap;

use serde_json::Value;

use super::placeholder::Placeholder;
use super::view::EventView;
use crate::operation::payload::validation::shown;
use crate::state_key::{MAX_BYTES, ReservedKey, check_reserved};

/// Stored values by their keys.
pub(super) type StateValues = BTreeMap<String, Value>;

/// Why a handler cannot do with an event what it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A placeholder stands for nothing here.
    #[error(
        "`{{{placeholder}}}` stands for nothing in this event: write `{{{placeholder}?}}` if it may be missing, or add \
         a condition to `when`"
    )]
    Missing {
        /// What stands between the braces.
        placeholder: String,
    },
    /// The event's payload cannot be read.
    #[error("`{{{placeholder}}}` cannot be looked up: the event's payload is not JSON")]
    NotJson {
        /// What stands between the braces.
        placeholder: String,
    },
    /// A key of state or of a cooldown is of no use.
    #[error("the key `{pattern}` becomes one of {length} bytes here: keys have 1 to {most}")]
    Key {
        /// As it was written.
        pattern: String,
        /// How long it became.
        length: usize,
        /// How long it may be.
        most: usize,
    },
    /// A key of a stored value belongs to the daemon.
    #[error("the key `{pattern}` begins with `{prefix}` in this event: the daemon uses such keys itself")]
    Reserved {
        /// As it was written.
        pattern: String,
        /// The reserved prefix.
        prefix: &'static str,
    },
}

/// What placeholders may name.
#[derive(Clone, Copy, Debug)]
pub(super) enum PlaceholderScope<'a> {
    /// The event alone.
    Event,
    /// Also these stored values, as `needs` writes them.
    EventAndState(&'a [String]),
}

/// A text with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Hole(Placeholder),
}

impl Template {
    /// Reads a text.
    ///
    /// # Errors
    ///
    /// When a brace is left over or a placeholder names nothing that there is; says what to write instead.
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
                let end = closing(after).ok_or("has a `{` that is not closed; write `{{` for one that means itself")?;
                if !plain.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut plain)));
                }
                parts.push(Part::Hole(Placeholder::parse(&after[..end], names)?));
                rest = &after[end + 1..];
            } else {
                return Err("has a `}` that closes nothing; write `}}` for one that means itself".to_owned());
            }
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(Self { text: text.to_owned(), parts })
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it is the same for every event: then it is this text.
    pub(super) fn fixed(&self) -> Option<String> {
        match self.parts.as_slice() {
            [] => Some(String::new()),
            [Part::Text(text)] => Some(text.clone()),
            [Part::Hole(_) | Part::Text(_), ..] => None,
        }
    }

    /// What it becomes for an event: the value itself if it is nothing but a placeholder.
    pub(super) fn value(&self, view: &EventView<'_>, state: &StateValues) -> Result<Value, TemplateError> {
        match self.parts.as_slice() {
            [Part::Hole(hole)] => hole.value(view, state),
            parts => text(parts, view, state).map(Value::String),
        }
    }

    /// What it becomes for an event, as text.
    pub(super) fn text(&self, view: &EventView<'_>, state: &StateValues) -> Result<String, TemplateError> {
        text(&self.parts, view, state)
    }

    /// What it becomes for an event, as a key.
    pub(super) fn key(&self, view: &EventView<'_>, state: &StateValues) -> Result<String, TemplateError> {
        let key = self.text(view, state)?;
        if (1..=MAX_BYTES).contains(&key.len()) {
            return Ok(key);
        }
        Err(TemplateError::Key { pattern: shown(&self.text), length: key.len(), most: MAX_BYTES })
    }

    /// What it becomes for an event, as the key of a stored value.
    pub(super) fn state_key(&self, view: &EventView<'_>, state: &StateValues) -> Result<String, TemplateError> {
        let key = self.key(view, state)?;
        match check_reserved(&key) {
            Ok(()) => Ok(key),
            Err(ReservedKey { prefix }) => Err(TemplateError::Reserved { pattern: shown(&self.text), prefix }),
        }
    }

    /// Rejects a template that is a reserved key in every event: by its text before the first placeholder.
    pub(super) fn check_reserved(&self) -> Result<(), ReservedKey> {
        match self.parts.first() {
            Some(Part::Text(text)) => check_reserved(text),
            Some(Part::Hole(_)) | None => Ok(()),
        }
    }

    /// What it may become, to check whether that fits where it stands; and whether nobody knows what it will be.
    pub(super) fn sample(&self) -> (Value, TypeKnowledge) {
        let whole = matches!(self.parts.as_slice(), [Part::Hole(_)]);
        let mut known = TypeKnowledge::Kind;
        let mut sample = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => sample.push_str(text),
                Part::Hole(hole) => {
                    match hole.known() {
                        TypeKnowledge::Kind => {}
                        TypeKnowledge::Nothing => known = TypeKnowledge::Nothing,
                    }
                    if whole && hole.is_number() {
                        return (Value::from(0), known);
                    }
                    sample.push_str(hole.sample());
                }
            }
        }
        (Value::String(sample), known)
    }
}

/// What is known of what a template will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TypeKnowledge {
    /// What kind of value.
    Kind,
    /// Nothing: it is whatever the event holds.
    Nothing,
}

/// Where a placeholder ends: the brace that closes it, past those that stand within it.
fn closing(text: &str) -> Option<usize> {
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
            Part::Hole(hole) => match hole.value(view, state)? {
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
