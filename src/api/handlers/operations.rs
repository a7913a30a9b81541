//! Submits, shows, cancels and retries operations.

use std::time::Duration;

use actix_web::{
    HttpRequest, HttpResponse,
    http::header::{HeaderMap, HeaderName, HeaderValue, LOCATION},
    web::Json,
};
use guildhall_actors::access::Caller;
use guildhall_actors::ports::{DelayedBy, OperationFilter};
use guildhall_actors::submission::{
    AcceptedOperation, FieldError, OperationRequest, RetryResult, Submission, SubmissionError, key_problem,
};
use guildhall_core::{
    operation::{OperationId, OperationKind, OperationState},
    policy::{Policy, submission_cost},
    time::UnixMs,
};
use serde_json::{Map, Value, json};

use super::page;
use crate::api::{
    app_state::AppState,
    cursor,
    dto::{
        self, Accepted, AcceptedMany, Cancelled, Operation, OperationInFull, OperationPage, RetriedOperation, Waited,
        WaitedMany,
    },
    errors::{self, SubmissionShape},
    extract::{self, App, GuildId, HandlerResult, JsonResult, Path, Query},
    fields::{self, Field as _, fields},
    middleware,
    openapi::{
        common::{A_GUILD, A_TIME, AN_OPERATION, ANOTHER_OPERATION, LATER, PRINTABLE},
        headers::ResponseHeader,
        route_doc::{RouteDoc, Tag},
        schema::{any_of, schema_ref, text, text_of},
        submission,
    },
    prefer,
    prefer_wait::PreferWait,
    problem::{ProblemResponse, ProblemType},
};

const IDEMPOTENCY_KEY: &str = "Idempotency-Key";

const ACCEPTED: &str = "`202` means that the operation is stored: it ends `succeeded`, `dead`, `cancelled` or \
    `needs_review`, whatever happens to the process. If any field is invalid, nothing is accepted, and all errors are \
    reported.\n\nAfter a `503`, or without a response, it is unknown whether it was accepted: send it again with the \
    same idempotency key.";

/// An operation that was just accepted.
fn accepted_example() -> Value {
    json!({
        "id": AN_OPERATION, "kind": "create_role", "guild_id": A_GUILD, "state": "queued", "eligible_at": A_TIME,
        "result": null, "replayed": false, "href": format!("/v1/operations/{AN_OPERATION}"),
    })
}

/// An operation that has succeeded.
pub(super) fn operation_example() -> Value {
    json!({
        "id": AN_OPERATION, "kind": "create_role", "guild_id": A_GUILD, "state": "succeeded", "seq": 7,
        "lane": "operation", "payload": {"name": "Pilots", "key": "pilots"}, "reason": "a new crew", "attempts": 1,
        "max_attempts": 3, "delays": 0, "parked": false, "eligible_at": A_TIME, "deadline_at": null,
        "waits_for": null, "progress": [], "error": null, "result": {"id": "1571715189416398850"}, "trace": null, "redrive_of": null,
        "created_at": A_TIME, "updated_at": LATER, "finished_at": LATER,
        "href": format!("/v1/operations/{AN_OPERATION}"),
    })
}

/// The same with its attempts.
fn full_example() -> Value {
    let mut operation = operation_example();
    operation["key"] = "pilots-1".into();
    operation["tries"] = json!([
        {"n": 1, "started_at": A_TIME, "ended_at": LATER, "status": 200, "class": "succeeded", "detail": null},
    ]);
    operation["timeline"] = json!([{"at": A_TIME, "what": "accepted"}, {"at": A_TIME, "what": "started", "attempt": 1}, {"at": LATER, "what": "succeeded", "attempt": 1}]);
    operation
}

/// An operation that redrives another one.
pub(super) fn redriven_example() -> Value {
    json!({"id": ANOTHER_OPERATION, "state": "queued", "redrive_of": AN_OPERATION, "href": format!("/v1/operations/{ANOTHER_OPERATION}")})
}

/// Why operations may not be accepted.
const SUBMISSION_PROBLEMS: [ProblemType; 4] =
    [ProblemType::InvalidOperation, ProblemType::QueueFull, ProblemType::ShareFull, ProblemType::StoreFull];

/// What all routes that redrive an operation have in common.
pub(super) fn with_redrive_problems(doc: RouteDoc) -> RouteDoc {
    doc.problem(ProblemType::AlreadyRedriven).problems(SUBMISSION_PROBLEMS)
}

