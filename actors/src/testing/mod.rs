//! Stores, a Discord and faults in memory, for tests of this crate.

pub(crate) mod events;
pub(crate) mod operations;
