//! Schemas of operations in responses.

use guildhall_core::operation::ProgressStep;
use serde_json::{Value, json};

use crate::api::openapi::{
    common::{A_GUILD, A_TIME, AN_OPERATION, LATER, href, next, operation_id, snowflake, time},
    schema::{
        Describe as _, Field, SchemaRef, any_object, any_of, any_value, boolean, count, integer, list, object,
        one_of_names, optional, or_null, required, schema_ref, text,
    },
};

/// An operation that was accepted now or before.
fn accepted() -> Vec<Field> {
    vec![
        required("id", operation_id()),
        required("kind", schema_ref("Kind")),
        required("guild_id", or_null(snowflake())),
        required("state", schema_ref("State")),
        required(
            "eligible_at",
            or_null(time().describe(
                "Not executed before this time; `null` for one that was accepted \
            before.",
            )),
        ),
        required("result", any_value().describe("The result, if it has succeeded already.")),
        required(
            "replayed",
            boolean().describe("Whether it was accepted before with the same key, so that nothing new was accepted."),
        ),
        required("href", href()),
    ]
}

fn replayed() -> Field {
    required(
        "replayed",
        boolean().describe(
            "Whether it was accepted before with the same key, so that nothing new was \
        accepted.",
        ),
    )
}

/// An operation in a list.
fn operation_fields() -> Vec<Field> {
    vec![
        required("id", operation_id()),
        required("kind", schema_ref("Kind")),
        required("guild_id", or_null(snowflake())),
        required("state", schema_ref("State")),
        required("seq", or_null(count().describe("Its position in its queue; `null` while it is scheduled."))),
        required("lane", schema_ref("Lane")),
        required("payload", any_object().describe("The payload of its kind. Interaction tokens are redacted.")),
        required("reason", or_null(text().describe("Reason for Discord's audit log."))),
        required("attempts", count().describe("Number of attempts.")),
        required("max_attempts", integer(1, 20).describe("Maximum number of attempts.")),
        required("delays", count().describe("How often it was delayed by a limit or a breaker.")),
        required("parked", boolean().describe("Whether it waits for so long that others may overtake it.")),
        required("eligible_at", time().describe("Not executed before this time.")),
        required("deadline_at", or_null(time().describe("Not executed after this time."))),
        required(
            "waits_for",
            or_null(schema_ref("WaitsFor").describe(
                "What it waits for; `null` if it does not wait, and for queued and scheduled \
                    ones in streams.",
            )),
        ),
        required(
            "progress",
            list(schema_ref("ProgressStep")).describe(
                "The completed steps of an operation with several calls; empty if there are none, and after success.",
            ),
        ),
        required("error", or_null(schema_ref("Failure").describe("Why it is delayed or failed."))),
        required("result", any_value().describe("The result.")),
        required("trace", or_null(text().describe("The trace of the operation (W3C `traceparent`)."))),
        required("deployment_id", or_null(text().describe("The deployment that it is a step of."))),
        required("redrive_of", or_null(operation_id().describe("The operation that this one redrives."))),
        required("created_at", time()),
        required("updated_at", time()),
        required("finished_at", or_null(time())),
        required("href", href()),
    ]
}

