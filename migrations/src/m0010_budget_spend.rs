//! Spend of named budgets, by the hour.

use crate::Step;

pub(crate) const STEP: Step = Step { name: "0010_budget_spend", up: UP, down: DOWN };

const UP: &[&str] = &[
    // A row is the sum of one run of a process, so that a repeated write counts once. `hour` counts from the start of
    // 1970, `micros` are millionths of a point.
    "CREATE TABLE budget_spend (
        name TEXT NOT NULL,
        hour BIGINT NOT NULL,
        process TEXT NOT NULL,
        micros BIGINT NOT NULL,
        calls BIGINT NOT NULL,
        PRIMARY KEY (name, hour, process)
    ) {by_key}",
    "CREATE INDEX budget_spend_hour ON budget_spend (hour)",
];

const DOWN: &[&str] = &["DROP TABLE budget_spend"];
