//! Operations in the whole daemon: a limit of a day, the memory of many guilds, and administrative actions.

#![expect(clippy::unwrap_used, reason = "tests")]

mod admin_actions;
mod clock;
mod daemon;
mod many_guilds;
mod parked;
mod perform;
mod scheduled;
mod unknown_outcome;