/// What both routes for submissions have in common.
fn with_submission(mut doc: RouteDoc) -> RouteDoc {
    let mut replayed = accepted_example();
    replayed["replayed"] = true.into();
    let mut ended = full_example();
    ended["replayed"] = false.into();
    let schemas = |names: &[&str]| any_of(names.iter().map(|name| schema_ref(name).into()));
    doc.add_schema::<AcceptedMany>();
    doc.add_schema::<Waited>();
    doc.add_schema::<WaitedMany>();
    doc.header(
        IDEMPOTENCY_KEY,
        text_of(1, 255).pattern(Some(PRINTABLE)),
        "For a single operation; each of several has its own `key`. Stored for 24 hours after the operation is \
         finished.",
    )
    .header("traceparent", text(), "The trace of the operations, as W3C defines it. An invalid value is ignored.")
    .header(
        "Prefer",
        text(),
        "`wait=N`: respond when all operations are finished, but after at most N seconds (1 to 60).",
    )
    .response_as(
        "application/json",
        202,
        "Accepted.",
        schemas(&["Accepted", "AcceptedMany"]),
        [("one", accepted_example()), ("many", json!({"operations": [accepted_example()]}))],
    )
    .headers([ResponseHeader::Location, ResponseHeader::PreferenceApplied])
    .response_as(
        "application/json",
        200,
        "All operations were accepted before with the same keys; or all are finished, and the caller waited for \
         them.",
        schemas(&["Accepted", "AcceptedMany", "Waited", "WaitedMany"]),
        [("replayed", replayed), ("ended", ended)],
    )
    .headers([ResponseHeader::Location, ResponseHeader::Replayed, ResponseHeader::PreferenceApplied])
    .problems([ProblemType::NotFound, ProblemType::InvalidOperation, ProblemType::KeyReused])
    .problems(SUBMISSION_PROBLEMS)
}

pub(crate) fn submit_in_guild_doc() -> RouteDoc {
    let doc = RouteDoc::new(Tag::Operations, "submit_in_guild", "Submit operations for a guild").description(format!(
        "One operation, or several as `{{\"operations\": […]}}`. They are executed one at a time, in the order of \
         acceptance. Operations that give a dangerous permission also require the scope `danger`; `request`, and \
         `read` outside the guild, require `application`.\n\n{ACCEPTED}"
    ));
    with_submission(submission::with_body(doc, "NewOperation", &OperationKind::ALL))
}

pub(crate) async fn submit_in_guild(
    request: HttpRequest,
    Path(GuildId(guild)): Path<GuildId>,
    app: App,
) -> HandlerResult {
    accept(&request, &app, Some(guild)).await
}

pub(crate) fn submit_doc() -> RouteDoc {
    let doc = RouteDoc::new(Tag::Operations, "submit", "Submit operations without a guild").description(format!(
        "One operation, or several as `{{\"operations\": […]}}`. Also requires the scope `application`.\n\n{ACCEPTED}"
    ));
    with_submission(submission::with_body(doc, "NewApplicationOperation", &submission::kinds_without_guild()))
}

pub(crate) async fn submit(request: HttpRequest, app: App) -> HandlerResult {
    accept(&request, &app, None).await
}

/// Takes a list out of an object that must contain nothing else.
fn only_list(mut object: Map<String, Value>, name: &str) -> Result<Vec<Value>, ProblemResponse> {
    let list = object.remove(name);
    let mut errors = Vec::new();
    for other in object.keys().take(10) {
        let displayed: String = other.chars().take(64).collect();
        errors.push((displayed, format!("is not permitted beside `{name}`; put it into each operation")));
    }
    match list {
        Some(Value::Array(list)) if errors.is_empty() => Ok(list),
        Some(Value::Array(_)) => Err(ProblemResponse::from(ProblemType::InvalidOperation).errors(errors)),
        _ => {
            errors.push((name.to_owned(), "must be a list of operations".to_owned()));
            Err(ProblemResponse::from(ProblemType::InvalidOperation).errors(errors))
        }
    }
}

