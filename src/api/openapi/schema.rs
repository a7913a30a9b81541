//! Short functions to build schemas.

use serde_json::{Value, json};
use utoipa::openapi::{
    Ref, RefOr, Schema,
    extensions::Extensions,
    schema::{
        AdditionalProperties, AnyOfBuilder, ArrayBuilder, ArrayItems, KnownFormat, Object, ObjectBuilder, OneOfBuilder,
        SchemaFormat, SchemaType, Type,
    },
};

use super::doc_text;

/// A schema, or a reference to one.
pub(crate) type SchemaRef = RefOr<Schema>;

/// A field of an object.
pub(crate) struct Property {
    name: &'static str,
    shape: SchemaRef,
    required: bool,
}

/// A required field.
pub(crate) fn required(name: &'static str, shape: impl Into<SchemaRef>) -> Property {
    Property { name, shape: shape.into(), required: true }
}

/// An optional field.
pub(crate) fn optional(name: &'static str, shape: impl Into<SchemaRef>) -> Property {
    Property { name, shape: shape.into(), required: false }
}

/// An object with these fields, to which others may be added later: for responses.
pub(crate) fn object(fields: impl IntoIterator<Item = Property>) -> ObjectBuilder {
    fields.into_iter().fold(
        ObjectBuilder::new().schema_type(Type::Object),
        |object, Property { name, shape, required: must }| {
            let object = object.property(name, shape);
            if must { object.required(name) } else { object }
        },
    )
}

/// An object with these fields only: for requests.
pub(crate) fn closed(fields: impl IntoIterator<Item = Property>) -> ObjectBuilder {
    object(fields).additional_properties(Some(AdditionalProperties::<Schema>::FreeForm(false)))
}

/// Any object.
pub(crate) fn any_object() -> ObjectBuilder {
    object([])
}

/// Any JSON.
pub(crate) fn any_value() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::AnyValue)
}

pub(crate) fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

/// A string with a range of lengths.
pub(crate) fn text_of(min: usize, max: usize) -> ObjectBuilder {
    text().min_length((min > 0).then_some(min)).max_length(Some(max))
}

/// A string of a known format.
pub(crate) fn formatted(format: KnownFormat) -> ObjectBuilder {
    text().format(Some(SchemaFormat::KnownFormat(format)))
}

/// A string of a custom format.
pub(crate) fn formatted_as(format: &str) -> ObjectBuilder {
    text().format(Some(SchemaFormat::Custom(format.to_owned())))
}

/// One of these names.
pub(crate) fn one_of_names(names: impl IntoIterator<Item = &'static str>) -> ObjectBuilder {
    text().enum_values(Some(names))
}

pub(crate) fn boolean() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Boolean)
}

/// A whole number from 0.
pub(crate) fn count() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0_u64))
}

/// A whole number in a range.
pub(crate) fn integer(min: u64, max: u64) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(min)).maximum(Some(max))
}

/// A number from 0.
pub(crate) fn number() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Number).minimum(Some(0_u64))
}

pub(crate) fn list(items: impl Into<SchemaRef>) -> ArrayBuilder {
    ArrayBuilder::new().items(items.into())
}

/// A list with a range of lengths.
pub(crate) fn list_of(min: usize, max: usize, items: impl Into<SchemaRef>) -> ArrayBuilder {
    list(items).min_items((min > 0).then_some(min)).max_items(Some(max))
}

/// A reference to the schema of this name.
pub(crate) fn schema_ref(name: &str) -> Ref {
    Ref::from_schema_name(name)
}

/// Exactly one of several.
pub(crate) fn one_of(shapes: impl IntoIterator<Item = SchemaRef>) -> OneOfBuilder {
    shapes.into_iter().fold(OneOfBuilder::new(), OneOfBuilder::item)
}

/// At least one of several.
pub(crate) fn any_of(shapes: impl IntoIterator<Item = SchemaRef>) -> AnyOfBuilder {
    shapes.into_iter().fold(AnyOfBuilder::new(), AnyOfBuilder::item)
}

/// The schema, or `null`.
pub(crate) fn or_null(shape: impl Into<SchemaRef>) -> SchemaRef {
    let with_null = |kind: SchemaType| match kind {
        SchemaType::Type(kind) => SchemaType::Array(vec![kind, Type::Null]),
        SchemaType::Array(mut kinds) => {
            kinds.push(Type::Null);
            SchemaType::Array(kinds)
        }
        SchemaType::AnyValue => SchemaType::AnyValue,
    };
    match shape.into() {
        RefOr::T(Schema::Object(mut object)) => {
            object.schema_type = with_null(object.schema_type);
            if let Some(values) = &mut object.enum_values {
                values.push(Value::Null);
            }
            object.into()
        }
        RefOr::T(Schema::Array(mut array)) => {
            array.schema_type = with_null(array.schema_type);
            array.into()
        }
        RefOr::T(other) => any_of([other.into(), null()]).into(),
        RefOr::Ref(mut named) => {
            let description = std::mem::take(&mut named.description);
            let description = Some(description).filter(|description| !description.is_empty());
            any_of([named.into(), null()]).description(description).into()
        }
    }
}

/// Only `null`.
pub(crate) fn null() -> SchemaRef {
    Object::with_type(Type::Null).into()
}

/// The schema with a description, unless it is empty.
pub(crate) fn described(schema: SchemaRef, description: &str) -> SchemaRef {
    if description.is_empty() {
        return schema;
    }
    match schema {
        RefOr::Ref(named) => named.describe(description).into(),
        RefOr::T(Schema::Object(mut object)) => {
            object.description = Some(description.to_owned());
            object.into()
        }
        RefOr::T(Schema::Array(mut array)) => {
            array.description = Some(description.to_owned());
            array.into()
        }
        RefOr::T(other) => other.into(),
    }
}

