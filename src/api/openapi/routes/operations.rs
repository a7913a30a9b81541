//! Submit, show, cancel and retry operations.

use guildhall_core::operation::OperationKind;
use serde_json::json;

use super::{
    operation_schemas::{an_accepted, an_operation, an_operation_in_full},
    submit::{examples, kinds_without_guild, one_or_many},
};
use crate::api::{
    openapi::{
        common::{AN_OPERATION, ANOTHER_OPERATION, PRINTABLE, operation_id, snowflake, time},
        headers::ResponseHeader,
        route_doc::{RouteDoc, Tag},
        schema::{any_of, boolean, formatted_as, schema_ref, text, text_of},
    },
    problem::ProblemType,
};

pub(crate) fn doc_for(method: &str, path: &str) -> Option<RouteDoc> {
    Some(match (method, path) {
        ("POST", "/guilds/{guild_id}/operations") => submit_in_guild(),
        ("POST", "/operations") => submit(),
        ("GET", "/operations") => list(),
        ("GET", "/operations/stream") => stream(),
        ("GET", "/operations/{id}") => show(),
        ("POST", "/operations/{id}/cancel") => cancel(),
        ("POST", "/operations/{id}/retry") => retry(),
        _ => return None,
    })
}

const ACCEPTED: &str = "`202` means that the operation is stored: it ends `succeeded`, `dead`, `cancelled` or \
    `needs_review`, whatever happens to the process. If any field is invalid, nothing is accepted, and all errors are \
    reported.\n\nAfter a `503`, or without a response, it is unknown whether it was accepted: send it again with the \
    same idempotency key.";

/// What both routes for submissions share.
fn with_submission(doc: RouteDoc) -> RouteDoc {
    let key = text_of(1, 255).pattern(Some(PRINTABLE));
    let many = json!({"operations": [an_accepted()]});
    let mut replayed = an_accepted();
    replayed["replayed"] = true.into();
    let mut ended = an_operation_in_full();
    ended["replayed"] = false.into();
    let wait = "`wait=N`: respond when all operations are finished, but after at most N seconds (1 to 60).";
    let schemas = |names: &[&str]| any_of(names.iter().map(|name| schema_ref(name).into()));
    doc.header(
        "Idempotency-Key",
        key,
        "For a single operation; each of several has its own `key`. Stored for 24 hours after the operation is \
             finished.",
    )
    .header("traceparent", text(), "The trace of the operations, as W3C defines it. An invalid value is ignored.")
    .header("Prefer", text(), wait)
    .responses(202, "Accepted.", schemas(&["Accepted", "AcceptedMany"]), [("one", an_accepted()), ("many", many)])
    .with_header(ResponseHeader::Location)
    .with_header(ResponseHeader::PreferenceApplied)
    .problem(ProblemType::NotFound)
    .problem(ProblemType::InvalidOperation)
    .problem(ProblemType::KeyReused)
    .problem(ProblemType::QueueFull)
    .problem(ProblemType::ShareFull)
    .problem(ProblemType::StoreFull)
    .responses(
        200,
        "All operations were accepted before with the same keys; or all are finished, and the caller waited for \
             them.",
        schemas(&["Accepted", "AcceptedMany", "Waited", "WaitedMany"]),
        [("replayed", replayed), ("ended", ended)],
    )
    .with_header(ResponseHeader::Location)
    .with_header(ResponseHeader::Replayed)
    .with_header(ResponseHeader::PreferenceApplied)
}

fn submit_in_guild() -> RouteDoc {
    let doc = RouteDoc::new(Tag::Operations, "submit_in_guild", "Submit operations for a guild")
        .description(format!(
            "One operation, or several as `{{\"operations\": […]}}`. They are executed one at a time, in the order of \
             acceptance. Operations that give a dangerous permission also require the scope `danger`; `request`, and \
             `read` outside the guild, require `application`.\n\n{ACCEPTED}"
        ))
        .path("guild_id", snowflake(), "The guild.")
        .required_body(one_or_many("NewOperation"), examples(&OperationKind::ALL));
    with_submission(doc)
}

fn submit() -> RouteDoc {
    let doc = RouteDoc::new(Tag::Operations, "submit", "Submit operations without a guild")
        .description(format!(
            "One operation, or several as `{{\"operations\": […]}}`. Also requires the scope \
             `application`.\n\n{ACCEPTED}"
        ))
        .required_body(one_or_many("NewApplicationOperation"), examples(&kinds_without_guild()));
    with_submission(doc)
}

