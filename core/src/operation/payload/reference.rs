//! The format of references to objects.

use serde_json::Value;

use super::{
    field_reader::object,
    format::{Format, ID, KEY, Plain, SNOWFLAKE},
    record::{Alternative, Definition as _, EitherField},
    schema::{ObjectType, ValueType},
    validation::FieldContext,
    value, write,
};
use crate::operation::{OperationId, Reference};

/// A reference to an object, by its id or, before it exists, by key or operation.
pub(super) const REFERENCE: Plain<Reference> = Plain {
    read,
    write: |out, reference| match reference {
        Reference::Id(id) => ID.write(out, id),
        Reference::Key(_) | Reference::Operation(_) => write::object(out, |fields| UNRESOLVED.write(fields, reference)),
    },
    describe: || {
        let mut object = ObjectType::new(
            "Reference",
            "A role, a channel or a message: its id, `{\"key\": \"…\"}` or `{\"operation\": \"…\"}`.",
        );
        UNRESOLVED.describe("", &mut object);
        ValueType::IdOr { id: SNOWFLAKE, object }
    },
};

const UNRESOLVED: EitherField<Reference, Plain<String>, Plain<OperationId>> = EitherField {
    first: Alternative {
        name: "key",
        title: "By key",
        description: "The key of a managed object of this guild.",
        format: KEY,
        with: Reference::Key,
        get: |reference| if let Reference::Key(key) = reference { Some(key) } else { None },
    },
    second: Alternative {
        name: "operation",
        title: "By the operation that creates it",
        description: "The object that this operation of the guild creates.",
        format: OPERATION_ID,
        with: Reference::Operation,
        get: |reference| if let Reference::Operation(id) = reference { Some(id) } else { None },
    },
};

const OPERATION_ID: Plain<OperationId> =
    Plain { read: value::operation_id, write: write::quoted, describe: || ValueType::OperationId };

fn read(value: &Value, at: &mut FieldContext<'_>) -> Option<Reference> {
    match value {
        Value::String(_) | Value::Number(_) => ID.read(value, at).map(Reference::Id),
        Value::Object(_) => object(value, at, |form| UNRESOLVED.read(form)),
        Value::Null | Value::Bool(_) | Value::Array(_) => {
            at.invalid(r#"must be an id as a string, {"key": "…"} or {"operation": "…"}"#)
        }
    }
}
