//! Shows, pauses and resumes guilds.

use actix_web::{HttpRequest, HttpResponse, web::Data};
use guildhall_actors::ports::PauseTarget;
use guildhall_core::operation::Queue;
use serde_json::json;

use crate::api::app_state::AppState;
use crate::api::problem::ProblemResponse;
use crate::api::{dto, errors, middleware, params};

type HandlerResult = Result<HttpResponse, ProblemResponse>;

pub(crate) async fn show(request: HttpRequest, served: Data<AppState>) -> HandlerResult {
    let (caller, guild) = (middleware::caller_of(&request), params::guild(&request)?);
    let standing = served.ask(move |desk| async move { desk.guild(&caller, guild).await }).await?;
    let standing = standing.map_err(|error| errors::of_desk(&error))?;
    Ok(HttpResponse::Ok().json(dto::guild(guild, &standing)))
}

pub(crate) async fn pause(request: HttpRequest, served: Data<AppState>) -> HandlerResult {
    turn_guild(&request, &served, true).await
}

pub(crate) async fn resume(request: HttpRequest, served: Data<AppState>) -> HandlerResult {
    turn_guild(&request, &served, false).await
}

async fn turn_guild(request: &HttpRequest, served: &AppState, paused: bool) -> HandlerResult {
    let guild = params::guild(request)?;
    turn(request, served, PauseTarget::Queue(Queue::Guild(guild)), paused).await?;
    Ok(HttpResponse::Ok().json(json!({"guild_id": guild.to_string(), "paused": paused})))
}

pub(crate) async fn pause_all(request: HttpRequest, served: Data<AppState>) -> HandlerResult {
    turn(&request, &served, PauseTarget::All, true).await?;
    Ok(HttpResponse::Ok().json(json!({"all_paused": true})))
}

pub(crate) async fn resume_all(request: HttpRequest, served: Data<AppState>) -> HandlerResult {
    turn(&request, &served, PauseTarget::All, false).await?;
    Ok(HttpResponse::Ok().json(json!({"all_paused": false})))
}

async fn turn(
    request: &HttpRequest,
    served: &AppState,
    what: PauseTarget,
    paused: bool,
) -> Result<(), ProblemResponse> {
    let caller = middleware::caller_of(request);
    let turned = served.ask(move |desk| async move { desk.pause(&caller, what, paused).await }).await?;
    turned.map_err(|error| errors::of_desk(&error))
}
