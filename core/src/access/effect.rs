//! Permissions that an operation gives to members and roles.
//!
//! ```text
//!  Payload ─PermissionEffect::of─▶ PermissionEffect ─┬─danger()──────────────────────▶ danger visible in the payload
//!                                                    ├─assigned()─danger(GuildRoles)─▶ danger of the assigned roles
//!                                                    └─denials()─lifted(channel)─────▶ the denials that it removes
//! ```
//!
//! The effect counts, not the kind: a role can be given by `assign_role`, by `set_member_roles`, and by several calls
//! of `request`.

use super::{
    GuildRoles,
    danger::{Danger, dangerous},
    request_effect,
};
use crate::operation::{
    Payload, Reference,
    payload::{Overwrite, OverwriteMode, OverwriteTarget},
};

/// The guild whose roles an operation assigns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleGuild {
    /// This one.
    Guild(u64),
    /// The guild of this channel.
    Channel(u64),
}

/// Roles that an operation assigns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssignedRoles {
    /// Their guild.
    pub guild: RoleGuild,
    /// Their ids. Roles referred to by key or operation are missing until they are resolved.
    pub roles: Vec<u64>,
    /// The member whose roles are replaced. Roles that the member already has do not count.
    pub replaces: Option<u64>,
}

/// What an operation denies in an existing channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denials {
    /// The channel, if the payload has its id.
    pub channel: Option<u64>,
    /// What each role or member is denied afterwards.
    pub denied: Vec<(u64, u64)>,
    /// Whether the overwrites of all others are removed.
    pub replaces_all: bool,
}

/// Permissions that an operation gives to members and roles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PermissionEffect {
    pub(super) danger: Option<Danger>,
    pub(super) assigned: Option<AssignedRoles>,
    pub(super) denials: Option<Denials>,
}

/// A role that an operation assigns is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("role {0} is unknown")]
pub struct UnknownRole(pub u64);

impl PermissionEffect {
    /// The effect of an operation that was submitted for this guild, or for none.
    #[must_use]
    pub fn of(payload: &Payload, guild: Option<u64>) -> Self {
        match payload {
            Payload::CreateRole(create) => Self::granting(create.role.permissions.unwrap_or(0)),
            Payload::EnsureRole(ensure) => Self::granting(ensure.role.permissions.unwrap_or(0)),
            Payload::AssignRole(assign) => Self::assigning(guild, std::slice::from_ref(&assign.role), None),
            Payload::SetMemberRoles(set) => Self::assigning(guild, &set.roles, Some(set.user)),
            Payload::CreateChannel(create) => Self::allowing(create.channel.overwrites.as_deref().unwrap_or_default()),
            // The channel is only known when it is dispatched: see `Denials::of`.
            Payload::EnsureChannel(ensure) => Self::allowing(ensure.channel.overwrites.as_deref().unwrap_or_default()),
            Payload::UpdatePermissions(update) => {
                let denials = match update.mode {
                    OverwriteMode::Replace => Some(Denials::in_channel(&update.channel, &update.overwrites, false)),
                    // Merging removes only the denials of what it allows.
                    OverwriteMode::Merge => None,
                };
                Self { denials, ..Self::allowing(&update.overwrites) }
            }
            Payload::ReplaceOverwrites(replace) => {
                let denials = Some(Denials::in_channel(&replace.channel, &replace.overwrites, true));
                Self { denials, ..Self::allowing(&replace.overwrites) }
            }
            Payload::Request(request) => request_effect::of(request),
            // Channels keep their overwrites when they are moved: `lock_permissions` is not sent.
            Payload::Reorder(_)
            | Payload::DeleteRole(_)
            | Payload::RemoveRole(_)
            | Payload::DeleteChannel(_)
            | Payload::EnsureMessage(_)
            | Payload::SendMessage(_)
            | Payload::EditMessage(_)
            | Payload::DeleteMessage(_)
            | Payload::SendDm(_)
            | Payload::DeferReply(_)
            | Payload::SendFollowup(_)
            | Payload::EditOriginal(_)
            | Payload::Read(_) => Self::default(),
        }
    }

    pub(super) fn granting(bits: u64) -> Self {
        let bits = dangerous(bits);
        Self { danger: (bits != 0).then_some(Danger::Grants(bits)), ..Self::default() }
    }

    fn allowing(overwrites: &[Overwrite]) -> Self {
        Self::granting(overwrites.iter().fold(0, |all, overwrite| all | overwrite.allow))
    }

    fn assigning(guild: Option<u64>, roles: &[Reference], replaces: Option<u64>) -> Self {
        // These kinds need a guild.
        let Some(guild) = guild.map(RoleGuild::Guild) else {
            return Self { danger: Some(Danger::UnreadableRole), ..Self::default() };
        };
        let roles = roles.iter().filter_map(id).collect();
        Self { assigned: Some(AssignedRoles { guild, roles, replaces }), ..Self::default() }
    }

