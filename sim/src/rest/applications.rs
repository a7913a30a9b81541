//! `/applications/@me`: the application of the calling bot.

use serde_json::json;

use super::access;
use super::call::{Call, Reply};
use super::error::ApiError;
use crate::world::World;

pub(crate) fn own(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let bot = access::bot(world, call)?;
    let flags = world.rules.application_flags();
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
        "flags": flags,
        "flags_new": flags.to_string(),
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

#[cfg(test)]
mod tests {
    use crate::config::{GatewayConfig, SimConfig};
    use crate::rest::testing::RestFixture;

    #[test]
    fn flags_show_the_allowed_privileged_intents() {
        let flags = |privileged_intents| {
            let gateway = GatewayConfig { privileged_intents, ..GatewayConfig::default() };
            let mut fixture = RestFixture::with_config(&SimConfig { gateway, ..SimConfig::default() });
            let application = fixture.get("/applications/@me").json;
            assert_eq!(application["flags_new"], application["flags"].to_string());
            application["flags"].as_u64().unwrap()
        };
        assert_eq!((flags(true), flags(false)), (1 << 13 | 1 << 15 | 1 << 19, 0));
    }
}
