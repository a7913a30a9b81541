//! Store usage of each caller, and its bounds.
//!
//! ```text
//!  operation of an API key ───▶ key:<id> and tenant:<name>
//!  operation of the operator ─▶ operator:admin
//!  operation of a handler ────▶ operator:handler:<name>
//! ```
//!
//! A tenant that has used up its share must not lock out the operator or the handlers, so these have separate bounds
//! and do not count towards a tenant.

use std::fmt;
use std::ops::AddAssign;

/// Bytes of an operation besides its payload and texts: its columns, its index entries, its first attempt, and its
/// queue if it has one of its own.
pub const OPERATION_BYTES: u64 = 1_024;
/// Bytes of one reference to another operation.
pub const REFERENCE_BYTES: u64 = 128;
/// Bytes of an idempotency key besides its text and result.
pub const KEY_BYTES: u64 = 256;
/// Bytes of a dead letter besides its payload and texts.
pub const DEAD_LETTER_BYTES: u64 = 512;
/// Bytes of each attempt after the first.
pub const ATTEMPT_BYTES: u64 = 256;

/// Number of stored attempts and delays of an operation: the first ones.
pub const FIRST_ATTEMPTS: u32 = 4;
/// The same for the last ones.
pub const LAST_ATTEMPTS: u32 = 12;

/// Bytes that the record of the `nth` attempt or delay of an operation adds, from 1. The first is part of
/// [`OPERATION_BYTES`]; beyond the stored number, each replaces another.
#[must_use]
pub const fn attempt_bytes(nth: u32) -> u64 {
    if nth >= 2 && nth <= FIRST_ATTEMPTS + LAST_ATTEMPTS { ATTEMPT_BYTES } else { 0 }
}

/// The caller of operations submitted with the key from the settings.
const OPERATOR: &str = "admin";
/// Prefix of the caller of operations submitted by a handler.
const HANDLER: &str = "handler:";

/// A scope with a share of the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UsageScope {
    /// An API key, by its id.
    Key(String),
    /// A tenant: all of its keys together.
    Tenant(String),
    /// The operator's key, or a handler.
    Operator(String),
    /// The audit rows of a key, counted as operations. They have no bound at acceptance: the oldest are removed.
    Audit(String),
}

impl UsageScope {
    /// The scopes that an operation counts towards. Rows from before callers were stored have none of them, or only a
    /// tenant.
    pub fn of<'a>(caller: &'a str, tenant: &'a str) -> impl Iterator<Item = Self> + 'a {
        let by_operator = caller == OPERATOR || caller.starts_with(HANDLER);
        let own = (!caller.is_empty()).then(|| match by_operator {
            true => Self::Operator(caller.to_owned()),
            false => Self::Key(caller.to_owned()),
        });
        let shared = (!by_operator && !tenant.is_empty()).then(|| Self::Tenant(tenant.to_owned()));
        own.into_iter().chain(shared)
    }

    /// Parses the output of [`fmt::Display`].
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let (kind, name) = text.split_once(':')?;
        let name = name.to_owned();
        match kind {
            "key" => Some(Self::Key(name)),
            "tenant" => Some(Self::Tenant(name)),
            "operator" => Some(Self::Operator(name)),
            "audit" => Some(Self::Audit(name)),
            _ => None,
        }
    }

    /// Its kind, for metrics and the API.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Key(_) => "key",
            Self::Tenant(_) => "tenant",
            Self::Operator(_) => "operator",
            Self::Audit(_) => "audit",
        }
    }

    /// Id of the key, or name of the tenant or handler.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Key(name) | Self::Tenant(name) | Self::Operator(name) | Self::Audit(name) => name,
        }
    }
}

impl fmt::Display for UsageScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind(), self.name())
    }
}

/// Usage of a scope, or a change of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Unfinished operations.
    pub operations: i64,
    /// Bytes of everything stored: operations, finished or not, dead letters and idempotency keys.
    pub bytes: i64,
}

impl Usage {
    /// Whether it changes nothing.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.operations == 0 && self.bytes == 0
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.operations = self.operations.saturating_add(other.operations);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// Maximum usage of a scope; 0 is no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageLimit {
    /// Unfinished operations.
    pub operations: u64,
    /// Bytes stored.
    pub bytes: u64,
}

