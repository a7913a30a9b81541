//! What is wrong with a payload.

use std::fmt;

use serde::Serialize;

/// How many errors are told of at most.
const MOST: usize = 50;

/// What is wrong with one field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldError {
    /// Which field, such as `overwrites[2].allow`; empty for the payload itself.
    pub field: String,
    /// What is wrong with it, and what it should be.
    pub message: String,
}

/// A payload that cannot be taken: all that is wrong with it, 50 errors at most.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
pub struct InvalidPayload {
    /// What is wrong, at least one thing.
    pub errors: Vec<FieldError>,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            write!(f, "the payload {}", self.message)
        } else {
            write!(f, "`{}` {}", self.field, self.message)
        }
    }
}

impl fmt::Display for InvalidPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, error) in self.errors.iter().enumerate() {
            let between = if place == 0 { "" } else { "; " };
            write!(f, "{between}{error}")?;
        }
        Ok(())
    }
}

/// What a `null` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NullHandling {
    /// The same as leaving the field out.
    NotSaid,
    /// Nothing for certain: where a field that is left out stays as it is, `null` could mean to clear it.
    Refused,
}

/// What was found to be wrong so far.
#[derive(Debug)]
pub(crate) struct ErrorCollector {
    errors: Vec<FieldError>,
    nulls: NullHandling,
}

impl ErrorCollector {
    pub(crate) const fn new(nulls: NullHandling) -> Self {
        Self { errors: Vec::new(), nulls }
    }

    /// The place of the payload itself.
    pub(crate) const fn top(&mut self) -> FieldContext<'_> {
        FieldContext { path: String::new(), findings: self }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    pub(crate) fn into_invalid(self) -> InvalidPayload {
        InvalidPayload { errors: self.errors }
    }
}

/// A place in a payload, where something may be wrong.
#[derive(Debug)]
pub(crate) struct FieldContext<'f> {
    path: String,
    findings: &'f mut ErrorCollector,
}

impl FieldContext<'_> {
    /// Notes what is wrong here.
    pub(crate) fn wrong<T>(&mut self, message: impl Into<String>) -> Option<T> {
        if self.findings.errors.len() < MOST {
            self.findings.errors.push(FieldError { field: self.path.clone(), message: message.into() });
        }
        None
    }

    /// The place of a field of this object.
    pub(crate) fn field(&mut self, name: &str) -> FieldContext<'_> {
        let between = if self.path.is_empty() { "" } else { "." };
        FieldContext { path: format!("{}{between}{}", self.path, shown(name)), findings: self.findings }
    }

    /// The place of an item of this list.
    pub(crate) fn item(&mut self, index: usize) -> FieldContext<'_> {
        FieldContext { path: format!("{}[{index}]", self.path), findings: self.findings }
    }

    /// The place that a path leads to from here, such as `overwrites[2].allow`.
    pub(crate) fn below(&mut self, path: &str) -> FieldContext<'_> {
        let between = if self.path.is_empty() || path.is_empty() || path.starts_with('[') { "" } else { "." };
        FieldContext { path: format!("{}{between}{path}", self.path), findings: self.findings }
    }

    /// The same place, for a while.
    pub(crate) fn here(&mut self) -> FieldContext<'_> {
        FieldContext { path: self.path.clone(), findings: self.findings }
    }

    pub(crate) const fn nulls(&self) -> NullHandling {
        self.findings.nulls
    }
}

/// A caller's text, short enough to be told.
pub(crate) fn shown(text: &str) -> String {
    const ROOM: usize = 64;
    match text.char_indices().nth(ROOM) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}
