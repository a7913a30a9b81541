//! Permissions: the bits, and Discord's rules to compute them from roles and overwrites.

use serde::{Deserialize, Serialize};

use super::wire;
use crate::id::Snowflake;

pub(crate) const KICK_MEMBERS: u64 = 1 << 1;
pub(crate) const ADMINISTRATOR: u64 = 1 << 3;
pub(crate) const MANAGE_CHANNELS: u64 = 1 << 4;
pub(crate) const ADD_REACTIONS: u64 = 1 << 6;
pub(crate) const VIEW_AUDIT_LOG: u64 = 1 << 7;
pub(crate) const VIEW_CHANNEL: u64 = 1 << 10;
pub(crate) const SEND_MESSAGES: u64 = 1 << 11;
pub(crate) const MANAGE_MESSAGES: u64 = 1 << 13;
pub(crate) const EMBED_LINKS: u64 = 1 << 14;
pub(crate) const ATTACH_FILES: u64 = 1 << 15;
pub(crate) const READ_MESSAGE_HISTORY: u64 = 1 << 16;
pub(crate) const MENTION_EVERYONE: u64 = 1 << 17;
pub(crate) const CONNECT: u64 = 1 << 20;
pub(crate) const SPEAK: u64 = 1 << 21;
pub(crate) const MUTE_MEMBERS: u64 = 1 << 22;
pub(crate) const DEAFEN_MEMBERS: u64 = 1 << 23;
pub(crate) const CHANGE_NICKNAME: u64 = 1 << 26;
pub(crate) const MANAGE_NICKNAMES: u64 = 1 << 27;
pub(crate) const MANAGE_ROLES: u64 = 1 << 28;
pub(crate) const USE_APPLICATION_COMMANDS: u64 = 1 << 31;
pub(crate) const MODERATE_MEMBERS: u64 = 1 << 40;
pub(crate) const PIN_MESSAGES: u64 = 1 << 51;

/// Every bit that Discord has defined: 0 to 52, except 47 and 48.
pub(crate) const ALL: u64 = ((1 << 53) - 1) & !(0b11 << 47);

/// Permissions of `@everyone` in a new guild.
pub(crate) const EVERYONE: u64 = ADD_REACTIONS
    | VIEW_CHANNEL
    | SEND_MESSAGES
    | EMBED_LINKS
    | ATTACH_FILES
    | READ_MESSAGE_HISTORY
    | MENTION_EVERYONE
    | CONNECT
    | SPEAK
    | CHANGE_NICKNAME
    | USE_APPLICATION_COMMANDS;

/// Permissions of both sides in direct messages.
pub(crate) const DIRECT: u64 =
    ADD_REACTIONS | VIEW_CHANNEL | SEND_MESSAGES | EMBED_LINKS | ATTACH_FILES | READ_MESSAGE_HISTORY | PIN_MESSAGES;

/// Permissions of one role or one member in a channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Overwrite {
    pub(crate) id: Snowflake,
    #[serde(rename = "type")]
    pub(crate) kind: OverwriteKind,
    #[serde(with = "wire::bits")]
    pub(crate) allow: u64,
    #[serde(with = "wire::bits")]
    pub(crate) deny: u64,
}

/// Whether an overwrite is for a role or a member; a number in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub(crate) enum OverwriteKind {
    Role,
    Member,
}

impl From<OverwriteKind> for u8 {
    fn from(kind: OverwriteKind) -> Self {
        match kind {
            OverwriteKind::Role => 0,
            OverwriteKind::Member => 1,
        }
    }
}

impl TryFrom<u8> for OverwriteKind {
    type Error = &'static str;

    fn try_from(number: u8) -> Result<Self, Self::Error> {
        match number {
            0 => Ok(Self::Role),
            1 => Ok(Self::Member),
            _ => Err("an overwrite is for a role (0) or a member (1)"),
        }
    }
}

/// Permissions of a member in a guild, without overwrites: all of them for an administrator.
pub(crate) fn base(everyone: u64, roles: impl Iterator<Item = u64>) -> u64 {
    let bits = roles.fold(everyone, |bits, role| bits | role);
    if bits & ADMINISTRATOR == 0 { bits } else { ALL }
}

