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
    fn is_met_by(self, actual: u64) -> bool {
        match self {
            Self::Exactly(count) => actual == count,
            Self::AtMost(max) => actual <= max,
        }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(count) => f.pad(&count.to_string()),
            Self::AtMost(max) => f.pad(&format!("<= {max}")),
        }
    }
}

/// One row of the table.
#[derive(Clone, Debug)]
struct Step {
    name: &'static str,
    expected: Expected,
    actual: u64,
}

/// All rows, in the order of the scenario.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepTable {
    steps: Vec<Step>,
}

impl StepTable {
    pub(crate) fn add(&mut self, name: &'static str, expected: Expected, actual: u64) {
        self.steps.push(Step { name, expected, actual });
    }

    /// Whether all rows are as expected.
    pub(crate) fn is_as_expected(&self) -> bool {
        self.steps.iter().all(|step| step.expected.is_met_by(step.actual))
    }
}

impl fmt::Display for StepTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<32} {:>8} {:>8}", "", "expected", "actual")?;
        for Step { name, expected, actual } in &self.steps {
            let status = if expected.is_met_by(*actual) { "ok" } else { "FAILED" };
            writeln!(f, "{name:<32} {expected:>8} {actual:>8}  {status}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_row_is_shown_and_fails_the_table() {
        let mut table = StepTable::default();
        table.add("guilds received", Expected::Exactly(10), 10);
        table.add("most calls in a second", Expected::AtMost(50), 49);
        assert!(table.is_as_expected(), "{table}");
        table.add("duplicates", Expected::Exactly(0), 1);
        assert!(!table.is_as_expected());
        let text = table.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "guilds received                        10       10  ok");
        assert_eq!(lines[2], "most calls in a second              <= 50       49  ok");
        assert_eq!(lines[3], "duplicates                              0        1  FAILED");
    }

    #[test]
    fn counts_above_the_expected_value_fail() {
        assert!(!Expected::AtMost(50).is_met_by(51));
        assert!(!Expected::Exactly(2).is_met_by(3));
    }
}
