//! The effects of operations in Discord, and reconciliation of unknown outcomes: against the simulator, through the
//! gate.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "../support/gate.rs"]
mod gate;
mod stage;

mod bounds;
mod channels;
mod danger;
mod doubt_channels;
mod doubt_messages;
mod doubt_roles;
mod failures;
mod interactions;
mod messages;
mod requests;
mod roles;
mod verify;
