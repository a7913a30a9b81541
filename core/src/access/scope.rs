//! Scopes of API keys.

crate::named_enum! {
    /// A scope: one permission of a key.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Scope {
        /// Read operations and dead letters.
        OperationsRead = "operations:read",
        /// Submit, cancel and redrive operations, and discard dead letters.
        OperationsWrite = "operations:write",
        /// Read the status of a guild.
        GuildsRead = "guilds:read",
        /// Pause and resume a guild.
        GuildsWrite = "guilds:write",
        /// Read dead events.
        EventsRead = "events:read",
        /// Redrive dead events.
        EventsWrite = "events:write",
        /// Read stored values.
        StateRead = "state:read",
        /// Write and delete stored values.
        StateWrite = "state:write",
        /// Read processes, shards, limits and breakers.
        FleetRead = "fleet:read",
        /// Change them, including a pause of everything.
        FleetWrite = "fleet:write",
        /// Read named budgets and their spending.
        BudgetsRead = "budgets:read",
        /// Acquire from budgets, and report responses of their upstreams.
        BudgetsWrite = "budgets:write",
        /// Make calls that only read through the REST proxy.
        EgressRead = "egress:read",
        /// Make calls through the REST proxy.
        Egress = "egress",
        /// Read the audit log.
        Audit = "audit",
        /// Submit operations without a guild, and `request` calls.
        Application = "application",
        /// Give a member or a role a dangerous permission, by any kind of operation.
        Danger = "danger",
        /// Respond to interactions that this deployment has not received.
        InteractionsAny = "interactions:any",
        /// Everything, for every tenant, including keys.
        Admin = "admin",
    }
}

impl Scope {
    /// The read scope that this one includes.
    const fn implies(self) -> Option<Self> {
        match self {
            Self::OperationsWrite => Some(Self::OperationsRead),
            Self::GuildsWrite => Some(Self::GuildsRead),
            Self::EventsWrite => Some(Self::EventsRead),
            Self::StateWrite => Some(Self::StateRead),
            Self::FleetWrite => Some(Self::FleetRead),
            Self::BudgetsWrite => Some(Self::BudgetsRead),
            Self::Egress => Some(Self::EgressRead),
            Self::OperationsRead
            | Self::GuildsRead
            | Self::EventsRead
            | Self::StateRead
            | Self::FleetRead
            | Self::BudgetsRead
            | Self::EgressRead
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
            | Self::EgressRead
            | Self::Egress
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
            let of = match scope {
                Scope::Egress => Some(scope.name()),
                _ => scope.name().strip_suffix(":write"),
            };
            let expected = match of {
                Some(of) => vec![Scope::from_name(&format!("{of}:read")).unwrap(), scope],
                None => vec![scope],
            };
            assert_eq!(covered, expected, "{}", scope.name());
        }
    }
}
