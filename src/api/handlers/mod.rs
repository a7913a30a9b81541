//! Handlers of the API, one file for each resource.

pub(crate) mod audit;
pub(crate) mod breakers;
pub(crate) mod budgets;
pub(crate) mod dead_letters;
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
