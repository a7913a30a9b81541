//! Adapters to Discord: its gateway, and its REST API.

mod fatal;
mod gateway;
pub mod rest;
mod shard;

pub use self::{
    fatal::FatalClose,
    gateway::{ShardEnd, Shards, ShardsConfig},
    shard::{Session, ShardEvent},
};
