//! Reads. They use several connections, independent of each other.

use sea_orm::sea_query::{Expr, ExprTrait as _};

pub(super) mod access;
pub(super) mod changes;
pub(super) mod dead_letters;
pub(super) mod events;
pub(super) mod guilds;
pub(super) mod instances;
pub(super) mod interactions;
pub(super) mod locations;
pub(super) mod operations;
pub(super) mod resolve;
pub(super) mod spend;
pub(super) mod totals;
pub(super) mod usage;
mod wait_reasons;

/// Maximum number of rows that one read returns, whatever was requested.
pub(super) const MAX_ROWS: usize = 10_000;

/// A sum of whole numbers. PostgreSQL's sums have another type than their operands.
pub(super) fn sum(of: Expr) -> Expr {
    of.sum().cast_as("BIGINT")
}

/// A limit as an SQL value.
pub(super) fn limit(requested: usize) -> i64 {
    i64::try_from(requested.min(MAX_ROWS)).unwrap_or(i64::MAX)
}
