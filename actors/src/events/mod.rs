//! The event side of the supervisor and the guilds: what Discord tells goes to whoever wants to hear of it, in order within
//! its guild, and is confirmed when all of them have been done with it.
//!
//! ```text
//!  shard ─feed─▶ router ─lots─▶ seats ─tray─▶ guild ─▶ handlers: rules, webhooks
//!    ▲ credit      │ ledger       ▲             │           │ slow, failed
//!    └─────────────┴──── done ────┴── outbox ◀──┘           └──▶ inbox ─▶ handlers, in order, until they are done
//! ```
//!
//! What a handler gave is kept together with the word that it is done with the event, so a replay after a crash neither
//! loses nor repeats it.

mod answers;
mod batch;
mod board;
mod config;
mod feed;
mod guild;
mod handle;
mod hub;
mod inbox;
mod interaction;
mod keep;
mod outbox;
mod own;
mod parcel;
mod received;
#[cfg(test)]
mod received_tests;
mod registry;
#[cfg(test)]
mod reload_tests;
mod router;
mod seats;
mod set_aside;
#[cfg(test)]
mod set_aside_tests;
mod state_keys;
mod store;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tray;
mod watch;
mod webhook;
mod whom;

pub use self::answers::{AnswerFuture, Answers, First, Told as AnswerTold};
pub use self::batch::Batch;
pub use self::board::{Boarded, ShardBoard, ShardState, ShardView};
pub use self::config::EventsConfig;
pub use self::feed::{Allowance, Credit, Feed, Told};
pub use self::guild::{GuildEvents, GuildEventsSnapshot, Observe as ObserveGuildEvents};
pub use self::handle::{Events, Outside, Prepared, Taken};
pub use self::interaction::Posted;
pub use self::own::{ClaimedShards, ShardClaim, ShardStore, WantedShards};
pub use self::registry::TooManyHandlers;
pub use self::router::{EventsSnapshot, Router, SessionView};
pub use self::set_aside::unread_event;
pub use self::store::{
    Committed, EventStore, Handled, Identifies, Identify, InboxEntry, InboxKey, KeptSession, Later, SetState,
};
pub use self::watch::Watch;
pub use self::webhook::{Asks, Body, Brain, BrainError, BrainFuture, Said};
