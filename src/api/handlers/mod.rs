//! Handlers of the API, one file for each resource.

pub(crate) mod audit;
pub(crate) mod breakers;
pub(crate) mod budgets;
pub(crate) mod dead_letters;
pub(crate) mod egress;
pub(crate) mod erase;
pub(crate) mod guilds;
pub(crate) mod instances;
pub(crate) mod keys;
pub(crate) mod limits;
pub(crate) mod operations;
pub(crate) mod reload;
pub(crate) mod shards;
pub(crate) mod state;
pub(crate) mod stream;
pub(crate) mod timeline;
pub(crate) mod usage;
pub(crate) mod webhooks;

/// The entries of a page, and where the next one starts. One entry more than `limit` shows that another page follows.
fn page<T, C>(mut listed: Vec<T>, limit: usize, cursor: impl Fn(&T) -> C) -> (Vec<T>, Option<C>) {
    let more = listed.len() > limit;
    listed.truncate(limit);
    let next = listed.last().filter(|_| more).map(cursor);
    (listed, next)
}