/// Permissions of a member with these `base` permissions and roles in a channel with these overwrites. A member who
/// cannot view a channel has no permissions in it.
pub(crate) fn in_channel(
    base: u64,
    everyone: Snowflake,
    user: Snowflake,
    roles: &[Snowflake],
    overwrites: &[Overwrite],
) -> u64 {
    if base & ADMINISTRATOR != 0 {
        return ALL;
    }
    let mut bits = base;
    let (mut allow, mut deny) = (0, 0);
    let mut own = None;
    for overwrite in overwrites {
        match overwrite.kind {
            OverwriteKind::Role if overwrite.id == everyone => bits = bits & !overwrite.deny | overwrite.allow,
            OverwriteKind::Role if roles.contains(&overwrite.id) => {
                allow |= overwrite.allow;
                deny |= overwrite.deny;
            }
            OverwriteKind::Member if overwrite.id == user => own = Some((overwrite.allow, overwrite.deny)),
            OverwriteKind::Role | OverwriteKind::Member => {}
        }
    }
    bits = bits & !deny | allow;
    if let Some((allow, deny)) = own {
        bits = bits & !deny | allow;
    }
    if bits & VIEW_CHANNEL == 0 { 0 } else { bits }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GUILD: Snowflake = Snowflake::new(1);
    const USER: Snowflake = Snowflake::new(2);
    const RED: Snowflake = Snowflake::new(3);
    const BLUE: Snowflake = Snowflake::new(4);

    fn role(id: Snowflake, allow: u64, deny: u64) -> Overwrite {
        Overwrite { id, kind: OverwriteKind::Role, allow, deny }
    }

    fn member(allow: u64, deny: u64) -> Overwrite {
        Overwrite { id: USER, kind: OverwriteKind::Member, allow, deny }
    }

    #[test]
    fn roles_add_up() {
        assert_eq!(
            base(VIEW_CHANNEL, [SEND_MESSAGES, MANAGE_ROLES].into_iter()),
            VIEW_CHANNEL | SEND_MESSAGES | MANAGE_ROLES
        );
    }

    #[test]
    fn administrator_ignores_channel_overwrites() {
        let bits = base(0, [ADMINISTRATOR].into_iter());
        assert_eq!(bits, ALL);
        assert_eq!(in_channel(bits, GUILD, USER, &[], &[member(0, ALL)]), ALL);
    }

    #[test]
    fn role_allow_overrides_role_deny() {
        let overwrites = [role(RED, 0, SEND_MESSAGES), role(BLUE, SEND_MESSAGES, 0)];
        let bits = in_channel(VIEW_CHANNEL, GUILD, USER, &[RED, BLUE], &overwrites);
        assert_eq!(bits, VIEW_CHANNEL | SEND_MESSAGES);
    }

    #[test]
    fn member_overwrite_overrides_role_overwrites() {
        let overwrites = [member(0, SEND_MESSAGES), role(RED, SEND_MESSAGES, 0), role(GUILD, SEND_MESSAGES, 0)];
        assert_eq!(in_channel(VIEW_CHANNEL, GUILD, USER, &[RED], &overwrites), VIEW_CHANNEL);
    }

    #[test]
    fn member_without_view_has_no_permissions() {
        assert_eq!(in_channel(EVERYONE, GUILD, USER, &[], &[role(GUILD, 0, VIEW_CHANNEL)]), 0);
    }

    #[test]
    fn overwrites_of_others_have_no_effect() {
        let other = Overwrite { id: RED, kind: OverwriteKind::Member, allow: 0, deny: ALL };
        assert_eq!(in_channel(EVERYONE, GUILD, USER, &[RED], &[other, role(BLUE, 0, ALL)]), EVERYONE);
    }

    proptest! {
        #[test]
        fn a_member_overwrite_decides_each_of_its_bits(base in 0..=EVERYONE, allow in 0..=EVERYONE, deny in 0..=EVERYONE) {
            let (base, allow) = (base & !ADMINISTRATOR, (allow & !ADMINISTRATOR) | VIEW_CHANNEL);
            let bits = in_channel(base, GUILD, USER, &[], &[member(allow, deny)]);
            prop_assert_eq!(bits & allow, allow);
            prop_assert_eq!(bits & deny & !allow, 0);
        }
    }
}
