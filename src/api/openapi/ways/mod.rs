//! What there is to say of each way. `WAYS` is the list of what there is; this only tells of it.

mod events;
mod fleet;
mod guilds;
mod health;
mod keys;
mod letters;
mod limits;
mod operations;
mod shown;
mod submit;

pub(super) use health::OUTSIDE;

use super::{about::About, schema::Shape};

/// What there is to say of a way under `/v1`.
pub(super) fn about(method: &str, path: &str) -> Option<About> {
    let parts =
        [operations::about, letters::about, guilds::about, events::about, fleet::about, limits::about, keys::about];
    parts.into_iter().find_map(|part| part(method, path))
}

/// The schemas that those speak of.
pub(super) fn schemas() -> Vec<(String, Shape)> {
    let own = [
        shown::schemas(),
        letters::schemas(),
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
