//! `/channels/{channel.id}/permissions/{overwrite.id}`: permission overwrites of a channel.

use super::access::{self, GuildAccess};
use super::call::{Call, Effect, Reply, Verb};
use super::channels;
use super::error::ApiError;
use super::form::{Field, Form};
use crate::world::World;
use crate::world::audit::{self, Draft};
use crate::world::channel::MAX_OVERWRITES;
use crate::world::permissions::{MANAGE_ROLES, Overwrite, OverwriteKind};

const AUDITED: &[&str] = &["id", "type", "allow", "deny"];

/// The `permission_overwrites` in the form of a channel. The last one for an id applies.
pub(super) fn list(form: &mut Form<'_>) -> Field<Vec<Overwrite>> {
    let entries = match form.list("permission_overwrites", MAX_OVERWRITES) {
        Field::Absent => return Field::Absent,
        Field::Null => return Field::Null,
        Field::Given(entries) => entries,
    };
    let mut overwrites: Vec<Overwrite> = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        let read = form.nested(&format!("permission_overwrites.{index}"), entry, |entry| {
            let id = entry.snowflake("id");
            let id = entry.required("id", id);
            let (kind, allow, deny) = fields(entry);
            Some(Overwrite { id: id?, kind: kind?, allow, deny })
        });
        if let Some(overwrite) = read.flatten() {
            overwrites.retain(|other| other.id != overwrite.id);
            overwrites.push(overwrite);
        }
    }
    Field::Given(overwrites)
}

/// The kind and the bits; only the kind is required.
fn fields(form: &mut Form<'_>) -> (Option<OverwriteKind>, u64, u64) {
    let kind = form.choice("type", &[0, 1]);
    let kind = form.required("type", kind).map(|number| match number {
        0 => OverwriteKind::Role,
        _ => OverwriteKind::Member,
    });
    (kind, form.bits("allow").value().unwrap_or(0), form.bits("deny").value().unwrap_or(0))
}

/// Requires that the bot has all permissions that the overwrites allow or deny.
pub(super) fn check(guild_access: &GuildAccess, overwrites: &[Overwrite]) -> Result<(), ApiError> {
    overwrites.iter().try_for_each(|overwrite| guild_access.require_grantable(overwrite.allow | overwrite.deny))
}

pub(crate) fn put(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let (channel_access, guild_access) = access::in_guild_channel(world, call)?;
    guild_access.require(MANAGE_ROLES)?;
    let id = call.params.id("overwrite.id")?;
    let reason = access::reason(call)?;
    let mut form = Form::of(call)?;
    let (kind, allow, deny) = fields(&mut form);
    form.finish()?;
    let kind = kind.expect("invariant: a form without its kind does not finish");
    let guild = access::guild_mut(world, guild_access.guild)?;
    let role_name = match kind {
        OverwriteKind::Role => Some(guild.roles.get(id).ok_or(ApiError::UNKNOWN_OVERWRITE)?.name.clone()),
        OverwriteKind::Member => None,
    };
    let channel = guild.channels.get_mut(&channel_access.channel).ok_or(ApiError::UNKNOWN_CHANNEL)?;
    let new = Overwrite { id, kind, allow, deny };
    let full = channel.permission_overwrites.len() >= MAX_OVERWRITES;
    let old = channel.permission_overwrites.iter_mut().find(|overwrite| overwrite.id == id);
    let existing = old.as_ref().map_or(0, |old| old.allow | old.deny);
    guild_access.require_grantable((allow | deny) & !existing)?;
    let (action, verb, changes) = match old {
        Some(old) if *old == new => return Ok(Reply::no_content()),
        Some(old) => {
            let changes = audit::changes(Some(old), Some(&new), AUDITED);
            *old = new;
            (audit::OVERWRITE_UPDATE, Verb::Update, changes)
        }
        None if full => return Err(ApiError::MAX_OVERWRITES),
        None => {
            let changes = audit::changes(None, Some(&new), AUDITED);
            channel.permission_overwrites.push(new);
            (audit::OVERWRITE_CREATE, Verb::Create, changes)
        }
    };
    let channel = channel.clone();
    channels::notify_update(world, &channel);
    let draft = Draft::new(action, guild_access.user, channel.id, reason)
        .changes(changes)
        .options(audit::overwrite_options(id, role_name.as_deref()));
    world.audit(guild_access.guild, draft, call.now);
    let name = format!("{}:{id}", channel.id);
    Ok(Reply::no_content().with_effect(Effect::new(verb, "overwrite", Some(guild_access.guild), id, &name)))
}

