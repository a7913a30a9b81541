//! The gateway: sessions, their connections, and injected faults of both.
//!
//! ```text
//!  world ──Dispatch──► GatewayState ──► Session (replay buffer = send queue) ──wake──► socket task ──► client
//!                           ▲                                                             │
//!                           └──────────────── Connection (state machine) ◄────────────────┘
//! ```
//!
//! The gateway state and everything in it is pure and behind the simulator's one lock; only `socket` waits for I/O.

mod close;
mod connection;
mod delivery;
mod faults;
mod frame;
mod gateway_state;
mod handle;
mod identify;
mod inbound;
mod intents;
mod login;
mod members;
mod replay;
mod reset;
mod score;
mod session;
mod session_index;
mod socket;
mod storm;
#[cfg(test)]
mod tests;
mod zlib;

pub use faults::GatewayFault;
pub(crate) use gateway_state::GatewayState;
pub use identify::SessionStarts;
pub use score::{GatewayScore, SessionScore};
pub(crate) use socket::serve;
pub(crate) use storm::storm;
pub use storm::{StormEvent, StormReport, StormSpec};
