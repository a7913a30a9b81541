//! Logs and metrics of supervision: which parts run, and the end of the process when a part has ended.

use metrics::gauge;
use tracing::error;

use super::{InternalEvent, Metric};
use crate::supervision::{Part, PartEnd};

/// Number of actors, tasks and threads that run, by part.
pub const PARTS: &str = "guildhall_parts_running";

/// The metrics of supervision.
pub(crate) const METRICS: &[Metric] =
    &[Metric::gauge(PARTS, &["part"], "Actors, tasks and threads that run and whose end ends the process, by part.")];

/// A part started or ended.
pub(crate) struct PartsCounted {
    pub(crate) part: Part,
    pub(crate) running: usize,
}

impl InternalEvent for PartsCounted {
    fn emit(self) {
        gauge!(PARTS, "part" => self.part.name()).set(self.running as f64);
    }
}

/// The process ends because a part did.
pub(crate) struct ProcessEnding<'a> {
    pub(crate) end: &'a PartEnd,
}

impl InternalEvent for ProcessEnding<'_> {
    fn emit(self) {
        let PartEnd { part, cause } = self.end;
        error!(part = part.name(), component = part.component().name(), %cause, "part ended; ending the process");
    }
}
