//! What is kept of what somebody did.

use std::sync::Arc;

use guildhall_core::time::UnixMs;

/// Something that somebody did, or was not let.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each is told by its name")]
pub enum AuditAction {
    OperationsSubmit,
    OperationsCancel,
    OperationsRetry,
    LettersRedrive,
    LettersDiscard,
    GuildsPause,
    GuildsResume,
    FleetPause,
    FleetResume,
    EventsRevive,
    StatePut,
    StateDelete,
    KeysCreate,
    KeysRevoke,
    KeysRotate,
    BreakersForce,
    BreakersReset,
    ShardsRestart,
    BudgetsObserve,
    Erase,
    Reload,
    /// It was not let: the key is not good for it.
    Refused,
}

impl AuditAction {
    /// All of them.
    pub const ALL: [Self; 22] = [
        Self::OperationsSubmit,
        Self::OperationsCancel,
        Self::OperationsRetry,
        Self::LettersRedrive,
        Self::LettersDiscard,
        Self::GuildsPause,
        Self::GuildsResume,
        Self::FleetPause,
        Self::FleetResume,
        Self::EventsRevive,
        Self::StatePut,
        Self::StateDelete,
        Self::KeysCreate,
        Self::KeysRevoke,
        Self::KeysRotate,
        Self::BreakersForce,
        Self::BreakersReset,
        Self::ShardsRestart,
        Self::BudgetsObserve,
        Self::Erase,
        Self::Reload,
        Self::Refused,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OperationsSubmit => "operations.submit",
            Self::OperationsCancel => "operations.cancel",
            Self::OperationsRetry => "operations.retry",
            Self::LettersRedrive => "dead_letters.redrive",
            Self::LettersDiscard => "dead_letters.discard",
            Self::GuildsPause => "guilds.pause",
            Self::GuildsResume => "guilds.resume",
            Self::FleetPause => "fleet.pause",
            Self::FleetResume => "fleet.resume",
            Self::EventsRevive => "events.revive",
            Self::StatePut => "state.put",
            Self::StateDelete => "state.delete",
            Self::KeysCreate => "keys.create",
            Self::KeysRevoke => "keys.revoke",
            Self::KeysRotate => "keys.rotate",
            Self::BreakersForce => "breakers.force",
            Self::BreakersReset => "breakers.reset",
            Self::ShardsRestart => "shards.restart",
            Self::BudgetsObserve => "budgets.observe",
            Self::Erase => "erase",
            Self::Reload => "reload",
            Self::Refused => "refused",
        }
    }

    /// The action of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.name() == name)
    }
}

/// What is to be kept of something that somebody did. It holds no secret and no payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    /// When.
    pub at: UnixMs,
    /// Who is to know of it: whose key it was; but what whoever runs the daemon does to what is a tenant's, that tenant.
    pub tenant: Arc<str>,
    /// Which key.
    pub key: Arc<str>,
    /// What was done.
    pub action: AuditAction,
    /// In which guild, if in one.
    pub guild: Option<u64>,
    /// To what: an operation's id, a key's id.
    pub target: String,
    /// What else there is to know, in a few words.
    pub detail: String,
    /// What the request was called.
    pub request: Arc<str>,
}

impl AuditRecord {
    /// The note of something done in a guild.
    #[must_use]
    pub fn in_guild(mut self, guild: Option<u64>) -> Self {
        self.guild = guild;
        self
    }

    /// The note of something done to what is this tenant's.
    #[must_use]
    pub fn of(mut self, tenant: &Arc<str>) -> Self {
        self.tenant = Arc::clone(tenant);
        self
    }

    /// The note of something done to this.
    #[must_use]
    pub fn on(mut self, target: &impl ToString) -> Self {
        self.target = target.to_string();
        self
    }

    /// The note with something to add.
    #[must_use]
    pub fn saying(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }
}

/// A note that was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAuditRecord {
    /// Its place among all: later ones are higher.
    pub place: i64,
    /// The note.
    pub note: AuditRecord,
}

/// Which notes. The newest come first.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// That this tenant is to know of.
    pub tenant: Option<Arc<str>>,
    /// Of this key.
    pub key: Option<String>,
    /// Of this action.
    pub action: Option<AuditAction>,
    /// In these guilds alone.
    pub among: Option<Vec<u64>>,
    /// Only those before this one.
    pub before: Option<i64>,
    /// How many at most.
    pub limit: usize,
}
