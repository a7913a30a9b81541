//! All budgets by name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::{Budget, BudgetDecision, BudgetError, BudgetLimits, Observation, Points};
use crate::time::Timestamp;

/// Name of a budget: short, and valid as a metric label. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BudgetName(Arc<str>);

impl BudgetName {
    /// Validates a name.
    ///
    /// # Errors
    ///
    /// If it is empty, too long, or contains other characters.
    pub fn new(name: &str) -> Result<Self, BudgetError> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-' | b'.');
        if (1..=64).contains(&name.len()) && name.bytes().all(plain) {
            Ok(Self(name.into()))
        } else {
            // Truncated, because it may come from any caller.
            Err(BudgetError::BadName(name.chars().take(64).collect()))
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BudgetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for BudgetName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// Where a budget is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetSource {
    /// In this process, not shared.
    Alone,
    /// In the state that all processes share.
    Together,
    /// The shared state is unreachable: in this process, temporarily.
    Meanwhile,
}

/// State of a budget, for the API.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BudgetSnapshot {
    /// Name.
    pub name: BudgetName,
    /// Where it is stored.
    pub source: BudgetSource,
    /// The current limits.
    #[serde(flatten)]
    pub limits: BudgetLimits,
    /// Whether the upstream has reported any of its limits.
    pub observed: bool,
    /// Points that can be spent now.
    pub available: Points,
    /// Points that were taken to be spent later.
    pub booked: Points,
    /// How long the upstream still accepts no calls.
    pub blocked_for: Duration,
}

impl BudgetSnapshot {
    pub(super) fn of(name: &BudgetName, budget: &Budget, source: BudgetSource, now: Timestamp) -> Self {
        Self {
            name: name.clone(),
            source,
            limits: budget.limits(),
            observed: budget.observed().any(),
            available: budget.available(now),
            booked: budget.booked(now),
            blocked_for: budget.blocked_for(now),
        }
    }
}

/// All budgets. A budget exists once it is configured, and their number is limited.
#[derive(Clone, Debug)]
pub struct Budgets {
    budgets: BTreeMap<BudgetName, Budget>,
    max: usize,
    max_wait: Duration,
}

impl Budgets {
    /// Creates an empty registry for at most `max` budgets. No request may wait longer than `max_wait`.
    #[must_use]
    pub const fn new(max: usize, max_wait: Duration) -> Self {
        Self { budgets: BTreeMap::new(), max, max_wait }
    }

    /// Creates a full budget, or sets new defaults for an existing one.
    ///
    /// # Errors
    ///
    /// If its maximum is 0, or there are too many budgets.
    pub fn configure(&mut self, name: &BudgetName, limits: BudgetLimits, now: Timestamp) -> Result<(), BudgetError> {
        if let Some(budget) = self.budgets.get_mut(name) {
            return budget.configure(limits, now);
        }
        if self.budgets.len() >= self.max {
            return Err(BudgetError::TooMany(self.max));
        }
        self.budgets.insert(name.clone(), Budget::new(limits, now)?);
        Ok(())
    }

    /// Takes a cost that can be spent within `max_wait`, or within the maximum wait of the registry.
    ///
    /// # Errors
    ///
    /// If the budget is unknown, or the cost exceeds its maximum.
    pub fn acquire(
        &mut self,
        name: &BudgetName,
        cost: Points,
        max_wait: Duration,
        now: Timestamp,
    ) -> Result<BudgetDecision, BudgetError> {
        let max_wait = max_wait.min(self.max_wait);
        self.budget(name)?.acquire(cost, max_wait, now)
    }

    /// Applies an observation.
    ///
    /// # Errors
    ///
    /// If the budget is unknown, or the observation is invalid.
    pub fn observe(&mut self, name: &BudgetName, observation: &Observation, now: Timestamp) -> Result<(), BudgetError> {
        self.budget(name)?.observe(observation, now)
    }

    /// Points of a budget that can be spent now.
    #[must_use]
    pub fn available(&self, name: &BudgetName, now: Timestamp) -> Option<Points> {
        self.budgets.get(name).map(|budget| budget.available(now))
    }

