//! Records of the audit log.

use std::sync::Arc;

use guildhall_core::time::UnixMs;

guildhall_core::named_enum! {
    /// An action that is recorded.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[expect(missing_docs, reason = "the names say what they are")]
    pub enum AuditAction {
        OperationsSubmit = "operations.submit",
        OperationsCancel = "operations.cancel",
        OperationsRetry = "operations.retry",
        DeadLettersRedrive = "dead_letters.redrive",
        DeadLettersDiscard = "dead_letters.discard",
        GuildsPause = "guilds.pause",
        GuildsResume = "guilds.resume",
        FleetPause = "fleet.pause",
        FleetResume = "fleet.resume",
        EventsRevive = "events.revive",
        EventsDiscard = "events.discard",
        StatePut = "state.put",
        StateDelete = "state.delete",
        KeysCreate = "keys.create",
        KeysRevoke = "keys.revoke",
        KeysRotate = "keys.rotate",
        BreakersForce = "breakers.force",
        BreakersReset = "breakers.reset",
        WebhooksClear = "webhooks.clear",
        /// A call that writes, of a key, through the REST proxy.
        EgressWrite = "egress.write",
        ShardsRestart = "shards.restart",
        BudgetsObserve = "budgets.observe",
        Erase = "erase",
        Reload = "reload",
        /// Denied: the key has no permission for the action.
        Refused = "refused",
    }
}

/// Record of an action. It contains no secret and no payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    /// Time of the action.
    pub at: UnixMs,
    /// Tenant that can see the record: the tenant of the key, or the tenant whose data the operator of the daemon
    /// changed.
    pub tenant: Arc<str>,
    /// Id of the key.
    pub key: Arc<str>,
    /// The action.
    pub action: AuditAction,
    /// The guild, if it concerns one.
    pub guild: Option<u64>,
    /// Object of the action: the id of an operation or a key.
    pub target: String,
    /// Further details, in a few words.
    pub detail: String,
    /// Id of the request.
    pub request: Arc<str>,
}

impl AuditRecord {
    /// Sets the guild.
    #[must_use]
    pub fn in_guild(mut self, guild: Option<u64>) -> Self {
        self.guild = guild;
        self
    }

    /// Sets the tenant whose data was changed.
    #[must_use]
    pub fn with_tenant(mut self, tenant: &Arc<str>) -> Self {
        self.tenant = Arc::clone(tenant);
        self
    }

    /// Sets the object of the action.
    #[must_use]
    pub fn with_target(mut self, target: &impl ToString) -> Self {
        self.target = target.to_string();
        self
    }

    /// Sets the details.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }
}

/// A stored audit record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAuditRecord {
    /// Position in the log: later records have higher numbers.
    pub position: i64,
    /// The record.
    pub record: AuditRecord,
}

/// Selects audit records. The newest come first.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// Records that this tenant can see.
    pub tenant: Option<Arc<str>>,
    /// Records of this key.
    pub key: Option<String>,
    /// Records of this action.
    pub action: Option<AuditAction>,
    /// Only records in these guilds.
    pub guilds: Option<Vec<u64>>,
    /// Only records before this position.
    pub before: Option<i64>,
    /// Maximum number of records.
    pub limit: usize,
}
