//! Adapters to Discord. So far its gateway; REST comes with the gate.

mod fatal;
mod gateway;
mod shard;

pub use self::{
    fatal::FatalClose,
    gateway::{ShardEnd, Shards, ShardsConfig},
    shard::{Session, ShardEvent},
};
