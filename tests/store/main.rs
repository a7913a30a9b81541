//! The store on real engines: one suite that runs on SQLite and on PostgreSQL.

#![expect(clippy::unwrap_used, reason = "tests")]

mod access;
mod backup;
mod changes;
mod clock;
mod contract;
mod crashes;
mod erasure;
mod events;
mod events_inbox;
mod events_setup;
mod failing;
mod guilds;
mod interactions;
mod model;
mod opening;
mod queue_migration;
mod restored;
mod row_security;
mod scheduled;
mod setup;
mod shards;
mod sharing;
mod spend;
mod tenants;
mod unreadable;
mod usage;
