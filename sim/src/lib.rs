//! A Discord to test against.

mod config;
mod control;
mod dispatch;
mod fault;
mod gateway;
mod http;
mod id;
mod limit;
mod rest;
mod score;
mod sim;
mod state;
mod time;
mod world;

pub use config::{BotConfig, GatewayConfig, SimConfig};
pub use control::{ControlError, DriveReport, FireSpec, GuildsSpec, JoinSpec, MessageSpec, Pace, Posted};
pub use fault::{CloudflareForm, Fault, FaultAction, FaultError, Stage};
pub use gateway::{GatewayFault, GatewayScore, SessionScore, SessionStarts, StormEvent, StormReport, StormSpec};
pub use id::{NotAnId, Snowflake};
pub use limit::{Algorithm, Case, InvalidLimit, LimitConfig, Rate, RouteLimit, Scope};
pub use score::{EffectScore, InteractionScore, RateLimited, RouteScore, Score};
pub use sim::{Sim, SimHandle};
pub use time::At;
