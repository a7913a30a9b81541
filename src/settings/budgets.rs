//! Settings of named budgets.

use std::{fmt, str::FromStr, time::Duration};

use guildhall_core::budget::{BudgetLimits, BudgetMember, BudgetName, Points};

use super::{
    declare::settings,
    kind::{self, Integer, List, Optional, Text, ValueError},
};

settings! {
    /// Named budgets.
    #[derive(Clone, Debug)]
    pub struct BudgetSettings in "budgets" {
        /// Budgets of other upstreams that a bot's brain calls, each as a name, its maximum, and how much is restored a
        /// second, such as shop=1000/50. Values that an upstream reports replace these. See docs/budgets.md.
        pub named: Vec<NamedBudget> = NAMED_BUDGETS, [];
        /// Maximum, and how much is restored a second, of budgets that are used and not named in `budgets.named`. Empty:
        /// there are no others.
        pub others: Option<BudgetLimits> = Optional(BUDGET_LIMITS), "";
        /// Maximum number of budgets.
        pub max_budgets as "most": usize = Integer(1..=1_000), 100;
        /// How far ahead a use of a budget may be booked, in milliseconds, even if the caller would wait longer.
        pub max_wait as "longest_wait_ms": Duration = Integer(0..=86_400_000), 60000;
    }
}

const NAMED_BUDGETS: List<Vec<NamedBudget>> = List {
    parse: named_budgets,
    display: |budgets| budgets.iter().map(ToString::to_string).collect(),
    allowed: "`name=maximum/restored a second` (separated by commas in the environment), such as shop=1000/50, \
              rpc=300/0.5",
};

const BUDGET_LIMITS: Text<BudgetLimits> = Text {
    parse: |text| parse_limits(text).map_err(|error| ValueError::Message(error.to_string())),
    display: |limits| format_limits(*limits),
    allowed: "`maximum/restored a second`, such as 1000/50",
    secrets: None,
};

fn named_budgets(texts: &[&str]) -> Result<Vec<NamedBudget>, ValueError> {
    let mut all: Vec<NamedBudget> = Vec::new();
    for text in texts {
        let named: NamedBudget = kind::from_text(text)?;
        if all.iter().any(|earlier| earlier.name == named.name) {
            return Err(ValueError::Message(format!("has the budget {:?} twice", named.name.as_str())));
        }
        all.push(named);
    }
    Ok(all)
}

/// A budget with its name, as in `shop=1000/50`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedBudget {
    /// Name of the budget.
    pub name: BudgetName,
    /// Its maximum and restore rate, until its upstream reports other values.
    pub limits: BudgetLimits,
}

/// A text is not a valid budget.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NamedBudgetError {
    /// The `=` or the `/` is missing.
    #[error("has {0:?}, which is not of the form `shop=1000/50`")]
    Form(String),
    /// The name is invalid.
    #[error("has {0:?}, whose name is not 1 to 64 of the characters a-z, 0-9, `_`, `-` and `.`")]
    Name(String),
    /// The maximum is not a valid amount.
    #[error("has {0:?}, where the amount before the `/` is not above 0 and at most {max}", max = BudgetMember::MAX)]
    Maximum(String),
    /// The restore rate is not a valid amount.
    #[error("has {0:?}, where the amount a second after the `/` is not from 0 to {max}", max = BudgetMember::MAX)]
    Restore(String),
}

impl FromStr for NamedBudget {
    type Err = NamedBudgetError;

    fn from_str(text: &str) -> Result<Self, NamedBudgetError> {
        let (name, limits) = text.split_once('=').ok_or_else(|| NamedBudgetError::Form(text.to_owned()))?;
        let name = BudgetName::new(name.trim()).map_err(|_| NamedBudgetError::Name(text.to_owned()))?;
        Ok(Self { name, limits: parse_limits(limits)? })
    }
}

impl fmt::Display for NamedBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, format_limits(self.limits))
    }
}

/// Parses limits: the maximum, a slash, and the amount restored a second.
fn parse_limits(text: &str) -> Result<BudgetLimits, NamedBudgetError> {
    let (maximum, restore) = text.split_once('/').ok_or_else(|| NamedBudgetError::Form(text.to_owned()))?;
    let points =
        |text: &str| text.trim().parse().ok().and_then(Points::new).filter(|points| *points <= BudgetMember::MAX);
    let maximum = points(maximum).filter(|points| *points > Points::ZERO);
    Ok(BudgetLimits {
        maximum: maximum.ok_or_else(|| NamedBudgetError::Maximum(text.to_owned()))?,
        restore_per_second: points(restore).ok_or_else(|| NamedBudgetError::Restore(text.to_owned()))?,
    })
}

/// Formats limits as in the settings.
fn format_limits(limits: BudgetLimits) -> String {
    format!("{}/{}", limits.maximum, limits.restore_per_second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_round_trips_through_text() {
        for text in ["shop=1000/50", "rpc.eu-1=40/0.5", "once=3/0"] {
            assert_eq!(text.parse::<NamedBudget>().unwrap().to_string(), text);
        }
        assert_eq!(" shop = 10 / 2 ".parse::<NamedBudget>().unwrap().to_string(), "shop=10/2");
    }

    #[test]
    fn each_error_is_distinguished() {
        use NamedBudgetError::{Form, Maximum, Name, Restore};
        let error_of = |text: &str| text.parse::<NamedBudget>().unwrap_err();
        assert!(matches!(error_of("shop"), Form(_)));
        assert!(matches!(error_of("shop=5"), Form(_)));
        assert!(matches!(error_of("Shop=5/1"), Name(_)));
        for text in ["a=0/1", "a=-1/1", "a=x/1", "a=1e10/1", "a=NaN/1"] {
            assert!(matches!(error_of(text), Maximum(_)), "{text}");
        }
        for text in ["a=1/", "a=1/-1", "a=1/inf", "a=1/1/1"] {
            assert!(matches!(error_of(text), Restore(_)), "{text}");
        }
    }
}
