//! What many answers and questions hold: ids, times, names out of fixed sets.

use guildhall_core::{
    lane::Lane,
    operation::{FailureClass, OperationKind, OperationState},
};
use utoipa::openapi::{
    Ref,
    schema::{KnownFormat, ObjectBuilder},
};

use super::schema::{Describe, SchemaRef, formatted, formatted_as, named, one_of_names, text, text_of};

/// A Discord id, in digits: as a number, JavaScript would lose its last ones.
pub(super) const SNOWFLAKE: &str = "^(?:[1-9][0-9]{0,17}|[1-3][0-9]{18})$";
/// A key under which objects are managed.
pub(super) const KEY: &str = "^[A-Za-z0-9_.:/-]+$";
/// An id of one of our keys.
pub(super) const KEY_ID: &str = "^[a-z0-9]{12}$";
/// Printable ASCII, as idempotency keys are.
pub(super) const PRINTABLE: &str = "^[ -~]+$";
/// A W3C `traceparent`.
pub(super) const TRACEPARENT: &str = "^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$";

/// A guild that the examples speak of.
pub(super) const A_GUILD: &str = "1571715189416398849";
/// An operation that they speak of.
pub(super) const AN_OPERATION: &str = "01890a5d-ac96-774b-bcce-b302099a8057";
/// Another one.
pub(super) const ANOTHER: &str = "01890a5d-b1f0-7c2e-9d3a-5f6b7c8d9e0f";
/// Some time.
pub(super) const A_TIME: &str = "2026-03-01T12:00:00.000Z";
/// A little later.
pub(super) const LATER: &str = "2026-03-01T12:00:01.250Z";

/// The id of a guild, a role, a channel, a message or a user.
pub(super) fn snowflake() -> Ref {
    named("Snowflake")
}

/// A moment.
pub(super) fn time() -> Ref {
    named("Time")
}

/// An operation's id, or a dead letter's.
pub(super) fn operation_id() -> Ref {
    named("OperationId")
}

/// Where the next page begins.
pub(super) fn next() -> SchemaRef {
    super::schema::or_null(text().says("What `cursor` has to be for those that follow; `null` at the end."))
}

/// A path below this server.
pub(super) fn href() -> ObjectBuilder {
    formatted_as("uri-reference").says("Where it is shown.")
}

/// Every schema of this file, by its name.
pub(super) fn schemas() -> Vec<(&'static str, SchemaRef)> {
    let lanes = Lane::ALL.map(Lane::name);
    vec![
        (
            "Snowflake",
            text()
                .pattern(Some(SNOWFLAKE))
                .says("An id of Discord's, as a string of digits.")
                .examples([A_GUILD])
                .into(),
        ),
        ("Time", formatted(KnownFormat::DateTime).says("RFC 3339, in UTC.").examples([A_TIME]).into()),
        (
            "OperationId",
            formatted_as("uuid")
                .says("The id of an operation: a UUID of version 7, so that ids sort by time. A dead letter goes by the same.")
                .examples([AN_OPERATION])
                .into(),
        ),
        ("KeyId", text().pattern(Some(KEY_ID)).says("The id of a key. It is no secret.").examples(["k7mq2vx9apzd"]).into()),
        ("ManagedKey", managed_key().into()),
        ("Kind", one_of_names(OperationKind::ALL.map(OperationKind::name)).says("What an operation does.").into()),
        ("State", one_of_names(OperationState::ALL.map(OperationState::name)).says(STATES).into()),
        ("Lane", one_of_names(lanes).says("How urgent a call is.").into()),
        (
            "FailureClass",
            one_of_names(FailureClass::ALL.map(FailureClass::name))
                .says("What kind of failure it was, and so what is done about it.")
                .into(),
        ),
    ]
}

const STATES: &str = "What has become of an operation. `scheduled` (not due yet: it has no place in its queue and blocks nothing), \
    `queued`, `running`, `delayed` (a limit or a breaker; no attempt is used), `retrying` and `reconciling` (sent, and what came of it is looked for) go on by themselves; \
    `succeeded`, `dead`, `cancelled` and `needs_review` are final.";

/// A key under which a guild's objects are managed.
fn managed_key() -> ObjectBuilder {
    text_of(1, 100)
        .pattern(Some(KEY))
        .says("The name under which others may refer to what this makes: `{\"key\": \"…\"}`.")
        .examples(["mods"])
}
