//! Schemas of operations in submissions.

use guildhall_core::operation::{OperationKind, Payload};
use serde_json::{Value, json};
use utoipa::openapi::schema::{Discriminator, ObjectBuilder};

use super::{
    common::{PRINTABLE, TRACEPARENT},
    payloads,
    route_doc::RouteDoc,
    schema::{
        Describe as _, SchemaRef, closed, integer, list_of, one_of, one_of_names, optional, or_null, required,
        schema_ref, text, text_of,
    },
};

/// The kinds that can be submitted without a guild.
pub(crate) fn kinds_without_guild() -> Vec<OperationKind> {
    OperationKind::ALL.into_iter().filter(|kind| !kind.needs_guild()).collect()
}

/// Maximum number of operations in a submission.
const MAX_OPERATIONS: usize = 1_000;

/// Maximum delay or deadline: thirty days.
const MAX_DELAY_MS: u64 = 30 * 24 * 3_600_000;

/// Adds a body with one operation of these kinds, or several.
pub(crate) fn with_body(doc: RouteDoc, one: &str, kinds: &[OperationKind]) -> RouteDoc {
    let doc = doc.body_of(true, one_or_many(one));
    examples(kinds).into_iter().fold(doc, |doc, (summary, body)| doc.body_example(summary, body))
}

/// One operation, or several.
fn one_or_many(one: &str) -> SchemaRef {
    let many = closed([required(
        "operations",
        list_of(1, MAX_OPERATIONS, schema_ref(one))
            .describe("All are accepted, or none; they are executed in this order."),
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
    let optional = |name, shape: ObjectBuilder| optional(name, or_null(shape));
    closed([
        required("kind", one_of_names([kind.name()])),
        required("payload", schema_ref(&format!("{}Payload", payloads::title(kind)))),
        optional(
            "key",
            text_of(1, 255)
                .pattern(Some(PRINTABLE))
                .describe("The idempotency key: the same key with the same kind, guild and payload is accepted once."),
        ),
        optional("reason", text_of(0, 480).describe("Reason for Discord's audit log. No control characters.")),
        optional("max_attempts", integer(1, 20).default(Some(3.into())).describe("Maximum number of attempts.")),
        optional(
            "delay_ms",
            integer(0, MAX_DELAY_MS)
                .default(Some(0.into()))
                .describe("Not executed before so long from now: it is `scheduled`, and joins its queue then."),
        ),
        optional(
            "deadline_ms",
            integer(1, MAX_DELAY_MS).describe(
                "Not executed after so long from now; must be more than \
            `delay_ms`.",
            ),
        ),
        optional(
            "trace",
            text().pattern(Some(TRACEPARENT)).describe(
                "A W3C `traceparent`; the header of that name is used \
            as well.",
            ),
        ),
    ])
    .describe(Payload::describe(kind).description)
}
