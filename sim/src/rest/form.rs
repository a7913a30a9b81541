//! Forms: reads the fields of a body or a query, and collects all errors before it fails, as Discord does.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::call::Call;
use super::error::{ApiError, FormErrors};
use crate::id::Snowflake;

/// A field of a form: absent, null, or given. An invalid one counts as absent; the form stores its error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Field<T> {
    Absent,
    Null,
    Given(T),
}

impl<T> Field<T> {
    /// The value, if one is given.
    pub(crate) fn value(self) -> Option<T> {
        match self {
            Self::Given(value) => Some(value),
            Self::Absent | Self::Null => None,
        }
    }

    /// Applies an edit of a field that cannot be null.
    pub(crate) fn update(self, target: &mut T) {
        if let Self::Given(value) = self {
            *target = value;
        }
    }

    /// Applies an edit of a field that null clears.
    pub(crate) fn update_or_clear(self, target: &mut Option<T>) {
        match self {
            Self::Absent => {}
            Self::Null => *target = None,
            Self::Given(value) => *target = Some(value),
        }
    }

    pub(crate) fn map<U>(self, convert: impl FnOnce(T) -> U) -> Field<U> {
        match self {
            Self::Absent => Field::Absent,
            Self::Null => Field::Null,
            Self::Given(value) => Field::Given(convert(value)),
        }
    }

    pub(crate) fn is_given(&self) -> bool {
        matches!(self, Self::Given(_))
    }
}

/// A form being read.
#[derive(Debug)]
pub(crate) struct Form<'a> {
    fields: &'a Map<String, Value>,
    /// Path of this form in a larger one, with a dot at the end; empty for the whole body.
    path: String,
    errors: FormErrors,
}

impl<'a> Form<'a> {
    pub(crate) fn of(call: &'a Call<'_>) -> Result<Self, ApiError> {
        call.object().map(Self::new)
    }

    pub(crate) fn new(fields: &'a Map<String, Value>) -> Self {
        Self { fields, path: String::new(), errors: FormErrors::default() }
    }

    /// Adds an error of a field.
    pub(crate) fn add_error(&mut self, name: &str, code: &str, message: &str) {
        self.errors.add(&format!("{}{name}", self.path), code, message);
    }

