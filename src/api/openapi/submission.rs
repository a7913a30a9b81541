//! Schemas of operations in submissions.

use guildhall_actors::submission::{ENVELOPE, EnvelopeField, FieldFormat, MAX_BATCH};
use guildhall_core::operation::{OperationKind, Payload};
use serde_json::{Value, json};
use utoipa::openapi::schema::{Discriminator, ObjectBuilder};

use super::{
    common::{PRINTABLE, TRACEPARENT},
    payloads,
    route_doc::RouteDoc,
    schema::{
        Describe as _, Property, SchemaRef, closed, integer, list_of, one_of, one_of_names, optional, or_null,
        required, schema_ref, text, text_of,
    },
};

/// The kinds that can be submitted without a guild.
pub(crate) fn kinds_without_guild() -> Vec<OperationKind> {
    OperationKind::ALL.into_iter().filter(|kind| !kind.needs_guild()).collect()
}

/// Adds a body with one operation of these kinds, or several.
pub(crate) fn with_body(doc: RouteDoc, one: &str, kinds: &[OperationKind]) -> RouteDoc {
    let doc = doc.body_of(true, one_or_many(one));
    examples(kinds).into_iter().fold(doc, |doc, (summary, body)| doc.body_example(summary, body))
}

/// One operation, or several.
fn one_or_many(one: &str) -> SchemaRef {
    let many = closed([required(
        "operations",
        list_of(1, MAX_BATCH, schema_ref(one)).describe("All are accepted, or none; they are executed in this order."),
    )]);
    one_of([schema_ref(one).into(), many.title(Some("Many")).into()]).into()
}

/// Examples of one operation of each kind, and of several at once.
fn examples(kinds: &[OperationKind]) -> Vec<(String, Value)> {
    let of = |kind: &OperationKind| {
        let payload = payloads::examples(*kind).into_iter().next();
        json!({"kind": kind.name(), "payload": payload})
    };
    let each = kinds.iter().map(|kind| (kind.name().to_owned(), of(kind)));
    let many = json!({"operations": kinds.iter().take(2).map(of).collect::<Vec<_>>()});
    each.chain([("several at once".to_owned(), many)]).collect()
}

/// All schemas of this file, by name.
pub(crate) fn schemas() -> Vec<(String, SchemaRef)> {
    let each = OperationKind::ALL.map(|kind| (new(kind), operation(kind).into()));
    let of = |kinds: &[OperationKind], description: &str| -> SchemaRef {
        let mapping = kinds.iter().map(|kind| (kind.name(), format!("#/components/schemas/{}", new(*kind))));
        one_of(kinds.iter().map(|kind| schema_ref(&new(*kind)).into()))
            .discriminator(Some(Discriminator::with_mapping("kind", mapping)))
            .describe(description)
            .into()
    };
    let unions = [
        ("NewOperation".to_owned(), of(&OperationKind::ALL, "An operation to submit. `kind` determines its payload.")),
        (
            "NewApplicationOperation".to_owned(),
            of(&kinds_without_guild(), "An operation to submit without a guild. `kind` determines its payload."),
        ),
    ];
    each.into_iter().chain(unions).collect()
}

/// The name of the schema of a new operation.
fn new(kind: OperationKind) -> String {
    format!("New{}", payloads::title(kind))
}

/// An operation of a kind, as it is submitted.
pub(crate) fn operation(kind: OperationKind) -> ObjectBuilder {
    let required = [
        required("kind", one_of_names([kind.name()])),
        required("payload", schema_ref(&format!("{}Payload", payloads::title(kind)))),
    ];
    closed(required.into_iter().chain(ENVELOPE.iter().map(envelope_field)))
        .describe(Payload::describe(kind).description)
}

/// A field of an operation besides its kind and payload.
fn envelope_field(field: &EnvelopeField) -> Property {
    let shape = match &field.format {
        FieldFormat::Printable(max) => text_of(1, *max).pattern(Some(PRINTABLE)),
        FieldFormat::Line(max) => text_of(0, *max),
        FieldFormat::Number(range) => integer(*range.start(), *range.end()),
        FieldFormat::Traceparent => text().pattern(Some(TRACEPARENT)),
    };
    optional(field.name, or_null(shape.default(field.default.map(Value::from)).describe(field.description)))
}
