//! Adapters to Discord: its gateway, and its REST API.

mod answers;
mod application;
mod fatal;
mod gateway;
pub mod operations;
pub mod rest;

pub use self::{
    answers::{FirstAnswers, response as first_response},
    application::application_of,
    fatal::FatalClose,
    gateway::{
        IdentifyLimits, IdentifyQueue, Observer, Reconnects, Resume, Roster, Session, SessionsLeft, ShardEnd,
        ShardEvent, Shards, ShardsConfig, TokenSetter,
    },
};
