//! The caller of a request.

use std::sync::{Arc, LazyLock};

use guildhall_core::access::{Bounds, Grant, GuildSet, Scope};
use guildhall_core::time::UnixMs;
use guildhall_core::trace::TraceContext;

use super::{AuditAction, AuditRecord};

/// Tenant of guilds that belong to no other tenant.
pub const DEFAULT_TENANT: &str = "default";

/// The default tenant as a shared string.
#[must_use]
pub fn default_tenant() -> Arc<str> {
    static SHARED: LazyLock<Arc<str>> = LazyLock::new(|| Arc::from(DEFAULT_TENANT));
    Arc::clone(&SHARED)
}

/// The caller of a request, identified by a key.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Id of the key; `admin` for the configured one.
    pub key: Arc<str>,
    /// Tenant whose guilds it can see. `None`: all tenants.
    pub tenant: Option<Arc<str>>,
    /// What the key permits.
    pub grant: Arc<Grant>,
    /// Id of the request, in responses, logs and audit records.
    pub request: Arc<str>,
    /// Trace context of the request.
    pub trace: Option<TraceContext>,
}

impl Caller {
    /// The operator of the daemon, who may do everything for every tenant.
    #[must_use]
    pub fn operator() -> Self {
        // Shared by all requests with the configured key.
        static OPERATOR: LazyLock<Caller> = LazyLock::new(|| Caller {
            key: Arc::from("admin"),
            tenant: None,
            grant: Arc::new(Grant::everything()),
            request: Arc::from(""),
            trace: None,
        });
        OPERATOR.clone()
    }

    /// Whether it has a scope.
    #[must_use]
    pub fn has_scope(&self, scope: Scope) -> bool {
        self.grant.has_scope(scope)
    }

    /// Whether it can see what belongs to this tenant and guild.
    #[must_use]
    pub fn can_see(&self, tenant: &str, guild: Option<u64>) -> bool {
        self.tenant.as_deref().is_none_or(|own| own == tenant) && self.grant.includes_guild(guild)
    }

    /// Channels that its operations may use.
    #[must_use]
    pub fn bounds(&self) -> Bounds {
        match self.tenant {
            Some(_) => Bounds::of(&self.grant),
            None => Bounds::Anywhere,
        }
    }

    /// Guilds that a list is restricted to: the requested one if the caller can see it, or all that it can see. `None`
    /// means no restriction.
    #[must_use]
    pub fn visible_guilds(&self, requested: Option<u64>) -> Option<Vec<u64>> {
        match (requested, self.grant.guilds()) {
            (None, GuildSet::All) => None,
            (None, GuildSet::Only(guilds)) => Some(guilds.iter().copied().collect()),
            (Some(guild), _) if self.grant.includes_guild(requested) => Some(vec![guild]),
            (Some(_), _) => Some(Vec::new()),
        }
    }

    /// Creates an audit record of an action of this caller.
    #[must_use]
    pub fn audit_record(&self, action: AuditAction, at: UnixMs) -> AuditRecord {
        AuditRecord {
            at,
            tenant: self.tenant.clone().unwrap_or_else(default_tenant),
            key: Arc::clone(&self.key),
            action,
            guild: None,
            target: String::new(),
            detail: String::new(),
            request: Arc::clone(&self.request),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(tenant: Option<&str>, scopes: &[&str]) -> Caller {
        let grant = Arc::new(Grant::read(scopes.iter().copied()).unwrap());
        Caller { tenant: tenant.map(Arc::from), grant, ..Caller::operator() }
    }

    #[test]
    fn key_sees_only_its_guilds_of_its_tenant() {
        let plain = caller(Some("acme"), &["operations:read"]);
        assert!(plain.can_see("acme", Some(1)) && plain.can_see("acme", None));
        assert!(!plain.can_see("default", Some(1)));
        let bound = caller(Some("acme"), &["operations:read", "guild:1"]);
        assert!(bound.can_see("acme", Some(1)));
        assert!(!bound.can_see("acme", Some(2)) && !bound.can_see("acme", None) && !bound.can_see("default", Some(1)));
        assert!(Caller::operator().can_see("acme", None));
    }

    #[test]
    fn operator_is_unbounded_and_keys_are_bounded() {
        assert_eq!(Caller::operator().bounds(), Bounds::Anywhere);
        assert_eq!(caller(Some("acme"), &["operations:write"]).bounds(), Bounds::Tenant);
        assert_eq!(caller(Some("acme"), &["operations:write", "guild:1"]).bounds(), Bounds::Guild);
    }

    #[test]
    fn list_contains_only_guilds_of_the_key() {
        assert_eq!(caller(None, &["operations:read"]).visible_guilds(None), None);
        assert_eq!(caller(None, &["operations:read"]).visible_guilds(Some(7)), Some(vec![7]));
        let bound = caller(None, &["operations:read", "guild:1", "guild:2"]);
        assert_eq!(bound.visible_guilds(None), Some(vec![1, 2]));
        assert_eq!(bound.visible_guilds(Some(2)), Some(vec![2]));
        assert_eq!(bound.visible_guilds(Some(3)), Some(vec![]));
    }
}
