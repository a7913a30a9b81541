//! Expected and actual results, as a table.

use std::fmt;

/// The expected value of a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// Exactly this value.
    Exactly(u64),
    /// This value or less.
    AtMost(u64),
}

impl Expected {
    fn is(self, seen: u64) -> bool {
        match self {
            Self::Exactly(count) => seen == count,
            Self::AtMost(most) => seen <= most,
        }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(count) => f.pad(&count.to_string()),
            Self::AtMost(most) => f.pad(&format!("<= {most}")),
        }
    }
}

/// One row of the table.
#[derive(Clone, Debug)]
struct Step {
    what: &'static str,
    expected: Expected,
    seen: u64,
}

/// All rows, in the order of the scenario.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepTable {
    steps: Vec<Step>,
}

impl StepTable {
    pub(crate) fn note(&mut self, what: &'static str, expected: Expected, seen: u64) {
        self.steps.push(Step { what, expected, seen });
    }

    /// Whether all rows are as expected.
    pub(crate) fn holds(&self) -> bool {
        self.steps.iter().all(|step| step.expected.is(step.seen))
    }
}

impl fmt::Display for StepTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<32} {:>8} {:>8}", "", "expected", "actual")?;
        for Step { what, expected, seen } in &self.steps {
            let verdict = if expected.is(*seen) { "ok" } else { "FAILED" };
            writeln!(f, "{what:<32} {expected:>8} {seen:>8}  {verdict}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_does_not_hold_is_seen_and_spoils_the_whole() {
        let mut table = StepTable::default();
        table.note("guilds received", Expected::Exactly(10), 10);
        table.note("most calls in a second", Expected::AtMost(50), 49);
        assert!(table.holds(), "{table}");
        table.note("duplicates", Expected::Exactly(0), 1);
        assert!(!table.holds());
        let shown = table.to_string();
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[1], "guilds received                        10       10  ok");
        assert_eq!(lines[2], "most calls in a second              <= 50       49  ok");
        assert_eq!(lines[3], "duplicates                              0        1  FAILED");
    }

    #[test]
    fn more_than_the_most_is_wrong_and_so_is_more_than_expected() {
        assert!(!Expected::AtMost(50).is(51));
        assert!(!Expected::Exactly(2).is(3));
    }
}