async fn accept(request: &HttpRequest, app: &AppState, guild: Option<u64>) -> HandlerResult {
    let (shape, values) = match extract::json(request)? {
        Value::Object(object) if object.contains_key("operations") => {
            (SubmissionShape::Many, only_list(object, "operations")?)
        }
        one => (SubmissionShape::One, vec![one]),
    };
    middleware::charge(request, app, submission_cost(values.len(), middleware::body_of(request).len() as u64)).await?;
    let preference = PreferWait::new(app, prefer::requested_wait(request.headers()), values.len());
    let mut operations: Vec<_> = values.into_iter().map(OperationRequest::read).collect();
    if let Some(error) = take_key(request.headers(), shape, &mut operations) {
        return Err(ProblemResponse::from(ProblemType::InvalidOperation).errors([(IDEMPOTENCY_KEY.to_owned(), error)]));
    }
    postpone(&mut operations, middleware::delay_of(request))?;
    let submission = Submission { caller: middleware::caller_of(request), guild, operations };
    let accepted = app.with_operations(|service| async move { service.submit(submission).await }).await?;
    let accepted = accepted.map_err(|problem| {
        let message =
            |error: &[(usize, FieldError)]| error.first().map_or_else(String::new, |(_, one)| one.message.clone());
        match &problem {
            SubmissionError::Forbidden(lacks) => {
                app.audit_rejection(&middleware::caller_of(request), format!("an operation that {}", message(lacks)));
            }
            SubmissionError::ForeignTarget(error) => {
                app.audit_rejection(&middleware::caller_of(request), format!("an operation: {}", message(error)));
            }
            SubmissionError::Empty
            | SubmissionError::TooMany { .. }
            | SubmissionError::Invalid(_)
            | SubmissionError::GuildNotFound(_)
            | SubmissionError::Store(_) => {}
        }
        errors::submission_problem(problem, shape)
    })?;
    middleware::release_body(request);
    if let Some(preference) = &preference
        && let Some(answer) = preference.respond_when_finished(app, shape, &accepted).await
    {
        return Ok(answer);
    }
    let mut answer = match (shape, accepted.as_slice()) {
        (SubmissionShape::One, [one]) => accepted_response(one),
        (SubmissionShape::One | SubmissionShape::Many, all) => accepted_batch_response(all),
    };
    if let Some((name, value)) = preference.as_ref().map(PreferWait::applied)
        && let Ok(value) = HeaderValue::from_str(&value)
    {
        answer.headers_mut().insert(HeaderName::from_static(name), value);
    }
    Ok(answer)
}

/// Sets the key of a single operation from the header. Returns an error message if that is invalid.
fn take_key(
    headers: &HeaderMap,
    shape: SubmissionShape,
    operations: &mut [Result<OperationRequest, Vec<FieldError>>],
) -> Option<String> {
    let mut given = headers.get_all(IDEMPOTENCY_KEY);
    let (first, second) = (given.next()?, given.next());
    if second.is_some() {
        return Some("is given more than once".to_owned());
    }
    if shape == SubmissionShape::Many {
        return Some("is for a single operation; give each of several operations its own `key`".to_owned());
    }
    let Ok(key) = first.to_str() else { return key_problem("") };
    if let Some(problem) = key_problem(key) {
        return Some(problem);
    }
    if let [Ok(request)] = operations {
        match &request.key {
            Some(other) if other != key => return Some("differs from `key` in the body".to_owned()),
            Some(_) | None => request.key = Some(key.to_owned()),
        }
    }
    None
}

/// Delays operations by as much as the rate limit of their caller requires.
fn postpone(
    operations: &mut [Result<OperationRequest, Vec<FieldError>>],
    delay: Duration,
) -> Result<(), ProblemResponse> {
    for request in operations.iter_mut().flatten() {
        if delay > request.delay {
            (request.delay, request.delayed_by) = (delay, DelayedBy::Policy);
        }
        if request.deadline.is_some_and(|deadline| deadline <= request.delay) {
            let detail = format!(
                "Nothing was accepted: by the rate limit of this key, the operations would be due in {delay:?}, after \
                 the deadline of one of them. Submit them later, with a later deadline, or several operations with one \
                 request."
            );
            let problem = ProblemType::TooManyRequests.with_detail(detail).with("policy", Policy::HeavyWaits.name());
            return Err(problem.retry_after(delay.as_secs().max(1)));
        }
    }
    Ok(())
}

fn accepted_response(accepted: &AcceptedOperation) -> HttpResponse {
    let mut response = if accepted.replayed { HttpResponse::Ok() } else { HttpResponse::Accepted() };
    if accepted.replayed {
        response.insert_header(("Idempotency-Replayed", "true"));
    }
    response.insert_header((LOCATION, dto::location(accepted.id))).json(Accepted::from(accepted))
}

/// The status is 200 if no operation is new; each one in the list says whether it was replayed.
fn accepted_batch_response(accepted: &[AcceptedOperation]) -> HttpResponse {
    let replayed = accepted.iter().all(|accepted| accepted.replayed);
    let mut response = if replayed { HttpResponse::Ok() } else { HttpResponse::Accepted() };
    if replayed {
        response.insert_header(("Idempotency-Replayed", "true"));
    }
    response.json(AcceptedMany { operations: accepted.iter().map(Accepted::from).collect() })
}

pub(crate) fn show_doc() -> RouteDoc {
    RouteDoc::new(Tag::Operations, "show_operation", "Show an operation")
        .description(
            "With its attempts. An operation is stored for an hour after it succeeded or was cancelled, and for a day \
             after it failed for good, unless `retention` in the settings says otherwise.",
        )
        .response(200, "The operation.", [("operation", full_example())])
}