pub(crate) fn delete(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let (channel_access, guild_access) = access::in_guild_channel(world, call)?;
    guild_access.require(MANAGE_ROLES)?;
    let id = call.params.id("overwrite.id")?;
    let reason = access::reason(call)?;
    let guild = access::guild_mut(world, guild_access.guild)?;
    let role_name = guild.roles.get(id).map(|role| role.name.clone());
    let channel = guild.channels.get_mut(&channel_access.channel).ok_or(ApiError::UNKNOWN_CHANNEL)?;
    let Some(index) = channel.permission_overwrites.iter().position(|overwrite| overwrite.id == id) else {
        return Ok(Reply::no_content());
    };
    let deleted = channel.permission_overwrites.remove(index);
    let channel = channel.clone();
    channels::notify_update(world, &channel);
    let draft = Draft::new(audit::OVERWRITE_DELETE, guild_access.user, channel.id, reason)
        .changes(audit::changes(Some(&deleted), None, AUDITED))
        .options(audit::overwrite_options(id, role_name.as_deref()));
    world.audit(guild_access.guild, draft, call.now);
    let name = format!("{}:{id}", channel.id);
    Ok(Reply::no_content().with_effect(Effect::new(Verb::Delete, "overwrite", Some(guild_access.guild), id, &name)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::rest::call::Verb;
    use crate::rest::testing::RestFixture;
    use crate::world::permissions;

    #[test]
    fn overwrite_changes_are_idempotent() {
        let mut fixture = RestFixture::new();
        let path = fixture.channel_path(&format!("/permissions/{}", fixture.member));
        let body = json!({ "type": 1, "allow": "1024", "deny": 2048 });
        let made = fixture.put(&path, body.clone());
        assert_eq!((made.status, made.effect.unwrap().verb), (204, Verb::Create));
        assert_eq!(made.events, ["CHANNEL_UPDATE", "GUILD_AUDIT_LOG_ENTRY_CREATE"]);
        let again = fixture.put(&path, body);
        assert_eq!((again.status, again.effect, again.events.len()), (204, None, 0));
        let changed = fixture.put(&path, json!({ "type": 1, "deny": "2048" }));
        assert_eq!(changed.effect.unwrap().verb, Verb::Update);
        let overwrites = fixture.get(&fixture.channel_path("")).json["permission_overwrites"].clone();
        assert_eq!(overwrites, json!([{ "id": fixture.member, "type": 1, "allow": "0", "deny": "2048" }]));
        assert_eq!(fixture.delete(&path).effect.unwrap().verb, Verb::Delete);
        let gone = fixture.delete(&path);
        assert_eq!((gone.status, gone.effect, gone.events.len()), (204, None, 0));
        let log = fixture.get(&fixture.guild_path("/audit-logs")).json;
        let actions: Vec<_> =
            log["audit_log_entries"].as_array().unwrap().iter().map(|entry| entry["action_type"].clone()).collect();
        assert_eq!(actions, [15, 14, 13]);
    }

    #[test]
    fn overwrite_1001_is_refused_and_existing_ones_can_change() {
        let mut fixture = RestFixture::new();
        let path = fixture.channel_path("/permissions");
        for number in 1..=1_000 {
            assert_eq!(fixture.put(&format!("{path}/{number}"), json!({ "type": 1 })).status, 204);
        }
        assert_eq!(fixture.put(&format!("{path}/1001"), json!({ "type": 1 })).code(), 30060);
        assert_eq!(fixture.put(&format!("{path}/5"), json!({ "type": 1, "deny": "1024" })).status, 204);
    }

    #[test]
    fn overwrite_needs_the_permissions_it_changes() {
        let mut fixture = RestFixture::new();
        let path = fixture.channel_path(&format!("/permissions/{}", fixture.member));
        fixture.world.set_bot_permissions(fixture.guild, permissions::MANAGE_ROLES).unwrap();
        assert_eq!(fixture.put(&path, json!({ "type": 1, "allow": "8" })).code(), 50013);
        fixture.world.set_bot_permissions(fixture.guild, 0).unwrap();
        assert_eq!(fixture.put(&path, json!({ "type": 1 })).code(), 50013);
    }

    #[test]
    fn overwrite_of_an_unknown_role_is_refused() {
        let mut fixture = RestFixture::new();
        assert_eq!(fixture.put(&fixture.channel_path("/permissions/5"), json!({ "type": 0 })).code(), 10009);
        assert_eq!(fixture.put(&fixture.channel_path("/permissions/5"), json!({ "type": 2 })).code(), 50035);
    }
}
