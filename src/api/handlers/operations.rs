//! Submits, shows, cancels and retries operations.

use std::time::Duration;

use actix_web::{
    HttpRequest, HttpResponse,
    http::header::{HeaderMap, HeaderName, HeaderValue, LOCATION},
    web::Data,
};
use guildhall_actors::ports::{DelayedBy, OperationFilter};
use guildhall_actors::submission::{
    AcceptedOperation, FieldError, OperationRequest, RetryResult, Submission, SubmissionError, key_problem,
};
use guildhall_core::policy::{Policy, submission_cost};
use serde_json::{Value, json};

use crate::api::app_state::AppState;
use crate::api::errors::SubmissionShape;
use crate::api::params::Params;
use crate::api::prefer_wait::PreferWait;
use crate::api::problem::{ProblemResponse, ProblemType};
use crate::api::{dto, errors, middleware, params, prefer};

type HandlerResult = Result<HttpResponse, ProblemResponse>;

const IDEMPOTENCY_KEY: &str = "Idempotency-Key";

pub(crate) async fn submit_in_guild(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let guild = params::guild(&request)?;
    accept(&request, &app, Some(guild)).await
}

pub(crate) async fn submit(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    accept(&request, &app, None).await
}

async fn accept(request: &HttpRequest, app: &AppState, guild: Option<u64>) -> HandlerResult {
    let (shape, values) = match params::json(request)? {
        Value::Object(object) if object.contains_key("operations") => {
            (SubmissionShape::Many, params::only_list(object, "operations")?)
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
    response.insert_header((LOCATION, dto::location(accepted.id))).json(dto::accepted(accepted))
}

/// The status is 200 if no operation is new; each one in the list says whether it was replayed.
fn accepted_batch_response(accepted: &[AcceptedOperation]) -> HttpResponse {
    let replayed = accepted.iter().all(|accepted| accepted.replayed);
    let mut response = if replayed { HttpResponse::Ok() } else { HttpResponse::Accepted() };
    if replayed {
        response.insert_header(("Idempotency-Replayed", "true"));
    }
    response.json(dto::accepted_batch(accepted))
}

pub(crate) async fn show(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let id = params::id(&request)?;
    let caller = middleware::caller_of(&request);
    let details = app.with_operations(|service| async move { service.show(&caller, id).await }).await?;
    let details = details.map_err(|error| errors::operation_problem(&error))?;
    Ok(HttpResponse::Ok().json(dto::operation(&details)))
}

pub(crate) async fn list(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let mut params = Params::query(&request);
    let (limit, guild) = (params.limit(), params.guild());
    let filter = OperationFilter {
        state: params.state(),
        kind: params.kind(),
        parked: params.boolean("parked"),
        deployment: params.deployment(),
        created_after: params.time("created_after"),
        created_before: params.time("created_before"),
        before: params.cursor(),
        // One more shows whether another page follows.
        limit: limit + 1,
        ..OperationFilter::default()
    };
    params.finish()?;
    let caller = middleware::caller_of(&request);
    let listed = app.with_operations(|service| async move { service.list(&caller, guild, filter).await }).await?;
    let mut listed = listed.map_err(|error| errors::operation_problem(&error))?;
    let more = listed.len() > limit;
    listed.truncate(limit);
    Ok(HttpResponse::Ok().json(dto::operations(&listed, more)))
}

pub(crate) async fn cancel(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let id = params::id(&request)?;
    let caller = middleware::caller_of(&request);
    let cancelled = app.with_operations(|service| async move { service.cancel(&caller, id).await }).await?;
    cancelled.map_err(|error| errors::operation_problem(&error))?;
    Ok(HttpResponse::Ok().json(json!({"id": id, "state": "cancelled", "href": dto::location(id)})))
}

pub(crate) async fn retry(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let id = params::id(&request)?;
    let caller = middleware::caller_of(&request);
    let retried = app.with_operations(|service| async move { service.retry(&caller, id).await }).await?;
    let retried = retried.inspect_err(|error| app.audit_redrive_rejection(&middleware::caller_of(&request), error));
    Ok(match retried.map_err(|error| errors::operation_problem(&error))? {
        RetryResult::Expedited { state } => {
            let body = json!({"id": id, "state": state.name(), "redrive_of": null, "href": dto::location(id)});
            HttpResponse::Accepted().insert_header((LOCATION, dto::location(id))).json(body)
        }
        RetryResult::Redriven { id: again } => {
            let body = json!({"id": again, "state": "queued", "redrive_of": id, "href": dto::location(again)});
            HttpResponse::Accepted().insert_header((LOCATION, dto::location(again))).json(body)
        }
    })
}
