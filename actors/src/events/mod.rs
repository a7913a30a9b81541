//! The event side of the supervisor and the guilds: what Discord tells goes to whoever wants to hear of it, in order within
//! its guild, and is confirmed when all of them have been done with it.

mod feed;
mod store;
mod webhook;

pub use self::feed::{Allowance, Credit, Feed, Told};
pub use self::store::{
    Committed, EventStore, Handled, Identifies, Identify, InboxEntry, InboxKey, KeptSession, Later, SetState,
};
pub use self::webhook::{Asks, Body, Brain, BrainError, BrainFuture, Said};
