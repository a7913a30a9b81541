//! Checks that a world from a snapshot is consistent: all references are valid, so that other code need not check them.

use super::World;
use super::channel::Home;
use super::guild::Guild;
use crate::id::Snowflake;

impl World {
    /// Describes the first inconsistency, if any.
    pub(crate) fn find_inconsistency(&self) -> Option<String> {
        self.check_bots()
            .or_else(|| self.guilds.iter().find_map(|(id, guild)| self.check_guild(*id, guild)))
            .or_else(|| self.check_channels())
    }

    fn check_bots(&self) -> Option<String> {
        if self.bots.is_empty() {
            return Some("there is no bot".into());
        }
        if self.rules.max_messages == 0 {
            return Some("`max_messages` is 0".into());
        }
        let is_user = |id: &Snowflake| self.users.get(id).is_some_and(|user| user.id == *id);
        let bot = self.bots.iter().find(|bot| !is_user(&bot.user_id))?;
        Some(format!("bot {} is not a user", bot.user_id))
    }

    fn check_guild(&self, id: Snowflake, guild: &Guild) -> Option<String> {
        if guild.id != id {
            return Some(format!("guild {id} has the id {}", guild.id));
        }
        if !guild.members.contains_key(&guild.owner) {
            return Some(format!("the owner of guild {id} is not a member"));
        }
        if guild.roles.get(id).is_none() {
            return Some(format!("guild {id} has no @everyone"));
        }
        let roles = guild.roles.len();
        if let Some(role) = guild.roles.iter().find(|role| role.position as usize > roles) {
            return Some(format!("role {} of guild {id} has a position above {roles}", role.id));
        }
        if let Some((key, _)) = guild.members.iter().find(|(key, member)| member.user.id != **key) {
            return Some(format!("member {key} of guild {id} has the id of another user"));
        }
        let misplaced = guild.channels.iter().find(|(key, channel)| {
            channel.id != **key || channel.guild_id != id || self.homes.get(key) != Some(&Home::Guild(id))
        });
        misplaced.map(|(key, _)| format!("channel {key} of guild {id} belongs elsewhere"))
    }

    fn check_channels(&self) -> Option<String> {
        let exists = |channel: &Snowflake, home: &Home| match home {
            Home::Guild(guild) => self.guilds.get(guild).is_some_and(|guild| guild.channels.contains_key(channel)),
            Home::Direct(_) => self.directs.contains_key(channel),
        };
        if let Some((channel, _)) = self.homes.iter().find(|(channel, home)| !exists(channel, home)) {
            return Some(format!("channel {channel} does not exist"));
        }
        let orphan = self.directs.keys().chain(self.feeds.keys()).find(|channel| !self.homes.contains_key(channel));
        if let Some(channel) = orphan {
            return Some(format!("channel {channel} belongs to no guild or direct messages"));
        }
        let missing = self.directs_of.values().flatten().find(|(_, channel)| !self.directs.contains_key(channel));
        missing.map(|(_, channel)| format!("direct channel {channel} does not exist"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SimConfig;
    use crate::time::At;

    /// Damages a world.
    type Damage = fn(&mut World);

    fn world() -> World {
        World::new(&SimConfig::default(), At::from_micros(1_700_000_000_000_000))
    }

    #[test]
    fn missing_parts_are_reported() {
        assert_eq!(world().find_inconsistency(), None);
        let damage: [(Damage, &str); 8] = [
            (|world| world.bots.clear(), "no bot"),
            (|world| world.users.clear(), "is not a user"),
            (|world| world.guilds.clear(), "does not exist"),
            (|world| world.homes.clear(), "belongs elsewhere"),
            (|world| first(world).members.clear(), "the owner"),
            (|world| first(world).channels.clear(), "does not exist"),
            (|world| first(world).roles = Default::default(), "has no @everyone"),
            (|world| everyone(world).position = u32::MAX, "has a position above"),
        ];
        for (damage, expected) in damage {
            let mut world = world();
            damage(&mut world);
            let inconsistency = world.find_inconsistency().unwrap();
            assert!(inconsistency.contains(expected), "{inconsistency} does not contain {expected}");
        }
    }

    fn first(world: &mut World) -> &mut Guild {
        world.guilds.values_mut().next().unwrap()
    }

    fn everyone(world: &mut World) -> &mut super::super::role::Role {
        let guild = first(world);
        guild.roles.get_mut(guild.id).unwrap()
    }
}
