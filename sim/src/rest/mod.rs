//! The REST API: its routes, and what each does to the world.

mod access;
mod audit_logs;
pub(crate) mod call;
mod channels;
pub(crate) mod error;
mod form;
mod gateway;
mod guilds;
mod members;
mod message_form;
mod messages;
mod overwrites;
mod pins;
mod roles;
pub(crate) mod route;
#[cfg(test)]
mod testing;
mod users;

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

/// Every route there is. Where a literal part and a parameter could both fit, the literal stands first.
pub(crate) static ROUTES: &[Route] = &[
    Route { method: Method::GET, template: "/gateway", auth: Auth::Open, handler: gateway::url },
    get("/gateway/bot", gateway::for_bot),
    get("/users/@me", users::own),
    get("/users/@me/guilds", users::guilds),
    post("/users/@me/channels", users::open_direct),
    get("/users/{user.id}", users::get),
    get("/guilds/{guild.id}", guilds::get),
    get("/guilds/{guild.id}/roles", roles::list),
    post("/guilds/{guild.id}/roles", roles::create),
    patch("/guilds/{guild.id}/roles", roles::reorder),
    get("/guilds/{guild.id}/roles/{role.id}", roles::get),
    patch("/guilds/{guild.id}/roles/{role.id}", roles::modify),
    delete("/guilds/{guild.id}/roles/{role.id}", roles::delete),
    get("/guilds/{guild.id}/channels", channels::list),
    post("/guilds/{guild.id}/channels", channels::create),
    patch("/guilds/{guild.id}/channels", channels::reorder),
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
];
