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
    pub fn may(&self, scope: Scope) -> bool {
        self.grant.may(scope)
    }

    /// Whether it can see what belongs to this tenant and guild.
    #[must_use]
    pub fn sees(&self, tenant: &str, guild: Option<u64>) -> bool {
        self.tenant.as_deref().is_none_or(|own| own == tenant) && self.grant.reaches(guild)
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
    pub fn among(&self, asked: Option<u64>) -> Option<Vec<u64>> {
        match (asked, self.grant.guilds()) {
            (None, GuildSet::All) => None,
            (None, GuildSet::Only(guilds)) => Some(guilds.iter().copied().collect()),
            (Some(guild), _) if self.grant.reaches(asked) => Some(vec![guild]),
            (Some(_), _) => Some(Vec::new()),
        }
    }

    /// Creates an audit record of an action of this caller.
    #[must_use]
    pub fn note(&self, action: AuditAction, at: UnixMs) -> AuditRecord {
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
    fn a_key_sees_its_tenants_guilds_and_of_those_the_ones_that_it_is_for() {
        let plain = caller(Some("acme"), &["operations:read"]);
        assert!(plain.sees("acme", Some(1)) && plain.sees("acme", None));
        assert!(!plain.sees("default", Some(1)));
        let bound = caller(Some("acme"), &["operations:read", "guild:1"]);
        assert!(bound.sees("acme", Some(1)));
        assert!(!bound.sees("acme", Some(2)) && !bound.sees("acme", None) && !bound.sees("default", Some(1)));
        assert!(Caller::operator().sees("whoever", None));
    }

    #[test]
    fn whoever_runs_the_daemon_names_what_they_like_and_keys_what_is_theirs() {
        assert_eq!(Caller::operator().bounds(), Bounds::Anywhere);
        assert_eq!(caller(Some("acme"), &["operations:write"]).bounds(), Bounds::Tenant);
        assert_eq!(caller(Some("acme"), &["operations:write", "guild:1"]).bounds(), Bounds::Guild);
    }

    #[test]
    fn a_list_is_never_about_guilds_that_the_key_is_not_for() {
        assert_eq!(caller(None, &["operations:read"]).among(None), None);
        assert_eq!(caller(None, &["operations:read"]).among(Some(7)), Some(vec![7]));
        let bound = caller(None, &["operations:read", "guild:1", "guild:2"]);
        assert_eq!(bound.among(None), Some(vec![1, 2]));
        assert_eq!(bound.among(Some(2)), Some(vec![2]));
        assert_eq!(bound.among(Some(3)), Some(vec![]));
    }
}
