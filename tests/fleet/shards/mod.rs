//! Several daemons without ranges on one PostgreSQL: each shard has one owner, its session continues on another daemon
//! if the owner is killed, stopped or frozen, and every event has its effect once.
//!
//! ```text
//!  messages ──▶ simulator, 4 shards ──ws──▶ guildhall serve ──┐
//!     │             ▲      └────────ws────▶ guildhall serve ──┼──▶ PostgreSQL: owners of shards
//!     │             └──────────REST───────────────┘           │
//!     └── written messages ──▶ checker ◀── echoed messages    │
//! ```

mod fixture;
mod handover;
