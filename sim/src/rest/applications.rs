//! `/applications/@me`: the application behind the calling bot.

use serde_json::json;

use super::access;
use super::call::{Call, Reply};
use super::error::ApiError;
use crate::world::World;

pub(crate) fn own(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let bot = access::bot(world, call)?;
    Ok(Reply::ok(&json!({
        "id": bot.application_id,
        "name": bot.name,
        "icon": null,
        "description": "",
        "type": null,
        "bot": access::user(world, call)?,
        "bot_public": true,
        "bot_require_code_grant": false,
        "verify_key": world.verify_key,
        "flags": 0,
        "flags_new": "0",
        "redirect_uris": [],
        "interactions_endpoint_url": null,
        "role_connections_verification_url": null,
        "owner": world.developer,
        "team": null,
        "approximate_guild_count": world.guilds_of(bot.application_id).count(),
        "approximate_user_install_count": 0,
        "approximate_user_authorization_count": 0,
        "explicit_content_filter": 0,
        "eligible_oauth2_scopes": ["bot", "applications.commands"],
    })))
}