impl UsageLimit {
    /// The same, with bytes bounded by a share of a file.
    #[must_use]
    pub const fn with_max_bytes(self, share: u64) -> Self {
        let bytes = if share > 0 && (self.bytes == 0 || self.bytes > share) { share } else { self.bytes };
        Self { bytes, ..self }
    }

    /// The larger of the two used parts; 1 is at the bound.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub fn ratio(self, used: Usage) -> f64 {
        let part = |used: i64, max: u64| if max == 0 { 0.0 } else { used.max(0) as f64 / max as f64 };
        part(used.operations, self.operations).max(part(used.bytes, self.bytes))
    }
}

/// The bounds of all scopes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageLimits {
    /// For each API key.
    pub key: UsageLimit,
    /// For all keys of a tenant together.
    pub tenant: UsageLimit,
    /// For the operator's key, and for each handler.
    pub operator: UsageLimit,
}

/// Divisors for the parts of a file of bounded size that a key, a tenant and a caller of the operator may fill. New
/// operations may fill half of a file, and accepted operations of a tenant can grow to twice its share when all of them
/// die: that leaves half of the first half to others.
const FILE_SHARES: [u64; 3] = [16, 8, 4];

impl UsageLimits {
    /// The same for a file with this maximum size in bytes; 0 is no bound. No scope may fill the file alone.
    #[must_use]
    pub const fn for_file(self, file: u64) -> Self {
        let [key, tenant, operator] = FILE_SHARES;
        Self {
            key: self.key.with_max_bytes(file / key),
            tenant: self.tenant.with_max_bytes(file / tenant),
            operator: self.operator.with_max_bytes(file / operator),
        }
    }

    /// The bounds of a scope.
    #[must_use]
    pub const fn of(&self, scope: &UsageScope) -> UsageLimit {
        match scope {
            UsageScope::Key(_) => self.key,
            UsageScope::Tenant(_) => self.tenant,
            UsageScope::Operator(_) => self.operator,
            UsageScope::Audit(_) => UsageLimit { operations: 0, bytes: 0 },
        }
    }

    /// Whether a scope that uses `used` may use `more`.
    ///
    /// # Errors
    ///
    /// The bound that it would exceed.
    pub fn check(&self, scope: &UsageScope, used: Usage, more: Usage) -> Result<(), UsageBoundExceeded> {
        let limit = self.of(scope);
        let [operations, bytes] = match scope {
            UsageScope::Key(_) => [UsageBound::KeyOperations, UsageBound::KeyBytes],
            UsageScope::Tenant(_) => [UsageBound::TenantOperations, UsageBound::TenantBytes],
            UsageScope::Operator(_) | UsageScope::Audit(_) => {
                [UsageBound::OperatorOperations, UsageBound::OperatorBytes]
            }
        };
        let parts = [
            (operations, used.operations, more.operations, limit.operations),
            (bytes, used.bytes, more.bytes, limit.bytes),
        ];
        for (bound, used, more, max) in parts {
            let (used, more) = (used.max(0).unsigned_abs(), more.max(0).unsigned_abs());
            if max > 0 && more > 0 && used.saturating_add(more) > max {
                return Err(UsageBoundExceeded { bound, used, more, max });
            }
        }
        Ok(())
    }
}

crate::named_enum! {
    /// A bound on stored data.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum UsageBound {
        /// Unfinished operations of an API key.
        KeyOperations = "key_operations",
        /// Bytes of an API key.
        KeyBytes = "key_bytes",
        /// Unfinished operations of a tenant.
        TenantOperations = "tenant_operations",
        /// Bytes of a tenant.
        TenantBytes = "tenant_bytes",
        /// Unfinished operations of the operator's key or of a handler.
        OperatorOperations = "operator_operations",
        /// Bytes of the operator's key or of a handler.
        OperatorBytes = "operator_bytes",
        /// Bytes of the SQLite file.
        File = "file",
    }
}

