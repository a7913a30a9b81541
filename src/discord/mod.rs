//! Adapters to Discord: its gateway, and its REST API.

mod application;
pub mod executor;
mod fatal_close;
mod gateway;
mod intents;
mod interaction_responder;
mod reconcile;
pub mod rest;

pub(crate) use self::intents::{PRIVILEGED, intents_for_event};
pub use self::{
    application::application_id,
    fatal_close::FatalClose,
    gateway::{
        IdentifyLimits, IdentifyQueue, ResumeState, SessionKind, SessionStartLimit, ShardEnd, ShardEvent,
        ShardObserver, ShardPool, ShardPoolConfig, ShardSet, TokenSetter,
    },
    interaction_responder::{RestInteractionResponder, response_json as first_response},
};
