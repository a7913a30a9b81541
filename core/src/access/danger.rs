//! Dangerous permissions: those that let a member take over or moderate a guild.

use std::fmt;

/// Their bits in Discord's permissions.
const NAMES: [(u64, &str); 13] = [
    (1 << 1, "KICK_MEMBERS"),
    (1 << 2, "BAN_MEMBERS"),
    (1 << 3, "ADMINISTRATOR"),
    (1 << 4, "MANAGE_CHANNELS"),
    (1 << 5, "MANAGE_GUILD"),
    (1 << 13, "MANAGE_MESSAGES"),
    (1 << 27, "MANAGE_NICKNAMES"),
    (1 << 28, "MANAGE_ROLES"),
    (1 << 29, "MANAGE_WEBHOOKS"),
    (1 << 30, "MANAGE_GUILD_EXPRESSIONS"),
    (1 << 33, "MANAGE_EVENTS"),
    (1 << 34, "MANAGE_THREADS"),
    (1 << 40, "MODERATE_MEMBERS"),
];

/// The dangerous permissions among these.
pub(super) fn dangerous(bits: u64) -> u64 {
    NAMES.iter().fold(0, |all, (bit, _)| all | bits & bit)
}

/// Names of the dangerous permissions among these.
fn names(bits: u64) -> String {
    let names: Vec<_> = NAMES.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect();
    names.join(", ")
}

/// Why an operation needs the scope `danger`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Danger {
    /// It grants these permissions.
    Grants(u64),
    /// It gives a member a role that has dangerous permissions.
    Role {
        /// The role.
        role: u64,
        /// Its permissions in the whole guild.
        everywhere: u64,
        /// Permissions from overwrites in single channels.
        in_channels: u64,
    },
    /// It removes a denial of these permissions from a channel.
    LiftsDenial {
        /// The role or member that they were denied.
        target: u64,
        /// The permissions.
        bits: u64,
    },
    /// It transfers the ownership of the guild.
    Ownership,
    /// It gives channels the overwrites of their category.
    CategorySync,
    /// It has role ids in an unknown format.
    UnreadableRole,
    /// It changes overwrites in an unknown format.
    UnreadableOverwrite,
    /// It is a call that is not known to be harmless.
    UnknownCall,
}

impl fmt::Display for Danger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Grants(bits) => write!(f, "grants {}", names(bits)),
            Self::Role { role, everywhere, .. } if dangerous(everywhere) != 0 => {
                write!(f, "assigns role {role}, which grants {}", names(everywhere))
            }
            Self::Role { role, in_channels, .. } => {
                write!(f, "assigns role {role}, which grants {} in at least one channel", names(in_channels))
            }
            Self::LiftsDenial { target, bits } => {
                write!(f, "removes the denial of {} for {target} in a channel", names(bits))
            }
            Self::Ownership => f.write_str("transfers the ownership of the guild"),
            Self::CategorySync => f.write_str("gives channels the permissions of their category"),
            Self::UnreadableRole => f.write_str("contains a role that is not a plain id"),
            Self::UnreadableOverwrite => f.write_str("changes permission overwrites in an unknown format"),
            Self::UnknownCall => f.write_str("makes a call whose effect on permissions is unknown"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_names_role_and_permissions() {
        let role = Danger::Role { role: 5, everywhere: 1 << 3 | 1 << 10, in_channels: 1 << 13 };
        assert_eq!(role.to_string(), "assigns role 5, which grants ADMINISTRATOR");
        let role = Danger::Role { role: 5, everywhere: 1 << 10, in_channels: 1 << 13 };
        assert_eq!(role.to_string(), "assigns role 5, which grants MANAGE_MESSAGES in at least one channel");
        assert_eq!(Danger::Grants(1 << 2 | 1 << 40).to_string(), "grants BAN_MEMBERS, MODERATE_MEMBERS");
    }

    #[test]
    fn only_listed_permissions_are_dangerous() {
        assert_eq!(dangerous(u64::MAX).count_ones(), 13);
        assert_eq!(dangerous(1 << 10 | 1 << 11), 0);
    }
}