fn list() -> RouteDoc {
    RouteDoc::new(Tag::Operations, "list_operations", "List operations")
        .description("The newest first; only those that are visible to the key.")
        .query("guild_id", snowflake(), "Filter by guild.")
        .query("state", schema_ref("State"), "Filter by state.")
        .query("kind", schema_ref("Kind"), "Filter by kind.")
        .query("parked", boolean(), "Filter by whether the operation is parked.")
        .query("deployment_id", formatted_as("uuid"), "Filter by deployment.")
        .query("created_after", time(), "Only those accepted at or after this time.")
        .query("created_before", time(), "Only those accepted before this time.")
        .with_paging()
        .responses(
            200,
            "A page of operations.",
            schema_ref("OperationPage"),
            [("page", json!({"operations": [an_operation()], "next": null}))],
        )
}

fn stream() -> RouteDoc {
    RouteDoc::new(Tag::Operations, "stream_operations", "Stream changes of operations")
        .description(
            "Server-sent events. The `data` of each `event: operation` is an operation as in lists, and its `id` is a \
             position. A client that reconnects with it as `Last-Event-ID` misses nothing that is still stored; \
             `event: gap` reports that something is not. Comments keep the connection alive. A client that does not \
             read is disconnected.",
        )
        .query("guild_id", snowflake(), "Filter by guild.")
        .query("kind", schema_ref("Kind"), "Filter by kind.")
        .query("state", schema_ref("State"), "Only operations that enter this state.")
        .query("last_event_id", text(), "The same as the header `Last-Event-ID`, for clients that cannot send it.")
        .header("Last-Event-ID", text(), "The `id` of the last event that was read; the stream continues after it.")
        .problem(ProblemType::BadRequest)
        .responses_as(
            "text/event-stream",
            200,
            "Events, until one side closes the connection.",
            text(),
            [("an event", format!("id: 17\nevent: operation\ndata: {}\n\n", an_operation()).into())],
        )
}

fn show() -> RouteDoc {
    RouteDoc::new(Tag::Operations, "show_operation", "Show an operation")
        .description(
            "With its attempts. An operation is stored for an hour after it succeeded or was cancelled, and for a day \
             after it failed for good, unless `retention` in the settings says otherwise.",
        )
        .path("id", operation_id(), "The operation.")
        .responses(200, "The operation.", schema_ref("OperationInFull"), [("operation", an_operation_in_full())])
}

fn cancel() -> RouteDoc {
    RouteDoc::new(Tag::Operations, "cancel_operation", "Cancel an operation")
        .description(
            "Possible until one of its calls is sent. After that the response is `409`; `progress` lists the completed \
             steps, and the operation continues by itself. Idempotent.",
        )
        .path("id", operation_id(), "The operation.")
        .responses(
            200,
            "The operation is cancelled.",
            schema_ref("Cancelled"),
            [(
                "cancelled",
                json!({"id": AN_OPERATION, "state": "cancelled", "href": format!("/v1/operations/{AN_OPERATION}")}),
            )],
        )
        .problem(ProblemType::Conflict)
}

fn retry() -> RouteDoc {
    RouteDoc::new(Tag::Operations, "retry_operation", "Retry an operation")
        .description(
            "A waiting operation (`scheduled`, `queued`, `delayed`, `retrying`) becomes due now; a scheduled one joins \
             its queue. A `dead` or `needs_review` operation is submitted again as a new one, at the end of its queue; \
             `redrive_of` names the first. Requires the same scopes as submitting it.",
        )
        .path("id", operation_id(), "The operation.")
        .responses(
            202,
            "The operation will be tried again.",
            schema_ref("DoneAgain"),
            [("new operation", a_redriven_operation())],
        )
        .with_header(ResponseHeader::Location)
        .problem(ProblemType::Conflict)
        .problem(ProblemType::AlreadyRedriven)
        .problem(ProblemType::InvalidOperation)
        .problem(ProblemType::QueueFull)
        .problem(ProblemType::ShareFull)
        .problem(ProblemType::StoreFull)
}

/// An operation that redrives another one.
pub(crate) fn a_redriven_operation() -> serde_json::Value {
    json!({"id": ANOTHER_OPERATION, "state": "queued", "redrive_of": AN_OPERATION, "href": format!("/v1/operations/{ANOTHER_OPERATION}")})
}
