//! The scopes that an operation was accepted with.

use super::{Grant, Scope};

/// The scopes that an operation was accepted with. They are stored with it, so that its effect can be checked again at
/// dispatch, even if its key has changed or was deleted since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ScopeSet(u32);

/// The stored bit of a scope. A number is never reused for another scope.
const fn bit(scope: Scope) -> u32 {
    let number = match scope {
        Scope::OperationsRead => 0,
        Scope::OperationsWrite => 1,
        Scope::GuildsRead => 2,
        Scope::GuildsWrite => 3,
        Scope::EventsRead => 4,
        Scope::EventsWrite => 5,
        Scope::StateRead => 6,
        Scope::StateWrite => 7,
        Scope::FleetRead => 8,
        Scope::FleetWrite => 9,
        Scope::BudgetsRead => 10,
        Scope::BudgetsWrite => 11,
        Scope::Audit => 12,
        Scope::Application => 13,
        Scope::Danger => 14,
        Scope::Admin => 15,
        Scope::InteractionsAny => 16,
        Scope::EgressRead => 17,
        Scope::Egress => 18,
    };
    1 << number
}

impl ScopeSet {
    /// The scopes of a key.
    #[must_use]
    pub fn of(grant: &Grant) -> Self {
        Self(Scope::ALL.into_iter().filter(|scope| grant.has_scope(*scope)).fold(0, |bits, scope| bits | bit(scope)))
    }

    /// Whether they allow this.
    #[must_use]
    pub const fn allow(self, scope: Scope) -> bool {
        self.0 & bit(scope) != 0
    }

    /// The scopes that are in both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Number in the store.
    #[must_use]
    pub const fn number(self) -> i64 {
        self.0 as i64
    }

    /// The set with this number. Unknown bits are ignored.
    #[must_use]
    pub fn from_number(number: i64) -> Self {
        let mask = Scope::ALL.into_iter().fold(0, |bits, scope| bits | bit(scope));
        Self(u32::try_from(number).unwrap_or(0) & mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_allows_what_its_key_allows() {
        for names in [&["admin"][..], &["operations:write"], &["danger", "operations:read"], &["application"]] {
            let grant = Grant::read(names.iter().copied()).unwrap();
            let set = ScopeSet::from_number(ScopeSet::of(&grant).number());
            for scope in Scope::ALL {
                assert_eq!(set.allow(scope), grant.has_scope(scope), "{names:?} {}", scope.name());
            }
        }
    }

    #[test]
    fn intersection_allows_only_what_both_allow() {
        let of = |name: &str| ScopeSet::of(&Grant::read([name]).unwrap());
        assert_eq!(of("admin").and(of("danger")), of("danger"));
        assert_eq!(of("operations:write").and(of("danger")), ScopeSet::default());
        assert_eq!(ScopeSet::from_number(-1), ScopeSet::default());
        assert_eq!(ScopeSet::from_number(1 << 31), ScopeSet::default());
    }
}
