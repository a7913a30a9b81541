//! Reports the progress of operations: lines, a progress bar, or nothing.

use std::io::{self, IsTerminal as _};

use guildhall_core::operation::OperationState;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{report::ReportedOperation, view};
use crate::{
    cli::output::{Output, Painter},
    terminal_text::escape_controls,
};

/// Template of the progress bar.
const BAR: &str = "{elapsed_precise} [{bar:40}] {pos}/{len} finished, {msg}";

/// Reports changes of operations.
pub(in crate::cli) struct ProgressReporter {
    out: Output,
    mode: ProgressMode,
    succeeded: usize,
    failed: usize,
}

enum ProgressMode {
    /// Each change is a line of the output.
    Lines,
    /// A progress bar, and a line for each failure.
    Bar(ProgressBar),
    /// No output until the end.
    Silent,
}

impl ProgressReporter {
    /// Creates a reporter that prints each change of `count` operations.
    pub(super) fn printing_changes(out: &Output, count: usize) -> Self {
        let is_terminal = io::stdout().is_terminal() && io::stderr().is_terminal();
        let how = if count > 1 && out.is_table() && is_terminal { bar(count) } else { ProgressMode::Lines };
        Self::new(out, how)
    }

    /// Creates a reporter for a command that waits for operations and prints all of them at the end.
    pub(super) fn with_summary_only(out: &Output, count: usize) -> Self {
        let how = if count > 1 && io::stderr().is_terminal() { bar(count) } else { ProgressMode::Silent };
        Self::new(out, how)
    }

    fn new(out: &Output, how: ProgressMode) -> Self {
        Self { out: *out, mode: how, succeeded: 0, failed: 0 }
    }

    /// Reports a change.
    pub(super) fn report(&mut self, operation: &ReportedOperation) -> anyhow::Result<()> {
        let report = &operation.report;
        let state = report.state().unwrap_or_default();
        let is_end = OperationState::from_name(state).is_none_or(OperationState::is_final);
        match (is_end, report.has_succeeded()) {
            (true, true) => self.succeeded += 1,
            (true, false) => self.failed += 1,
            (false, _) => {}
        }
        match &self.mode {
            ProgressMode::Lines => return self.out.show_next(&operation.value, |paint| view::line(report, paint)),
            ProgressMode::Bar(bar) => {
                if is_end && !report.has_succeeded() {
                    bar.println(view::line(report, Painter::for_terminal(true)));
                }
                let last = format!("{} {state}", report.kind().unwrap_or_default());
                bar.set_message(format!(
                    "{} succeeded, {} not; last: {}",
                    self.succeeded,
                    self.failed,
                    escape_controls(&last)
                ));
                bar.inc(u64::from(is_end));
            }
            ProgressMode::Silent => {}
        }
        Ok(())
    }

    /// Prints a note for people.
    pub(super) fn note(&self, text: &str) {
        match &self.mode {
            ProgressMode::Bar(bar) => bar.println(text),
            ProgressMode::Lines | ProgressMode::Silent => self.out.note(text),
        }
    }

    /// Ends the report.
    pub(super) fn finish(&self) {
        if let ProgressMode::Bar(bar) = &self.mode {
            bar.finish_and_clear();
        }
    }

    /// Returns a summary on one line.
    pub(super) fn summary(&self) -> String {
        format!("{} succeeded, {} did not.", self.succeeded, self.failed)
    }
}

fn bar(count: usize) -> ProgressMode {
    let bar = ProgressBar::with_draw_target(Some(count as u64), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template(BAR).expect("invariant: the template is valid");
    bar.set_style(style.progress_chars("=> "));
    bar.set_message("none yet");
    ProgressMode::Bar(bar)
}
