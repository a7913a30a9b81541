//! Owners of calls, to which invalid responses are charged.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

/// Submitter of the operation behind a call. Empty for calls of the daemon itself, of its handlers, and of the
/// operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Submitter {
    /// The id of the API key.
    pub key: Option<Arc<str>>,
    /// The tenant of the key.
    pub tenant: Option<Arc<str>>,
}

impl Submitter {
    /// Creates it from the caller stored with an operation: the operator's key and handlers are charged by guild only.
    #[must_use]
    pub fn of(caller: &Arc<str>, tenant: &Arc<str>) -> Self {
        if caller.is_empty() || &**caller == "admin" || caller.starts_with("handler:") {
            return Self::default();
        }
        let tenant = (!tenant.is_empty()).then(|| Arc::clone(tenant));
        Self { key: Some(Arc::clone(caller)), tenant }
    }

    /// The owner of a call for this guild.
    #[must_use]
    pub fn in_guild(self, guild: Option<u64>) -> CallOwner {
        CallOwner { key: self.key, tenant: self.tenant, guild }
    }
}

/// Owner of a call: up to three holders.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CallOwner {
    /// The API key that submitted the operation.
    pub key: Option<Arc<str>>,
    /// The tenant of the key.
    pub tenant: Option<Arc<str>>,
    /// The guild of the call.
    pub guild: Option<u64>,
}

impl CallOwner {
    /// The holders that are charged.
    pub fn holders(&self) -> impl Iterator<Item = Holder> {
        let key = self.key.clone().map(Holder::Key);
        let tenant = self.tenant.clone().map(Holder::Tenant);
        key.into_iter().chain(tenant).chain(self.guild.map(Holder::Guild))
    }
}

impl From<Option<u64>> for CallOwner {
    fn from(guild: Option<u64>) -> Self {
        Self { guild, ..Self::default() }
    }
}

impl From<&Holder> for CallOwner {
    fn from(holder: &Holder) -> Self {
        match holder {
            Holder::Key(key) => Self { key: Some(Arc::clone(key)), ..Self::default() },
            Holder::Tenant(tenant) => Self { tenant: Some(Arc::clone(tenant)), ..Self::default() },
            Holder::Guild(guild) => Self { guild: Some(*guild), ..Self::default() },
        }
    }
}

/// A key, tenant or guild that holds a part of the ledger.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Holder {
    /// An API key, by its id.
    Key(Arc<str>),
    /// A tenant, by its name.
    Tenant(Arc<str>),
    /// A guild.
    Guild(u64),
}

impl Holder {
    /// Its kind, for metrics and the API.
    #[must_use]
    pub const fn kind(&self) -> HolderKind {
        match self {
            Self::Key(_) => HolderKind::Key,
            Self::Tenant(_) => HolderKind::Tenant,
            Self::Guild(_) => HolderKind::Guild,
        }
    }

    /// Its id or name.
    #[must_use]
    pub fn id(&self) -> String {
        match self {
            Self::Key(id) | Self::Tenant(id) => id.to_string(),
            Self::Guild(guild) => guild.to_string(),
        }
    }

    /// Encodes it for other processes: `k:<id>`, `t:<name>`, `g:<id>`.
    #[must_use]
    pub fn encode(&self) -> String {
        match self {
            Self::Key(id) => format!("k:{id}"),
            Self::Tenant(name) => format!("t:{name}"),
            Self::Guild(guild) => format!("g:{guild}"),
        }
    }

    /// Decodes the output of [`Holder::encode`].
    #[must_use]
    pub fn decode(text: &str) -> Option<Self> {
        match text.split_at_checked(2)? {
            ("k:", id) => Some(Self::Key(id.into())),
            ("t:", name) => Some(Self::Tenant(name.into())),
            ("g:", guild) => guild.parse().ok().map(Self::Guild),
            _ => None,
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind().name(), self.id())
    }
}

/// Kind of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HolderKind {
    /// An API key.
    Key,
    /// A tenant.
    Tenant,
    /// A guild.
    Guild,
}

impl HolderKind {
    /// Name in metrics and the API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Tenant => "tenant",
            Self::Guild => "guild",
        }
    }

    /// Reason of a rejection because of its share.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Key => "invalid_requests_key_share",
            Self::Tenant => "invalid_requests_tenant_share",
            Self::Guild => "invalid_requests_guild_share",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operator_and_handlers_are_charged_by_guild_only() {
        for caller in ["admin", "handler:greet", ""] {
            assert_eq!(Submitter::of(&caller.into(), &"acme".into()), Submitter::default(), "{caller}");
        }
        let owner = Submitter::of(&"abcdefgh2345".into(), &"acme".into()).in_guild(Some(7));
        let holders: Vec<String> = owner.holders().map(|holder| holder.to_string()).collect();
        assert_eq!(holders, ["key abcdefgh2345", "tenant acme", "guild 7"]);
        assert_eq!(CallOwner::from(None).holders().count(), 0);
    }

    #[test]
    fn encoded_holder_is_read_back() {
        for holder in [Holder::Key("a b".into()), Holder::Tenant("t:ü".into()), Holder::Guild(u64::MAX)] {
            assert_eq!(Holder::decode(&holder.encode()), Some(holder));
        }
        for invalid in ["", "k", "x:1", "g:-1", "g:", "ü:1"] {
            assert_eq!(Holder::decode(invalid), None, "{invalid}");
        }
    }
}
