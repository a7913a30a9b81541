//! What a key may be good for.

/// One thing that a key may be good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Looking at operations and dead letters.
    OperationsRead,
    /// Submitting operations, taking them back, doing them again, throwing dead letters away.
    OperationsWrite,
    /// Looking at how things stand in a guild.
    GuildsRead,
    /// Pausing a guild, and letting it go on.
    GuildsWrite,
    /// Looking at events that were given up.
    EventsRead,
    /// Handling them again.
    EventsWrite,
    /// Looking at what bots keep.
    StateRead,
    /// Keeping something, and removing it.
    StateWrite,
    /// Looking at processes, shards, limits and breakers.
    FleetRead,
    /// Changing them: pausing everything among others.
    FleetWrite,
    /// Looking at named budgets, and what was spent of them.
    BudgetsRead,
    /// Taking from them, and telling what their upstreams said.
    BudgetsWrite,
    /// Looking at who changed what.
    Audit,
    /// Operations that belong to no guild, and calls to Discord in the caller's own words.
    Application,
    /// Giving a member or a role a dangerous permission, by any kind of operation.
    Danger,
    /// Responding to interactions that this deployment has not received.
    InteractionsAny,
    /// Everything, of every tenant; keys among it.
    Admin,
}

impl Scope {
    /// All of them.
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

    /// Its name.
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

    /// The scope of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.name() == name)
    }

    /// What who may write may do as well.
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

    /// Whether it is enough where `needed` is asked for.
    #[must_use]
    pub fn covers(self, needed: Self) -> bool {
        self == needed || self == Self::Admin || self.implies() == Some(needed)
    }

    /// Whether it is about all guilds at once, so that a key for some of them can do nothing with it.
    #[must_use]
    pub const fn is_everywhere(self) -> bool {
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
    fn who_may_write_may_read_and_nothing_else() {
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
