//! A Discord to test against.

mod config;
mod dispatch;
mod gateway;
mod http;
mod id;
mod limit;
mod rest;
mod sim;
mod state;
mod time;
mod world;

pub use config::{BotConfig, GatewayConfig, SimConfig};
pub use gateway::{GatewayFault, GatewayScore, SessionScore, SessionStarts, StormEvent, StormReport, StormSpec};
pub use id::Snowflake;
pub use limit::LimitConfig;
pub use sim::{Sim, SimHandle};
pub use time::At;
