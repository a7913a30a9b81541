//! Implementations of the ports of `guildhall_actors` over the store.

mod access;
mod budgets;
mod changes;
mod events;
mod guilds;
mod operations;
