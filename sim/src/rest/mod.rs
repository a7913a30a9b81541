//! The REST API: its routes and their handlers.

mod access;
mod applications;
mod attachment_form;
mod audit_logs;
pub(crate) mod call;
mod channel_order;
mod channels;
mod command_options;
mod commands;
pub(crate) mod error;
mod form;
mod gateway;
mod guilds;
mod interactions;
mod members;
mod message_form;
mod messages;
mod overwrites;
mod pins;
mod reactions;
mod roles;
pub(crate) mod route;
mod soundboard;
#[cfg(test)]
mod testing;
mod users;
mod webhooks;

use http::Method;
use route::{Auth, Handler, Route};

const fn get(template: &'static str, handler: Handler) -> Route {
    Route { method: Method::GET, template, auth: Auth::Bot, handler }
}

const fn post(template: &'static str, handler: Handler) -> Route {
    Route { method: Method::POST, template, auth: Auth::Bot, handler }
}

const fn put(template: &'static str, handler: Handler) -> Route {
    Route { method: Method::PUT, template, auth: Auth::Bot, handler }
}

const fn patch(template: &'static str, handler: Handler) -> Route {
    Route { method: Method::PATCH, template, auth: Auth::Bot, handler }
}

const fn delete(template: &'static str, handler: Handler) -> Route {
    Route { method: Method::DELETE, template, auth: Auth::Bot, handler }
}

const fn by_token(mut route: Route) -> Route {
    route.auth = Auth::InteractionToken;
    route
}

