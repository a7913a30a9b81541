//! Operations of which an attempt may have taken effect.

use crate::Step;

pub(crate) const STEP: Step = Step { name: "0020_unknown_outcomes", up: UP, down: DOWN };

const UP: &[&str] = &[
    // JSON: since when, and the final result if a check finds no effect. NULL if every outcome is known.
    "ALTER TABLE operations ADD COLUMN unknown_outcome TEXT",
];

const DOWN: &[&str] = &["ALTER TABLE operations DROP COLUMN unknown_outcome"];
