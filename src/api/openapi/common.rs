//! Schemas that many requests and responses use: ids, times, names out of fixed sets.

use guildhall_core::{
    lane::Lane,
    operation::{FailureClass, OperationKind, OperationState},
};
use utoipa::openapi::{
    Ref,
    schema::{KnownFormat, ObjectBuilder},
};

use super::schema::{Describe, SchemaRef, formatted, formatted_as, one_of_names, schema_ref, text};

/// The id of an API key.
pub(crate) const KEY_ID: &str = "^[a-z0-9]{12}$";
/// Printable ASCII, as in idempotency keys.
pub(crate) const PRINTABLE: &str = "^[ -~]+$";
/// A W3C `traceparent`.
pub(crate) const TRACEPARENT: &str = "^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$";

/// A guild in examples.
pub(crate) const A_GUILD: &str = "1571715189416398849";
/// An operation in examples.
pub(crate) const AN_OPERATION: &str = "01890a5d-ac96-774b-bcce-b302099a8057";
/// Another operation in examples.
pub(crate) const ANOTHER_OPERATION: &str = "01890a5d-b1f0-7c2e-9d3a-5f6b7c8d9e0f";
/// A time in examples.
pub(crate) const A_TIME: &str = "2026-03-01T12:00:00.000Z";
/// A slightly later time in examples.
pub(crate) const LATER: &str = "2026-03-01T12:00:01.250Z";

/// The id of a guild, a role, a channel, a message or a user.
pub(crate) fn snowflake() -> Ref {
    schema_ref("Snowflake")
}

/// A time.
pub(crate) fn time() -> Ref {
    schema_ref("Time")
}

/// The id of an operation or a dead letter.
pub(crate) fn operation_id() -> Ref {
    schema_ref("OperationId")
}

/// The start of the next page.
pub(crate) fn next() -> SchemaRef {
    super::schema::or_null(text().describe("Value of `cursor` for the next page; `null` on the last page."))
}

/// A path on this server.
pub(crate) fn href() -> ObjectBuilder {
    formatted_as("uri-reference").describe("Path of this resource.")
}

/// All schemas of this file, by name.
pub(crate) fn schemas() -> Vec<(&'static str, SchemaRef)> {
    let lanes = Lane::ALL.map(Lane::name);
    vec![
        ("Time", formatted(KnownFormat::DateTime).describe("A time in UTC, as RFC 3339.").examples([A_TIME]).into()),
        (
            "OperationId",
            formatted_as("uuid")
                .describe(
                    "The id of an operation: a UUID of version 7, so that ids sort by time. Its dead letter has the \
                    same id.",
                )
                .examples([AN_OPERATION])
                .into(),
        ),
        (
            "KeyId",
            text()
                .pattern(Some(KEY_ID))
                .describe("The id of an API key. It is not secret.")
                .examples(["k7mq2vx9apzd"])
                .into(),
        ),
        ("Kind", one_of_names(OperationKind::ALL.map(OperationKind::name)).describe("What an operation does.").into()),
        ("State", one_of_names(OperationState::ALL.map(OperationState::name)).describe(STATES).into()),
        ("Lane", one_of_names(lanes).describe("The priority of a call.").into()),
        (
            "FailureClass",
            one_of_names(FailureClass::ALL.map(FailureClass::name))
                .describe("The class of a failure, which determines how it is handled.")
                .into(),
        ),
    ]
}

const STATES: &str = "The state of an operation. `scheduled` (not due yet: it is not in its queue and blocks nothing), \
    `queued`, `running`, `delayed` (by a limit or a breaker; no attempt is used), `retrying` and `reconciling` (sent, \
    and its outcome is being determined) continue by themselves; `succeeded`, `dead`, `cancelled` and `needs_review` \
    are final.";