/// All routes. Where a literal part and a parameter both match, the literal comes first.
pub(crate) static ROUTES: &[Route] = &[
    Route { method: Method::GET, template: "/gateway", auth: Auth::Open, handler: gateway::url },
    get("/gateway/bot", gateway::for_bot),
    get("/soundboard-default-sounds", soundboard::defaults),
    get("/users/@me", users::own),
    get("/users/@me/guilds", users::guilds),
    post("/users/@me/channels", users::open_direct),
    get("/users/{user.id}", users::get),
    get("/applications/@me", applications::own),
    get("/oauth2/applications/@me", applications::own),
    get("/applications/{application.id}/commands", commands::list),
    post("/applications/{application.id}/commands", commands::create),
    put("/applications/{application.id}/commands", commands::overwrite),
    get("/applications/{application.id}/commands/{command.id}", commands::get),
    delete("/applications/{application.id}/commands/{command.id}", commands::delete),
    get("/applications/{application.id}/guilds/{guild.id}/commands", commands::list),
    post("/applications/{application.id}/guilds/{guild.id}/commands", commands::create),
    put("/applications/{application.id}/guilds/{guild.id}/commands", commands::overwrite),
    get("/applications/{application.id}/guilds/{guild.id}/commands/{command.id}", commands::get),
    delete("/applications/{application.id}/guilds/{guild.id}/commands/{command.id}", commands::delete),
    get("/guilds/{guild.id}", guilds::get),
    get("/guilds/{guild.id}/roles", roles::list),
    post("/guilds/{guild.id}/roles", roles::create),
    patch("/guilds/{guild.id}/roles", roles::reorder),
    get("/guilds/{guild.id}/roles/{role.id}", roles::get),
    patch("/guilds/{guild.id}/roles/{role.id}", roles::modify),
    delete("/guilds/{guild.id}/roles/{role.id}", roles::delete),
    get("/guilds/{guild.id}/channels", channels::list),
    post("/guilds/{guild.id}/channels", channels::create),
    patch("/guilds/{guild.id}/channels", channel_order::reorder),
    get("/guilds/{guild.id}/members", members::list),
    patch("/guilds/{guild.id}/members/@me", members::modify_own),
    get("/guilds/{guild.id}/members/{user.id}", members::get),
    patch("/guilds/{guild.id}/members/{user.id}", members::modify),
    delete("/guilds/{guild.id}/members/{user.id}", members::kick),
    put("/guilds/{guild.id}/members/{user.id}/roles/{role.id}", members::put_role),
    delete("/guilds/{guild.id}/members/{user.id}/roles/{role.id}", members::delete_role),
    get("/guilds/{guild.id}/audit-logs", audit_logs::list),
    get("/channels/{channel.id}", channels::get),
    patch("/channels/{channel.id}", channels::modify),
    delete("/channels/{channel.id}", channels::delete),
    put("/channels/{channel.id}/permissions/{overwrite.id}", overwrites::put),
    delete("/channels/{channel.id}/permissions/{overwrite.id}", overwrites::delete),
    post("/channels/{channel.id}/typing", messages::typing),
    get("/channels/{channel.id}/pins", pins::list_old),
    put("/channels/{channel.id}/pins/{message.id}", pins::pin),
    delete("/channels/{channel.id}/pins/{message.id}", pins::unpin),
    get("/channels/{channel.id}/messages", messages::list),
    post("/channels/{channel.id}/messages", messages::create),
    get("/channels/{channel.id}/messages/pins", pins::list),
    put("/channels/{channel.id}/messages/pins/{message.id}", pins::pin),
    delete("/channels/{channel.id}/messages/pins/{message.id}", pins::unpin),
    post("/channels/{channel.id}/messages/bulk-delete", messages::delete_many),
    get("/channels/{channel.id}/messages/{message.id}", messages::get),
    patch("/channels/{channel.id}/messages/{message.id}", messages::edit),
    delete("/channels/{channel.id}/messages/{message.id}", messages::delete),
    put("/channels/{channel.id}/messages/{message.id}/reactions/{emoji}/@me", reactions::add),
    delete("/channels/{channel.id}/messages/{message.id}/reactions/{emoji}/@me", reactions::remove_own),
    delete("/channels/{channel.id}/messages/{message.id}/reactions/{emoji}/{user.id}", reactions::remove),
    get("/channels/{channel.id}/messages/{message.id}/reactions/{emoji}", reactions::list),
    delete("/channels/{channel.id}/messages/{message.id}/reactions/{emoji}", reactions::clear_emoji),
    delete("/channels/{channel.id}/messages/{message.id}/reactions", reactions::clear),
    by_token(post("/interactions/{interaction.id}/{interaction.token}/callback", interactions::callback)),
    by_token(post("/webhooks/{application.id}/{interaction.token}", webhooks::follow_up)),
    by_token(get("/webhooks/{application.id}/{interaction.token}/messages/@original", webhooks::get_message)),
    by_token(patch("/webhooks/{application.id}/{interaction.token}/messages/@original", webhooks::edit_message)),
    by_token(delete("/webhooks/{application.id}/{interaction.token}/messages/@original", webhooks::delete_message)),
    by_token(get("/webhooks/{application.id}/{interaction.token}/messages/{message.id}", webhooks::get_message)),
    by_token(patch("/webhooks/{application.id}/{interaction.token}/messages/{message.id}", webhooks::edit_message)),
    by_token(delete("/webhooks/{application.id}/{interaction.token}/messages/{message.id}", webhooks::delete_message)),
];

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::testing::RestFixture;
    use super::{ROUTES, route};
    use crate::world::World;
    use crate::world::fire::InteractionSpec;

    #[test]
    fn every_route_is_found_by_its_own_path() {
        for listed in ROUTES {
            let parts = listed.template.split('/').map(|part| if part.starts_with('{') { "1" } else { part });
            let path = parts.collect::<Vec<_>>().join("/");
            let (found, _) = route::find(ROUTES, &listed.method, &path).unwrap();
            assert_eq!(found.template, listed.template);
        }
        assert_eq!(route::find(ROUTES, &http::Method::PUT, "/guilds/1/roles").unwrap_err().status, 405);
        assert_eq!(route::find(ROUTES, &http::Method::GET, "/guilds/1/nothing").unwrap_err().status, 404);
    }

    #[test]
    fn snapshot_restores_a_world_with_all_objects() {
        let mut fixture = RestFixture::new();
        let roles = fixture.guild_path("/roles");
        fixture.reason("why").post(&roles, json!({ "name": "r" }));
        fixture.put(&fixture.channel_path("/permissions/5"), json!({ "type": 1, "deny": "1024" }));
        let nonce = json!({ "content": "x", "nonce": "n", "enforce_nonce": true });
        let messages = fixture.channel_path("/messages");
        let message = fixture.file("files[0]", "a.txt", "x").post(&messages, nonce.clone()).id();
        fixture.put(&fixture.channel_path(&format!("/messages/{message}/reactions/🔥/@me")), json!(null));
        fixture.put(&fixture.channel_path(&format!("/pins/{message}")), json!(null));
        fixture.post("/users/@me/channels", json!({ "recipient_id": fixture.member }));
        let command = json!({ "name": "c", "description": "d", "default_member_permissions": "8" });
        fixture.post(&format!("/applications/{}/commands", fixture.application), command);
        let fired = fixture.world.create_interaction(&InteractionSpec::default(), fixture.now).unwrap();
        let callback = format!("/interactions/{}/{}/callback", fired.id, fired.token);
        fixture.post(&callback, json!({ "type": 5 }));

        let before: Value = serde_json::to_value(&fixture.world).unwrap();
        fixture.world = serde_json::from_str::<World>(&before.to_string()).unwrap();
        assert_eq!(serde_json::to_value(&fixture.world).unwrap(), before);
        assert_eq!(fixture.post(&fixture.channel_path("/messages"), nonce).id(), message);
        assert_eq!(fixture.post(&callback, json!({ "type": 5 })).code(), 40060);
    }
}
