//! The gateway: sessions, the connections that carry them, and what goes wrong with both on purpose.
//!
//! ```text
//!  world ──Dispatch──► Hub ──► Session (replay buffer = send queue) ──bell──► socket task ──► client
//!                       ▲                                                        │
//!                       └────────────── Connection (what a frame may ask) ◄──────┘
//! ```
//!
//! The hub and everything in it is pure and stands behind the simulator's one lock; only `socket` waits for anything.

mod anew;
mod close;
mod connection;
mod delivery;
mod faults;
mod frame;
mod handle;
mod hub;
mod identify;
mod inbound;
mod intents;
mod login;
mod members;
mod replay;
mod roster;
mod score;
mod session;
mod socket;
mod storm;
#[cfg(test)]
mod tests;
mod zlib;

pub use faults::GatewayFault;
pub(crate) use hub::Hub;
pub use identify::SessionStarts;
pub use score::{GatewayScore, SessionScore};
pub(crate) use socket::serve;
pub(crate) use storm::storm;
pub use storm::{StormEvent, StormReport, StormSpec};
