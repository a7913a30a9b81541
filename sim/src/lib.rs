//! A simulated Discord for tests: REST, gateway, rate limits, injected faults, and a score of what clients did.
//!
//! ```text
//!                          one port
//!   a bot ──REST──▶ http ──▶ admit: ban, token, limits, faults ──▶ rest ──▶ ┌───────┐
//!     ▲               ├──▶ files: attachments ◀──────────────────────────── │ world │──▶ events ┐
//!     │               └──▶ control: /sim sets world, limits and faults ───▶ └───────┘           │
//!     └──ws──── gateway: sessions, sequence, replay, intents ◀──────────────────────────────────┘
//!
//!                   score: what arrived, its effects, and their order
//! ```
//!
//! The world, the rate limit windows, the sessions and the score are state machines: time and random numbers are passed
//! in. They are behind one lock, so that effects have one order; [`Sim`] exposes no part of it. Code that does I/O
//! (`http`, the gateway's sockets) makes no decisions.
//!
//! It depends on no other package of this workspace, so that it cannot inherit their bugs. `docs/simulator.md`
//! describes its features and its deliberate deviations from Discord.
//!
//! ```
//! use guildhall_sim::{FireSpec, Sim, SimConfig};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let sim = Sim::start(SimConfig { guilds: 3, ..SimConfig::default() }).await?;
//! println!("REST at {}, the gateway at {}", sim.api_url(), sim.gateway_url());
//!
//! sim.fire(FireSpec::command(sim.guilds()[0], "hello")).await?;
//! let score = sim.score();
//! assert_eq!((score.interactions.fired, score.interactions.answered), (1, 0), "no bot is connected");
//! sim.stop().await;
//! # Ok(())
//! # })
//! # }
//! ```

mod config;
mod control;
mod dispatch;
mod fault;
mod gateway;
mod http;
mod id;
mod limit;
mod offline;
mod rest;
mod score;
mod sim;
mod state;
mod time;
mod tls;
mod world;

pub use config::{BotConfig, GatewayConfig, SimConfig};
pub use control::{
    ControlError, DriveReport, FireSpec, GuildsSpec, JoinSpec, MessageSpec, Pace, PostResponse, ReactionSpec,
};
pub use fault::{CloudflareForm, Fault, FaultAction, FaultError, Stage};
pub use gateway::{GatewayFault, GatewayScore, SessionScore, SessionStarts, StormEvent, StormReport, StormSpec};
pub use id::{NotAnId, Snowflake};
pub use limit::{Algorithm, Case, InvalidLimit, LimitConfig, Rate, RouteLimit, Scope};
pub use offline::OfflineSim;
pub use score::{EffectScore, InteractionScore, RateLimitScore, RouteScore, Score};
pub use sim::{Sim, SimHandle};
pub use time::At;
