//! The documentation of each route. The route list of `control` decides which routes exist.

mod dead_letters;
mod events;
mod fleet;
mod guilds;
mod health;
mod keys;
mod limits;
mod operation_schemas;
mod operations;
mod submit;

pub(crate) use health::OUTSIDE;

use super::{route_doc::RouteDoc, schema::SchemaRef};

/// The documentation of a route under `/v1`.
pub(crate) fn doc_for(method: &str, path: &str) -> Option<RouteDoc> {
    let parts = [
        operations::doc_for,
        dead_letters::doc_for,
        guilds::doc_for,
        events::doc_for,
        fleet::doc_for,
        limits::doc_for,
        keys::doc_for,
    ];
    parts.into_iter().find_map(|part| part(method, path))
}

/// The schemas that the routes use.
pub(crate) fn schemas() -> Vec<(String, SchemaRef)> {
    let own = [
        operation_schemas::schemas(),
        dead_letters::schemas(),
        guilds::schemas(),
        events::schemas(),
        fleet::schemas(),
        limits::schemas(),
        keys::schemas(),
        health::schemas(),
    ];
    let own = own.into_iter().flatten().map(|(name, shape)| (name.to_owned(), shape));
    own.chain(submit::schemas()).collect()
}
