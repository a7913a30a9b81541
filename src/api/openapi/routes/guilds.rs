//! Guilds: how things stand, pausing them, letting them go on.

use serde_json::json;
use utoipa::openapi::schema::AdditionalProperties;

use crate::api::openapi::{
    common::{A_GUILD, snowflake},
    route_doc::{RouteDoc, Tag},
    schema::{Describe as _, SchemaRef, any_object, count, must, named, object, truth},
};

pub(super) fn about(method: &str, path: &str) -> Option<RouteDoc> {
    Some(match (method, path) {
        ("GET", "/guilds/{guild_id}") => show(),
        ("POST", "/guilds/{guild_id}/pause") => pause(),
        ("POST", "/guilds/{guild_id}/resume") => resume(),
        _ => return None,
    })
}

/// Every schema of this file, by its name.
pub(super) fn schemas() -> Vec<(&'static str, SchemaRef)> {
    let pending = any_object().additional_properties(Some(AdditionalProperties::from(count())));
    let standing = object([
        must("guild_id", snowflake()),
        must("paused", truth().says("Whether a person has paused this guild.")),
        must("all_paused", truth().says("Whether a person has paused everything.")),
        must("depth", count().says("How many operations are not done yet.")),
        must("depth_is_more", truth().says("Whether there are more than were counted.")),
        must("pending", pending.says("How many of them are in which state.")),
    ]);
    let paused = object([must("guild_id", snowflake()), must("paused", truth())]);
    vec![("GuildStanding", standing.says("How things stand in a guild.").into()), ("GuildPaused", paused.into())]
}

fn show() -> RouteDoc {
    let standing = json!({
        "guild_id": A_GUILD, "paused": false, "all_paused": false, "depth": 3, "depth_is_more": false,
        "pending": {"queued": 2, "running": 1},
    });
    RouteDoc::new(Tag::Guilds, "show_guild", "Show how things stand in a guild")
        .says("A guild that nothing was asked for yet stands empty.")
        .path("guild_id", snowflake(), "The guild.")
        .answers(200, "How things stand.", named("GuildStanding"), [("standing", standing)])
}

fn pause() -> RouteDoc {
    RouteDoc::new(Tag::Guilds, "pause_guild", "Pause a guild")
        .says("Holds its operations back, also over a restart. New ones are still accepted; what is under way goes on.")
        .path("guild_id", snowflake(), "The guild.")
        .answers(200, "It is paused.", named("GuildPaused"), [("paused", json!({"guild_id": A_GUILD, "paused": true}))])
}

fn resume() -> RouteDoc {
    RouteDoc::new(Tag::Guilds, "resume_guild", "Let a guild go on").path("guild_id", snowflake(), "The guild.").answers(
        200,
        "It goes on.",
        named("GuildPaused"),
        [("goes on", json!({"guild_id": A_GUILD, "paused": false}))],
    )
}