    /// Returns all errors, if there are any.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        self.errors.into_result(())
    }

    /// The field without conversion.
    pub(crate) fn raw(&self, name: &str) -> Field<&'a Value> {
        match self.fields.get(name) {
            None => Field::Absent,
            Some(Value::Null) => Field::Null,
            Some(value) => Field::Given(value),
        }
    }

    fn read<T>(
        &mut self,
        name: &str,
        code: &str,
        message: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Field<T> {
        match self.raw(name).map(convert) {
            Field::Absent => Field::Absent,
            Field::Null => Field::Null,
            Field::Given(Some(value)) => Field::Given(value),
            Field::Given(None) => {
                self.add_error(name, code, message);
                Field::Absent
            }
        }
    }

    /// Adds an error if the field is absent or null.
    pub(crate) fn required<T>(&mut self, name: &str, field: Field<T>) -> Option<T> {
        if matches!(self.raw(name), Field::Absent | Field::Null) {
            self.add_error(name, "BASE_TYPE_REQUIRED", "This field is required");
        }
        field.value()
    }

    /// Text; its length is counted in characters.
    pub(crate) fn string(&mut self, name: &str, length: RangeInclusive<usize>) -> Field<&'a str> {
        let text = self.read(name, "STRING_TYPE_CONVERT", "Could not interpret as string.", Value::as_str);
        let Field::Given(given) = text else { return text };
        if length.contains(&given.chars().count()) {
            return text;
        }
        let (min, max) = (length.start(), length.end());
        if *min == 0 {
            self.add_error(name, "BASE_TYPE_MAX_LENGTH", &format!("Must be {max} or fewer in length."));
        } else {
            self.add_error(name, "BASE_TYPE_BAD_LENGTH", &format!("Must be between {min} and {max} in length."));
        }
        Field::Absent
    }

    /// A whole number, or one written as text.
    pub(crate) fn integer(&mut self, name: &str, range: RangeInclusive<i64>) -> Field<i64> {
        let whole = |value: &Value| value.as_i64().or_else(|| value.as_str().and_then(|text| text.parse().ok()));
        let number = self.read(name, "NUMBER_TYPE_COERCE", "Value is not int.", whole);
        let Field::Given(given) = number else { return number };
        match range_error(given, &range) {
            None => number,
            Some((code, message)) => {
                self.add_error(name, code, &message);
                Field::Absent
            }
        }
    }

    /// A number of at most 32 bits.
    pub(crate) fn small(&mut self, name: &str, range: RangeInclusive<u32>) -> Field<u32> {
        let range = i64::from(*range.start())..=i64::from(*range.end());
        self.integer(name, range).map(|number| u32::try_from(number).expect("invariant: the range fits in a u32"))
    }

    /// One of a few numbers.
    pub(crate) fn choice(&mut self, name: &str, choices: &[u8]) -> Field<u8> {
        let chosen = |value: &Value| {
            value.as_u64().and_then(|number| choices.iter().copied().find(|one| u64::from(*one) == number))
        };
        let listed = choices.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        self.read(name, "BASE_TYPE_CHOICES", &format!("Value must be one of {{{listed}}}."), chosen)
    }

    pub(crate) fn boolean(&mut self, name: &str) -> Field<bool> {
        self.read(name, "BOOLEAN_TYPE_CONVERT", "Must be either true or false.", Value::as_bool)
    }

    /// An id, as text or as a number.
    pub(crate) fn snowflake(&mut self, name: &str) -> Field<Snowflake> {
        self.read(name, "NUMBER_TYPE_COERCE", "Value is not snowflake.", snowflake)
    }

    /// A list of ids.
    pub(crate) fn snowflakes(&mut self, name: &str) -> Field<Vec<Snowflake>> {
        let all = |value: &Value| value.as_array()?.iter().map(snowflake).collect();
        self.read(name, "LIST_TYPE_CONVERT", "Value is not a list of snowflakes.", all)
    }

    /// Permission bits, as text or as a number.
    pub(crate) fn bits(&mut self, name: &str) -> Field<u64> {
        let bits = |value: &Value| value.as_u64().or_else(|| value.as_str().and_then(|text| text.parse().ok()));
        self.read(name, "NUMBER_TYPE_COERCE", "Value is not int.", bits)
    }

    /// A list with at most `max` entries.
    pub(crate) fn list(&mut self, name: &str, max: usize) -> Field<&'a [Value]> {
        let list = self.read(name, "LIST_TYPE_CONVERT", "Only iterables may be used in a ListType", |value| {
            value.as_array().map(Vec::as_slice)
        });
        let Field::Given(given) = list else { return list };
        if given.len() > max {
            self.add_error(name, "BASE_TYPE_MAX_LENGTH", &format!("Must be {max} or fewer in length."));
            return Field::Absent;
        }
        list
    }

    /// Reads a nested form; its errors are added to this one, below `name`.
    pub(crate) fn nested<T>(
        &mut self,
        name: &str,
        value: &'a Value,
        read: impl FnOnce(&mut Form<'a>) -> T,
    ) -> Option<T> {
        let Some(fields) = value.as_object() else {
            self.add_error(name, "DICT_TYPE_CONVERT", "Only dictionaries may be used in a DictType");
            return None;
        };
        let mut inner =
            Form { fields, path: format!("{}{name}.", self.path), errors: std::mem::take(&mut self.errors) };
        let result = read(&mut inner);
        self.errors = inner.errors;
        Some(result)
    }
}

fn snowflake(value: &Value) -> Option<Snowflake> {
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.as_u64().map(Snowflake::new),
        _ => None,
    }
}

fn range_error(number: i64, range: &RangeInclusive<i64>) -> Option<(&'static str, String)> {
    if number < *range.start() {
        Some(("NUMBER_TYPE_MIN", format!("int value should be greater than or equal to {}.", range.start())))
    } else if number > *range.end() {
        Some(("NUMBER_TYPE_MAX", format!("int value should be less than or equal to {}.", range.end())))
    } else {
        None
    }
}

/// The fields of a query string.
#[derive(Debug)]
pub(crate) struct Query<'a> {
    call: &'a Call<'a>,
    errors: FormErrors,
}

