//! Statements in SQL, a module for each topic. Each names the reason why it is not built from the
//! [`entities`](super::entities):
//!
//! - Many rows: [`with_rows`](super::rows::with_rows) needs one text for every number of them. A builder would write another
//!   list of values for each number, and SQLite would prepare each of them.
//! - A claim, a lock, or the clock of the database: the SQL is the point.
//! - A conditional upsert, a bounded batch that returns what it removed, or a condition that must have the text of a partial
//!   index.
//!
//! `{v}` stands for rows, and `{changed}` for the number of a change.

pub(super) mod access;
pub(super) mod admin_key;
pub(super) mod attempts;
pub(super) mod cancel;
pub(super) mod change_seq;
pub(super) mod cluster;
pub(super) mod crashes;
pub(super) mod dead_letters;
pub(super) mod erase;
pub(super) mod event_commit;
pub(super) mod events;
pub(super) mod file_capacity;
pub(super) mod finish;
pub(super) mod guild_tenants;
pub(super) mod guilds;
pub(super) mod identify;
pub(super) mod inbox;
pub(super) mod insert;
pub(super) mod interactions;
pub(super) mod leases;
pub(super) mod locations;
pub(super) mod operations;
pub(super) mod outcome;
pub(super) mod queues;
pub(super) mod resolve;
pub(super) mod restored;
pub(super) mod schedule;
pub(super) mod sessions;
pub(super) mod shards;
pub(super) mod share_rows;
pub(super) mod spend;
pub(super) mod state;
pub(super) mod submit;
pub(super) mod sweep;
pub(super) mod totals;
pub(super) mod usage;
pub(super) mod wait_reasons;
