//! The frozen history of Guildhall's schema.
//!
//! ```text
//!   store (guildhall) ──opens──▶ migrations, oldest first ──▶ SQLite | PostgreSQL
//! ```
//!
//! A migration that has been released is never edited: what it got wrong, a later one mends. The first one
//! arrives with the store; until then Guildhall keeps nothing on disk.
