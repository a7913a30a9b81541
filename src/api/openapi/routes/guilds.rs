//! Show, pause and resume guilds.

use serde_json::json;
use utoipa::openapi::schema::AdditionalProperties;

use crate::api::openapi::{
    common::{A_GUILD, snowflake},
    route_doc::{RouteDoc, Tag},
    schema::{Describe as _, SchemaRef, any_object, count, must, named, object, truth},
};

pub(crate) fn about(method: &str, path: &str) -> Option<RouteDoc> {
    Some(match (method, path) {
        ("GET", "/guilds/{guild_id}") => show(),
        ("POST", "/guilds/{guild_id}/pause") => pause(),
        ("POST", "/guilds/{guild_id}/resume") => resume(),
        _ => return None,
    })
}

/// All schemas of this file, by name.
pub(crate) fn schemas() -> Vec<(&'static str, SchemaRef)> {
    let pending = any_object().additional_properties(Some(AdditionalProperties::from(count())));
    let standing = object([
        must("guild_id", snowflake()),
        must("paused", truth().says("Whether this guild is paused.")),
        must("all_paused", truth().says("Whether everything is paused.")),
        must("depth", count().says("Number of unfinished operations.")),
        must("depth_is_more", truth().says("Whether there are more than were counted.")),
        must("pending", pending.says("Number of unfinished operations in each state.")),
    ]);
    let paused = object([must("guild_id", snowflake()), must("paused", truth())]);
    vec![("GuildStanding", standing.says("The status of a guild.").into()), ("GuildPaused", paused.into())]
}

fn show() -> RouteDoc {
    let standing = json!({
        "guild_id": A_GUILD, "paused": false, "all_paused": false, "depth": 3, "depth_is_more": false,
        "pending": {"queued": 2, "running": 1},
    });
    RouteDoc::new(Tag::Guilds, "show_guild", "Show the status of a guild")
        .says("A guild without operations has an empty status.")
        .path("guild_id", snowflake(), "The guild.")
        .answers(200, "The status of the guild.", named("GuildStanding"), [("standing", standing)])
}

fn pause() -> RouteDoc {
    RouteDoc::new(Tag::Guilds, "pause_guild", "Pause a guild")
        .says(
            "Holds its operations back, also across restarts. New ones are still accepted; operations in flight \
            continue.",
        )
        .path("guild_id", snowflake(), "The guild.")
        .answers(
            200,
            "The guild is paused.",
            named("GuildPaused"),
            [("paused", json!({"guild_id": A_GUILD, "paused": true}))],
        )
}

fn resume() -> RouteDoc {
    RouteDoc::new(Tag::Guilds, "resume_guild", "Resume a guild").path("guild_id", snowflake(), "The guild.").answers(
        200,
        "The guild is resumed.",
        named("GuildPaused"),
        [("resumed", json!({"guild_id": A_GUILD, "paused": false}))],
    )
}
