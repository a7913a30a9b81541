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
const BULK_MOST: usize = 1_000;
/// Maximum length of the text to search for.
const REASON_MOST: usize = 200;

/// The filter that all requests for several dead letters have in common.
fn which(asking: &mut Params) -> DeadLetterFilter {
    DeadLetterFilter {
        kind: asking.kind(),
        class: asking.class(),
        says: asking.text("reason", REASON_MOST),
        died_after: asking.time("died_after"),
        died_before: asking.time("died_before"),
        ..DeadLetterFilter::default()
    }
}

pub(crate) async fn list(request: HttpRequest, served: Data<AppState>) -> HandlerResult {
    let mut asking = Params::query(&request);
    let (limit, guild) = (asking.limit(), asking.guild());
    // One more shows whether another page follows.
    let filter = DeadLetterFilter {
        redriven: asking.truth("redriven"),
        before: asking.cursor(),
        limit: limit + 1,
        ..which(&mut asking)
    };
    asking.end()?;
    let caller = middleware::caller_of(&request);
    let listed = served.ask(|desk| async move { desk.letters(&caller, guild, filter).await }).await?;
    let mut listed = listed.map_err(|error| errors::of_desk(&error))?;
    let more = listed.len() > limit;
    listed.truncate(limit);
    Ok(HttpResponse::Ok().json(dto::letters(&listed, more)))
}

pub(crate) async fn show(request: HttpRequest, served: Data<AppState>) -> HandlerResult {
    let id = params::id(&request)?;
    let caller = middleware::caller_of(&request);
    let letter = served.ask(|desk| async move { desk.letter(&caller, id).await }).await?;
    let letter = letter.map_err(|error| errors::of_desk(&error))?;
    Ok(HttpResponse::Ok().json(dto::letter(&letter)))
}

pub(crate) async fn redrive(request: HttpRequest, served: Data<AppState>) -> HandlerResult {
    let id = params::id(&request)?;
    let caller = middleware::caller_of(&request);
    let again = served.ask(|desk| async move { desk.redrive(&caller, id).await }).await?;
    let again = again.inspect_err(|error| served.refused_again(&middleware::caller_of(&request), error));
    let again = again.map_err(|error| errors::of_desk(&error))?;
    let body = json!({"id": again, "state": "queued", "redrive_of": id, "href": dto::place(again)});
    Ok(HttpResponse::Accepted().insert_header((LOCATION, dto::place(again))).json(body))
}

pub(crate) async fn redrive_all(request: HttpRequest, served: Data<AppState>) -> HandlerResult {
    let mut asking = Params::body(&request)?;
    let guild = asking.guild();
    let filter = DeadLetterFilter { limit: asking.at_most(BULK_MOST).unwrap_or(BULK_MOST), ..which(&mut asking) };
    asking.end()?;
    let caller = middleware::caller_of(&request);
    let summary = served.ask(|desk| async move { desk.redrive_all(&caller, guild, filter).await }).await?;
    let summary = summary.map_err(|error| errors::of_desk(&error))?;
    middleware::owe(&request, &served, summary.redriven.len()).await;
    let mut response = if summary.redriven.is_empty() { HttpResponse::Ok() } else { HttpResponse::Accepted() };
    Ok(response.json(dto::redriven(&summary)))
}

pub(crate) async fn discard_all(request: HttpRequest, served: Data<AppState>) -> HandlerResult {
    let mut asking = Params::body(&request)?;
    let guild = asking.guild();
    let filter = DeadLetterFilter {
        redriven: asking.truth("redriven"),
        limit: asking.at_most(BULK_MOST).unwrap_or(BULK_MOST),
        ..which(&mut asking)
    };
    asking.end()?;
    let caller = middleware::caller_of(&request);
    let summary = served.ask(|desk| async move { desk.discard_all(&caller, guild, filter).await }).await?;
    let summary = summary.map_err(|error| errors::of_desk(&error))?;
    Ok(HttpResponse::Ok().json(dto::discarded(summary)))
}

pub(crate) async fn discard(request: HttpRequest, served: Data<AppState>) -> HandlerResult {
    let id = params::id(&request)?;
    let caller = middleware::caller_of(&request);
    let discarded = served.ask(|desk| async move { desk.discard(&caller, id).await }).await?;
    discarded.map_err(|error| errors::of_desk(&error))?;
    Ok(HttpResponse::NoContent().finish())
}
