//! Settings of the store.

use std::time::Duration;

use guildhall_core::usage::{UsageLimit, UsageLimits};

use super::{
    declare::{Section as _, settings},
    kind::{self, Bool, Choice, Integer, NAME, Text},
    operations::{LeaseSettings, RetentionSettings},
    store_url::StoreUrl,
    values::Values,
};

settings! {
    /// Settings of the store.
    #[derive(Clone, Debug)]
    pub struct StoreSettings in "store" {
        /// URL of the store of operations and all other state: an SQLite file, or a PostgreSQL database. If it contains a
        /// password, do not store it in the settings file: use the environment or `store.url_file`.
        pub url: StoreUrl = store_url(
            "sqlite:PATH or postgres://user:password@host:port/database, with ?sslmode=verify-full for TLS"
        ), "sqlite:data/guildhall.db";
        /// URL of PostgreSQL itself, if `store.url` is a PgBouncer in transaction mode: for migrations, and for immediate
        /// notifications of other processes' changes. The PgBouncer needs `server_reset_query = DEALLOCATE ALL` and
        /// `server_reset_query_always = 1`.
        pub direct_url: Option<StoreUrl> = store_url(
            "postgres://user:password@host:port/database, with ?sslmode=verify-full for TLS"
        );
        /// Display name of this process where several share a PostgreSQL. `auto`: its host and process id.
        let name_or_auto as "instance": String = NAME, "auto";
        /// Display name of this process.
        pub instance: Option<String> => Some(name_or_auto).filter(|name| name != "auto");
        /// Leases of processes that share a PostgreSQL.
        pub lease: LeaseSettings => |values| LeaseSettings::read(values);
        /// Whether `serve` migrates an older store. If not, run `guildhall migrate up`.
        pub migrate: bool = Bool, true;
        /// Row-level security of PostgreSQL.
        pub row_security: RowSecuritySettings;
        /// How long a call to the store may take in total, in milliseconds. After that the store counts as unavailable.
        pub timeout as "timeout_ms": Duration = Integer(10..=600_000), 5000;
        /// How long a starting process waits for another one that migrates the same PostgreSQL, in milliseconds.
        pub lock_wait as "lock_wait_ms": Duration = Integer(0..=600_000), 10000;
        /// Number of connections that read from the store. One more connection writes.
        pub read_connections: u32 = Integer(1..=1_000), 4;
        /// Maximum number of writes that wait for the store. More are rejected as unavailable.
        pub max_waiting: usize = Integer(1..=1_000_000), 10000;
        /// Maximum number of queued operations of one guild. More are rejected.
        pub max_queued as "max_queued_per_guild": u64 = Integer(1..=1_000_000_000), 100000;
        /// Maximum number of unfinished operations of one API key (docs/store.md#bounds). More are rejected with 429. 0:
        /// no limit.
        let max_queued_per_key: u64 = Integer(0..=1_000_000_000), 50000;
        /// Maximum number of bytes stored for one API key: its operations until they are removed, dead letters and
        /// idempotency keys. More are rejected with 429. With SQLite at most a 16th of `store.max_bytes`. 0: no other
        /// limit.
        let max_bytes_per_key: u64 = Integer(0..=17_592_186_040_320), 1073741824;
        /// Maximum number of unfinished operations of all API keys of one tenant. More are rejected with 429. 0: no
        /// limit.
        let max_queued_per_tenant: u64 = Integer(0..=1_000_000_000), 200000;
        /// Maximum number of bytes stored for all API keys of one tenant. More are rejected with 429. With SQLite at most
        /// an 8th of `store.max_bytes`. 0: no other limit.
        let max_bytes_per_tenant: u64 = Integer(0..=17_592_186_040_320), 4294967296;
        /// Maximum number of unfinished operations of the operator's key, and of each handler. They do not count towards
        /// a tenant. 0: no limit.
        let max_queued_operator: u64 = Integer(0..=1_000_000_000), 1000000;
        /// Maximum number of bytes stored for the operator's key, and for each handler. With SQLite at most a quarter of
        /// `store.max_bytes`. 0: no other limit.
        let max_bytes_operator: u64 = Integer(0..=17_592_186_040_320), 8589934592;
        /// Storage limits of each caller and tenant.
        pub usage: UsageLimits => UsageLimits {
            key: UsageLimit { operations: max_queued_per_key, bytes: max_bytes_per_key },
            tenant: UsageLimit { operations: max_queued_per_tenant, bytes: max_bytes_per_tenant },
            operator: UsageLimit { operations: max_queued_operator, bytes: max_bytes_operator },
        };
        /// Maximum size of the SQLite file, in bytes. New operations are rejected with 507 when half of it is used, so
        /// that outcomes can still be written. 0: derived at start from the free space of its disk, see
        /// docs/store.md#bounds.
        pub max_bytes: u64 = Integer(0..=17_592_186_040_320), 0;
        /// Maximum number of audit rows of one key; 0 means no limit.
        pub max_audit: u64 => |values| RetentionSettings::read(values).audit_max_per_key;
        /// How long an idempotency key is stored after its operation has finished.
        pub idempotency_retention: Duration => |values| RetentionSettings::read(values).idempotency;
    }

    /// Row-level security of PostgreSQL, which restricts callers to the rows of their tenant.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct RowSecuritySettings in "store" {
        /// Whether PostgreSQL row-level security restricts callers of the API to the rows of their tenant
        /// (docs/store.md#tenants). `auto`: if the role for it exists or can be created. `required`: the process does not
        /// start without it. `off`: never. SQLite does not support it.
        pub mode as "row_security": RowSecurityMode = Choice(ROW_SECURITY_MODES), "auto";
        /// PostgreSQL role for requests of callers with a tenant. It owns nothing and cannot log in.
        pub role as "api_role": String = NAME, "guildhall_api";
    }
}

impl Default for RowSecuritySettings {
    fn default() -> Self {
        Self::read(&Values::defaults())
    }
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

const ROW_SECURITY_MODES: &[(&str, RowSecurityMode)] =
    &[("auto", RowSecurityMode::Auto), ("required", RowSecurityMode::Required), ("off", RowSecurityMode::Off)];

/// URL of the store. It may contain a password, so it is a secret.
const fn store_url(allowed: &'static str) -> Text<StoreUrl> {
    Text { secrets: Some(StoreUrl::secrets), ..Text::new(kind::from_text, allowed) }
}
