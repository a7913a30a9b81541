//! Bounds of the channels, webhooks and guilds that an operation may address.

use super::{Grant, GuildSet};
use crate::operation::payload::Location;

/// Which channels, webhooks and guilds an operation may address. The bounds stay with the operation, whichever process
/// executes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bounds {
    /// All: the operation was submitted by the operator.
    #[default]
    Anywhere,
    /// Those of the guilds of its tenant.
    Tenant,
    /// Those of its own guild.
    Guild,
}

/// Owner of a location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The guild that it belongs to; `None` for a private channel.
    pub guild: Option<u64>,
    /// The tenant of the guild.
    pub tenant: String,
}

impl Bounds {
    /// Bounds of operations submitted with a key for all guilds of its tenant, or for some.
    #[must_use]
    pub const fn of(grant: &Grant) -> Self {
        match grant.guilds() {
            GuildSet::All => Self::Tenant,
            GuildSet::Only(_) => Self::Guild,
        }
    }

    /// The narrower of two.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        self.max(other)
    }

    /// Number in the store.
    #[must_use]
    pub const fn number(self) -> i64 {
        match self {
            Self::Anywhere => 0,
            Self::Tenant => 1,
            Self::Guild => 2,
        }
    }

    /// The bounds with this number. Unknown numbers give the narrowest bounds.
    #[must_use]
    pub const fn from_number(number: i64) -> Self {
        match number {
            0 => Self::Anywhere,
            1 => Self::Tenant,
            _ => Self::Guild,
        }
    }

    /// Whether an operation of this tenant and guild may address a location with this owner.
    #[must_use]
    pub fn allows(self, tenant: &str, guild: Option<u64>, owner: &Owner) -> bool {
        match (self, owner.guild) {
            (Self::Anywhere, _) => true,
            (Self::Tenant, Some(_)) => owner.tenant == tenant,
            (Self::Guild, Some(its)) => guild == Some(its),
            // A private channel belongs to no guild, so the operation must not have one either.
            (Self::Tenant | Self::Guild, None) => guild.is_none(),
        }
    }
}

/// Error message for a location that an operation may not address. It does not reveal whether the location exists.
#[must_use]
pub fn not_found_message(location: &Location, guild: Option<u64>) -> String {
    let (type_name, id) = (location.type_name(), location.id());
    match guild {
        Some(guild) => {
            format!(
                "{type_name} {id} does not exist in guild {guild}, or the key of this operation has no access to it"
            )
        }
        None => format!("{type_name} {id} does not exist, or the key of this operation has no access to it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(guild: Option<u64>, tenant: &str) -> Owner {
        Owner { guild, tenant: tenant.to_owned() }
    }

    #[test]
    fn bounds_limit_channels_to_guild_or_tenant() {
        let own = |bounds: Bounds, owner: Owner| bounds.allows("acme", Some(1), &owner);
        assert!(own(Bounds::Guild, owner(Some(1), "acme")));
        assert!(!own(Bounds::Guild, owner(Some(2), "acme")) && !own(Bounds::Guild, owner(None, "default")));
        assert!(own(Bounds::Tenant, owner(Some(2), "acme")));
        assert!(!own(Bounds::Tenant, owner(Some(2), "default")) && !own(Bounds::Tenant, owner(None, "acme")));
        assert!(own(Bounds::Anywhere, owner(Some(9), "rival")) && own(Bounds::Anywhere, owner(None, "")));
        assert!(Bounds::Tenant.allows("default", None, &owner(None, "default")), "a private channel, without a guild");
    }

    #[test]
    fn bounds_round_trip_and_only_get_narrower() {
        for bounds in [Bounds::Anywhere, Bounds::Tenant, Bounds::Guild] {
            assert_eq!(Bounds::from_number(bounds.number()), bounds);
            assert_eq!(bounds.and(Bounds::Anywhere), bounds);
            assert_eq!(Bounds::Guild.and(bounds), Bounds::Guild);
        }
        assert_eq!(Bounds::from_number(77), Bounds::Guild);
    }
}
