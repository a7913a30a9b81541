//! Logs and metrics of supervision: which parts run, and the end of the process when a part has ended.

use tracing::error;

use super::{event, gauge, metrics};
use crate::supervision::{Part, PartEnd};

metrics! {
    Operations {
        /// Actors, tasks and threads that run and whose end ends the process, by part.
        PARTS = gauge "guildhall_parts_running" [part];
    }
}

event! {
    /// A part started or ended.
    pub(crate) struct PartsCounted { part: Part, running: usize }
    gauge!(PARTS, "part" => part.name()).set(running as f64);
}

event! {
    /// The process ends because a part did.
    pub(crate) struct ProcessEnding<'a> { end: &'a PartEnd }
    let PartEnd { part, cause } = end;
    error!(part = part.name(), component = part.component().name(), %cause, "part ended; ending the process");
}
