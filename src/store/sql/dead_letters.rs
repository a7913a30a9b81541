//! Statements of `write/dead_letters.rs`.

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const TO_REDRIVE: &str = "SELECT l.id, l.redriven_as FROM {v} JOIN dead_letters l ON l.id = v.op
    WHERE l.tenant = COALESCE($2, l.tenant)
    UNION SELECT o.id, o.redriven_as FROM {v} JOIN operations o ON o.id = v.op
    WHERE o.state = 'needs_review' AND o.tenant = COALESCE($2, o.tenant)";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const SET_REDRIVEN: &str =
    "UPDATE dead_letters SET redriven_as = v.again FROM {v} WHERE id = v.op";

/// In SQL: many rows: one text for every number of them.
pub(in crate::store) const TENANTS: &str = "UPDATE operations SET redriven_as = v.again FROM {v} WHERE id = v.op";
