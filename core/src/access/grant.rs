//! Grants: the scopes and guilds of a key.

use std::collections::BTreeSet;

use super::{Danger, PermissionEffect, Scope};
use crate::operation::Payload;

/// Prefix of guild ids among scopes.
const GUILD: &str = "guild:";
/// Maximum number of guilds of a key. For more, use a key for all guilds.
const MAX_GUILDS: usize = 1_000;

/// Guilds of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuildSet {
    /// All guilds of its tenant.
    All,
    /// Only these.
    Only(BTreeSet<u64>),
}

/// What a key may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    scopes: BTreeSet<Scope>,
    guilds: GuildSet,
}

/// An invalid scope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// There is no scope.
    #[error("a key needs at least one scope; scopes are {}", names())]
    NoScope,
    /// The scope is unknown.
    #[error("{0:?} is not a scope; scopes are {names}, and guild:<id>", names = names())]
    Unknown(String),
    /// The guild id is invalid.
    #[error("{0:?} has no valid guild id; write guild: and the id of the guild, such as guild:1571715189416398849")]
    NoGuild(String),
    /// There are too many guilds.
    #[error("a key can have at most {MAX_GUILDS} guilds, not {0}; create a key for all guilds, or several keys")]
    TooMany(usize),
    /// The scope applies to all guilds, but the key does not.
    #[error("{} applies to all guilds and cannot be combined with guild:<id>; create a separate key for it", .0.name())]
    GlobalScope(Scope),
}

fn names() -> String {
    Scope::ALL.map(Scope::name).join(", ")
}

/// What a key lacks for an action.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MissingAccess {
    /// A scope.
    #[error("needs a key with the scope {}", .0.name())]
    Scope(Scope),
    /// The scope `danger`.
    #[error("{0}; this needs a key with the scope {scope}", scope = Scope::Danger.name())]
    Danger(Danger),
}

impl Grant {
    /// All permissions.
    #[must_use]
    pub fn everything() -> Self {
        Self { scopes: BTreeSet::from([Scope::Admin]), guilds: GuildSet::All }
    }

    /// Parses scopes, and `guild:<id>` for each guild that the key is limited to.
    ///
    /// # Errors
    ///
    /// All errors.
    pub fn read<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, Vec<GrantError>> {
        let (mut scopes, mut guilds, mut errors) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        for name in names {
            if let Some(id) = name.strip_prefix(GUILD) {
                let is_plain = id.bytes().all(|byte| byte.is_ascii_digit()) && !id.starts_with('0');
                match id.parse::<u64>() {
                    Ok(guild) if is_plain => drop(guilds.insert(guild)),
                    Ok(_) | Err(_) => errors.push(GrantError::NoGuild(name.to_owned())),
                }
            } else {
                match Scope::from_name(name) {
                    Some(scope) => drop(scopes.insert(scope)),
                    None => errors.push(GrantError::Unknown(name.to_owned())),
                }
            }
        }
        if guilds.len() > MAX_GUILDS {
            errors.push(GrantError::TooMany(guilds.len()));
        }
        if !guilds.is_empty() {
            errors.extend(
                scopes.iter().filter(|scope| scope.applies_to_all_guilds()).copied().map(GrantError::GlobalScope),
            );
        }
        if scopes.is_empty() && errors.is_empty() {
            errors.push(GrantError::NoScope);
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        Ok(Self { scopes, guilds: if guilds.is_empty() { GuildSet::All } else { GuildSet::Only(guilds) } })
    }

    /// Its names, as [`Self::read`] takes them.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let scopes = self.scopes.iter().map(|scope| scope.name().to_owned());
        let guilds = match &self.guilds {
            GuildSet::All => Vec::new(),
            GuildSet::Only(guilds) => guilds.iter().map(|guild| format!("{GUILD}{guild}")).collect(),
        };
        scopes.chain(guilds).collect()
    }

    /// Its guilds.
    #[must_use]
    pub const fn guilds(&self) -> &GuildSet {
        &self.guilds
    }

    /// Whether it includes this guild; for `None`, whether it includes what belongs to no guild.
    #[must_use]
    pub fn includes_guild(&self, guild: Option<u64>) -> bool {
        match (&self.guilds, guild) {
            (GuildSet::All, _) => true,
            (GuildSet::Only(guilds), Some(guild)) => guilds.contains(&guild),
            (GuildSet::Only(_), None) => false,
        }
    }

    /// Whether it includes this scope.
    #[must_use]
    pub fn has_scope(&self, scope: Scope) -> bool {
        self.scopes.iter().any(|own| own.covers(scope))
    }

    /// What it lacks for submitting this operation, in a guild or in none, as far as the payload shows. The permissions
    /// of assigned roles are checked separately: see [`PermissionEffect::assigned`].
    #[must_use]
    pub fn missing_access(&self, payload: &Payload, guild: Option<u64>) -> Option<MissingAccess> {
        if (guild.is_none() || leaves_guild(payload, guild)) && !self.has_scope(Scope::Application) {
            return Some(MissingAccess::Scope(Scope::Application));
        }
        if self.has_scope(Scope::Danger) {
            return None;
        }
        PermissionEffect::of(payload, guild).danger().map(MissingAccess::Danger)
    }
}