/// An object with at least one of these optional fields, if there are any.
pub(crate) fn with_one_of(object: ObjectBuilder, fields: &[&str]) -> ObjectBuilder {
    if fields.is_empty() {
        return object;
    }
    let required: Vec<Value> = fields.iter().map(|field| json!({"required": [field]})).collect();
    object.extensions(Some(Extensions::from_iter([("anyOf", required)])))
}

/// The schema with a default value, unless it has a name.
pub(crate) fn with_default(mut shape: SchemaRef, default: Value) -> SchemaRef {
    if let RefOr::T(Schema::Object(object)) = &mut shape {
        object.default = Some(default);
    }
    shape
}

/// A derived schema in the form of the others. A response contains all of its fields, `null` where there is no value, except
/// those that are described as not nullable. `find` finds the schemas of structs that are flattened into others.
pub(crate) fn derived(shape: SchemaRef, find: &impl Fn(&str) -> Option<SchemaRef>) -> SchemaRef {
    match shape {
        RefOr::T(Schema::Object(mut object)) => {
            for (name, property) in &mut object.properties {
                *property = derived(std::mem::take(property), find);
                if is_nullable(property) && !object.required.contains(name) {
                    object.required.push(name.clone());
                }
            }
            if let Some(AdditionalProperties::RefOr(shape)) = object.additional_properties.as_deref_mut() {
                *shape = derived(std::mem::take(shape), find);
            }
            // The width of a number in Rust is no part of the API.
            if let Some(SchemaFormat::KnownFormat(
                KnownFormat::Int32 | KnownFormat::Int64 | KnownFormat::Float | KnownFormat::Double,
            )) = object.format
            {
                object.format = None;
            }
            object.property_names = None;
            object.description = object.description.as_deref().map(one_line);
            object.into()
        }
        RefOr::T(Schema::Array(mut array)) => {
            if let ArrayItems::RefOrSchema(items) = &mut array.items {
                **items = derived(std::mem::take(items), find);
            }
            array.description = array.description.as_deref().map(one_line);
            array.into()
        }
        RefOr::T(Schema::OneOf(either)) => {
            let nullable = either.items.iter().any(is_nullable);
            let items = either.items.into_iter().filter(|item| !is_nullable(item));
            let mut items: Vec<_> = items.map(|item| derived(item, find)).collect();
            match items.pop() {
                Some(only) if nullable && items.is_empty() => or_null(only),
                // Responses of several forms differ in what they contain, and may fit more than one.
                last => any_of(items.into_iter().chain(last))
                    .description(either.description.as_deref().map(one_line))
                    .into(),
            }
        }
        RefOr::T(Schema::AllOf(all)) => {
            let mut merged = Object::with_type(Type::Object);
            merged.description = all.description.as_deref().map(one_line);
            for item in all.items {
                let part = match &item {
                    RefOr::Ref(named) => named.ref_location.rsplit('/').next().and_then(find),
                    RefOr::T(_) => Some(item),
                };
                if let Some(RefOr::T(Schema::Object(part))) = part.map(|part| derived(part, find)) {
                    merged.properties.extend(part.properties);
                    merged.required.extend(part.required);
                }
            }
            merged.into()
        }
        RefOr::Ref(mut named) => {
            named.description = one_line(&named.description);
            named.into()
        }
        other @ RefOr::T(_) => other,
    }
}

fn one_line(text: &str) -> String {
    doc_text(&text.lines().collect::<Vec<_>>())
}

fn is_nullable(shape: &SchemaRef) -> bool {
    let has_null = |kind: &SchemaType| match kind {
        SchemaType::Type(kind) => *kind == Type::Null,
        SchemaType::Array(kinds) => kinds.contains(&Type::Null),
        SchemaType::AnyValue => false,
    };
    match shape {
        RefOr::T(Schema::Object(object)) => has_null(&object.schema_type),
        RefOr::T(Schema::Array(array)) => has_null(&array.schema_type),
        RefOr::T(Schema::AnyOf(any)) => any.items.iter().any(is_nullable),
        _ => false,
    }
}

/// A schema that can have a description.
pub(crate) trait Describe: Sized {
    /// Sets the description.
    fn describe(self, what: &str) -> Self;
}

impl Describe for ObjectBuilder {
    fn describe(self, what: &str) -> Self {
        self.description(Some(what))
    }
}

impl Describe for ArrayBuilder {
    fn describe(self, what: &str) -> Self {
        self.description(Some(what))
    }
}

impl Describe for OneOfBuilder {
    fn describe(self, what: &str) -> Self {
        self.description(Some(what))
    }
}

impl Describe for AnyOfBuilder {
    fn describe(self, what: &str) -> Self {
        self.description(Some(what))
    }
}

impl Describe for Ref {
    fn describe(mut self, what: &str) -> Self {
        what.clone_into(&mut self.description);
        self
    }
}

impl Describe for SchemaRef {
    fn describe(mut self, what: &str) -> Self {
        if what.is_empty() {
            return self;
        }
        let description = Some(what.to_owned());
        match &mut self {
            Self::Ref(named) => what.clone_into(&mut named.description),
            Self::T(Schema::Object(object)) => object.description = description,
            Self::T(Schema::Array(array)) => array.description = description,
            Self::T(Schema::OneOf(one)) => one.description = description,
            Self::T(Schema::AllOf(all)) => all.description = description,
            Self::T(Schema::AnyOf(any)) => any.description = description,
            Self::T(_) => {}
        }
        self
    }
}
