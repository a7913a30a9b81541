//! Statements of `write/identify.rs`.

/// The last identify of a bucket. Times further ahead come from a wrong clock.
/// In SQL: one step in the index.
pub(in crate::store) const LAST_OF_BUCKET: &str = "SELECT at FROM identifies WHERE bucket = $1 AND at > $2 AND at <= $3
    ORDER BY at DESC LIMIT 1";

/// The identify that used up the daily budget, counted from the last.
/// In SQL: one step in the index.
pub(in crate::store) const LAST_OF_BUDGET: &str =
    "SELECT at FROM identifies WHERE at > $1 ORDER BY at DESC LIMIT 1 OFFSET $2 + 0";

/// Removes rows after twice the period: the clock of the removing process may be ahead.
/// In SQL: one step in the index.
pub(in crate::store) const FORGET: &str =
    "DELETE FROM identifies WHERE id IN (SELECT id FROM identifies WHERE at <= $1 ORDER BY at LIMIT 500)";
