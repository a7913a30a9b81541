//! Typed settings of the store.

use std::time::Duration;

use guildhall_core::usage::{UsageLimit, UsageLimits};

use super::{
    error::SettingsProblem, of, resolve::Effective, source::SettingOrigin, store_url::StoreUrl, take, value::Value,
};

/// Settings of the store.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// URL of the store.
    pub url: StoreUrl,
    /// URL of PostgreSQL itself, if `url` is a PgBouncer in transaction mode.
    pub direct_url: Option<StoreUrl>,
    /// Display name of this process.
    pub instance: Option<String>,
    /// Leases of processes that share a PostgreSQL.
    pub lease: LeaseSettings,
    /// Whether an older store is migrated when it is opened.
    pub migrate: bool,
    /// Row-level security of PostgreSQL.
    pub row_security: RowSecuritySettings,
    /// How long a call may take in total.
    pub timeout: Duration,
    /// How long to wait for another process that migrates the same PostgreSQL.
    pub lock_wait: Duration,
    /// Number of connections that read.
    pub read_connections: u32,
    /// Maximum number of waiting writes.
    pub max_waiting: usize,
    /// Maximum number of pending operations of one queue.
    pub max_queued: u64,
    /// Maximum size of an SQLite file; 0 derives it from the free space of its disk.
    pub max_bytes: u64,
    /// Storage limits of each caller and tenant.
    pub usage: UsageLimits,
    /// Maximum number of audit rows of one key; 0 means no limit.
    pub max_audit: u64,
    /// How long an idempotency key is stored after its operation has finished.
    pub idempotency_retention: Duration,
}

/// Row-level security of PostgreSQL, which restricts callers to the rows of their tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowSecuritySettings {
    /// Whether it is required.
    pub mode: RowSecurityMode,
    /// The role for requests of callers with a tenant.
    pub role: String,
}

/// Whether row-level security is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowSecurityMode {
    /// If the role for it exists, or can be created.
    Auto,
    /// The process does not start without it.
    Required,
    /// Never.
    Off,
}

impl Default for RowSecuritySettings {
    fn default() -> Self {
        Self { mode: RowSecurityMode::Auto, role: "guildhall_api".to_owned() }
    }
}

/// Leases of processes that share a PostgreSQL.
#[derive(Clone, Copy, Debug)]
pub struct LeaseSettings {
    /// Interval of heartbeats.
    pub heartbeat: Duration,
    /// How long after a heartbeat a process counts as alive.
    pub duration: Duration,
    /// How long before the end of its lease a process stops sending.
    pub margin: Duration,
}

impl Default for LeaseSettings {
    fn default() -> Self {
        Self { heartbeat: Duration::from_secs(5), duration: Duration::from_secs(10), margin: Duration::from_secs(2) }
    }
}

/// Checks constraints between settings that are each valid.
pub(super) fn check(effective: &[Effective]) -> Vec<SettingsProblem> {
    [check_lease(effective), check_direct_url(effective)].into_iter().flatten().collect()
}

/// A heartbeat must renew the lease in time.
fn check_lease(effective: &[Effective]) -> Option<SettingsProblem> {
    let find = |path: &str| effective.iter().find(|setting| setting.key.path == path);
    // Errors of single settings are reported elsewhere.
    let number = |path: &str| match find(path)?.value {
        Some(Value::Integer(value)) => Some(value),
        _ => None,
    };
    let lease = number("operations.lease_ms")?;
    let (heartbeat, margin) = (number("operations.heartbeat_ms")?, number("operations.lease_margin_ms")?);
    if heartbeat.saturating_add(margin) < lease {
        return None;
    }
    let paths = ["operations.lease_ms", "operations.heartbeat_ms", "operations.lease_margin_ms"];
    let set = paths.into_iter().filter_map(find).find(|setting| setting.origin != SettingOrigin::Default);
    let message = format!(
        "is {lease}, which is not more than operations.heartbeat_ms ({heartbeat}) and operations.lease_margin_ms \
         ({margin}) together: the lease would expire between two heartbeats; raise operations.lease_ms"
    );
    Some(SettingsProblem { key: paths[0].to_owned(), origin: set.map(|setting| setting.origin.clone()), message })
}

fn check_direct_url(effective: &[Effective]) -> Option<SettingsProblem> {
    let find = |path: &str| effective.iter().find(|setting| setting.key.path == path);
    let (direct, url) = (find("store.direct_url")?, find("store.url")?);
    let (Some(Value::StoreUrl(given)), Some(Value::StoreUrl(url))) = (&direct.value, &url.value) else { return None };
    let message = match (given, url) {
        (StoreUrl::Postgres { .. }, StoreUrl::Postgres { .. }) => return None,
        (StoreUrl::Sqlite(_), _) => "is an SQLite file; name the PostgreSQL behind store.url, or remove this setting",
        (_, StoreUrl::Sqlite(_)) => "is set, but store.url is an SQLite file; remove this setting",
    };
    Some(SettingsProblem {
        key: direct.key.path.to_owned(),
        origin: Some(direct.origin.clone()),
        message: message.to_owned(),
    })
}

pub(super) fn typed(effective: &[Effective]) -> StoreSettings {
    let narrow = "invariant: the schema's bounds fit the type";
    StoreSettings {
        url: take!(effective, "store.url", StoreUrl),
        direct_url: match &of(effective, "store.direct_url").value {
            Some(Value::StoreUrl(url)) => Some(url.clone()),
            _ => None,
        },
        instance: Some(take!(effective, "store.instance", Text)).filter(|name| name != "auto"),
        lease: LeaseSettings {
            heartbeat: Duration::from_millis(take!(effective, "operations.heartbeat_ms", Integer)),
            duration: Duration::from_millis(take!(effective, "operations.lease_ms", Integer)),
            margin: Duration::from_millis(take!(effective, "operations.lease_margin_ms", Integer)),
        },
        migrate: take!(effective, "store.migrate", Bool),
        row_security: RowSecuritySettings {
            mode: match take!(effective, "store.row_security", Text).as_str() {
                "required" => RowSecurityMode::Required,
                "off" => RowSecurityMode::Off,
                _ => RowSecurityMode::Auto,
            },
            role: take!(effective, "store.api_role", Text),
        },
        timeout: Duration::from_millis(take!(effective, "store.timeout_ms", Integer)),
        lock_wait: Duration::from_millis(take!(effective, "store.lock_wait_ms", Integer)),
        read_connections: take!(effective, "store.read_connections", Integer).try_into().expect(narrow),
        max_waiting: take!(effective, "store.max_waiting", Integer).try_into().expect(narrow),
        max_queued: take!(effective, "store.max_queued_per_guild", Integer),
        idempotency_retention: Duration::from_millis(take!(effective, "retention.idempotency_ms", Integer)),
        max_bytes: take!(effective, "store.max_bytes", Integer),
        max_audit: take!(effective, "retention.audit_max_per_key", Integer),
        usage: UsageLimits {
            key: UsageLimit {
                operations: take!(effective, "store.max_queued_per_key", Integer),
                bytes: take!(effective, "store.max_bytes_per_key", Integer),
            },
            tenant: UsageLimit {
                operations: take!(effective, "store.max_queued_per_tenant", Integer),
                bytes: take!(effective, "store.max_bytes_per_tenant", Integer),
            },
            operator: UsageLimit {
                operations: take!(effective, "store.max_queued_operator", Integer),
                bytes: take!(effective, "store.max_bytes_operator", Integer),
            },
        },
    }
}
