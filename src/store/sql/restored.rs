//! Statements of `restored.rs`.

/// Marks unfinished operations. The text is an [`guildhall_actors::ports::UnknownOutcome`] as JSON.
/// In SQL: it builds a text from other columns.
pub(in crate::store) const HOLD: &str = "UPDATE operations SET unknown_outcome = '{\"since\":' || created_at ||
    CASE WHEN joins_at > $1 THEN ',\"restored\":\"scheduled\"}' ELSE ',\"restored\":\"due\"}' END,
    eligible_at = CASE WHEN joins_at > $1 THEN eligible_at ELSE $2 END WHERE finished_at IS NULL";
