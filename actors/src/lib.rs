//! Actix actors over the state machines of [`guildhall_core`], and the ports to the outside world.
//!
//! ```text
//!   message ─▶ actor ─▶ machine (core) ─▶ effects ─▶ actor ─▶ port (trait) ─▶ adapter (guildhall)
//! ```
//!
//! An actor owns one machine, passes messages to it, and executes the effects that it returns; the machine decides.
//! What an actor needs from outside (a store, Discord's REST API, a lease) is a small trait of this crate that the
//! `guildhall` crate implements, so a test runs every actor in one `LocalSet` with paused time.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod access;
pub mod budget;
pub mod circuit_breaker;
pub mod clock;
pub mod crash;
pub mod failpoint;
pub mod gate;
pub mod guild;
pub mod lease_guard;
pub mod policies;
pub mod ports;
pub mod shard;
pub mod snapshot;
pub mod submission;
pub mod supervision;
pub mod supervisor;
pub mod telemetry;
#[cfg(test)]
pub(crate) mod testing;
pub mod token_bucket;
pub mod wall_clock;