/// Whether it is a `request`, or a read that may address something outside its guild.
fn leaves_guild(payload: &Payload, guild: Option<u64>) -> bool {
    let Payload::Read(read) = payload else { return matches!(payload, Payload::Request(_)) };
    let path = read.path.split_once('?').map_or(read.path.as_str(), |(path, _)| path);
    let mut segments = path.split('/').skip(1);
    let is_guilds = segments.next() == Some("guilds");
    let of = segments.next().and_then(|id| id.parse::<u64>().ok());
    !(is_guilds && of.is_some() && of == guild)
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};
    use serde_json::json;

    use super::*;
    use crate::operation::OperationKind;

    fn grant(names: &[&str]) -> Grant {
        Grant::read(names.iter().copied()).unwrap()
    }

    fn payload(kind: OperationKind, payload: &serde_json::Value, guild: Option<u64>) -> Payload {
        Payload::parse(kind, payload, guild).unwrap()
    }

    #[test]
    fn guild_key_includes_only_its_guild() {
        let some = grant(&["operations:write", "guild:42"]);
        assert!(some.includes_guild(Some(42)));
        assert!(!some.includes_guild(Some(43)) && !some.includes_guild(None));
        assert!(grant(&["operations:write"]).includes_guild(None));
    }

    #[test]
    fn all_scope_errors_are_reported() {
        let errors = Grant::read(["operations:all", "guild:", "guild:042", "guild:7", "fleet:read"]).unwrap_err();
        let expected = vec![
            GrantError::Unknown("operations:all".to_owned()),
            GrantError::NoGuild("guild:".to_owned()),
            GrantError::NoGuild("guild:042".to_owned()),
            GrantError::GlobalScope(Scope::FleetRead),
        ];
        assert_eq!(errors, expected);
        assert_eq!(Grant::read([]).unwrap_err(), [GrantError::NoScope]);
        assert_eq!(Grant::read(["guild:7"]).unwrap_err(), [GrantError::NoScope]);
        let many: Vec<_> = (1..=1_001).map(|id| format!("guild:{id}")).collect();
        assert_eq!(Grant::read(many.iter().map(String::as_str)).unwrap_err(), [GrantError::TooMany(1_001)]);
    }

    #[test]
    fn operations_without_guild_need_the_application_scope() {
        let plain = grant(&["operations:write"]);
        let dm = payload(OperationKind::SendDm, &json!({"user_id": "7", "content": "hi"}), None);
        assert_eq!(plain.missing_access(&dm, None), Some(MissingAccess::Scope(Scope::Application)));
        assert_eq!(plain.missing_access(&dm, Some(42)), None);
        let request = json!({"method": "GET", "path": "/guilds/42/roles"});
        let request = payload(OperationKind::Request, &request, Some(42));
        assert_eq!(plain.missing_access(&request, Some(42)), Some(MissingAccess::Scope(Scope::Application)));
        assert_eq!(grant(&["operations:write", "application"]).missing_access(&request, Some(42)), None);
    }

    #[test]
    fn a_read_that_leaves_its_guild_needs_the_application_scope() {
        let plain = grant(&["operations:write"]);
        for (path, is_within) in [
            ("/guilds/42", true),
            ("/guilds/42/roles?limit=1", true),
            ("/guilds/43/roles", false),
            ("/guilds/42x/roles", false),
            ("/channels/42", false),
            ("/users/@me", false),
        ] {
            let read = payload(OperationKind::Read, &json!({"path": path}), Some(42));
            assert_eq!(plain.missing_access(&read, Some(42)).is_none(), is_within, "{path}");
        }
    }

    #[test]
    fn granting_administrator_needs_the_danger_scope_and_admin_has_it() {
        let role = payload(OperationKind::CreateRole, &json!({"name": "Boss", "permissions": "8"}), Some(42));
        let plain = grant(&["operations:write"]);
        let lack = plain.missing_access(&role, Some(42)).unwrap();
        assert_eq!(lack.to_string(), "grants ADMINISTRATOR; this needs a key with the scope danger");
        assert_eq!(grant(&["operations:write", "danger"]).missing_access(&role, Some(42)), None);
        assert_eq!(Grant::everything().missing_access(&role, Some(42)), None);
    }

    proptest! {
        #[test]
        fn grant_names_round_trip(scopes in vec(0..Scope::ALL.len(), 1..5), guilds in vec(1u64..1 << 40, 0..4)) {
            let scopes: Vec<_> = scopes.into_iter().map(|n| Scope::ALL[n].name().to_owned()).collect();
            let guilds = guilds.into_iter().map(|guild| format!("guild:{guild}"));
            let names: Vec<_> = scopes.into_iter().chain(guilds).collect();
            if let Ok(grant) = Grant::read(names.iter().map(String::as_str)) {
                let again = grant.names();
                prop_assert_eq!(Grant::read(again.iter().map(String::as_str)), Ok(grant));
            }
        }
    }
}
