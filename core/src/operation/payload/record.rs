//! Declares payloads: a declaration is the type, its reader, its writer and its description.

use std::marker::PhantomData;

use serde_json::Value;

use super::{
    field_reader::FieldReader,
    format::Format,
    schema::{FieldType, ObjectType, Presence},
    write::FieldWriter,
};

/// Declares an object with its fields, in the order in which they are read and written. Each field has its type in Rust
/// and its definition in JSON; the comments also describe it in the API.
macro_rules! record {
    (
        $(#[doc = $about:literal])+
        $(#[derive($($derive:ident),+)])?
        $vis:vis struct $name:ident {
            $($(#[doc = $doc:literal])* $field:ident: $type:ty = $definition:expr,)+
        }
        $(any_of = $any_of:expr;)?
        $(check = $check:expr;)?
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, Eq, $($($derive),+)?)]
        $vis struct $name {
            $(
                #[doc = concat!("`", stringify!($definition), "`\n\n")]
                $(#[doc = $doc])*
                pub $field: $type,
            )+
        }

        impl $crate::operation::payload::record::Record for $name {
            fn read(form: &mut $crate::operation::payload::field_reader::FieldReader<'_, '_>) -> Option<Self> {
                use $crate::operation::payload::record::Definition as _;
                $(let $field: Option<$type> = $definition.read(form);)+
                $({
                    let check: fn(&mut $crate::operation::payload::field_reader::FieldReader<'_, '_>) = $check;
                    check(form);
                })?
                Some(Self { $($field: $field?),+ })
            }

            fn write(&self, fields: &mut $crate::operation::payload::write::FieldWriter<'_>) {
                use $crate::operation::payload::record::Definition as _;
                $($definition.write(fields, &self.$field);)+
            }

            fn describe() -> $crate::operation::payload::ObjectType {
                let mut object = $crate::operation::payload::ObjectType::new(stringify!($name), concat!($($about),+));
                $(object.any_of = $any_of;)?
                $($crate::operation::payload::record::describe::<$type>(
                    &$definition,
                    concat!("" $(, $doc)*),
                    &mut object,
                );)+
                object
            }
        }
    };
}
pub(super) use record;

/// Declares a set of names.
macro_rules! names {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[doc = $doc:literal])* $variant:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $(
                #[doc = concat!("`", $text, "`.")]
                $(#[doc = $doc])*
                $variant,
            )+
        }

        impl $name {
            /// All of them.
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$variant),+];

            /// Name in payloads.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }

        impl $crate::operation::payload::format::Named for $name {
            const NAMES: &'static [(&'static str, Self)] = &[$(($text, Self::$variant)),+];
        }
    };
}
pub(super) use names;

/// An object that was declared with [`record!`].
pub(super) trait Record: Sized {
    /// Reads its fields, and reports each that is invalid.
    fn read(form: &mut FieldReader<'_, '_>) -> Option<Self>;
    /// Writes its fields.
    fn write(&self, fields: &mut FieldWriter<'_>);
    /// Describes it.
    fn describe() -> ObjectType;
}

/// The definition of a member of a record: of one field in JSON, or of several.
pub(super) trait Definition {
    type Value;
    fn read(&self, form: &mut FieldReader<'_, '_>) -> Option<Self::Value>;
    fn write(&self, fields: &mut FieldWriter<'_>, value: &Self::Value);
    fn describe(&self, description: &'static str, object: &mut ObjectType);
}

/// Describes a member of a record whose values have the type `T`.
pub(super) fn describe<T>(definition: &impl Definition<Value = T>, description: &'static str, object: &mut ObjectType) {
    definition.describe(description.trim_start(), object);
}

/// A field that must be there.
pub(super) struct RequiredField<F> {
    name: &'static str,
    format: F,
}

/// A field that may be omitted.
pub(super) struct OptionalField<F> {
    name: &'static str,
    format: F,
    narrowed: Option<fn(&FieldReader<'_, '_>) -> F>,
}

/// A field that has a default.
pub(super) struct DefaultedField<F: Format> {
    name: &'static str,
    format: F,
    default: F::Value,
}

/// The fields of another record.
pub(super) struct FlattenedFields<R> {
    check: fn(&mut FieldReader<'_, '_>),
    record: PhantomData<R>,
}

/// Exactly one of two fields.
pub(super) struct EitherField<T, A: Format, B: Format> {
    pub(super) first: Alternative<T, A>,
    pub(super) second: Alternative<T, B>,
}

/// One of two fields, for values of the type `T`.
pub(super) struct Alternative<T, F: Format> {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) description: &'static str,
    pub(super) format: F,
    /// The value with this field.
    pub(super) with: fn(F::Value) -> T,
    /// The field, if the value has it.
    pub(super) get: fn(&T) -> Option<&F::Value>,
}

pub(super) const fn required<F: Format>(name: &'static str, format: F) -> RequiredField<F> {
    RequiredField { name, format }
}

pub(super) const fn optional<F: Format>(name: &'static str, format: F) -> OptionalField<F> {
    OptionalField { name, format, narrowed: None }
}

pub(super) const fn defaulted<F: Format>(name: &'static str, format: F, default: F::Value) -> DefaultedField<F> {
    DefaultedField { name, format, default }
}

pub(super) const fn flattened<R: Record>() -> FlattenedFields<R> {
    FlattenedFields { check: |_| {}, record: PhantomData }
}

impl<F> OptionalField<F> {
    /// Restricts the values by other fields, which must have been read before.
    pub(super) fn narrowed(self, to: fn(&FieldReader<'_, '_>) -> F) -> Self {
        Self { narrowed: Some(to), ..self }
    }
}

impl<R> FlattenedFields<R> {
    /// Checks the fields after they were read.
    pub(super) const fn checked(self, check: fn(&mut FieldReader<'_, '_>)) -> Self {
        Self { check, ..self }
    }
}

impl<F: Format> Definition for RequiredField<F> {
    type Value = F::Value;

