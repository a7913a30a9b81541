//! Formats of single values: how they are read, written and described.

use std::{fmt::Display, marker::PhantomData};

use serde_json::Value;

use super::{
    field_reader::object,
    path,
    record::Record,
    schema::{TextType, ValueType, patterns},
    validation::FieldContext,
    value, write,
};

/// A format of values in JSON.
pub(super) trait Format {
    type Value;
    fn read(&self, value: &Value, at: &mut FieldContext<'_>) -> Option<Self::Value>;
    fn write(&self, out: &mut String, value: &Self::Value);
    fn describe(&self) -> ValueType;
}

/// A set of names.
pub(super) trait Named: Copy + 'static {
    const NAMES: &'static [(&'static str, Self)];
}

/// A format without parameters.
pub(super) struct Plain<T> {
    pub(super) read: fn(&Value, &mut FieldContext<'_>) -> Option<T>,
    pub(super) write: fn(&mut String, &T),
    pub(super) describe: fn() -> ValueType,
}

/// A string of a range of lengths.
pub(super) struct Text {
    min: usize,
    max: usize,
}

/// A whole number in a range.
pub(super) struct Integer<T> {
    min: u64,
    max: u64,
    number: PhantomData<T>,
}

/// One of the names of a set.
pub(super) struct Choice<T>(PhantomData<T>);

/// A list of a range of lengths.
pub(super) struct List<F: Format> {
    min: usize,
    max: usize,
    items: F,
    check: fn(&[F::Value], &mut FieldContext<'_>),
}

/// An object.
pub(super) struct ObjectOf<R>(PhantomData<R>);

pub(super) const fn text(min: usize, max: usize) -> Text {
    Text { min, max }
}

pub(super) const fn integer<T>(min: u64, max: u64) -> Integer<T> {
    Integer { min, max, number: PhantomData }
}

pub(super) const fn choice<T: Named>() -> Choice<T> {
    Choice(PhantomData)
}

pub(super) const fn list<F: Format>(min: usize, max: usize, items: F) -> List<F> {
    List { min, max, items, check: |_, _| {} }
}

pub(super) const fn object_of<R: Record>() -> ObjectOf<R> {
    ObjectOf(PhantomData)
}

/// `true` or `false`.
pub(super) const BOOLEAN: Plain<bool> =
    Plain { read: value::boolean, write: write::plain, describe: || ValueType::Boolean };

/// A Discord id.
pub(super) const ID: Plain<u64> =
    Plain { read: value::id, write: write::quoted, describe: || ValueType::Text(SNOWFLAKE) };

pub(super) const SNOWFLAKE: TextType = TextType {
    name: Some("Snowflake"),
    description: "A Discord id, as a string of digits.",
    pattern: Some(patterns::ID),
    example: Some("1571715189416398849"),
    ..TextType::ANY
};

/// Permissions.
pub(super) const PERMISSIONS: Plain<u64> = Plain {
    read: value::permissions,
    write: write::quoted,
    describe: || {
        ValueType::Text(TextType {
            description: "Permissions as a bit set: a number, as a string of digits.",
            pattern: Some(patterns::PERMISSIONS),
            example: Some("1024"),
            ..TextType::ANY
        })
    },
};

/// A name of a role or a channel.
pub(super) const NAME: Plain<String> = Plain {
    read: value::name,
    write: write::string,
    describe: || {
        ValueType::Text(TextType {
            description: "No white space at its start or end.",
            length: Some((1, value::MAX_NAME_CHARS)),
            pattern: Some(patterns::NAME),
            ..TextType::ANY
        })
    },
};

/// The key of a managed object.
pub(super) const KEY: Plain<String> = Plain {
    read: value::key,
    write: write::string,
    describe: || {
        ValueType::Text(TextType {
            name: Some("ManagedKey"),
            description: "The name by which other operations may refer to the created object: `{\"key\": \"…\"}`.",
            length: Some((1, value::MAX_KEY_CHARS)),
            pattern: Some(patterns::KEY),
            example: Some("mods"),
        })
    },
};

/// A path below the API's version.
pub(super) const PATH: Plain<String> = Plain {
    read: path::path,
    write: write::string,
    describe: || {
        ValueType::Text(TextType {
            description: "The path below the API's version, with its query. No empty segment, no `.` or `..`, no encoded \
                 slash and no backslash.",
            length: Some((2, path::MAX_PATH_BYTES)),
            pattern: Some(patterns::PATH),
            ..TextType::ANY
        })
    },
};

/// Any JSON.
pub(super) const ANYTHING: Plain<Value> =
    Plain { read: |value, _| Some(value.clone()), write: write::value, describe: || ValueType::Anything };

/// Any object.
pub(super) const ANY_OBJECT: Plain<Value> =
    Plain { read: value::any_object, write: write::value, describe: || ValueType::AnyObject };

impl<F: Format> List<F> {
    /// Checks the items together, if each one is valid.
    pub(super) fn checked(self, check: fn(&[F::Value], &mut FieldContext<'_>)) -> Self {
        Self { check, ..self }
    }
}

impl<T> Format for Plain<T> {
    type Value = T;

