//! The permissions of a guild's roles.

use std::collections::BTreeMap;

/// The permissions of one role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RolePermissions {
    /// In the whole guild.
    pub everywhere: u64,
    /// Permissions from overwrites, in any channel.
    pub in_channels: u64,
}

/// The permissions of all roles of a guild.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuildRoles(BTreeMap<u64, RolePermissions>);

impl GuildRoles {
    /// Creates it from the roles with their permissions, and the permissions that overwrites of the guild's channels
    /// allow. Overwrites of members are ignored.
    pub fn new(roles: impl IntoIterator<Item = (u64, u64)>, allowed: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let permissions = |everywhere| RolePermissions { everywhere, in_channels: 0 };
        let mut roles: BTreeMap<_, _> = roles.into_iter().map(|(id, bits)| (id, permissions(bits))).collect();
        for (id, allow) in allowed {
            if let Some(role) = roles.get_mut(&id) {
                role.in_channels |= allow;
            }
        }
        Self(roles)
    }

    /// The permissions of a role, if the guild has it.
    #[must_use]
    pub fn get(&self, role: u64) -> Option<RolePermissions> {
        self.0.get(&role).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overwrites_of_all_channels_add_up() {
        let roles = GuildRoles::new([(1, 8), (2, 0)], [(2, 1), (2, 4), (77, 8)]);
        assert_eq!(roles.get(1), Some(RolePermissions { everywhere: 8, in_channels: 0 }));
        assert_eq!(roles.get(2), Some(RolePermissions { everywhere: 0, in_channels: 5 }));
        assert_eq!(roles.get(77), None);
    }
}
