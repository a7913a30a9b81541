//! Validation errors of a payload.

use std::fmt;

use serde::Serialize;

/// Maximum number of reported errors.
const MAX_ERRORS: usize = 50;

/// Error of one field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldError {
    /// Which field, such as `overwrites[2].allow`; empty for the payload itself.
    pub field: String,
    /// What is invalid, and what is expected.
    pub message: String,
}

/// An invalid payload, with all its errors, at most 50.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
pub struct InvalidPayload {
    /// The errors, at least one.
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
        for (index, error) in self.errors.iter().enumerate() {
            let between = if index == 0 { "" } else { "; " };
            write!(f, "{between}{error}")?;
        }
        Ok(())
    }
}

/// How `null` is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NullHandling {
    /// The same as an omitted field.
    Omitted,
    /// An error: where an omitted field stays unchanged, `null` could mean to clear it.
    Rejected,
}

/// Collects the errors of a payload.
#[derive(Debug)]
pub(crate) struct ErrorCollector {
    errors: Vec<FieldError>,
    nulls: NullHandling,
}

impl ErrorCollector {
    pub(crate) const fn new(nulls: NullHandling) -> Self {
        Self { errors: Vec::new(), nulls }
    }

    /// Context of the payload itself.
    pub(crate) const fn top(&mut self) -> FieldContext<'_> {
        FieldContext { path: FieldPath::Top, collector: self }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    pub(crate) fn into_invalid(self) -> InvalidPayload {
        InvalidPayload { errors: self.errors }
    }
}

/// A position in a payload, to report errors at.
#[derive(Debug)]
pub(crate) struct FieldContext<'f> {
    path: FieldPath<'f>,
    collector: &'f mut ErrorCollector,
}

/// The path of a position. It becomes a string only if there is an error to report.
#[derive(Clone, Copy, Debug)]
enum FieldPath<'p> {
    Top,
    Field(&'p Self, &'p str),
    Item(&'p Self, usize),
    Below(&'p Self, &'p str),
}

impl FieldContext<'_> {
    /// Records an error here.
    pub(crate) fn invalid<T>(&mut self, message: impl Into<String>) -> Option<T> {
        if self.collector.errors.len() < MAX_ERRORS {
            self.collector.errors.push(FieldError { field: self.path.to_string(), message: message.into() });
        }
        None
    }

    /// Context of a field of this object.
    pub(crate) const fn field<'c>(&'c mut self, name: &'c str) -> FieldContext<'c> {
        FieldContext { path: FieldPath::Field(&self.path, name), collector: self.collector }
    }

    /// Context of an item of this list.
    pub(crate) const fn item(&mut self, index: usize) -> FieldContext<'_> {
        FieldContext { path: FieldPath::Item(&self.path, index), collector: self.collector }
    }

    /// Context at a relative path, such as `overwrites[2].allow`.
    pub(crate) const fn below<'c>(&'c mut self, path: &'c str) -> FieldContext<'c> {
        FieldContext { path: FieldPath::Below(&self.path, path), collector: self.collector }
    }

    /// The same context, reborrowed.
    pub(crate) const fn reborrow(&mut self) -> FieldContext<'_> {
        FieldContext { path: self.path, collector: self.collector }
    }

    pub(crate) const fn nulls(&self) -> NullHandling {
        self.collector.nulls
    }
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Top => Ok(()),
            Self::Field(Self::Top, name) => f.write_str(&truncated(name)),
            Self::Field(parent, name) => write!(f, "{parent}.{}", truncated(name)),
            Self::Item(parent, index) => write!(f, "{parent}[{index}]"),
            Self::Below(Self::Top, path) => f.write_str(path),
            Self::Below(parent, path) if path.is_empty() || path.starts_with('[') => write!(f, "{parent}{path}"),
            Self::Below(parent, path) => write!(f, "{parent}.{path}"),
        }
    }
}

/// A caller's text, truncated for messages.
pub(crate) fn truncated(text: &str) -> String {
    const ROOM: usize = 64;
    match text.char_indices().nth(ROOM) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}
