//! Statements of `write/guild_tenants.rs`.

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const TENANTS: &str = "SELECT q.queue, q.tenant FROM {v} JOIN guild_queues q ON q.queue = v.line";