    /// The danger that is visible in the payload alone.
    #[must_use]
    pub const fn danger(&self) -> Option<Danger> {
        self.danger
    }

    /// The roles that it assigns, if any.
    #[must_use]
    pub fn assigned(&self) -> Option<&AssignedRoles> {
        self.assigned.as_ref().filter(|assigned| !assigned.roles.is_empty())
    }

    /// What it denies in an existing channel.
    #[must_use]
    pub const fn denials(&self) -> Option<&Denials> {
        self.denials.as_ref()
    }
}

impl AssignedRoles {
    /// The danger of the first role with a dangerous permission, by the permissions of the guild's roles.
    ///
    /// # Errors
    ///
    /// When the guild's roles lack one of them. A dangerous role takes precedence.
    pub fn danger(&self, roles: &GuildRoles) -> Result<Option<Danger>, UnknownRole> {
        let mut unknown = None;
        for &role in &self.roles {
            match roles.get(role) {
                Some(permissions) => {
                    let (everywhere, in_channels) = (permissions.everywhere, permissions.in_channels);
                    if dangerous(everywhere | in_channels) != 0 {
                        return Ok(Some(Danger::Role { role, everywhere, in_channels }));
                    }
                }
                None => unknown = unknown.or(Some(UnknownRole(role))),
            }
        }
        unknown.map_or(Ok(None), Err)
    }

    /// The same without the roles that the member already has.
    #[must_use]
    pub fn without(&self, held: &[u64]) -> Self {
        let roles = self.roles.iter().copied().filter(|role| !held.contains(role)).collect();
        Self { roles, ..*self }
    }
}

impl Denials {
    /// What these overwrites deny, if they become a channel's only ones.
    #[must_use]
    pub fn of(overwrites: &[Overwrite]) -> Self {
        let denied = overwrites.iter().filter_map(|overwrite| Some((target(overwrite)?, overwrite.deny))).collect();
        Self { channel: None, denied, replaces_all: true }
    }

    fn in_channel(channel: &Reference, overwrites: &[Overwrite], replaces_all: bool) -> Self {
        Self { channel: id(channel), replaces_all, ..Self::of(overwrites) }
    }

    /// The first dangerous permission that the channel's present overwrites deny and these do not. `present` has the
    /// role or member of each overwrite, and what it denies.
    #[must_use]
    pub fn lifted(&self, present: impl IntoIterator<Item = (u64, u64)>) -> Option<Danger> {
        present.into_iter().find_map(|(target, denied)| {
            // A target that occurs twice is denied what both deny.
            let named = self.denied.iter().filter(|(id, _)| *id == target).map(|(_, deny)| *deny);
            let after = named.reduce(|one, other| one & other).unwrap_or(if self.replaces_all { 0 } else { denied });
            let bits = dangerous(denied & !after);
            (bits != 0).then_some(Danger::LiftsDenial { target, bits })
        })
    }
}

fn id(reference: &Reference) -> Option<u64> {
    match reference {
        Reference::Id(id) => Some(*id),
        Reference::Key(_) | Reference::Operation(_) => None,
    }
}

