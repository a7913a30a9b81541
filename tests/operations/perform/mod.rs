//! The effects of operations in Discord, and reconciliation of unknown outcomes: against the simulator, through the
//! gate.

mod fixture;

mod access_bounds;
mod channels;
mod danger;
mod failures;
mod interactions;
mod messages;
mod reconcile_channels;
mod reconcile_messages;
mod reconcile_roles;
mod requests;
mod roles;
mod verify;
