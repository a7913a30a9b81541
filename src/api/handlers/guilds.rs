//! Lists, shows, pauses and resumes guilds.

use actix_web::web::Json;
use guildhall_actors::access::Caller;
use guildhall_actors::ports::PauseTarget;
use guildhall_core::operation::Queue;
use serde_json::json;

use crate::api::{
    app_state::AppState,
    dto::{AllPaused, GuildPage, GuildPaused, GuildStatus},
    errors,
    extract::{App, GuildId, JsonResult, Path, Query},
    fields::{self, Field as _, fields},
    openapi::{
        common::A_GUILD,
        route_doc::{RouteDoc, Tag},
    },
    problem::ProblemResponse,
};

fields! {
    struct GuildQuery {
        /// Maximum number of entries.
        limit: usize = fields::integer(1..=500).or(50),
        /// `next` of the previous response.
        cursor: Option<u64> = fields::cursor(|text| text.parse().ok()).optional(),
    }
}

pub(crate) fn list_doc() -> RouteDoc {
    let page = json!({"guilds": [{"id": A_GUILD, "name": "Pilots", "tenant": "default"}], "next": null});
    RouteDoc::new(Tag::Guilds, "list_guilds", "List guilds")
        .description(
            "The guilds that the gateway has reported, and those that an operation or a pause has named, in the order of \
            their ids: of the key's tenant, and for a key for guilds only those. A page may be shorter than `limit` and \
            still have a `next`.",
        )
        .response(200, "A page of guilds.", [("guilds", page)])
}

pub(crate) async fn list(Query(query): Query<GuildQuery>, caller: Caller, app: App) -> JsonResult<GuildPage> {
    let GuildQuery { limit, cursor } = query;
    let page =
        app.with_operations(move |service| async move { service.guilds(&caller, cursor.unwrap_or(0), limit).await });
    let page = page.await?.map_err(|error| errors::operation_problem(&error))?;
    Ok(Json(GuildPage::new(page)))
}

pub(crate) fn show_doc() -> RouteDoc {
    let status = json!({
        "guild_id": A_GUILD, "name": "Pilots", "paused": false, "all_paused": false, "depth": 3, "depth_is_more": false,
        "pending": {"queued": 2, "running": 1},
    });
    RouteDoc::new(Tag::Guilds, "show_guild", "Show the status of a guild")
        .description(
            "A guild that the gateway has not reported, and that no operation or pause has named, is unknown: the response \
            is 404.",
        )
        .response(200, "The status of the guild.", [("status", status)])
}

pub(crate) async fn show(Path(GuildId(guild)): Path<GuildId>, caller: Caller, app: App) -> JsonResult<GuildStatus> {
    let status = app.with_operations(move |service| async move { service.guild(&caller, guild).await }).await?;
    let status = status.map_err(|error| errors::operation_problem(&error))?;
    Ok(Json(GuildStatus::new(guild, &status)))
}

pub(crate) fn pause_doc() -> RouteDoc {
    RouteDoc::new(Tag::Guilds, "pause_guild", "Pause a guild")
        .description(
            "Holds its operations back, also across restarts. New ones are still accepted; operations in flight \
            continue.",
        )
        .response(200, "The guild is paused.", [("paused", json!({"guild_id": A_GUILD, "paused": true}))])
}

pub(crate) async fn pause(Path(guild): Path<GuildId>, caller: Caller, app: App) -> JsonResult<GuildPaused> {
    set_guild_paused(guild, caller, &app, true).await
}

pub(crate) fn resume_doc() -> RouteDoc {
    RouteDoc::new(Tag::Guilds, "resume_guild", "Resume a guild").response(
        200,
        "The guild is resumed.",
        [("resumed", json!({"guild_id": A_GUILD, "paused": false}))],
    )
}

pub(crate) async fn resume(Path(guild): Path<GuildId>, caller: Caller, app: App) -> JsonResult<GuildPaused> {
    set_guild_paused(guild, caller, &app, false).await
}

async fn set_guild_paused(
    GuildId(guild): GuildId,
    caller: Caller,
    app: &AppState,
    paused: bool,
) -> JsonResult<GuildPaused> {
    set_paused(caller, app, PauseTarget::Queue(Queue::Guild(guild)), paused).await?;
    Ok(Json(GuildPaused { guild_id: guild.into(), paused }))
}

pub(crate) fn pause_all_doc() -> RouteDoc {
    RouteDoc::new(Tag::Fleet, "pause_all", "Pause everything")
        .description(
            "Like pausing a guild, for all guilds and all processes. Responses to interactions are not paused.",
        )
        .response(200, "Everything is paused.", [("paused", json!({"all_paused": true}))])
}

pub(crate) async fn pause_all(caller: Caller, app: App) -> JsonResult<AllPaused> {
    set_paused(caller, &app, PauseTarget::All, true).await?;
    Ok(Json(AllPaused { all_paused: true }))
}

pub(crate) fn resume_all_doc() -> RouteDoc {
    RouteDoc::new(Tag::Fleet, "resume_all", "Resume everything")
        .description("Guilds that are paused individually stay paused.")
        .response(200, "Everything is resumed.", [("resumed", json!({"all_paused": false}))])
}

pub(crate) async fn resume_all(caller: Caller, app: App) -> JsonResult<AllPaused> {
    set_paused(caller, &app, PauseTarget::All, false).await?;
    Ok(Json(AllPaused { all_paused: false }))
}

async fn set_paused(caller: Caller, app: &AppState, target: PauseTarget, paused: bool) -> Result<(), ProblemResponse> {
    let result =
        app.with_operations(move |service| async move { service.pause(&caller, target, paused).await }).await?;
    result.map_err(|error| errors::operation_problem(&error))
}
