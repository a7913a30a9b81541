//! A store, a Discord and a way to break both, for tests.

mod chaos;
mod discord;
mod members;
mod store;
mod tables;
mod world;

pub(super) use chaos::Fault;
pub(super) use discord::{Script, Search};
pub(super) use world::{World, paused};
