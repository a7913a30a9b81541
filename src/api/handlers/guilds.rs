//! Shows, pauses and resumes guilds.

use actix_web::{HttpRequest, HttpResponse, web::Data};
use guildhall_actors::ports::PauseTarget;
use guildhall_core::operation::Queue;
use serde_json::json;

use crate::api::app_state::AppState;
use crate::api::problem::ProblemResponse;
use crate::api::{dto, errors, middleware, params};

type HandlerResult = Result<HttpResponse, ProblemResponse>;

pub(crate) async fn show(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let (caller, guild) = (middleware::caller_of(&request), params::guild(&request)?);
    let status = app.with_operations(move |service| async move { service.guild(&caller, guild).await }).await?;
    let status = status.map_err(|error| errors::operation_problem(&error))?;
    Ok(HttpResponse::Ok().json(dto::guild(guild, &status)))
}

pub(crate) async fn pause(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    set_guild_paused(&request, &app, true).await
}

pub(crate) async fn resume(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    set_guild_paused(&request, &app, false).await
}

async fn set_guild_paused(request: &HttpRequest, app: &AppState, paused: bool) -> HandlerResult {
    let guild = params::guild(request)?;
    set_paused(request, app, PauseTarget::Queue(Queue::Guild(guild)), paused).await?;
    Ok(HttpResponse::Ok().json(json!({"guild_id": guild.to_string(), "paused": paused})))
}

pub(crate) async fn pause_all(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    set_paused(&request, &app, PauseTarget::All, true).await?;
    Ok(HttpResponse::Ok().json(json!({"all_paused": true})))
}

pub(crate) async fn resume_all(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    set_paused(&request, &app, PauseTarget::All, false).await?;
    Ok(HttpResponse::Ok().json(json!({"all_paused": false})))
}

async fn set_paused(
    request: &HttpRequest,
    app: &AppState,
    target: PauseTarget,
    paused: bool,
) -> Result<(), ProblemResponse> {
    let caller = middleware::caller_of(request);
    let result =
        app.with_operations(move |service| async move { service.pause(&caller, target, paused).await }).await?;
    result.map_err(|error| errors::operation_problem(&error))
}