impl UsageBound {
    /// The setting that it comes from.
    #[must_use]
    pub const fn setting(self) -> &'static str {
        match self {
            Self::KeyOperations => "store.max_queued_per_key",
            Self::KeyBytes => "store.max_bytes_per_key",
            Self::TenantOperations => "store.max_queued_per_tenant",
            Self::TenantBytes => "store.max_bytes_per_tenant",
            Self::OperatorOperations => "store.max_queued_operator",
            Self::OperatorBytes => "store.max_bytes_operator",
            Self::File => "store.max_bytes",
        }
    }

    /// What is counted, for messages.
    #[must_use]
    pub const fn description(self) -> &'static str {
        match self {
            Self::KeyOperations => "unfinished operations of this key",
            Self::KeyBytes => "bytes stored for this key",
            Self::TenantOperations => "unfinished operations of this tenant",
            Self::TenantBytes => "bytes stored for this tenant",
            Self::OperatorOperations => "unfinished operations of this caller of the operator",
            Self::OperatorBytes => "bytes stored for this caller of the operator",
            Self::File => "bytes in the SQLite file",
        }
    }
}

/// A bound that a submission would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{used} {}, {more} more requested, but {} allows only {max}", .bound.description(), .bound.setting())]
pub struct UsageBoundExceeded {
    /// The bound.
    pub bound: UsageBound,
    /// Current usage.
    pub used: u64,
    /// What the submission adds.
    pub more: u64,
    /// What the bound allows.
    pub max: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scopes(caller: &str, tenant: &str) -> Vec<String> {
        UsageScope::of(caller, tenant).map(|scope| scope.to_string()).collect()
    }

    #[test]
    fn keys_count_towards_their_tenant_and_the_operator_does_not() {
        assert_eq!(scopes("k1", "acme"), ["key:k1", "tenant:acme"]);
        assert_eq!(scopes("admin", "acme"), ["operator:admin"]);
        assert_eq!(scopes("handler:greet", "acme"), ["operator:handler:greet"]);
        assert_eq!(scopes("", "acme"), ["tenant:acme"]);
        assert_eq!(scopes("k1", ""), ["key:k1"]);
        for scope in UsageScope::of("handler:a:b", "acme").chain(UsageScope::of("k1", "acme")) {
            assert_eq!(UsageScope::read(&scope.to_string()), Some(scope));
        }
    }

    #[test]
    fn bound_is_reached_and_not_passed() {
        let key = UsageLimit { operations: 10, bytes: 1_000 };
        let limits = UsageLimits { key, ..UsageLimits::default() };
        let scope = UsageScope::Key("k1".to_owned());
        let used = Usage { operations: 8, bytes: 500 };
        assert!(limits.check(&scope, used, Usage { operations: 2, bytes: 500 }).is_ok());
        let exceeded = limits.check(&scope, used, Usage { operations: 3, bytes: 1 }).unwrap_err();
        assert_eq!((exceeded.bound, exceeded.used, exceeded.more, exceeded.max), (UsageBound::KeyOperations, 8, 3, 10));
        let exceeded = limits.check(&scope, used, Usage { operations: 1, bytes: 501 }).unwrap_err();
        assert_eq!(exceeded.bound, UsageBound::KeyBytes);
        // A change of zero never exceeds a bound.
        assert!(limits.check(&scope, Usage { operations: 99, bytes: 9_999 }, Usage::default()).is_ok());
        assert!(limits.check(&UsageScope::Tenant("t".to_owned()), used, used).is_ok(), "0 is no bound");
    }

    #[test]
    fn no_scope_may_fill_a_file_alone() {
        let limits = UsageLimits::default().for_file(1_600);
        assert_eq!((limits.key.bytes, limits.tenant.bytes, limits.operator.bytes), (100, 200, 400));
        let key = UsageLimit { operations: 1, bytes: 50 };
        assert_eq!(UsageLimits { key, ..UsageLimits::default() }.for_file(1_600).key, key);
        assert_eq!(UsageLimits::default().for_file(0), UsageLimits::default());
    }

    #[test]
    fn attempts_past_those_that_are_stored_add_nothing() {
        let sum: u64 = (1..1_000).map(attempt_bytes).sum();
        assert_eq!(sum, u64::from(FIRST_ATTEMPTS + LAST_ATTEMPTS - 1) * ATTEMPT_BYTES);
    }
}