/// All schemas of this file, by name.
pub(crate) fn schemas() -> Vec<(&'static str, SchemaRef)> {
    let failure = object([
        required("class", schema_ref("FailureClass")),
        required("message", text().describe("What failed, and what to do if something can be done.")),
        required("status", or_null(integer(100, 599).describe("The status of Discord's response."))),
        required("code", or_null(count().describe("Discord's own error code."))),
    ]);
    let waits_for = object([
        required("reason", one_of_names(WAIT_REASONS).describe(WAIT_REASON_DESCRIPTION)),
        required("until", or_null(time().describe("When it continues, if that is known."))),
        required("operation", or_null(operation_id().describe("The operation that it waits for."))),
        required("detail", or_null(text().describe("More details."))),
    ]);
    let step = object([
        required("step", one_of_names(ProgressStep::NAMES).describe("The completed step.")),
        required("channel_id", snowflake()),
        optional("message_id", snowflake()),
        optional("role_id", snowflake()),
        optional("user_id", snowflake()),
        optional("key", text().describe("The key of the message from now on.")),
    ]);
    let attempt = object([
        required("n", count().describe("Number of the attempt, from 1.")),
        required("started_at", time()),
        required("ended_at", time()),
        required("status", or_null(integer(100, 599).describe("The status of Discord's response."))),
        required("class", text().describe("`succeeded`, or the class of the failure.")),
        required("detail", or_null(text().describe("What happened."))),
    ]);
    let happened = object([
        required("at", time()),
        required("what", one_of_names(TIMELINE_ENTRIES)),
        optional("attempt", or_null(count().describe("Number of the attempt."))),
        optional("detail", or_null(text().describe("More details."))),
    ]);
    let in_full = || {
        operation_fields().into_iter().chain([
            required("tries", list(schema_ref("Try")).describe("The attempts.")),
            required("key", or_null(text().describe("Its idempotency key."))),
            optional("timeline", list(schema_ref("Happening")).describe("What happened to it, in order.")),
        ])
    };
    let again = object([
        required("id", operation_id().describe("The operation to follow from now on.")),
        required("state", schema_ref("State")),
        required(
            "redrive_of",
            or_null(operation_id().describe("The operation that this one redrives; `null` if it is the same one.")),
        ),
        required("href", href()),
    ]);
    let cancelled = object([
        required("id", operation_id()),
        required("state", one_of_names(["cancelled"])),
        required("href", href()),
    ]);
    let page = object([required("operations", list(schema_ref("Operation"))), required("next", next())]);
    vec![
        ("Accepted", object(accepted()).describe("An operation that was accepted now or before.").into()),
        ("AcceptedMany", object([required("operations", list(schema_ref("Accepted")))]).into()),
        ("Operation", object(operation_fields()).describe("An operation without its attempts.").into()),
        ("OperationInFull", object(in_full()).describe("An operation with its attempts.").into()),
        ("OperationPage", page.into()),
        (
            "Waited",
            object(in_full().chain([replayed()]))
                .describe("A finished operation that the caller has waited for.")
                .into(),
        ),
        (
            "WaitedMany",
            object([required(
                "operations",
                list(any_of([schema_ref("Waited").into(), schema_ref("Accepted").into()])),
            )])
            .into(),
        ),
        ("Failure", failure.describe("Why an operation failed or is delayed.").into()),
        ("WaitsFor", waits_for.describe("What an operation waits for.").into()),
        ("ProgressStep", step.describe("A call with an effect that Discord has confirmed.").into()),
        ("Try", attempt.describe("One attempt.").into()),
        ("Happening", happened.describe("An entry of the timeline of an operation.").into()),
        ("DoneAgain", again.into()),
        ("Cancelled", cancelled.into()),
    ]
}

/// What an operation may wait for.
const WAIT_REASONS: [&str; 12] = [
    "delay",
    "policy",
    "scheduled_operation",
    "queue",
    "guild_paused",
    "all_paused",
    "process",
    "turn",
    "limit",
    "parked",
    "backoff",
    "reconciliation",
];

/// The meaning of each reason.
const WAIT_REASON_DESCRIPTION: &str = "`delay`: its `delay_ms`. `policy`: the rate limit of its caller. `scheduled_operation`: it \
    refers to an operation that is scheduled. `queue`: an operation before it in its queue. `guild_paused`, \
    `all_paused`: its guild or everything is paused. `process`: no process owns its queue yet. `turn`: it is next, and \
    may be waiting for its permit at the gate. `limit`: a rate limit, a breaker or a reference. `parked`: the same for \
    so long that others may overtake it. `backoff`: the next attempt. `reconciliation`: the outcome of an earlier \
    attempt is being determined.";

/// Entries of a timeline.
const TIMELINE_ENTRIES: [&str; 10] = [
    "accepted",
    "scheduled",
    "started",
    "delayed",
    "retrying",
    "reconciling",
    "succeeded",
    "dead",
    "cancelled",
    "needs_review",
];

/// An operation that was just accepted.
pub(crate) fn an_accepted() -> Value {
    json!({
        "id": AN_OPERATION, "kind": "create_role", "guild_id": A_GUILD, "state": "queued", "eligible_at": A_TIME,
        "result": null, "replayed": false, "href": format!("/v1/operations/{AN_OPERATION}"),
    })
}

/// An operation that has succeeded.
pub(crate) fn an_operation() -> Value {
    json!({
        "id": AN_OPERATION, "kind": "create_role", "guild_id": A_GUILD, "state": "succeeded", "seq": 7,
        "lane": "operation", "payload": {"name": "Pilots", "key": "pilots"}, "reason": "a new crew", "attempts": 1,
        "max_attempts": 3, "delays": 0, "parked": false, "eligible_at": A_TIME, "deadline_at": null,
        "waits_for": null, "progress": [], "error": null, "result": {"id": "1571715189416398850"}, "trace": null, "deployment_id": null, "redrive_of": null,
        "created_at": A_TIME, "updated_at": LATER, "finished_at": LATER,
        "href": format!("/v1/operations/{AN_OPERATION}"),
    })
}

/// The same with its attempts.
pub(crate) fn an_operation_in_full() -> Value {
    let mut operation = an_operation();
    operation["key"] = "pilots-1".into();
    operation["tries"] = json!([
        {"n": 1, "started_at": A_TIME, "ended_at": LATER, "status": 200, "class": "succeeded", "detail": null},
    ]);
    operation
}
