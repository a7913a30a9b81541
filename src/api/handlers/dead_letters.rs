//! Lists, redrives and discards dead letters.

use actix_web::{HttpRequest, HttpResponse, http::header::LOCATION, web::Data};
use guildhall_actors::ports::DeadLetterFilter;
use serde_json::json;

use crate::api::app_state::AppState;
use crate::api::params::Params;
use crate::api::problem::ProblemResponse;
use crate::api::{dto, errors, middleware, params};

type HandlerResult = Result<HttpResponse, ProblemResponse>;

/// Maximum number of dead letters that one request redrives or discards.
const MAX_BULK: usize = 1_000;
/// Maximum length of the text to search for.
const MAX_REASON_LEN: usize = 200;

/// The filter that all requests for several dead letters have in common.
fn common_filter(params: &mut Params) -> DeadLetterFilter {
    DeadLetterFilter {
        kind: params.kind(),
        class: params.class(),
        message_contains: params.text("reason", MAX_REASON_LEN),
        died_after: params.time("died_after"),
        died_before: params.time("died_before"),
        ..DeadLetterFilter::default()
    }
}

pub(crate) async fn list(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let mut params = Params::query(&request);
    let (limit, guild) = (params.limit(), params.guild());
    // One more shows whether another page follows.
    let filter = DeadLetterFilter {
        redriven: params.boolean("redriven"),
        before: params.cursor(),
        limit: limit + 1,
        ..common_filter(&mut params)
    };
    params.finish()?;
    let caller = middleware::caller_of(&request);
    let listed =
        app.with_operations(|service| async move { service.dead_letters(&caller, guild, filter).await }).await?;
    let mut listed = listed.map_err(|error| errors::operation_problem(&error))?;
    let more = listed.len() > limit;
    listed.truncate(limit);
    Ok(HttpResponse::Ok().json(dto::dead_letters(&listed, more)))
}

pub(crate) async fn show(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let id = params::id(&request)?;
    let caller = middleware::caller_of(&request);
    let letter = app.with_operations(|service| async move { service.dead_letter(&caller, id).await }).await?;
    let letter = letter.map_err(|error| errors::operation_problem(&error))?;
    Ok(HttpResponse::Ok().json(dto::dead_letter(&letter)))
}

pub(crate) async fn redrive(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let id = params::id(&request)?;
    let caller = middleware::caller_of(&request);
    let redriven = app.with_operations(|service| async move { service.redrive(&caller, id).await }).await?;
    let redriven = redriven.inspect_err(|error| app.audit_redrive_rejection(&middleware::caller_of(&request), error));
    let redriven = redriven.map_err(|error| errors::operation_problem(&error))?;
    let body = json!({"id": redriven, "state": "queued", "redrive_of": id, "href": dto::location(redriven)});
    Ok(HttpResponse::Accepted().insert_header((LOCATION, dto::location(redriven))).json(body))
}

pub(crate) async fn redrive_all(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let mut params = Params::body(&request)?;
    let guild = params.guild();
    let filter =
        DeadLetterFilter { limit: params.limit_up_to(MAX_BULK).unwrap_or(MAX_BULK), ..common_filter(&mut params) };
    params.finish()?;
    let caller = middleware::caller_of(&request);
    let summary =
        app.with_operations(|service| async move { service.redrive_all(&caller, guild, filter).await }).await?;
    let summary = summary.map_err(|error| errors::operation_problem(&error))?;
    middleware::charge_after(&request, &app, summary.redriven.len()).await;
    let mut response = if summary.redriven.is_empty() { HttpResponse::Ok() } else { HttpResponse::Accepted() };
    Ok(response.json(dto::redriven(&summary)))
}

pub(crate) async fn discard_all(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let mut params = Params::body(&request)?;
    let guild = params.guild();
    let filter = DeadLetterFilter {
        redriven: params.boolean("redriven"),
        limit: params.limit_up_to(MAX_BULK).unwrap_or(MAX_BULK),
        ..common_filter(&mut params)
    };
    params.finish()?;
    let caller = middleware::caller_of(&request);
    let summary =
        app.with_operations(|service| async move { service.discard_all(&caller, guild, filter).await }).await?;
    let summary = summary.map_err(|error| errors::operation_problem(&error))?;
    Ok(HttpResponse::Ok().json(dto::discarded(summary)))
}

pub(crate) async fn discard(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let id = params::id(&request)?;
    let caller = middleware::caller_of(&request);
    let discarded = app.with_operations(|service| async move { service.discard(&caller, id).await }).await?;
    discarded.map_err(|error| errors::operation_problem(&error))?;
    Ok(HttpResponse::NoContent().finish())
}
