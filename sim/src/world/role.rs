//! Roles, and their order.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::wire;
use crate::id::Snowflake;

/// Maximum number of roles in a guild, including `@everyone`.
pub(crate) const MAX_ROLES: usize = 250;

/// A role; its JSON is Discord's role object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Role {
    pub(crate) id: Snowflake,
    pub(crate) name: String,
    #[serde(with = "wire::bits")]
    pub(crate) permissions: u64,
    pub(crate) position: u32,
    pub(crate) color: u32,
    pub(crate) colors: Colors,
    pub(crate) hoist: bool,
    /// Belongs to a bot: it can be neither assigned nor removed.
    pub(crate) managed: bool,
    pub(crate) mentionable: bool,
    pub(crate) icon: Option<String>,
    pub(crate) unicode_emoji: Option<String>,
    pub(crate) flags: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tags: Option<Tags>,
}

/// A role's colours; the first is also its `color`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Colors {
    pub(crate) primary_color: u32,
    pub(crate) secondary_color: Option<u32>,
    pub(crate) tertiary_color: Option<u32>,
}

/// The bot of a managed role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tags {
    pub(crate) bot_id: Snowflake,
}

impl Role {
    pub(crate) fn new(id: Snowflake, name: String, permissions: u64, position: u32) -> Self {
        Self {
            id,
            name,
            permissions,
            position,
            color: 0,
            colors: Colors::default(),
            hoist: false,
            managed: false,
            mentionable: false,
            icon: None,
            unicode_emoji: None,
            flags: 0,
            tags: None,
        }
    }

    pub(crate) fn of_bot(id: Snowflake, bot: Snowflake, name: String, permissions: u64, position: u32) -> Self {
        Self { managed: true, tags: Some(Tags { bot_id: bot }), ..Self::new(id, name, permissions, position) }
    }
}

/// The roles of a guild. Positions start at 0 (`@everyone`) and have no gap; a new role is inserted at 1 and moves the
/// others up, which Discord does without an event.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Roles {
    by_id: BTreeMap<Snowflake, Role>,
}

impl Roles {
    pub(crate) fn get(&self, id: Snowflake) -> Option<&Role> {
        self.by_id.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: Snowflake) -> Option<&mut Role> {
        self.by_id.get_mut(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Role> {
        self.by_id.values()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Adds a role at its position.
    pub(crate) fn insert(&mut self, role: Role) {
        self.by_id.insert(role.id, role);
    }

    /// Adds a role just above `@everyone`.
    pub(crate) fn insert_lowest(&mut self, mut role: Role) {
        for other in self.by_id.values_mut() {
            other.position += u32::from(other.position > 0);
        }
        role.position = 1;
        self.insert(role);
    }

    pub(crate) fn remove(&mut self, id: Snowflake) -> Option<Role> {
        let removed = self.by_id.remove(&id)?;
        for other in self.by_id.values_mut() {
            other.position -= u32::from(other.position > removed.position);
        }
        Some(removed)
    }

    /// The positions of all roles after these moves. A role that is moved up is placed above the one at its new
    /// position, a role that is moved down below it.
    pub(crate) fn positions_after(&self, moves: &[(Snowflake, u32)]) -> Vec<(Snowflake, u32)> {
        let mut order: Vec<(i64, Snowflake)> = self
            .by_id
            .values()
            .filter(|role| role.position > 0)
            .map(|role| {
                let current = i64::from(role.position);
                // Even numbers are the current positions; a moved role gets an odd number between them.
                let sort_key = match moves.iter().rev().find(|(id, _)| *id == role.id) {
                    Some((_, to)) if i64::from(*to) > current => i64::from(*to) * 2 + 1,
                    Some((_, to)) if i64::from(*to) < current => i64::from(*to) * 2 - 1,
                    _ => current * 2,
                };
                (sort_key, role.id)
            })
            .collect();
        order.sort_unstable();
        (1..).zip(order).map(|(position, (_, id))| (id, position)).collect()
    }

    /// Sets positions, and returns the roles that changed.
    pub(crate) fn set_positions(&mut self, positions: &[(Snowflake, u32)]) -> Vec<Snowflake> {
        let mut changed = Vec::new();
        for (id, position) in positions {
            if let Some(role) = self.by_id.get_mut(id)
                && role.position != *position
            {
                role.position = *position;
                changed.push(*id);
            }
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn roles_with_positions(size: u32) -> Roles {
        let mut roles = Roles::default();
        for position in 0..size {
            roles.insert(Role::new(Snowflake::new(u64::from(position) + 100), String::new(), 0, position));
        }
        roles
    }

    fn order(positions: &[(Snowflake, u32)]) -> Vec<u64> {
        positions.iter().map(|(id, _)| id.get()).collect()
    }

    #[test]
    fn new_role_is_inserted_above_everyone() {
        let mut roles = roles_with_positions(3);
        roles.insert_lowest(Role::new(Snowflake::new(7), String::new(), 0, 0));
        let positions: Vec<_> = [100, 7, 101, 102].map(|id| roles.get(Snowflake::new(id)).unwrap().position).into();
        assert_eq!(positions, [0, 1, 2, 3]);
        roles.remove(Snowflake::new(7));
        assert_eq!(roles.get(Snowflake::new(102)).unwrap().position, 2);
    }

    #[test]
    fn role_moved_up_is_placed_above_the_one_at_its_position() {
        assert_eq!(order(&roles_with_positions(4).positions_after(&[(Snowflake::new(101), 3)])), [102, 103, 101]);
    }

    #[test]
    fn role_moved_down_is_placed_below_the_one_at_its_position() {
        assert_eq!(order(&roles_with_positions(4).positions_after(&[(Snowflake::new(103), 1)])), [103, 101, 102]);
    }

    proptest! {
        #[test]
        fn positions_have_no_gap_after_any_moves(
            size in 1_u32..20,
            moves in proptest::collection::vec((0_u64..20, 0_u32..30), 0..10),
        ) {
            let mut roles = roles_with_positions(size);
            let moves: Vec<_> = moves.into_iter().map(|(id, to)| (Snowflake::new(id + 100), to)).collect();
            let positions = roles.positions_after(&moves);
            roles.set_positions(&positions);
            let mut taken: Vec<_> = roles.iter().map(|role| role.position).collect();
            taken.sort_unstable();
            prop_assert_eq!(taken, (0..size).collect::<Vec<_>>());
        }
    }
}