    /// State of one budget.
    ///
    /// # Errors
    ///
    /// If the budget is unknown.
    pub fn snapshot_of(&self, name: &BudgetName, now: Timestamp) -> Result<BudgetSnapshot, BudgetError> {
        let budget = self.budgets.get(name).ok_or_else(|| BudgetError::Unknown(name.to_string()))?;
        Ok(BudgetSnapshot::of(name, budget, BudgetSource::Alone, now))
    }

    /// State of all budgets, by name.
    #[must_use]
    pub fn snapshot(&self, now: Timestamp) -> Vec<BudgetSnapshot> {
        self.budgets.iter().map(|(name, budget)| BudgetSnapshot::of(name, budget, BudgetSource::Alone, now)).collect()
    }

    fn budget(&mut self, name: &BudgetName) -> Result<&mut Budget, BudgetError> {
        self.budgets.get_mut(name).ok_or_else(|| BudgetError::Unknown(name.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: BudgetLimits = BudgetLimits { maximum: Points::whole(10), restore_per_second: Points::whole(1) };
    const NOW: Timestamp = Timestamp::from_millis(1_000);

    fn name(name: &str) -> BudgetName {
        BudgetName::new(name).unwrap()
    }

    #[test]
    fn a_name_is_short_and_plain() {
        assert_eq!(name("shop.graphql-1_b").as_str(), "shop.graphql-1_b");
        for invalid in ["", "Shop", "a b", "a/b", "ü", &"a".repeat(65)] {
            assert!(BudgetName::new(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn budgets_are_independent_and_an_unknown_one_is_an_error() {
        let mut budgets = Budgets::new(2, Duration::from_secs(60));
        budgets.configure(&name("a"), LIMITS, NOW).unwrap();
        budgets.configure(&name("b"), LIMITS, NOW).unwrap();
        let _ = budgets.acquire(&name("a"), Points::whole(10), Duration::ZERO, NOW).unwrap();
        assert_eq!(budgets.available(&name("a"), NOW), Some(Points::ZERO));
        assert_eq!(budgets.available(&name("b"), NOW), Some(Points::whole(10)));
        let unknown = budgets.acquire(&name("c"), Points::whole(1), Duration::ZERO, NOW);
        assert_eq!(unknown, Err(BudgetError::Unknown("c".to_owned())));
        assert!(budgets.observe(&name("c"), &Observation::default(), NOW).is_err());
    }

    #[test]
    fn number_of_budgets_is_limited() {
        let mut budgets = Budgets::new(1, Duration::from_secs(60));
        budgets.configure(&name("a"), LIMITS, NOW).unwrap();
        assert_eq!(budgets.configure(&name("b"), LIMITS, NOW), Err(BudgetError::TooMany(1)));
        let wider = BudgetLimits { maximum: Points::whole(20), ..LIMITS };
        budgets.configure(&name("a"), wider, NOW).unwrap();
        assert_eq!(budgets.snapshot(NOW)[0].limits, wider);
    }

    #[test]
    fn no_request_waits_longer_than_the_maximum() {
        let mut budgets = Budgets::new(1, Duration::from_secs(3));
        budgets.configure(&name("a"), LIMITS, NOW).unwrap();
        let _ = budgets.acquire(&name("a"), Points::whole(10), Duration::ZERO, NOW).unwrap();
        let acquire =
            |budgets: &mut Budgets, cost| budgets.acquire(&name("a"), Points::whole(cost), Duration::MAX, NOW).unwrap();
        let far = BudgetDecision::Refused { retry_after: Some(Duration::from_secs(4)), remaining: Points::ZERO };
        assert_eq!(acquire(&mut budgets, 4), far);
        let near = BudgetDecision::Allowed { delay: Duration::from_secs(3), remaining: Points::ZERO };
        assert_eq!(acquire(&mut budgets, 3), near);
        let snapshot = &budgets.snapshot(NOW)[0];
        assert_eq!((snapshot.available, snapshot.booked), (Points::ZERO, Points::whole(3)));
    }
}
