//! Shares of a rate limit, for processes of a store without Redis.

use crate::Step;

pub(crate) const STEP: Step = Step { name: "0021_limit_shares", up: UP, down: DOWN };

const UP: &[&str] = &[
    // The sum of `share` over the rows of a scope never exceeds the limit. A row outlives its process by `hold_ms`,
    // measured by processes that see that `beat` no longer changes.
    "CREATE TABLE limit_shares (
        scope TEXT NOT NULL,
        instance {uuid} NOT NULL,
        seat TEXT NOT NULL,
        beat BIGINT NOT NULL,
        turn BIGINT NOT NULL,
        share BIGINT NOT NULL,
        hold_ms BIGINT NOT NULL,
        departed BIGINT NOT NULL,
        PRIMARY KEY (scope, instance)
    )",
];

const DOWN: &[&str] = &["DROP TABLE limit_shares"];