fn target(overwrite: &Overwrite) -> Option<u64> {
    match &overwrite.target {
        OverwriteTarget::Role(role) => id(role),
        OverwriteTarget::Member(member) => Some(*member),
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};
    use serde_json::{Value, json};

    use super::*;
    use crate::operation::OperationKind;

    const MANAGE_ROLES: u64 = 1 << 28;

    fn of(kind: OperationKind, payload: &Value) -> PermissionEffect {
        PermissionEffect::of(&Payload::parse(kind, payload, Some(42)).unwrap(), Some(42))
    }

    #[test]
    fn every_kind_that_grants_by_its_payload_is_dangerous() {
        let manage = (MANAGE_ROLES | 1 << 10).to_string();
        let overwrites = json!([{"role_id": "5", "allow": "1024"}, {"user_id": "6", "allow": manage}]);
        for (kind, payload) in [
            (OperationKind::CreateRole, json!({"name": "a", "permissions": manage})),
            (OperationKind::EnsureRole, json!({"key": "a", "name": "a", "permissions": manage})),
            (OperationKind::CreateChannel, json!({"name": "a", "overwrites": overwrites})),
            (OperationKind::EnsureChannel, json!({"name": "a", "key": "a", "overwrites": overwrites})),
            (OperationKind::UpdatePermissions, json!({"channel_id": "9", "overwrites": overwrites})),
            (OperationKind::UpdatePermissions, json!({"channel_id": "9", "overwrites": overwrites, "mode": "merge"})),
            (OperationKind::ReplaceOverwrites, json!({"channel_id": "9", "overwrites": overwrites})),
        ] {
            assert_eq!(of(kind, &payload).danger(), Some(Danger::Grants(MANAGE_ROLES)), "{kind:?}");
        }
        for bit in [1, 2, 40] {
            let role = json!({"name": "a", "permissions": (1u64 << bit).to_string()});
            assert_eq!(of(OperationKind::CreateRole, &role).danger(), Some(Danger::Grants(1 << bit)), "{bit}");
        }
    }

    #[test]
    fn harmless_and_denied_permissions_are_not_dangerous() {
        assert_eq!(
            of(OperationKind::CreateRole, &json!({"name": "a", "permissions": "1024"})),
            PermissionEffect::default()
        );
        let update = json!({"channel_id": "9", "overwrites": [{"role_id": "5", "deny": "8"}]});
        assert_eq!(of(OperationKind::UpdatePermissions, &update).danger(), None);
        assert_eq!(
            of(OperationKind::RemoveRole, &json!({"user_id": "1", "role_id": "2"})),
            PermissionEffect::default()
        );
    }

    #[test]
    fn assigned_roles_are_checked_by_their_permissions() {
        let roles = GuildRoles::new([(1, 8), (2, 1024), (3, 0)], [(3, MANAGE_ROLES)]);
        let assign = |role: &str| {
            let effect = of(OperationKind::AssignRole, &json!({"user_id": "1", "role_id": role}));
            assert_eq!(effect.danger(), None);
            effect.assigned().unwrap().danger(&roles)
        };
        assert_eq!(assign("1"), Ok(Some(Danger::Role { role: 1, everywhere: 8, in_channels: 0 })));
        assert_eq!(assign("2"), Ok(None));
        assert_eq!(assign("3"), Ok(Some(Danger::Role { role: 3, everywhere: 0, in_channels: MANAGE_ROLES })));
        assert_eq!(assign("4"), Err(UnknownRole(4)));
    }

    #[test]
    fn roles_that_a_member_keeps_do_not_count() {
        let roles = GuildRoles::new([(1, 8), (2, 1024)], []);
        let effect = of(OperationKind::SetMemberRoles, &json!({"user_id": "7", "role_ids": ["2", "1"]}));
        let assigned = effect.assigned().unwrap();
        assert_eq!(assigned.replaces, Some(7));
        assert!(assigned.danger(&roles).unwrap().is_some());
        assert_eq!(assigned.without(&[1, 9]).danger(&roles), Ok(None));
    }

    #[test]
    fn reference_by_key_has_no_id_before_it_is_resolved() {
        assert_eq!(of(OperationKind::AssignRole, &json!({"user_id": "1", "role_id": {"key": "a"}})).assigned(), None);
    }

    #[test]
    fn removed_denials_of_dangerous_permissions_are_found() {
        let present = [(5, MANAGE_ROLES | 1024), (6, 1024)];
        let lifts = Some(Danger::LiftsDenial { target: 5, bits: MANAGE_ROLES });
        let update = |overwrites: Value| {
            let effect = of(OperationKind::UpdatePermissions, &json!({"channel_id": "9", "overwrites": overwrites}));
            effect.denials().unwrap().lifted(present)
        };
        assert_eq!(update(json!([{"role_id": "5", "deny": "1024"}])), lifts);
        assert_eq!(update(json!([{"role_id": "5", "deny": MANAGE_ROLES.to_string()}])), None);
        assert_eq!(update(json!([{"role_id": "6", "allow": "1024"}])), None);
        let replace = of(OperationKind::ReplaceOverwrites, &json!({"channel_id": "9", "overwrites": []}));
        assert_eq!(replace.denials().unwrap().lifted(present), lifts);
    }

    proptest! {
        #[test]
        fn role_is_dangerous_exactly_if_one_of_its_permissions_is(
            roles in vec((1u64..9, any::<u64>(), any::<u64>()), 0..9),
            assigned in vec(1u64..9, 1..5),
        ) {
            let known = GuildRoles::new(roles.iter().map(|r| (r.0, r.1)), roles.iter().map(|r| (r.0, r.2)));
            let assigned = AssignedRoles { guild: RoleGuild::Guild(42), roles: assigned, replaces: None };
            let is_dangerous = |role: &u64| known.get(*role)
                .is_some_and(|role| dangerous(role.everywhere) != 0 || dangerous(role.in_channels) != 0);
            match assigned.danger(&known) {
                Ok(None) => prop_assert!(assigned.roles.iter().all(|role| known.get(*role).is_some() && !is_dangerous(role))),
                Ok(Some(Danger::Role { role, .. })) => prop_assert!(is_dangerous(&role)),
                Ok(Some(other)) => prop_assert!(false, "{other}"),
                Err(UnknownRole(role)) => {
                    prop_assert_eq!(known.get(role), None);
                    prop_assert!(!assigned.roles.iter().any(is_dangerous));
                }
            }
        }
    }
}
