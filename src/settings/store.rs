//! Where everything is kept.

use std::time::Duration;

use guildhall_core::usage::{UsageLimit, UsageLimits};

use super::{
    error::SettingsProblem, of, resolve::Effective, source::SettingOrigin, store_url::StoreUrl, take, value::Value,
};

/// Where everything is kept.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// Where.
    pub url: StoreUrl,
    /// PostgreSQL itself, where `url` is a PgBouncer in transaction mode.
    pub direct_url: Option<StoreUrl>,
    /// What this process is called, for people.
    pub instance: Option<String>,
    /// How long a process counts as alive that shares a PostgreSQL with others.
    pub lease: LeaseSettings,
    /// Whether an older store is brought up to date when it is opened.
    pub migrate: bool,
    /// Whether PostgreSQL itself keeps callers to the rows of their tenant.
    pub row_security: RowSecuritySettings,
    /// How long a call may take as a whole.
    pub timeout: Duration,
    /// How long to wait for another process that migrates the same PostgreSQL.
    pub lock_wait: Duration,
    /// How many connections read at once.
    pub read_connections: u32,
    /// How many writes may wait at once.
    pub max_waiting: usize,
    /// How many operations of one queue may be pending.
    pub max_queued: u64,
    /// How large a file of SQLite may grow; 0 derives it from the free space of its disk.
    pub max_bytes: u64,
    /// What each caller and tenant may store.
    pub usage: UsageLimits,
    /// How many audit rows of one key are stored; 0 means any number.
    pub max_audit: u64,
    /// How long an idempotency key is kept once its operation is done.
    pub keep_keys: Duration,
}

/// Whether PostgreSQL itself keeps callers to the rows of their tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowSecuritySettings {
    /// Whether it has to.
    pub mode: RowSecurityMode,
    /// The role that what is done for callers with a tenant runs as.
    pub role: String,
}

/// Whether PostgreSQL has to keep callers to their rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowSecurityMode {
    /// If the role for it is there, or can be made.
    Auto,
    /// Without it nothing starts.
    Required,
    /// Never.
    Off,
}

impl Default for RowSecuritySettings {
    fn default() -> Self {
        Self { mode: RowSecurityMode::Auto, role: "guildhall_api".to_owned() }
    }
}

/// How long a process counts as alive that shares a PostgreSQL with others.
#[derive(Clone, Copy, Debug)]
pub struct LeaseSettings {
    /// How often it says that it lives.
    pub heartbeat: Duration,
    /// How long after that it counts as alive.
    pub lasts: Duration,
    /// So long before the end it stops to send.
    pub margin: Duration,
}

impl Default for LeaseSettings {
    fn default() -> Self {
        Self { heartbeat: Duration::from_secs(5), lasts: Duration::from_secs(10), margin: Duration::from_secs(2) }
    }
}

/// What is wrong between settings that are each right.
pub(super) fn check(effective: &[Effective]) -> Vec<SettingsProblem> {
    [leases_outlive_heartbeats(effective), direct_is_postgres(effective)].into_iter().flatten().collect()
}

/// What the right to send is renewed with has to come in time.
fn leases_outlive_heartbeats(effective: &[Effective]) -> Option<SettingsProblem> {
    let find = |path: &str| effective.iter().find(|setting| setting.key.path == path);
    // What is wrong by itself has been said.
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
    let says = format!(
        "is {lease}, which is not more than operations.heartbeat_ms ({heartbeat}) and operations.lease_margin_ms ({margin}) \
         together: the right to send would run out between two heartbeats; raise operations.lease_ms"
    );
    Some(SettingsProblem { key: paths[0].to_owned(), origin: set.map(|setting| setting.origin.clone()), says })
}

fn direct_is_postgres(effective: &[Effective]) -> Option<SettingsProblem> {
    let find = |path: &str| effective.iter().find(|setting| setting.key.path == path);
    let (direct, url) = (find("store.direct_url")?, find("store.url")?);
    let (Some(Value::StoreUrl(given)), Some(Value::StoreUrl(url))) = (&direct.value, &url.value) else { return None };
    let says = match (given, url) {
        (StoreUrl::Postgres { .. }, StoreUrl::Postgres { .. }) => return None,
        (StoreUrl::Sqlite(_), _) => "is a file of SQLite; name the PostgreSQL behind store.url, or leave it out",
        (_, StoreUrl::Sqlite(_)) => "is given, but store.url is a file of SQLite; leave it out",
    };
    Some(SettingsProblem {
        key: direct.key.path.to_owned(),
        origin: Some(direct.origin.clone()),
        says: says.to_owned(),
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
            lasts: Duration::from_millis(take!(effective, "operations.lease_ms", Integer)),
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
        keep_keys: Duration::from_millis(take!(effective, "retention.idempotency_ms", Integer)),
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
