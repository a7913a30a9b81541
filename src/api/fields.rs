//! Declares the fields of a query or a body once: the [`fields!`](crate::api::fields::fields) of a request are a struct, the
//! parser of it, which reports all errors at once, and its description.

use std::ops::RangeInclusive;

use guildhall_core::{
    budget::Points,
    operation::{FailureClass, OperationKind, OperationState},
    time::UnixMs,
};
use serde_json::Value;
use utoipa::openapi::schema::{AdditionalProperties, ObjectBuilder, Schema};

use super::{
    dto,
    handlers::budgets::MAX_POINTS,
    openapi::{
        doc_text,
        schema::{self, Describe as _, SchemaRef, or_null, schema_ref},
    },
    problem::{ProblemResponse, ProblemType},
};

/// Snowflakes do not reach this before 2049; the store depends on it.
const SNOWFLAKE_END: u64 = 1 << 62;
/// Maximum number of entries in a list.
const MAX_PAGE_SIZE: u64 = 500;
/// Default number of entries in a list.
const DEFAULT_PAGE_SIZE: usize = 50;

/// Declares requests: for each field its type, and the [`Field`] that parses and describes it. `..` includes the fields of
/// another declaration.
macro_rules! fields {
    ($(
        $(#[doc = $doc:literal])*
        struct $name:ident {
            $( .. $part:ident: $part_type:ty, )*
            $( $(#[doc = $field_doc:literal])* $field:ident: $type:ty = $rule:expr, )*
        }
    )+) => {$(
        $(#[doc = $doc])*
        #[derive(Debug)]
        pub(crate) struct $name {
            $( pub(crate) $part: $part_type, )*
            $( $(#[doc = $field_doc])* pub(crate) $field: $type, )*
        }

        impl $crate::api::fields::Fields for $name {
            const NAME: &'static str = stringify!($name);

            fn read(given: &mut $crate::api::fields::GivenFields) -> Option<Self> {
                // All of them, so that all errors are reported.
                $( let $part = <$part_type as $crate::api::fields::Fields>::read(given); )*
                $( let $field = given.take(stringify!($field), &$rule); )*
                Some(Self { $( $part: $part?, )* $( $field: $field?, )* })
            }

            fn doc() -> String {
                $crate::api::openapi::doc_text(&[$($doc),*])
            }

            fn describe() -> Vec<$crate::api::fields::FieldDoc> {
                let parts: Vec<Vec<_>> = vec![$( <$part_type as $crate::api::fields::Fields>::describe() ),*];
                let own: Vec<_> = vec![
                    $( $crate::api::fields::FieldDoc::new::<$type>(stringify!($field), &[$($field_doc),*], &$rule) ),*
                ];
                parts.into_iter().flatten().chain(own).collect()
            }
        }
    )+};
}
pub(crate) use fields;

/// The fields of a request.
pub(crate) trait Fields: Sized {
    const NAME: &'static str;

    /// Takes the fields; `None` if one of them is invalid.
    fn read(given: &mut GivenFields) -> Option<Self>;

    fn doc() -> String;

    fn describe() -> Vec<FieldDoc>;

    /// The schema of a body with these fields.
    fn schema() -> SchemaRef {
        let object = Self::describe().into_iter().fold(ObjectBuilder::new(), |object, field| {
            let name = field.name;
            let shape = field.shape.describe(&field.description);
            if field.required {
                object.property(name, shape).required(name)
            } else {
                object.property(name, or_null(shape))
            }
        });
        let object = object.additional_properties(Some(AdditionalProperties::<Schema>::FreeForm(false)));
        SchemaRef::from(object).describe(&Self::doc())
    }
}

/// The description of a field.
pub(crate) struct FieldDoc {
    pub(crate) name: &'static str,
    pub(crate) shape: SchemaRef,
    pub(crate) description: String,
    pub(crate) required: bool,
}

impl FieldDoc {
    pub(crate) fn new<T>(name: &'static str, doc: &[&str], field: &impl Field<Value = T>) -> Self {
        Self { name, shape: field.schema(), description: doc_text(doc), required: field.is_required() }
    }
}

/// What a request contains. The parameters are taken out one by one; the remaining ones are unknown.
pub(crate) struct GivenFields {
    given: Vec<(String, Value)>,
    known_names: Vec<&'static str>,
    errors: Vec<(String, String)>,
}

impl GivenFields {
    pub(crate) fn new(given: Vec<(String, Value)>) -> Self {
        Self { given, known_names: Vec::new(), errors: Vec::new() }
    }

    pub(crate) fn take<F: Field>(&mut self, name: &'static str, field: &F) -> Option<F::Value> {
        self.known_names.push(name);
        let mut values: Vec<Value> = Vec::new();
        self.given.retain_mut(|(given, value)| {
            let is_it = given == name;
            if is_it {
                values.push(value.take());
            }
            !is_it
        });
        let value = match values.len() {
            0 | 1 => values.pop().unwrap_or_default(),
            // No field accepts a list of values of a query.
            _ => Value::Array(values),
        };
        match field.read(&value) {
            Ok(value) => Some(value),
            Err(messages) => {
                self.errors.extend(messages.into_iter().map(|message| (name.to_owned(), message)));
                None
            }
        }
    }

    /// Reads all fields, and checks that all that were given are known and valid.
    pub(crate) fn finish<T: Fields>(mut self) -> Result<T, ProblemResponse> {
        let read = T::read(&mut self);
        let expected = match self.known_names.as_slice() {
            [] => "no parameters are accepted here".to_owned(),
            names => format!("expected one of: {}", names.join(", ")),
        };
        for (name, _) in self.given.iter().take(10) {
            let displayed: String = name.chars().take(64).collect();
            self.errors.push((displayed, format!("is unknown; {expected}")));
        }
        match read {
            Some(read) if self.errors.is_empty() => Ok(read),
            _ => Err(field_errors(self.errors)),
        }
    }
}

/// The problem with all errors of fields.
pub(crate) fn field_errors(errors: Vec<(String, String)>) -> ProblemResponse {
    let messages: Vec<_> = errors.iter().map(|(name, message)| format!("{name} {message}")).collect();
    ProblemType::BadRequest.with_detail(format!("{}.", messages.join("; "))).errors(errors)
}

/// The problem with an error of one field.
pub(crate) fn field_error(name: &str, message: impl Into<String>) -> ProblemResponse {
    field_errors(vec![(name.to_owned(), message.into())])
}

/// How a field is parsed and described.
pub(crate) trait Field {
    type Value;

    /// Parses what was given, which is `null` if it was omitted.
    fn read(&self, given: &Value) -> Result<Self::Value, Vec<String>>;

    fn schema(&self) -> SchemaRef;

    fn is_required(&self) -> bool {
        true
    }

    /// The same field, which may be omitted.
    fn optional(self) -> OptionalField<Self>
    where
        Self: Sized,
    {
        OptionalField(self)
    }

    /// The same field with a value for requests that omit it.
    fn or(self, default: Self::Value) -> WithDefault<Self>
    where
        Self: Sized,
    {
        WithDefault { field: self, default }
    }
}

/// A field that may be omitted.
pub(crate) struct OptionalField<F>(F);

impl<F: Field> Field for OptionalField<F> {
    type Value = Option<F::Value>;

    fn read(&self, given: &Value) -> Result<Self::Value, Vec<String>> {
        if given.is_null() { Ok(None) } else { self.0.read(given).map(Some) }
    }

    fn schema(&self) -> SchemaRef {
        self.0.schema()
    }

    fn is_required(&self) -> bool {
        false
    }
}

/// A field that has a default.
pub(crate) struct WithDefault<F: Field> {
    field: F,
    default: F::Value,
}

impl<F: Field<Value: Clone + Into<Value>>> Field for WithDefault<F> {
    type Value = F::Value;

    fn read(&self, given: &Value) -> Result<Self::Value, Vec<String>> {
        if given.is_null() { Ok(self.default.clone()) } else { self.field.read(given) }
    }

    fn schema(&self) -> SchemaRef {
        schema::with_default(self.field.schema(), self.default.clone().into())
    }

    fn is_required(&self) -> bool {
        false
    }
}

/// A field that is parsed from JSON.
pub(crate) struct JsonField<R, S> {
    read: R,
    schema: S,
}

/// A field with its own parser.
pub(crate) fn json<T, R, S, O>(read: R, schema: S) -> impl Field<Value = T>
where
    R: Fn(&Value) -> Result<T, Vec<String>>,
    S: Fn() -> O,
    O: Into<SchemaRef>,
{
    JsonField { read, schema }
}

impl<T, R: Fn(&Value) -> Result<T, Vec<String>>, S: Fn() -> O, O: Into<SchemaRef>> Field for JsonField<R, S> {
    type Value = T;

    fn read(&self, given: &Value) -> Result<T, Vec<String>> {
        (self.read)(given)
    }

    fn schema(&self) -> SchemaRef {
        (self.schema)().into()
    }
}

/// A field that is parsed from text. Numbers and booleans may be strings, as a query requires.
pub(crate) fn scalar<T, O: Into<SchemaRef>>(
    allowed: impl Fn() -> String,
    schema: impl Fn() -> O,
    read: impl Fn(&str) -> Option<T>,
) -> impl Field<Value = T> {
    let read = move |given: &Value| {
        let text = match given {
            Value::String(text) => text.clone(),
            value @ (Value::Bool(_) | Value::Number(_)) => value.to_string(),
            Value::Null | Value::Array(_) | Value::Object(_) => String::new(),
        };
        read(&text).ok_or_else(|| vec![format!("must be {}, given once", allowed())])
    };
    json(read, schema)
}

/// A whole number in a range.
pub(crate) fn integer<T: TryFrom<u64>>(range: RangeInclusive<u64>) -> impl Field<Value = T> {
    let (min, max) = range.into_inner();
    scalar(
        move || format!("a whole number from {min} to {max}"),
        move || schema::integer(min, max),
        move |text| text.parse().ok().filter(|number| (min..=max).contains(number))?.try_into().ok(),
    )
}

/// A number of points, which may be a fraction: at least this many.
pub(crate) fn points(min: Points) -> impl Field<Value = Points> {
    let from = if min == Points::ZERO { "from 0" } else { "above 0" };
    scalar(
        move || format!("a number {from} up to {MAX_POINTS}"),
        schema::number,
        move |text| text.parse().ok().and_then(Points::new).filter(|points| (min..=MAX_POINTS).contains(points)),
    )
}

pub(crate) fn boolean() -> impl Field<Value = bool> {
    scalar(|| "true or false".to_owned(), schema::boolean, |text| text.parse().ok())
}

/// A string of at most this many bytes. A boolean or a number is not accepted as a string.
pub(crate) fn text(max: usize) -> impl Field<Value = String> {
    let read = move |given: &Value| match given {
        Value::String(text) if (1..=max).contains(&text.len()) => Ok(text.clone()),
        _ => Err(vec![format!("must be a string of 1 to {max} bytes, given once")]),
    };
    json(read, move || schema::text_of(1, max))
}

/// One of these names; the schema has a name, too.
pub(crate) fn one_of<T>(
    schema: &'static str,
    names: impl IntoIterator<Item = &'static str> + Clone,
    read: impl Fn(&str) -> Option<T>,
) -> impl Field<Value = T> {
    let allowed = move || format!("one of {}", names.clone().into_iter().collect::<Vec<_>>().join(", "));
    scalar(allowed, move || schema_ref(schema), read)
}

pub(crate) fn state() -> impl Field<Value = OperationState> {
    one_of("State", OperationState::ALL.map(OperationState::name), OperationState::from_name)
}

pub(crate) fn kind() -> impl Field<Value = OperationKind> {
    one_of("Kind", OperationKind::ALL.map(OperationKind::name), OperationKind::from_name)
}

/// A class of failures, by its name.
pub(crate) fn failure_class() -> impl Field<Value = String> {
    let names = FailureClass::ALL.map(FailureClass::name);
    one_of("FailureClass", names, move |name| names.contains(&name).then(|| name.to_owned()))
}

/// The id of a guild.
pub(crate) fn guild() -> impl Field<Value = u64> {
    scalar(|| "a guild id as a string".to_owned(), || schema_ref("Snowflake"), snowflake)
}

/// The id of a user.
pub(crate) fn user() -> impl Field<Value = u64> {
    scalar(|| "a user id as a string".to_owned(), || schema_ref("Snowflake"), snowflake)
}

/// The id of a webhook.
pub(crate) fn webhook() -> impl Field<Value = u64> {
    scalar(|| "a webhook id as a string".to_owned(), || schema_ref("Snowflake"), snowflake)
}

pub(crate) fn time() -> impl Field<Value = UnixMs> {
    scalar(
        || "a time such as 2026-01-31T12:00:00Z".to_owned(),
        || schema_ref("Time"),
        |text| {
            let at = chrono::DateTime::parse_from_rfc3339(text).ok()?;
            u64::try_from(at.timestamp_millis()).ok().map(UnixMs::new)
        },
    )
}

/// Maximum number of entries of a page.
pub(crate) fn page_size() -> impl Field<Value = usize> {
    integer(1..=MAX_PAGE_SIZE).or(DEFAULT_PAGE_SIZE)
}

/// The end of the previous page.
pub(crate) fn cursor<T>(read: impl Fn(&str) -> Option<T>) -> impl Field<Value = T> {
    scalar(|| PREVIOUS.to_owned(), schema::text, read)
}

/// A position in a numbered list, where the previous page ended.
pub(crate) fn position() -> impl Field<Value = i64> {
    scalar(|| PREVIOUS.to_owned(), || schema::text().pattern(Some(dto::POSITION)), |text| text.parse().ok())
}

const PREVIOUS: &str = "`next` of the previous response";

pub(crate) fn snowflake(text: &str) -> Option<u64> {
    // As Discord writes them, so that an id has only one form.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|id| digits && (1..SNOWFLAKE_END).contains(id))
}

/// No fields at all: a query without parameters, or an empty body.
#[derive(Debug)]
pub(crate) struct NoFields;

impl Fields for NoFields {
    const NAME: &'static str = "NoFields";

    fn read(_: &mut GivenFields) -> Option<Self> {
        Some(Self)
    }

    fn doc() -> String {
        String::new()
    }

    fn describe() -> Vec<FieldDoc> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snowflake_is_digits_within_discords_range() {
        assert_eq!(snowflake("1571715189416398849"), Some(1_571_715_189_416_398_849));
        for invalid in ["", "0", "01", "+1", "-1", "1.0", " 1", "4611686018427387904", "999999999999999999999999", "x"]
        {
            assert_eq!(snowflake(invalid), None, "{invalid}");
        }
    }
}
