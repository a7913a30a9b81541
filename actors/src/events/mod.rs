//! The event side of the supervisor and the guilds: what Discord tells goes to whoever wants to hear of it, in order within
//! its guild, and is confirmed when all of them have been done with it.
//!
//! ```text
//!  shard ─▶ router ─batches─▶ supervisor ─mailbox─▶ guild ─▶ handlers: rules, webhooks
//!    ▲ credit │ sessions         ▲                    │           │ slow, failed
//!    └────────┴─── confirmed ────┴────── acks ◀───────┘           └──▶ inbox ─▶ handlers, in order, until they are done
//! ```
//!
//! What a handler gave is kept together with the word that it is done with the event, so a replay after a crash neither
//! loses nor repeats it.

mod acks;
mod config;
mod context;
mod crashed_events;
#[cfg(test)]
mod crashed_events_tests;
mod event_batch;
mod event_supervisor;
mod guild;
mod handle;
mod handler_commit;
mod handler_set;
mod inbox;
mod interaction;
mod interaction_recorder;
#[cfg(test)]
mod interaction_recorder_tests;
mod interaction_responder;
mod mailbox;
mod observer;
mod registry;
#[cfg(test)]
mod reload_tests;
mod routed_event;
mod router;
mod shard_admin;
mod shard_channel;
mod shard_ownership;
mod state_keys;
mod store;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod webhook;

pub use self::config::EventsConfig;
pub use self::crashed_events::unread_event;
pub use self::event_batch::EventBatch;
pub use self::guild::{GuildEventActor, GuildEventsSnapshot, ObserveGuildEvents};
pub use self::handle::{AttachedShard, EventPorts, EventsHandle, PreparedEvents};
pub use self::interaction::HttpInteractionResponse;
pub use self::interaction_responder::{
    InitialResponse, InteractionResponder, RespondFuture, ResponseResult as AnswerTold,
};
pub use self::observer::EventObserver;
pub use self::registry::TooManyHandlers;
pub use self::router::{EventRouter, EventsSnapshot, SessionView};
pub use self::shard_admin::{ShardAdmin, ShardState, ShardView, ShardsFuture};
pub use self::shard_channel::{Credit, FlowLimit, ShardMessage, ShardSender};
pub use self::shard_ownership::{ClaimedShards, DesiredShards, ShardClaim, ShardStore};
pub use self::store::{
    CommitResult, EventStore, HandlerCommit, IdentifyDecision, IdentifyRequest, InboxDisposition, InboxEntry, InboxKey,
    StateWrite, StoredSession,
};
pub use self::webhook::{
    WebhookBody, WebhookCall, WebhookCallError, WebhookCallFuture, WebhookClient, WebhookResponse,
};
