//! Asks before something is deleted, or many objects change.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use anyhow::bail;

/// How many matching objects are counted before a question is asked.
const MAX_COUNTED: usize = 10_000;

/// Options of commands that ask for confirmation.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(super) struct ConfirmArgs {
    /// Do not ask for confirmation
    #[arg(short = 'y', long, conflicts_with = "dry_run")]
    yes: bool,
    /// Print what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
}

impl ConfirmArgs {
    pub(super) const fn is_dry_run(self) -> bool {
        self.dry_run
    }

    /// Whether the question must be asked.
    pub(super) const fn must_ask(self) -> bool {
        !self.yes
    }

    /// Asks a question, unless `--yes` was given. Returns whether the answer is yes.
    pub(super) fn ask(self, question: &str) -> anyhow::Result<bool> {
        if self.yes {
            return Ok(true);
        }
        if !io::stdin().is_terminal() {
            bail!(
                "{question} This needs a confirmation, and standard input is not a terminal: pass --yes to confirm, or \
                 --dry-run to see what would be done"
            );
        }
        eprint!("{question} [y/N] ");
        io::stderr().flush()?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        let is_yes = matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes");
        if !is_yes {
            eprintln!("Nothing was changed.");
        }
        Ok(is_yes)
    }
}

/// A number of objects: counted up to a maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) number: usize,
    /// Whether there are more.
    pub(super) is_more: bool,
}

impl Count {
    /// Maximum number of entries to read for a count; `limit` is what the command would change at most.
    pub(super) fn max_entries(limit: Option<u64>) -> usize {
        limit.map_or(MAX_COUNTED, |limit| usize::try_from(limit).unwrap_or(MAX_COUNTED).min(MAX_COUNTED))
    }

    /// The number with a noun: `1 dead letter`, `more than 10000 dead letters`.
    pub(super) fn of(self, noun: &str) -> String {
        let more = if self.is_more { "more than " } else { "" };
        let plural = if self.number == 1 && !self.is_more { "" } else { "s" };
        format!("{more}{} {noun}{plural}", self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_phrased_for_people() {
        let count = |number, is_more| Count { number, is_more }.of("operation");
        assert_eq!(
            (count(1, false), count(0, false), count(10_000, true)),
            ("1 operation".to_owned(), "0 operations".to_owned(), "more than 10000 operations".to_owned())
        );
        assert_eq!((Count::max_entries(Some(5)), Count::max_entries(None)), (5, MAX_COUNTED));
    }
}
