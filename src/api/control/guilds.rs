//! Guilds: how things stand, pausing them, letting them go on.

use actix_web::{HttpRequest, HttpResponse, web::Data};
use guildhall_actors::operations::Pausable;
use guildhall_core::operation::Queue;
use serde_json::json;

use super::{Served, entry, read, refusal, view};
use crate::api::problem::Told;

type Answer = Result<HttpResponse, Told>;

pub(super) async fn show(request: HttpRequest, served: Data<Served>) -> Answer {
    let (caller, guild) = (entry::caller_of(&request), read::guild(&request)?);
    let standing = served.ask(move |desk| async move { desk.guild(&caller, guild).await }).await?;
    let standing = standing.map_err(|error| refusal::of_desk(&error))?;
    Ok(HttpResponse::Ok().json(view::guild(guild, &standing)))
}

pub(super) async fn pause(request: HttpRequest, served: Data<Served>) -> Answer {
    turn_guild(&request, &served, true).await
}

pub(super) async fn resume(request: HttpRequest, served: Data<Served>) -> Answer {
    turn_guild(&request, &served, false).await
}

async fn turn_guild(request: &HttpRequest, served: &Served, paused: bool) -> Answer {
    let guild = read::guild(request)?;
    turn(request, served, Pausable::Queue(Queue::Guild(guild)), paused).await?;
    Ok(HttpResponse::Ok().json(json!({"guild_id": guild.to_string(), "paused": paused})))
}

pub(super) async fn pause_all(request: HttpRequest, served: Data<Served>) -> Answer {
    turn(&request, &served, Pausable::All, true).await?;
    Ok(HttpResponse::Ok().json(json!({"all_paused": true})))
}

pub(super) async fn resume_all(request: HttpRequest, served: Data<Served>) -> Answer {
    turn(&request, &served, Pausable::All, false).await?;
    Ok(HttpResponse::Ok().json(json!({"all_paused": false})))
}

async fn turn(request: &HttpRequest, served: &Served, what: Pausable, paused: bool) -> Result<(), Told> {
    let caller = entry::caller_of(request);
    let turned = served.ask(move |desk| async move { desk.pause(&caller, what, paused).await }).await?;
    turned.map_err(|error| refusal::of_desk(&error))
}
