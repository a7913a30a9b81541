//! Schemas of operations in responses.

use guildhall_core::operation::ProgressStep;
use serde_json::{Value, json};

use crate::api::openapi::{
    common::{A_GUILD, A_TIME, AN_OPERATION, LATER, href, next, operation_id, snowflake, time},
    schema::{
        Describe as _, Field, SchemaRef, any_object, any_of, anything, count, integer, list, may, must, named, object,
        one_of_names, or_null, text, truth,
    },
};

/// An operation that was accepted now or before.
fn accepted() -> Vec<Field> {
    vec![
        must("id", operation_id()),
        must("kind", named("Kind")),
        must("guild_id", or_null(snowflake())),
        must("state", named("State")),
        must(
            "eligible_at",
            or_null(time().says(
                "Not executed before this time; `null` for one that was accepted \
            before.",
            )),
        ),
        must("result", anything().says("The result, if it has succeeded already.")),
        must(
            "replayed",
            truth().says("Whether it was accepted before with the same key, so that nothing new was accepted."),
        ),
        must("href", href()),
    ]
}

fn replayed() -> Field {
    must(
        "replayed",
        truth().says(
            "Whether it was accepted before with the same key, so that nothing new was \
        accepted.",
        ),
    )
}

/// An operation in a list.
fn in_list() -> Vec<Field> {
    vec![
        must("id", operation_id()),
        must("kind", named("Kind")),
        must("guild_id", or_null(snowflake())),
        must("state", named("State")),
        must("seq", or_null(count().says("Its position in its queue; `null` while it is scheduled."))),
        must("lane", named("Lane")),
        must("payload", any_object().says("The payload of its kind. Interaction tokens are redacted.")),
        must("reason", or_null(text().says("Reason for Discord's audit log."))),
        must("attempts", count().says("Number of attempts.")),
        must("max_attempts", integer(1, 20).says("Maximum number of attempts.")),
        must("delays", count().says("How often it was delayed by a limit or a breaker.")),
        must("parked", truth().says("Whether it waits for so long that others may overtake it.")),
        must("eligible_at", time().says("Not executed before this time.")),
        must("deadline_at", or_null(time().says("Not executed after this time."))),
        must(
            "waits_for",
            or_null(named("WaitsFor").says(
                "What it waits for; `null` if it does not wait, and for queued and scheduled \
                    ones in streams.",
            )),
        ),
        must(
            "progress",
            list(named("ProgressStep")).says(
                "The completed steps of an operation with several calls; empty if there are none, and after success.",
            ),
        ),
        must("error", or_null(named("Failure").says("Why it is delayed or failed."))),
        must("result", anything().says("The result.")),
        must("trace", or_null(text().says("The trace of the operation (W3C `traceparent`)."))),
        must("deployment_id", or_null(text().says("The deployment that it is a step of."))),
        must("redrive_of", or_null(operation_id().says("The operation that this one redrives."))),
        must("created_at", time()),
        must("updated_at", time()),
        must("finished_at", or_null(time())),
        must("href", href()),
    ]
}

/// All schemas of this file, by name.
pub(crate) fn schemas() -> Vec<(&'static str, SchemaRef)> {
    let failure = object([
        must("class", named("FailureClass")),
        must("message", text().says("What failed, and what to do if something can be done.")),
        must("status", or_null(integer(100, 599).says("The status of Discord's response."))),
        must("code", or_null(count().says("Discord's own error code."))),
    ]);
    let waits_for = object([
        must("reason", one_of_names(WAIT_REASONS).says(WHY_IT_WAITS)),
        must("until", or_null(time().says("When it continues, if that is known."))),
        must("operation", or_null(operation_id().says("The operation that it waits for."))),
        must("detail", or_null(text().says("More details."))),
    ]);
    let step = object([
        must("step", one_of_names(ProgressStep::NAMES).says("The completed step.")),
        must("channel_id", snowflake()),
        may("message_id", snowflake()),
        may("role_id", snowflake()),
        may("user_id", snowflake()),
        may("key", text().says("The key of the message from now on.")),
    ]);
    let attempt = object([
        must("n", count().says("Number of the attempt, from 1.")),
        must("started_at", time()),
        must("ended_at", time()),
        must("status", or_null(integer(100, 599).says("The status of Discord's response."))),
        must("class", text().says("`succeeded`, or the class of the failure.")),
        must("detail", or_null(text().says("What happened."))),
    ]);
    let happened = object([
        must("at", time()),
        must("what", one_of_names(HAPPENINGS)),
        may("attempt", or_null(count().says("Number of the attempt."))),
        may("detail", or_null(text().says("More details."))),
    ]);
    let in_full = || {
        in_list().into_iter().chain([
            must("tries", list(named("Try")).says("The attempts.")),
            must("key", or_null(text().says("Its idempotency key."))),
            may("timeline", list(named("Happening")).says("What happened to it, in order.")),
        ])
    };
    let again = object([
        must("id", operation_id().says("The operation to follow from now on.")),
        must("state", named("State")),
        must(
            "redrive_of",
            or_null(operation_id().says("The operation that this one redrives; `null` if it is the same one.")),
        ),
        must("href", href()),
    ]);
    let cancelled =
        object([must("id", operation_id()), must("state", one_of_names(["cancelled"])), must("href", href())]);
    let page = object([must("operations", list(named("Operation"))), must("next", next())]);
    vec![
        ("Accepted", object(accepted()).says("An operation that was accepted now or before.").into()),
        ("AcceptedMany", object([must("operations", list(named("Accepted")))]).into()),
        ("Operation", object(in_list()).says("An operation without its attempts.").into()),
        ("OperationInFull", object(in_full()).says("An operation with its attempts.").into()),
        ("OperationPage", page.into()),
        (
            "Waited",
            object(in_full().chain([replayed()])).says("A finished operation that the caller has waited for.").into(),
        ),
        (
            "WaitedMany",
            object([must("operations", list(any_of([named("Waited").into(), named("Accepted").into()])))]).into(),
        ),
        ("Failure", failure.says("Why an operation failed or is delayed.").into()),
        ("WaitsFor", waits_for.says("What an operation waits for.").into()),
        ("ProgressStep", step.says("A call with an effect that Discord has confirmed.").into()),
        ("Try", attempt.says("One attempt.").into()),
        ("Happening", happened.says("An entry of the timeline of an operation.").into()),
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
const WHY_IT_WAITS: &str = "`delay`: its `delay_ms`. `policy`: the rate limit of its caller. `scheduled_operation`: it \
    refers to an operation that is scheduled. `queue`: an operation before it in its queue. `guild_paused`, \
    `all_paused`: its guild or everything is paused. `process`: no process owns its queue yet. `turn`: it is next, and \
    may be waiting for its permit at the gate. `limit`: a rate limit, a breaker or a reference. `parked`: the same for \
    so long that others may overtake it. `backoff`: the next attempt. `reconciliation`: the outcome of an earlier \
    attempt is being determined.";

/// Entries of a timeline.
const HAPPENINGS: [&str; 10] = [
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
    let mut shown = an_operation();
    shown["key"] = "pilots-1".into();
    shown["tries"] = json!([
        {"n": 1, "started_at": A_TIME, "ended_at": LATER, "status": 200, "class": "succeeded", "detail": null},
    ]);
    shown
}
