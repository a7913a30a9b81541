//! Scopes of API keys.

/// A scope: one permission of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Read operations and dead letters.
    OperationsRead,
    /// Submit, cancel and redrive operations, and discard dead letters.
    OperationsWrite,
    /// Read the status of a guild.
    GuildsRead,
    /// Pause and resume a guild.
    GuildsWrite,
    /// Read dead events.
    EventsRead,
    /// Redrive dead events.
    EventsWrite,
    /// Read stored values.
    StateRead,
    /// Write and delete stored values.
    StateWrite,
    /// Read processes, shards, limits and breakers.
    FleetRead,
    /// Change them, including a pause of everything.
    FleetWrite,
    /// Read named budgets and their spending.
    BudgetsRead,
    /// Acquire from budgets, and report responses of their upstreams.
    BudgetsWrite,
    /// Read the audit log.
    Audit,
    /// Submit operations without a guild, and `request` calls.
    Application,
    /// Give a member or a role a dangerous permission, by any kind of operation.
    Danger,
    /// Respond to interactions that this deployment has not received.
    InteractionsAny,
    /// Everything, for every tenant, including keys.
    Admin,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 17] = [
        Self::OperationsRead,
        Self::OperationsWrite,
        Self::GuildsRead,
        Self::GuildsWrite,
        Self::EventsRead,
        Self::EventsWrite,
        Self::StateRead,
        Self::StateWrite,
        Self::FleetRead,
        Self::FleetWrite,
        Self::BudgetsRead,
        Self::BudgetsWrite,
        Self::Audit,
        Self::Application,
        Self::Danger,
        Self::InteractionsAny,
        Self::Admin,
    ];

    /// Name in the API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OperationsRead => "operations:read",
            Self::OperationsWrite => "operations:write",
            Self::GuildsRead => "guilds:read",
            Self::GuildsWrite => "guilds:write",
            Self::EventsRead => "events:read",
            Self::EventsWrite => "events:write",
            Self::StateRead => "state:read",
            Self::StateWrite => "state:write",
            Self::FleetRead => "fleet:read",
            Self::FleetWrite => "fleet:write",
            Self::BudgetsRead => "budgets:read",
            Self::BudgetsWrite => "budgets:write",
            Self::Audit => "audit",
            Self::Application => "application",
            Self::Danger => "danger",
            Self::InteractionsAny => "interactions:any",
            Self::Admin => "admin",
        }
    }

    /// The scope with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.name() == name)
    }

    /// The read scope that a write scope includes.
    const fn implies(self) -> Option<Self> {
        match self {
            Self::OperationsWrite => Some(Self::OperationsRead),
            Self::GuildsWrite => Some(Self::GuildsRead),
            Self::EventsWrite => Some(Self::EventsRead),
            Self::StateWrite => Some(Self::StateRead),
            Self::FleetWrite => Some(Self::FleetRead),
            Self::BudgetsWrite => Some(Self::BudgetsRead),
            Self::OperationsRead
            | Self::GuildsRead
            | Self::EventsRead
            | Self::StateRead
            | Self::FleetRead
            | Self::BudgetsRead
            | Self::Audit
            | Self::Application
            | Self::Danger
            | Self::InteractionsAny
            | Self::Admin => None,
        }
    }

    /// Whether it is sufficient where `needed` is required.
    #[must_use]
    pub fn covers(self, needed: Self) -> bool {
        self == needed || self == Self::Admin || self.implies() == Some(needed)
    }

    /// Whether it applies to all guilds at once, so that it has no meaning for a key limited to some guilds.
    #[must_use]
    pub const fn applies_to_all_guilds(self) -> bool {
        match self {
            Self::EventsRead
            | Self::EventsWrite
            | Self::StateRead
            | Self::StateWrite
            | Self::FleetRead
            | Self::FleetWrite
            | Self::BudgetsRead
            | Self::BudgetsWrite
            | Self::Application
            | Self::InteractionsAny
            | Self::Admin => true,
            Self::OperationsRead
            | Self::OperationsWrite
            | Self::GuildsRead
            | Self::GuildsWrite
            | Self::Audit
            | Self::Danger => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scope_is_known_by_its_name_and_covers_itself() {
        for scope in Scope::ALL {
            assert_eq!(Scope::from_name(scope.name()), Some(scope));
            assert!(scope.covers(scope) && Scope::Admin.covers(scope));
        }
        assert_eq!(Scope::from_name("operations"), None);
    }

    #[test]
    fn write_scope_includes_only_its_read_scope() {
        for scope in Scope::ALL.into_iter().filter(|scope| *scope != Scope::Admin) {
            let covered: Vec<_> = Scope::ALL.into_iter().filter(|other| scope.covers(*other)).collect();
            let expected = match scope.name().strip_suffix(":write") {
                Some(of) => vec![Scope::from_name(&format!("{of}:read")).unwrap(), scope],
                None => vec![scope],
            };
            assert_eq!(covered, expected, "{}", scope.name());
        }
    }
}
