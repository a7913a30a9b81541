//! Processes that ended because a part failed, for the operator and for the next process. The newest 100 are stored.

use crate::Step;

pub(crate) const STEP: Step = Step { name: "0017_process_ends", up: UP, down: DOWN };

const UP: &[&str] = &["CREATE TABLE process_ends (
        id {counted},
        instance TEXT NOT NULL,
        part TEXT NOT NULL,
        cause TEXT NOT NULL,
        ended_at BIGINT NOT NULL
    )"];

const DOWN: &[&str] = &["DROP TABLE process_ends"];
