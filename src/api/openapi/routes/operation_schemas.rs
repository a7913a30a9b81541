//! Operations as they are shown.

use guildhall_core::operation::ProgressStep;
use serde_json::{Value, json};

use crate::api::openapi::{
    common::{A_GUILD, A_TIME, AN_OPERATION, LATER, href, next, operation_id, snowflake, time},
    schema::{
        Describe as _, Field, SchemaRef, any_object, any_of, anything, count, integer, list, may, must, named, object,
        one_of_names, or_null, text, truth,
    },
};

/// An operation that was just accepted, or was before.
fn accepted() -> Vec<Field> {
    vec![
        must("id", operation_id()),
        must("kind", named("Kind")),
        must("guild_id", or_null(snowflake())),
        must("state", named("State")),
        must("eligible_at", or_null(time().says("Not before this; `null` for one that was there before."))),
        must("result", anything().says("What came of it, if it has succeeded by now.")),
        must(
            "replayed",
            truth().says("Whether its key was used before for the same, so that nothing new was accepted."),
        ),
        must("href", href()),
    ]
}

fn replayed() -> Field {
    must("replayed", truth().says("Whether its key was used before for the same, so that nothing new was accepted."))
}

/// An operation as lists have it.
fn in_list() -> Vec<Field> {
    vec![
        must("id", operation_id()),
        must("kind", named("Kind")),
        must("guild_id", or_null(snowflake())),
        must("state", named("State")),
        must("seq", or_null(count().says("Its place in its queue; `null` while it is scheduled."))),
        must("lane", named("Lane")),
        must("payload", any_object().says("With what, as its kind has it. Tokens of interactions are not shown.")),
        must("reason", or_null(text().says("For Discord's audit log."))),
        must("attempts", count().says("How often it was tried.")),
        must("max_attempts", integer(1, 20).says("How often it may be tried.")),
        must("delays", count().says("How often it had to wait for a limit or a breaker.")),
        must("parked", truth().says("Whether it waits for so long that others may pass.")),
        must("eligible_at", time().says("Not before this.")),
        must("deadline_at", or_null(time().says("Not after this."))),
        must(
            "waits_for",
            or_null(
                named("WaitsFor").says("`null` if it does not wait, and for queued and scheduled ones in streams."),
            ),
        ),
        must(
            "progress",
            list(named("ProgressStep")).says(
                "What an operation of several calls has done so far; empty if that is nothing, and once it has succeeded.",
            ),
        ),
        must("error", or_null(named("Failure").says("Why it waits or failed."))),
        must("result", anything().says("What came of it.")),
        must("trace", or_null(text().says("The trace that it belongs to (W3C `traceparent`)."))),
        must("deployment_id", or_null(text().says("The deployment that it is a step of."))),
        must("redrive_of", or_null(operation_id().says("The operation that this one does again."))),
        must("created_at", time()),
        must("updated_at", time()),
        must("finished_at", or_null(time())),
        must("href", href()),
    ]
}

