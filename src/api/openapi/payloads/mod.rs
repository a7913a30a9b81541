//! The payload of each kind of operation: schemas of what `Payload::describe` of `guildhall-core` declares.
//!
//! Bounds, names and defaults stand there. `tests.rs` checks that the schemas mean the same as the parser: it violates
//! every limit, and compares the result.

mod examples;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use guildhall_core::operation::{
    OperationKind, Payload,
    payload::{FieldType, NullHandling, ObjectType, PassedPart, Presence, TextType, ValueType},
};

pub(crate) use self::examples::examples;
use super::schema::{
    Describe as _, Property, SchemaRef, any_object, any_value, boolean, closed, described, formatted_as, integer,
    list_of, null, object, one_of, one_of_names, optional, or_null, required, schema_ref, text, text_of, with_default,
    with_one_of,
};

/// The base name of a kind's schemas: `CreateRole`.
pub(crate) fn title(kind: OperationKind) -> &'static str {
    Payload::describe(kind).name
}

/// The schemas of all payloads and of what they consist of, by name.
pub(crate) fn schemas() -> BTreeMap<String, SchemaRef> {
    let mut schemas = BTreeMap::new();
    for kind in OperationKind::ALL {
        let payload = Payload::describe(kind);
        let mut converter = Converter { nulls: kind.null_handling(), components: &mut schemas };
        let fields = converter.fields(&payload.fields);
        let schema = with_one_of(closed(fields), payload.any_of).describe(payload.description).examples(examples(kind));
        schemas.insert(format!("{}Payload", payload.name), schema.into());
    }
    schemas
}

/// Converts the descriptions of payloads to schemas.
struct Converter<'c> {
    /// What `null` means: the same as an omitted field, or nothing.
    nulls: NullHandling,
    /// The schemas with names.
    components: &'c mut BTreeMap<String, SchemaRef>,
}

impl Converter<'_> {
    fn fields(&mut self, fields: &[FieldType]) -> Vec<Property> {
        fields.iter().map(|field| self.field(field)).collect()
    }

    fn field(&mut self, field: &FieldType) -> Property {
        let schema = described(self.schema(&field.values), field.description);
        match &field.presence {
            Presence::Required => required(field.name, schema),
            Presence::Optional => self.optional(field.name, schema),
            Presence::Default(default) => self.optional(field.name, with_default(schema, default.clone())),
        }
    }

    fn optional(&self, name: &'static str, schema: SchemaRef) -> Property {
        match self.nulls {
            NullHandling::Omitted => optional(name, or_null(schema)),
            NullHandling::Rejected => optional(name, schema),
        }
    }

    fn schema(&mut self, values: &ValueType) -> SchemaRef {
        match values {
            ValueType::Text(described) => self.text(described),
            ValueType::OperationId => formatted_as("uuid").into(),
            ValueType::Integer { min, max } => integer(*min, *max).into(),
            ValueType::Boolean => boolean().into(),
            ValueType::Choice(names) => one_of_names(names.iter().copied()).into(),
            ValueType::List { min, max, items } => list_of(*min, *max, self.schema(items)).into(),
            ValueType::Object(object) if object.alternatives.is_empty() => {
                let schema = closed(self.fields(&object.fields)).describe(object.description);
                self.component(object.name, schema)
            }
            ValueType::Object(object) => {
                let schema = one_of(self.alternatives(object)).describe(object.description);
                self.component(object.name, schema)
            }
            ValueType::IdOr { id, object } => {
                let id = self.text(id);
                let schema = one_of([id].into_iter().chain(self.alternatives(object))).describe(object.description);
                self.component(object.name, schema.examples(examples::references()))
            }
            ValueType::Passed { name, description, part } => {
                self.components.insert((*name).to_owned(), described(passed(part), description));
                schema_ref(name).into()
            }
            ValueType::AnyObject => any_object().into(),
            ValueType::Anything => any_value().into(),
        }
    }

    fn text(&mut self, described: &TextType) -> SchemaRef {
        let schema = described.length.map_or_else(text, |(min, max)| text_of(min, max));
        let description = Some(described.description).filter(|description| !description.is_empty());
        let schema = schema.description(description).pattern(described.pattern).examples(described.example);
        match described.name {
            Some(name) => {
                self.components.insert(name.to_owned(), schema.into());
                schema_ref(name).into()
            }
            None => schema.into(),
        }
    }

    /// One object for each of the fields of which an object has exactly one.
    fn alternatives(&mut self, of: &ObjectType) -> Vec<SchemaRef> {
        let mut objects = Vec::new();
        for (title, own) in &of.alternatives {
            let mut fields = vec![self.field(own)];
            fields.extend(self.fields(&of.fields));
            if self.nulls == NullHandling::Omitted {
                let others = of.alternatives.iter().filter(|(_, other)| other.name != own.name);
                fields.extend(others.map(|(_, other)| optional(other.name, null())));
            }
            objects.push(closed(fields).title(Some(*title)).into());
        }
        objects
    }

    /// A reference to the schema of this name.
    fn component(&mut self, name: &str, schema: impl Into<SchemaRef>) -> SchemaRef {
        let name = match self.nulls {
            NullHandling::Omitted => name.to_owned(),
            NullHandling::Rejected => format!("Strict{name}"),
        };
        self.components.insert(name.clone(), schema.into());
        schema_ref(&name).into()
    }
}

/// A part of an object of Discord, with limits and otherwise passed through.
fn passed(part: &PassedPart) -> SchemaRef {
    match part {
        PassedPart::Text(max) => text_of(0, *max).into(),
        PassedPart::List(max, items) => list_of(0, *max, passed(items)).into(),
        PassedPart::Object(parts) => {
            object(parts.iter().map(|(name, part)| optional(name, or_null(passed(part))))).into()
        }
    }
}
