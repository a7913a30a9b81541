//! Whether the bot would see a channel in the guild's list. Discord may omit channels that the bot cannot view, so a
//! channel that is not listed may exist.

use guildhall_core::operation::payload::NewChannel;
use twilight_model::id::Id;
use twilight_model::id::marker::ChannelMarker;

use crate::discord::executor::execution_context::{ExecutionContext, typed_id};
use crate::discord::executor::execution_error::ExecutionError;
use crate::discord::executor::model::{DiscordChannel, DiscordMember, DiscordOverwrite, DiscordRole};
use crate::discord::executor::overwrites;

const ADMINISTRATOR: u64 = 1 << 3;
const VIEW_CHANNEL: u64 = 1 << 10;

/// Whether the list is certain to include a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visibility {
    /// It would be listed.
    Clear,
    /// It may be omitted.
    Obscured,
}

/// Whether the bot would see a channel with these properties. A channel without overwrites of its own inherits those of
/// its category.
pub(crate) async fn of_new_channel(
    context: &ExecutionContext<'_>,
    desired: &NewChannel,
    parent: Option<Id<ChannelMarker>>,
    listed: &[DiscordChannel],
) -> Result<Visibility, ExecutionError> {
    let overwrites: Vec<DiscordOverwrite> = match (&desired.overwrites, parent) {
        (Some(own), _) => overwrites::to_forms(own)?.into_iter().map(overwrites::OverwriteForm::to_model).collect(),
        (None, None) => Vec::new(),
        (None, Some(parent)) => match listed.iter().find(|channel| channel.id == parent.get()) {
            Some(category) => category.permission_overwrites.clone(),
            None => return Ok(Visibility::Obscured),
        },
    };
    let guild = context.guild()?;
    let roles: Vec<DiscordRole> = context.fetch(context.builders().roles(guild)).await?;
    let member: DiscordMember = context.fetch(context.builders().guild_member(guild, typed_id(context.bot())?)).await?;
    let viewer = Viewer { everyone: guild.get(), user: context.bot(), roles: &member.roles };
    Ok(viewer.visibility(&roles, &overwrites))
}

/// The member whose view is computed.
struct Viewer<'a> {
    everyone: u64,
    user: u64,
    roles: &'a [u64],
}

impl Viewer<'_> {
    /// Discord's order: the guild's roles, then the channel's overwrites for everyone, for all roles of the viewer
    /// together, and for the viewer alone.
    fn visibility(&self, roles: &[DiscordRole], overwrites: &[DiscordOverwrite]) -> Visibility {
        let own = |role: u64| role == self.everyone || self.roles.contains(&role);
        let base = roles.iter().filter(|role| own(role.id)).fold(0, |bits, role| bits | role.permissions);
        if base & ADMINISTRATOR != 0 {
            return Visibility::Clear;
        }
        let mut sees = base & VIEW_CHANNEL != 0;
        let everyone = |one: &DiscordOverwrite| one.kind == 0 && one.id == self.everyone;
        let held = |one: &DiscordOverwrite| one.kind == 0 && self.roles.contains(&one.id) && one.id != self.everyone;
        let alone = |one: &DiscordOverwrite| one.kind == 1 && one.id == self.user;
        let stages: [&dyn Fn(&DiscordOverwrite) -> bool; 3] = [&everyone, &held, &alone];
        for stage in stages {
            let (allow, deny) = overwrites
                .iter()
                .filter(|one| stage(one))
                .fold((0, 0), |(allow, deny), one| (allow | one.allow, deny | one.deny));
            sees = (sees && deny & VIEW_CHANNEL == 0) || allow & VIEW_CHANNEL != 0;
        }
        if sees { Visibility::Clear } else { Visibility::Obscured }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const GUILD: u64 = 1;
    const BOT: u64 = 9;

    fn role(id: u64, permissions: u64) -> DiscordRole {
        let role = json!({ "id": id.to_string(), "name": "r", "permissions": permissions.to_string() });
        serde_json::from_value(role).unwrap()
    }

    fn visibility(roles: &[DiscordRole], overwrites: &[(u64, u8, u64, u64)]) -> Visibility {
        let overwrites: Vec<DiscordOverwrite> =
            overwrites.iter().map(|&(id, kind, allow, deny)| DiscordOverwrite { id, kind, allow, deny }).collect();
        Viewer { everyone: GUILD, user: BOT, roles: &[5, 6] }.visibility(roles, &overwrites)
    }

    #[test]
    fn overwrites_apply_in_discords_order() {
        let (everyone, view) = ([role(GUILD, VIEW_CHANNEL), role(5, 0), role(7, ADMINISTRATOR)], VIEW_CHANNEL);
        assert_eq!(visibility(&everyone, &[]), Visibility::Clear);
        assert_eq!(visibility(&everyone, &[(GUILD, 0, 0, view)]), Visibility::Obscured);
        assert_eq!(visibility(&everyone, &[(5, 0, view, 0), (GUILD, 0, 0, view)]), Visibility::Clear);
        assert_eq!(
            visibility(&everyone, &[(GUILD, 0, 0, view), (5, 0, view, 0), (BOT, 1, 0, view)]),
            Visibility::Obscured
        );
        assert_eq!(
            visibility(&everyone, &[(5, 0, 0, view), (6, 0, view, 0)]),
            Visibility::Clear,
            "roles count together"
        );
        assert_eq!(visibility(&everyone, &[(8, 0, 0, view), (4, 1, 0, view)]), Visibility::Clear, "not the bot's");
        assert_eq!(visibility(&[role(GUILD, 0)], &[]), Visibility::Obscured);
        assert_eq!(visibility(&[role(GUILD, 0), role(6, ADMINISTRATOR)], &[(BOT, 1, 0, view)]), Visibility::Clear);
    }

    /// All permissions of a member in a channel, computed step by step as in Discord's documentation.
    fn permissions(base: u64, held: &[u64], overwrites: &[(u64, u8, u64, u64)]) -> u64 {
        if base & ADMINISTRATOR != 0 {
            return u64::MAX;
        }
        let mut bits = base;
        if let Some((.., allow, deny)) = overwrites.iter().find(|one| (one.0, one.1) == (GUILD, 0)) {
            bits = bits & !deny | allow;
        }
        let (mut allows, mut denies) = (0, 0);
        for role in held {
            if let Some((.., allow, deny)) = overwrites.iter().find(|one| (one.0, one.1) == (*role, 0)) {
                allows |= allow;
                denies |= deny;
            }
        }
        bits = bits & !denies | allows;
        if let Some((.., allow, deny)) = overwrites.iter().find(|one| (one.0, one.1) == (BOT, 1)) {
            bits = bits & !deny | allow;
        }
        bits
    }

    proptest! {
        #[test]
        fn visibility_equals_discords_computation(
            everyone in 0u64..4096, five in 0u64..4096, stranger in 0u64..4096,
            picked in proptest::sample::subsequence(vec![(GUILD, 0u8), (5, 0), (6, 0), (7, 0), (BOT, 1), (8, 1)], 0..=6),
            bits in proptest::collection::vec((0u64..4096, 0u64..4096), 6),
        ) {
            let overwrites: Vec<(u64, u8, u64, u64)> =
                picked.iter().zip(bits).map(|(&(id, kind), (allow, deny))| (id, kind, allow, deny)).collect();
            let roles = [role(GUILD, everyone), role(5, five), role(7, stranger)];
            let sees = permissions(everyone | five, &[5, 6], &overwrites) & VIEW_CHANNEL != 0;
            prop_assert_eq!(visibility(&roles, &overwrites) == Visibility::Clear, sees);
        }
    }
}