/// Every schema of this file, by its name.
pub(super) fn schemas() -> Vec<(&'static str, SchemaRef)> {
    let failure = object([
        must("class", named("FailureClass")),
        must("message", text().says("What went wrong, and what to do if something can be done.")),
        must("status", or_null(integer(100, 599).says("The status of Discord's answer."))),
        must("code", or_null(count().says("Discord's own error code."))),
    ]);
    let waits_for = object([
        must("reason", one_of_names(WAIT_REASONS).says(WHY_IT_WAITS)),
        must("until", or_null(time().says("When it goes on, if that is known."))),
        must("operation", or_null(operation_id().says("The operation that it waits for."))),
        must("detail", or_null(text().says("More of it, for people."))),
    ]);
    let step = object([
        must("step", one_of_names(ProgressStep::NAMES).says("What was done.")),
        must("channel_id", snowflake()),
        may("message_id", snowflake()),
        may("role_id", snowflake()),
        may("user_id", snowflake()),
        may("key", text().says("The key that the message has from now on.")),
    ]);
    let attempt = object([
        must("n", count().says("Which, from 1.")),
        must("started_at", time()),
        must("ended_at", time()),
        must("status", or_null(integer(100, 599).says("The status of Discord's answer."))),
        must("class", text().says("`succeeded`, or the class of the failure.")),
        must("detail", or_null(text().says("What happened, for people."))),
    ]);
    let happened = object([
        must("at", time()),
        must("what", one_of_names(HAPPENINGS)),
        may("attempt", or_null(count().says("Which attempt it was."))),
        may("detail", or_null(text().says("More of it, for people."))),
    ]);
    let in_full = || {
        in_list().into_iter().chain([
            must("tries", list(named("Try")).says("What happened at each attempt.")),
            must("key", or_null(text().says("Its idempotency key."))),
            may("timeline", list(named("Happening")).says("What became of it, in order.")),
        ])
    };
    let again = object([
        must("id", operation_id().says("The operation to look at from now on.")),
        must("state", named("State")),
        must(
            "redrive_of",
            or_null(operation_id().says("The operation that this one does again; `null` if it is the same one.")),
        ),
        must("href", href()),
    ]);
    let cancelled =
        object([must("id", operation_id()), must("state", one_of_names(["cancelled"])), must("href", href())]);
    let page = object([must("operations", list(named("Operation"))), must("next", next())]);
    vec![
        ("Accepted", object(accepted()).says("An operation that was just accepted, or was before.").into()),
        ("AcceptedMany", object([must("operations", list(named("Accepted")))]).into()),
        ("Operation", object(in_list()).says("An operation, without its tries.").into()),
        ("OperationInFull", object(in_full()).says("An operation with its tries.").into()),
        ("OperationPage", page.into()),
        (
            "Waited",
            object(in_full().chain([replayed()])).says("An operation that has ended and was waited for.").into(),
        ),
        (
            "WaitedMany",
            object([must("operations", list(any_of([named("Waited").into(), named("Accepted").into()])))]).into(),
        ),
        ("Failure", failure.says("Why an operation did not do what it should.").into()),
        ("WaitsFor", waits_for.says("What an operation waits for.").into()),
        ("ProgressStep", step.says("A call with an effect that Discord has confirmed.").into()),
        ("Try", attempt.says("What happened at one attempt.").into()),
        ("Happening", happened.says("Something that became of an operation.").into()),
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

/// What each of them means.
const WHY_IT_WAITS: &str = "`delay`: its `delay_ms`. `policy`: its caller submits more than a policy allows at once. \
    `scheduled_operation`: it refers to an operation that is scheduled. `queue`: an operation before it in its queue. \
    `guild_paused`, `all_paused`. `process`: no process has its queue yet. `turn`: it is next, and may be waiting for its permit at the gate. `limit`: a rate limit, a \
    breaker or a reference. `parked`: the same for so long that others may pass. `backoff`: the next attempt. \
    `reconciliation`: the search for what an earlier attempt did.";

/// What may become of an operation, as its timeline has it.
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
pub(super) fn an_accepted() -> Value {
    json!({
        "id": AN_OPERATION, "kind": "create_role", "guild_id": A_GUILD, "state": "queued", "eligible_at": A_TIME,
        "result": null, "replayed": false, "href": format!("/v1/operations/{AN_OPERATION}"),
    })
}

/// An operation that has succeeded.
pub(super) fn an_operation() -> Value {
    json!({
        "id": AN_OPERATION, "kind": "create_role", "guild_id": A_GUILD, "state": "succeeded", "seq": 7,
        "lane": "operation", "payload": {"name": "Pilots", "key": "pilots"}, "reason": "a new crew", "attempts": 1,
        "max_attempts": 3, "delays": 0, "parked": false, "eligible_at": A_TIME, "deadline_at": null,
        "waits_for": null, "progress": [], "error": null, "result": {"id": "1571715189416398850"}, "trace": null, "deployment_id": null, "redrive_of": null,
        "created_at": A_TIME, "updated_at": LATER, "finished_at": LATER,
        "href": format!("/v1/operations/{AN_OPERATION}"),
    })
}

/// The same with its tries.
pub(super) fn an_operation_in_full() -> Value {
    let mut shown = an_operation();
    shown["key"] = "pilots-1".into();
    shown["tries"] = json!([
        {"n": 1, "started_at": A_TIME, "ended_at": LATER, "status": 200, "class": "succeeded", "detail": null},
    ]);
    shown
}