    fn read(&self, value: &Value, at: &mut FieldContext<'_>) -> Option<T> {
        (self.read)(value, at)
    }

    fn write(&self, out: &mut String, value: &T) {
        (self.write)(out, value);
    }

    fn describe(&self) -> ValueType {
        (self.describe)()
    }
}

impl Format for Text {
    type Value = String;

    fn read(&self, value: &Value, at: &mut FieldContext<'_>) -> Option<String> {
        value::text(self.min, self.max)(value, at)
    }

    fn write(&self, out: &mut String, value: &String) {
        write::text(out, value);
    }

    fn describe(&self) -> ValueType {
        ValueType::Text(TextType { length: Some((self.min, self.max)), ..TextType::ANY })
    }
}

impl<T: TryFrom<u64> + Display> Format for Integer<T> {
    type Value = T;

    fn read(&self, value: &Value, at: &mut FieldContext<'_>) -> Option<T> {
        value::integer(self.min, self.max)(value, at)
    }

    fn write(&self, out: &mut String, value: &T) {
        write::plain(out, value);
    }

    fn describe(&self) -> ValueType {
        ValueType::Integer { min: self.min, max: self.max }
    }
}

impl<T: Named + PartialEq> Format for Choice<T> {
    type Value = T;

    fn read(&self, value: &Value, at: &mut FieldContext<'_>) -> Option<T> {
        value::choice(T::NAMES)(value, at)
    }

    fn write(&self, out: &mut String, value: &T) {
        let (name, _) = T::NAMES.iter().find(|(_, named)| named == value).expect("invariant: every value has a name");
        write::text(out, name);
    }

    fn describe(&self) -> ValueType {
        ValueType::Choice(T::NAMES.iter().map(|(name, _)| *name).collect())
    }
}

impl<F: Format> Format for List<F> {
    type Value = Vec<F::Value>;

    fn read(&self, value: &Value, at: &mut FieldContext<'_>) -> Option<Vec<F::Value>> {
        let items = value::list(self.min, self.max, |item, at| self.items.read(item, at))(value, at)?;
        (self.check)(&items, at);
        Some(items)
    }

    fn write(&self, out: &mut String, items: &Vec<F::Value>) {
        write::list(out, items, |out, item| self.items.write(out, item));
    }

    fn describe(&self) -> ValueType {
        ValueType::List { min: self.min, max: self.max, items: Box::new(self.items.describe()) }
    }
}

impl<R: Record> Format for ObjectOf<R> {
    type Value = R;

    fn read(&self, value: &Value, at: &mut FieldContext<'_>) -> Option<R> {
        object(value, at, R::read)
    }

    fn write(&self, out: &mut String, value: &R) {
        write::object(out, |fields| value.write(fields));
    }

    fn describe(&self) -> ValueType {
        ValueType::Object(R::describe())
    }
}