impl<'a> Query<'a> {
    pub(crate) fn of(call: &'a Call<'a>) -> Self {
        Self { call, errors: FormErrors::default() }
    }

    pub(crate) fn integer(&mut self, name: &str, range: RangeInclusive<i64>) -> Option<i64> {
        let text = self.call.query(name)?;
        match text.parse::<i64>() {
            Ok(number) => match range_error(number, &range) {
                None => return Some(number),
                Some((code, message)) => self.errors.add(name, code, &message),
            },
            Err(_) => self.errors.add(name, "NUMBER_TYPE_COERCE", &format!("Value \"{text}\" is not int.")),
        }
        None
    }

    /// Maximum number of objects in a listing; `default` if the query has none.
    pub(crate) fn limit(&mut self, range: RangeInclusive<i64>, default: usize) -> usize {
        self.integer("limit", range).and_then(|limit| usize::try_from(limit).ok()).unwrap_or(default)
    }

    pub(crate) fn snowflake(&mut self, name: &str) -> Option<Snowflake> {
        let text = self.call.query(name)?;
        let id = text.parse().ok();
        if id.is_none() {
            self.errors.add(name, "NUMBER_TYPE_COERCE", &format!("Value \"{text}\" is not snowflake."));
        }
        id
    }

    pub(crate) fn finish(self) -> Result<(), ApiError> {
        self.errors.into_result(())
    }
}

/// Whether a flag in the query is set: `true` or `1`.
pub(crate) fn query_flag(call: &Call<'_>, name: &str) -> bool {
    call.query(name).is_some_and(|value| value == "1" || value.eq_ignore_ascii_case("true"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_errors_of_a_form_are_reported_at_once() {
        let body =
            json!({ "name": "", "position": 1.5, "type": 9, "nsfw": "no", "parent_id": "x", "tags": [{ "name": 3 }] });
        let mut form = Form::new(body.as_object().unwrap());
        form.string("name", 1..=100);
        form.integer("position", 0..=500);
        form.choice("type", &[0, 2]);
        form.boolean("nsfw");
        form.snowflake("parent_id");
        let missing = form.boolean("there");
        assert_eq!(form.required("there", missing), None);
        for (index, tag) in form.list("tags", 20).value().unwrap().iter().enumerate() {
            form.nested(&format!("tags.{index}"), tag, |tag| tag.string("name", 1..=20).value().map(str::len));
        }
        let body = form.finish().unwrap_err().body();
        let code = |path: &str| body.pointer(&format!("/errors/{path}/_errors/0/code")).cloned().unwrap_or_default();
        assert_eq!(code("name"), "BASE_TYPE_BAD_LENGTH");
        assert_eq!(code("position"), "NUMBER_TYPE_COERCE");
        assert_eq!(code("type"), "BASE_TYPE_CHOICES");
        assert_eq!(code("nsfw"), "BOOLEAN_TYPE_CONVERT");
        assert_eq!(code("parent_id"), "NUMBER_TYPE_COERCE");
        assert_eq!(code("there"), "BASE_TYPE_REQUIRED");
        assert_eq!(code("tags/0/name"), "STRING_TYPE_CONVERT");
    }

    #[test]
    fn ids_and_bits_may_be_numbers_or_text() {
        let body = json!({ "a": 5, "b": "5", "c": 8, "d": "8" });
        let mut form = Form::new(body.as_object().unwrap());
        assert_eq!(form.snowflake("a"), form.snowflake("b"));
        assert_eq!(form.bits("c"), form.bits("d"));
        assert_eq!(form.finish(), Ok(()));
    }

    #[test]
    fn null_clears_a_field_and_absence_keeps_it() {
        let mut topic = Some("old");
        Field::Absent.update_or_clear(&mut topic);
        assert_eq!(topic, Some("old"));
        Field::Null.update_or_clear(&mut topic);
        assert_eq!(topic, None);
    }

    #[test]
    fn length_counts_characters_not_bytes() {
        let body = json!({ "name": "ü".repeat(100) });
        let mut form = Form::new(body.as_object().unwrap());
        assert!(form.string("name", 1..=100).is_given());
    }
}
