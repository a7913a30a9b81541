//! Telling of operations while they are followed: lines, a bar, or nothing.

use std::io::{self, IsTerminal as _};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;

use super::view::{self, is_over};
use crate::{
    cli::output::{Output, Paint},
    plain::plain,
};

/// How the bar looks.
const BAR: &str = "{elapsed_precise} [{bar:40}] {pos}/{len} over, {msg}";

/// Tells what becomes of operations.
pub(in crate::cli) struct Teller {
    out: Output,
    how: How,
    succeeded: usize,
    failed: usize,
}

enum How {
    /// Each change is a line of the answer.
    Lines,
    /// A bar for people, and a line for what goes wrong.
    Bar(ProgressBar),
    /// Only the end is of interest.
    Silent,
}

impl Teller {
    /// For whoever follows so many operations, and wants to see them change.
    pub(super) fn ahead(out: &Output, count: usize) -> Self {
        let is_seen = io::stdout().is_terminal() && io::stderr().is_terminal();
        let how = if count > 1 && out.is_table() && is_seen { bar(count) } else { How::Lines };
        Self::new(out, how)
    }

    /// For whoever waits for so many operations, and is shown the end of all of them.
    pub(super) fn aside(out: &Output, count: usize) -> Self {
        let how = if count > 1 && io::stderr().is_terminal() { bar(count) } else { How::Silent };
        Self::new(out, how)
    }

    fn new(out: &Output, how: How) -> Self {
        Self { out: *out, how, succeeded: 0, failed: 0 }
    }

    /// Tells of a change.
    pub(super) fn tell(&mut self, operation: &Value) -> anyhow::Result<()> {
        let state = operation["state"].as_str().unwrap_or_default();
        let is_end = is_over(state) || !is_known(state);
        match (is_end, state == "succeeded") {
            (true, true) => self.succeeded += 1,
            (true, false) => self.failed += 1,
            (false, _) => {}
        }
        match &self.how {
            How::Lines => return self.out.show_next(operation, |paint| view::line(operation, paint)),
            How::Bar(bar) => {
                if is_end && state != "succeeded" {
                    bar.println(view::line(operation, Paint::for_terminal(true)));
                }
                let last = format!("{} {}", operation["kind"].as_str().unwrap_or_default(), state);
                bar.set_message(format!("{} succeeded, {} not; last: {}", self.succeeded, self.failed, plain(&last)));
                bar.inc(u64::from(is_end));
            }
            How::Silent => {}
        }
        Ok(())
    }

    /// Nothing more comes.
    pub(super) fn end(&self) {
        if let How::Bar(bar) = &self.how {
            bar.finish_and_clear();
        }
    }

    /// What there was, in one line.
    pub(super) fn summary(&self) -> String {
        format!("{} succeeded, {} did not.", self.succeeded, self.failed)
    }
}

fn is_known(state: &str) -> bool {
    guildhall_core::operation::State::from_name(state).is_some()
}

fn bar(count: usize) -> How {
    let bar = ProgressBar::with_draw_target(Some(count as u64), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template(BAR).expect("invariant: the template is one");
    bar.set_style(style.progress_chars("=> "));
    bar.set_message("none yet");
    How::Bar(bar)
}
