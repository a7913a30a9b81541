//! In-memory stores, fake Discord and fault injection, for tests of this crate.

pub(crate) mod events;
pub(crate) mod operations;