pub(crate) async fn show(Path(id): Path<OperationId>, caller: Caller, app: App) -> JsonResult<OperationInFull> {
    let details = app.with_operations(|service| async move { service.show(&caller, id).await }).await?;
    Ok(Json((&details.map_err(|error| errors::operation_problem(&error))?).into()))
}

fields! {
    struct OperationQuery {
        /// Filter by guild.
        guild_id: Option<u64> = fields::guild().optional(),
        /// Filter by state.
        state: Option<OperationState> = fields::state().optional(),
        /// Filter by kind.
        kind: Option<OperationKind> = fields::kind().optional(),
        /// Filter by whether the operation is parked.
        parked: Option<bool> = fields::boolean().optional(),
        /// Only those accepted at or after this time.
        created_after: Option<UnixMs> = fields::time().optional(),
        /// Only those accepted before this time.
        created_before: Option<UnixMs> = fields::time().optional(),
        /// Maximum number of entries.
        limit: usize = fields::page_size(),
        /// `next` of the previous response.
        cursor: Option<OperationId> = fields::cursor(cursor::read_operation).optional(),
    }
}

pub(crate) fn list_doc() -> RouteDoc {
    RouteDoc::new(Tag::Operations, "list_operations", "List operations")
        .description("The newest first; only those that are visible to the key.")
        .response(200, "A page of operations.", [("page", json!({"operations": [operation_example()], "next": null}))])
}

pub(crate) async fn list(Query(query): Query<OperationQuery>, caller: Caller, app: App) -> JsonResult<OperationPage> {
    let (guild, limit) = (query.guild_id, query.limit);
    let filter = OperationFilter {
        state: query.state,
        kind: query.kind,
        parked: query.parked,
        created_after: query.created_after,
        created_before: query.created_before,
        before: query.cursor,
        // One more shows whether another page follows.
        limit: limit + 1,
        ..OperationFilter::default()
    };
    let listed = app.with_operations(|service| async move { service.list(&caller, guild, filter).await }).await?;
    let listed = listed.map_err(|error| errors::operation_problem(&error))?;
    let (listed, next) = page(listed, limit, |last| cursor::of_operation(last.stored.operation.id));
    Ok(Json(OperationPage { operations: listed.iter().map(Operation::from).collect(), next }))
}

pub(crate) fn cancel_doc() -> RouteDoc {
    let cancelled = json!({"id": AN_OPERATION, "state": "cancelled", "href": format!("/v1/operations/{AN_OPERATION}")});
    RouteDoc::new(Tag::Operations, "cancel_operation", "Cancel an operation")
        .description(
            "Possible until one of its calls is sent. After that the response is `409`; `progress` lists the completed \
             steps, and the operation continues by itself. Idempotent.",
        )
        .response(200, "The operation is cancelled.", [("cancelled", cancelled)])
        .problem(ProblemType::Conflict)
}

pub(crate) async fn cancel(Path(id): Path<OperationId>, caller: Caller, app: App) -> JsonResult<Cancelled> {
    let cancelled = app.with_operations(|service| async move { service.cancel(&caller, id).await }).await?;
    cancelled.map_err(|error| errors::operation_problem(&error))?;
    Ok(Json(Cancelled { id: id.into(), state: "cancelled".into(), href: dto::location(id).into() }))
}

pub(crate) fn retry_doc() -> RouteDoc {
    let doc = RouteDoc::new(Tag::Operations, "retry_operation", "Retry an operation")
        .description(
            "A waiting operation (`scheduled`, `queued`, `delayed`, `retrying`) becomes due now; a scheduled one joins \
             its queue. A `dead` or `needs_review` operation is submitted again as a new one, at the end of its queue; \
             `redrive_of` names the first. Requires the same scopes as submitting it.",
        )
        .response_of::<RetriedOperation>(
            202,
            "The operation will be tried again.",
            [("new operation", redriven_example())],
        )
        .headers([ResponseHeader::Location])
        .problem(ProblemType::Conflict);
    with_redrive_problems(doc)
}

pub(crate) async fn retry(Path(id): Path<OperationId>, caller: Caller, app: App) -> HandlerResult {
    let retrier = caller.clone();
    let retried = app.with_operations(|service| async move { service.retry(&retrier, id).await }).await?;
    let retried = retried.inspect_err(|error| app.audit_redrive_rejection(&caller, error));
    let (follow, body) = match retried.map_err(|error| errors::operation_problem(&error))? {
        RetryResult::Expedited { state } => (id, RetriedOperation::expedited(id, state)),
        RetryResult::Redriven { id: again } => (again, RetriedOperation::redriven(again, id)),
    };
    Ok(HttpResponse::Accepted().insert_header((LOCATION, dto::location(follow))).json(body))
}
