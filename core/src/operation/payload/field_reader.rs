//! Reads the fields of an object and reports every invalid or unknown one.

use serde_json::{Map, Value};

use super::validation::{FieldContext, NullHandling, truncated};

/// Start of the error message for an unknown field.
pub(crate) const UNKNOWN_FIELD: &str = "is not a known field";

/// An object that is being read.
#[derive(Debug)]
pub(crate) struct FieldReader<'v, 'f> {
    object: &'v Map<String, Value>,
    at: FieldContext<'f>,
    known_fields: Vec<&'static str>,
    invalid: Vec<&'static str>,
}

/// Reads an object by its fields. A field that `read` does not request is an error.
pub(crate) fn object<T>(
    value: &Value,
    at: &mut FieldContext<'_>,
    read: impl FnOnce(&mut FieldReader<'_, '_>) -> Option<T>,
) -> Option<T> {
    let Some(object) = value.as_object() else {
        return at.invalid("must be an object");
    };
    let mut form = FieldReader { object, at: at.reborrow(), known_fields: Vec::with_capacity(16), invalid: Vec::new() };
    let read = read(&mut form);
    form.reject_unknown();
    read
}

impl<'v> FieldReader<'v, '_> {
    /// Reads a required field.
    pub(crate) fn required<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&'v Value, &mut FieldContext<'_>) -> Option<T>,
    ) -> Option<T> {
        self.known_fields.push(name);
        match self.object.get(name) {
            None => self.at.field(name).invalid("is missing"),
            Some(value) => {
                let read = read(value, &mut self.at.field(name));
                if read.is_none() {
                    self.invalid.push(name);
                }
                read
            }
        }
    }

    /// Reads an optional field. Returns `None` both when it is omitted and when it is invalid.
    pub(crate) fn optional<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&'v Value, &mut FieldContext<'_>) -> Option<T>,
    ) -> Option<T> {
        self.known_fields.push(name);
        let value = self.object.get(name)?;
        let mut at = self.at.field(name);
        match (value, at.nulls()) {
            (Value::Null, NullHandling::Omitted) => None,
            (Value::Null, NullHandling::Rejected) => {
                at.invalid("must not be null, because null is ambiguous here: omit the field to leave it unchanged")
            }
            (value, NullHandling::Omitted | NullHandling::Rejected) => {
                let read = read(value, &mut at);
                if read.is_none() {
                    self.invalid.push(name);
                }
                read
            }
        }
    }

    /// Value of a field that was read: present, not null, and valid by itself.
    pub(crate) fn valid(&self, name: &str) -> Option<&'v Value> {
        self.object.get(name).filter(|value| !value.is_null() && !self.is_invalid(name))
    }

    /// Whether a field was present but invalid.
    pub(crate) fn is_invalid(&self, name: &str) -> bool {
        self.invalid.contains(&name)
    }

    /// Whether a field is present and not null.
    pub(crate) fn has_value(&self, name: &str) -> bool {
        self.object.get(name).is_some_and(|value| !value.is_null())
    }

    /// Records an error of a field that depends on other fields. The field may be a path.
    pub(crate) fn invalid(&mut self, name: &str, message: impl Into<String>) {
        self.at.below(name).invalid::<()>(message);
    }

    /// Records an error of the object itself.
    pub(crate) fn invalid_here(&mut self, message: impl Into<String>) {
        self.at.invalid::<()>(message);
    }

    fn reject_unknown(mut self) {
        for name in self.object.keys().filter(|name| !self.known_fields.contains(&name.as_str())) {
            let message = match nearest(name, self.known_fields.iter().copied()) {
                Some(meant) => format!("{UNKNOWN_FIELD}; did you mean `{meant}`?"),
                None => format!("{UNKNOWN_FIELD}; known fields: {}", quoted_list(self.known_fields.iter().copied())),
            };
            self.at.field(name).invalid::<()>(message);
        }
    }
}

/// The most similar name, if one is similar enough to be what was meant.
pub(crate) fn nearest(name: &str, names: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    const MIN_SIMILARITY: f64 = 0.8;
    // The cost of a comparison is the product of the lengths.
    let name = truncated(name).to_lowercase();
    names
        .map(|field| (strsim::jaro_winkler(&name, field), field))
        .filter(|(similarity, _)| *similarity >= MIN_SIMILARITY)
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, field)| field)
}

/// Formats names as a list for people.
pub(crate) fn quoted_list(names: impl Iterator<Item = &'static str>) -> String {
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
