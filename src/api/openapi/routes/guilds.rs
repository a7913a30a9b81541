//! Show, pause and resume guilds.

use serde_json::json;
use utoipa::openapi::schema::AdditionalProperties;

use crate::api::openapi::{
    common::{A_GUILD, snowflake},
    route_doc::{RouteDoc, Tag},
    schema::{Describe as _, SchemaRef, any_object, boolean, count, object, required, schema_ref},
};

pub(crate) fn doc_for(method: &str, path: &str) -> Option<RouteDoc> {
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
    let status = object([
        required("guild_id", snowflake()),
        required("paused", boolean().describe("Whether this guild is paused.")),
        required("all_paused", boolean().describe("Whether everything is paused.")),
        required("depth", count().describe("Number of unfinished operations.")),
        required("depth_is_more", boolean().describe("Whether there are more than were counted.")),
        required("pending", pending.describe("Number of unfinished operations in each state.")),
    ]);
    let paused = object([required("guild_id", snowflake()), required("paused", boolean())]);
    vec![("GuildStanding", status.describe("The status of a guild.").into()), ("GuildPaused", paused.into())]
}

fn show() -> RouteDoc {
    let status = json!({
        "guild_id": A_GUILD, "paused": false, "all_paused": false, "depth": 3, "depth_is_more": false,
        "pending": {"queued": 2, "running": 1},
    });
    RouteDoc::new(Tag::Guilds, "show_guild", "Show the status of a guild")
        .description("A guild without operations has an empty status.")
        .path("guild_id", snowflake(), "The guild.")
        .responses(200, "The status of the guild.", schema_ref("GuildStanding"), [("standing", status)])
}

fn pause() -> RouteDoc {
    RouteDoc::new(Tag::Guilds, "pause_guild", "Pause a guild")
        .description(
            "Holds its operations back, also across restarts. New ones are still accepted; operations in flight \
            continue.",
        )
        .path("guild_id", snowflake(), "The guild.")
        .responses(
            200,
            "The guild is paused.",
            schema_ref("GuildPaused"),
            [("paused", json!({"guild_id": A_GUILD, "paused": true}))],
        )
}

fn resume() -> RouteDoc {
    RouteDoc::new(Tag::Guilds, "resume_guild", "Resume a guild").path("guild_id", snowflake(), "The guild.").responses(
        200,
        "The guild is resumed.",
        schema_ref("GuildPaused"),
        [("resumed", json!({"guild_id": A_GUILD, "paused": false}))],
    )
}
