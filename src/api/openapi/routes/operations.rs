//! Submitting operations, looking at them, taking them back.

use guildhall_core::operation::OperationKind;
use serde_json::json;

use super::{
    operation_schemas::{an_accepted, an_operation, an_operation_in_full},
    submit::{WITHOUT_GUILD, examples, one_or_many},
};
use crate::api::{
    openapi::{
        common::{AN_OPERATION, ANOTHER, PRINTABLE, operation_id, snowflake, time},
        headers::ResponseHeader,
        route_doc::{RouteDoc, Tag},
        schema::{any_of, formatted_as, named, text, text_of, truth},
    },
    problem::ProblemType,
};

pub(super) fn about(method: &str, path: &str) -> Option<RouteDoc> {
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

const ACCEPTED: &str = "`202` means kept: from now on it ends `succeeded`, `dead`, `cancelled` or `needs_review`, whatever \
    happens to the process. Everything that is wrong is told at once, and then nothing is accepted.\n\nAfter a `503`, or no \
    answer at all, nobody may know whether it was accepted: send it again with the same idempotency key.";

/// What both ways of submitting share.
fn accepts(about: RouteDoc) -> RouteDoc {
    let key = text_of(1, 255).pattern(Some(PRINTABLE));
    let many = json!({"operations": [an_accepted()]});
    let mut replayed = an_accepted();
    replayed["replayed"] = true.into();
    let mut ended = an_operation_in_full();
    ended["replayed"] = false.into();
    let wait = "`wait=N`: answer when all of it has ended, but after N seconds (1 to 60) at the latest.";
    let told = |names: &[&str]| any_of(names.iter().map(|name| named(name).into()));
    about
        .header(
            "Idempotency-Key",
            key,
            "For a single operation; each of many has its own `key`. Kept for 24 hours after the operation is over.",
        )
        .header(
            "traceparent",
            text(),
            "The trace that the operations belong to, as W3C has it. One that is none is not there.",
        )
        .header("Prefer", text(), wait)
        .answers(202, "Accepted.", told(&["Accepted", "AcceptedMany"]), [("one", an_accepted()), ("many", many)])
        .with(ResponseHeader::Location)
        .with(ResponseHeader::PreferenceApplied)
        .refuses(ProblemType::NotFound)
        .refuses(ProblemType::InvalidOperation)
        .refuses(ProblemType::KeyReused)
        .refuses(ProblemType::QueueFull)
        .refuses(ProblemType::ShareFull)
        .refuses(ProblemType::StoreFull)
        .answers(
            200,
            "All of it was accepted before, with the same keys; or all of it has ended, and was waited for.",
            told(&["Accepted", "AcceptedMany", "Waited", "WaitedMany"]),
            [("replayed", replayed), ("ended", ended)],
        )
        .with(ResponseHeader::Location)
        .with(ResponseHeader::Replayed)
        .with(ResponseHeader::PreferenceApplied)
}

fn submit_in_guild() -> RouteDoc {
    let about = RouteDoc::new(Tag::Operations, "submit_in_guild", "Submit operations of a guild")
        .says(format!(
            "One operation, or many as `{{\"operations\": […]}}`. They are done one at a time, in the order accepted. Whatever gives \
             a dangerous permission also needs the scope `danger`; `request`, and `read` outside the guild, \
             need `application`.\n\n{ACCEPTED}"
        ))
        .path("guild_id", snowflake(), "The guild.")
        .takes(one_or_many("NewOperation"), examples(&OperationKind::ALL));
    accepts(about)
}

fn submit() -> RouteDoc {
    let about = RouteDoc::new(Tag::Operations, "submit", "Submit operations that belong to no guild")
        .says(format!(
            "One operation, or many as `{{\"operations\": […]}}`. Also needs the scope `application`.\n\n{ACCEPTED}"
        ))
        .takes(one_or_many("NewApplicationOperation"), examples(&WITHOUT_GUILD));
    accepts(about)
}

fn list() -> RouteDoc {
    RouteDoc::new(Tag::Operations, "list_operations", "List operations")
        .says("The newest first: those that the key may know of.")
        .query("guild_id", snowflake(), "Those of this guild.")
        .query("state", named("State"), "Those in this state.")
        .query("kind", named("Kind"), "Those of this kind.")
        .query("parked", truth(), "Those that are parked, or that are not.")
        .query("deployment_id", formatted_as("uuid"), "Those of this deployment.")
        .query("created_after", time(), "Those that were accepted after this.")
        .query("created_before", time(), "Those that were accepted before this.")
        .paged()
        .answers(
            200,
            "A page of them.",
            named("OperationPage"),
            [("page", json!({"operations": [an_operation()], "next": null}))],
        )
}

fn stream() -> RouteDoc {
    RouteDoc::new(Tag::Operations, "stream_operations", "Follow operations as they change")
        .says(
            "Server-sent events. Each `event: operation` has an operation as lists have it for its `data`, and a place for its \
             `id`. Whoever comes back with that as `Last-Event-ID` misses nothing that is still kept; `event: gap` says that \
             something is not. Comments keep the connection alive. A client that does not read is dropped.",
        )
        .query("guild_id", snowflake(), "Those of this guild.")
        .query("kind", named("Kind"), "Those of this kind.")
        .query("state", named("State"), "Those that come into this state.")
        .query("last_event_id", text(), "The same as the header `Last-Event-ID`, for who cannot send one.")
        .header("Last-Event-ID", text(), "The `id` of the last event that was read: it goes on after that one.")
        .refuses(ProblemType::BadRequest)
        .answers_as(
            "text/event-stream",
            200,
            "Events, for as long as both sides like.",
            text(),
            [("an event", format!("id: 17\nevent: operation\ndata: {}\n\n", an_operation()).into())],
        )
}

fn show() -> RouteDoc {
    RouteDoc::new(Tag::Operations, "show_operation", "Show an operation")
        .says(
            "With its tries. An operation is kept for an hour after it has succeeded or was cancelled, and for a day after it was \
             given up, unless `retention` in the settings says otherwise.",
        )
        .path("id", operation_id(), "The operation.")
        .answers(200, "The operation.", named("OperationInFull"), [("operation", an_operation_in_full())])
}

fn cancel() -> RouteDoc {
    RouteDoc::new(Tag::Operations, "cancel_operation", "Take an operation back")
        .says(
            "Possible until a call of it is sent. After that the answer is `409`; `progress` lists what is known to be done, and the \
             operation continues by itself. Idempotent.",
        )
        .path("id", operation_id(), "The operation.")
        .answers(
            200,
            "It was taken back.",
            named("Cancelled"),
            [("cancelled", json!({"id": AN_OPERATION, "state": "cancelled", "href": format!("/v1/operations/{AN_OPERATION}")}))],
        )
        .refuses(ProblemType::Conflict)
}

fn retry() -> RouteDoc {
    RouteDoc::new(Tag::Operations, "retry_operation", "Try an operation again")
        .says(
            "One that waits (`scheduled`, `queued`, `delayed`, `retrying`) is due now; a scheduled one joins its queue. One that \
             is `dead` or `needs_review` is done again as another operation, from the end of its queue; `redrive_of` names the \
             first. Needs the scopes that submitting it needs.",
        )
        .path("id", operation_id(), "The operation.")
        .answers(202, "It is tried again.", named("DoneAgain"), [("another operation", done_again())])
        .with(ResponseHeader::Location)
        .refuses(ProblemType::Conflict)
        .refuses(ProblemType::AlreadyRedriven)
        .refuses(ProblemType::InvalidOperation)
        .refuses(ProblemType::QueueFull)
        .refuses(ProblemType::ShareFull)
        .refuses(ProblemType::StoreFull)
}

/// An operation that another one does again.
pub(super) fn done_again() -> serde_json::Value {
    json!({"id": ANOTHER, "state": "queued", "redrive_of": AN_OPERATION, "href": format!("/v1/operations/{ANOTHER}")})
}
