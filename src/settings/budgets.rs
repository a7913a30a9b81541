//! Named budgets: what each holds, and how fast that comes back.

use std::{fmt, str::FromStr, time::Duration};

use guildhall_core::budget::{BudgetLimits, BudgetMember, BudgetName, Points};

use super::{error::SettingsProblem, of, resolve::Effective, take, value::Value};

/// Named budgets.
#[derive(Clone, Debug)]
pub struct BudgetSettings {
    /// Those that there are from the start.
    pub named: Vec<NamedBudget>,
    /// What any other one holds, made when it is first asked for; `None` means that there are no others.
    pub others: Option<BudgetLimits>,
    /// How many there may be.
    pub most: usize,
    /// Nobody may book a turn further away.
    pub longest_wait: Duration,
}

/// A budget with its name, as in `shop=1000/50`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedBudget {
    /// Its name.
    pub name: BudgetName,
    /// What it holds, and how fast that comes back, until its upstream says better.
    pub limits: BudgetLimits,
}

/// A text that is no budget.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NamedBudgetError {
    /// There is no `=`, or no `/`.
    #[error("has {0:?}, which is not of the form `shop=1000/50`")]
    Form(String),
    /// It cannot be a name.
    #[error("has {0:?}, whose name is not 1 to 64 of the characters a-z, 0-9, `_`, `-` and `.`")]
    Name(String),
    /// What it holds is no amount.
    #[error("has {0:?}, where the amount before the `/` is not above 0 and at most {most}", most = BudgetMember::MOST)]
    Maximum(String),
    /// What comes back is no amount.
    #[error("has {0:?}, where the amount a second after the `/` is not from 0 to {most}", most = BudgetMember::MOST)]
    Restore(String),
}

impl FromStr for NamedBudget {
    type Err = NamedBudgetError;

    fn from_str(text: &str) -> Result<Self, NamedBudgetError> {
        let (name, limits) = text.split_once('=').ok_or_else(|| NamedBudgetError::Form(text.to_owned()))?;
        let name = BudgetName::new(name.trim()).map_err(|_| NamedBudgetError::Name(text.to_owned()))?;
        Ok(Self { name, limits: read_limits(limits)? })
    }
}

impl fmt::Display for NamedBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, written(self.limits))
    }
}

/// Limits from their text: what there is, a slash, and what comes back in a second.
pub(super) fn read_limits(text: &str) -> Result<BudgetLimits, NamedBudgetError> {
    let (maximum, restore) = text.split_once('/').ok_or_else(|| NamedBudgetError::Form(text.to_owned()))?;
    let points =
        |text: &str| text.trim().parse().ok().and_then(Points::new).filter(|points| *points <= BudgetMember::MOST);
    let maximum = points(maximum).filter(|points| *points > Points::ZERO);
    Ok(BudgetLimits {
        maximum: maximum.ok_or_else(|| NamedBudgetError::Maximum(text.to_owned()))?,
        restore_per_second: points(restore).ok_or_else(|| NamedBudgetError::Restore(text.to_owned()))?,
    })
}

/// Limits as the settings write them.
pub(super) fn written(limits: BudgetLimits) -> String {
    format!("{}/{}", limits.maximum, limits.restore_per_second)
}

pub(super) fn typed(effective: &[Effective]) -> BudgetSettings {
    BudgetSettings {
        named: take!(effective, "budgets.named", Budgets),
        others: take!(effective, "budgets.others", BudgetLimits),
        most: take!(effective, "budgets.most", Integer)
            .try_into()
            .expect("invariant: the schema's bounds fit the type"),
        longest_wait: Duration::from_millis(take!(effective, "budgets.longest_wait_ms", Integer)),
    }
}

/// What is wrong between settings that are each right: more budgets than there may be.
pub(super) fn check(effective: &[Effective]) -> Option<SettingsProblem> {
    let find = |path| effective.iter().find(|setting| setting.key.path == path);
    let (named, most) = (find("budgets.named")?, find("budgets.most")?);
    let (Some(Value::Budgets(budgets)), Some(Value::Integer(most))) = (&named.value, &most.value) else { return None };
    (budgets.len() as u64 > *most).then(|| SettingsProblem {
        key: "budgets.named".to_owned(),
        origin: Some(named.origin.clone()),
        says: format!("has {} budgets, which is more than budgets.most ({most}); raise that", budgets.len()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_read_from_its_text_and_written_back() {
        for text in ["shop=1000/50", "rpc.eu-1=40/0.5", "once=3/0"] {
            assert_eq!(text.parse::<NamedBudget>().unwrap().to_string(), text);
        }
        assert_eq!(" shop = 10 / 2 ".parse::<NamedBudget>().unwrap().to_string(), "shop=10/2");
    }

    #[test]
    fn each_mistake_is_told_apart() {
        use NamedBudgetError::{Form, Maximum, Name, Restore};
        let wrong = |text: &str| text.parse::<NamedBudget>().unwrap_err();
        assert!(matches!(wrong("shop"), Form(_)));
        assert!(matches!(wrong("shop=5"), Form(_)));
        assert!(matches!(wrong("Shop=5/1"), Name(_)));
        for text in ["a=0/1", "a=-1/1", "a=x/1", "a=1e10/1", "a=NaN/1"] {
            assert!(matches!(wrong(text), Maximum(_)), "{text}");
        }
        for text in ["a=1/", "a=1/-1", "a=1/inf", "a=1/1/1"] {
            assert!(matches!(wrong(text), Restore(_)), "{text}");
        }
    }
}