    fn read(&self, form: &mut FieldReader<'_, '_>) -> Option<F::Value> {
        form.required(self.name, |value, at| self.format.read(value, at))
    }

    fn write(&self, fields: &mut FieldWriter<'_>, value: &F::Value) {
        fields.with(self.name, |out| self.format.write(out, value));
    }

    fn describe(&self, description: &'static str, object: &mut ObjectType) {
        let (name, values) = (self.name, self.format.describe());
        object.fields.push(FieldType { name, description, values, presence: Presence::Required });
    }
}

impl<F: Format> Definition for OptionalField<F> {
    type Value = Option<F::Value>;

    fn read(&self, form: &mut FieldReader<'_, '_>) -> Option<Option<F::Value>> {
        Some(match self.narrowed {
            None => form.optional(self.name, |value, at| self.format.read(value, at)),
            Some(narrowed) => {
                let format = narrowed(form);
                form.optional(self.name, |value, at| format.read(value, at))
            }
        })
    }

    fn write(&self, fields: &mut FieldWriter<'_>, value: &Option<F::Value>) {
        if let Some(value) = value {
            fields.with(self.name, |out| self.format.write(out, value));
        }
    }

    fn describe(&self, description: &'static str, object: &mut ObjectType) {
        let (name, values) = (self.name, self.format.describe());
        object.fields.push(FieldType { name, description, values, presence: Presence::Optional });
    }
}

impl<F: Format<Value: Copy>> Definition for DefaultedField<F> {
    type Value = F::Value;

    fn read(&self, form: &mut FieldReader<'_, '_>) -> Option<F::Value> {
        Some(form.optional(self.name, |value, at| self.format.read(value, at)).unwrap_or(self.default))
    }

    fn write(&self, fields: &mut FieldWriter<'_>, value: &F::Value) {
        fields.with(self.name, |out| self.format.write(out, value));
    }

    fn describe(&self, description: &'static str, object: &mut ObjectType) {
        let mut default = String::new();
        self.format.write(&mut default, &self.default);
        let default: Value = serde_json::from_str(&default).expect("invariant: a format writes JSON");
        let (name, values) = (self.name, self.format.describe());
        object.fields.push(FieldType { name, description, values, presence: Presence::Default(default) });
    }
}

impl<R: Record> Definition for FlattenedFields<R> {
    type Value = R;

    fn read(&self, form: &mut FieldReader<'_, '_>) -> Option<R> {
        let read = R::read(form);
        (self.check)(form);
        read
    }

    fn write(&self, fields: &mut FieldWriter<'_>, value: &R) {
        value.write(fields);
    }

    fn describe(&self, _: &'static str, object: &mut ObjectType) {
        let inner = R::describe();
        object.fields.extend(inner.fields);
        object.any_of = inner.any_of;
    }
}

impl<T, A: Format, B: Format> Definition for EitherField<T, A, B> {
    type Value = T;

    fn read(&self, form: &mut FieldReader<'_, '_>) -> Option<T> {
        let Self { first, second } = self;
        let one = form.optional(first.name, |value, at| first.format.read(value, at));
        let other = form.optional(second.name, |value, at| second.format.read(value, at));
        match (form.has_value(first.name), form.has_value(second.name)) {
            (true, false) => one.map(first.with),
            (false, true) => other.map(second.with),
            (true, true) | (false, false) => {
                form.invalid_here(format!("must have either `{}` or `{}`", first.name, second.name));
                None
            }
        }
    }

    fn write(&self, fields: &mut FieldWriter<'_>, value: &T) {
        self.first.write(fields, value);
        self.second.write(fields, value);
    }

    fn describe(&self, _: &'static str, object: &mut ObjectType) {
        object.alternatives.extend([self.first.describe(), self.second.describe()]);
    }
}

impl<T, F: Format> Alternative<T, F> {
    fn write(&self, fields: &mut FieldWriter<'_>, value: &T) {
        if let Some(value) = (self.get)(value) {
            fields.with(self.name, |out| self.format.write(out, value));
        }
    }

    fn describe(&self) -> (&'static str, FieldType) {
        let (name, description, values) = (self.name, self.description, self.format.describe());
        (self.title, FieldType { name, description, values, presence: Presence::Required })
    }
}
