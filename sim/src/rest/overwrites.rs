//! `/channels/{channel.id}/permissions/{overwrite.id}`: permission overwrites of a channel.

use super::access::{self, Standing};
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
        let read = form.within(&format!("permission_overwrites.{index}"), entry, |entry| {
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
pub(super) fn check(standing: &Standing, overwrites: &[Overwrite]) -> Result<(), ApiError> {
    overwrites.iter().try_for_each(|overwrite| standing.grant(overwrite.allow | overwrite.deny))
}

pub(crate) fn put(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let (spot, standing) = access::in_guild_channel(world, call)?;
    standing.need(MANAGE_ROLES)?;
    let id = call.params.id("overwrite.id")?;
    let reason = access::reason(call)?;
    let mut form = Form::of(call)?;
    let (kind, allow, deny) = fields(&mut form);
    form.finish()?;
    let kind = kind.expect("invariant: a form without its kind does not finish");
    let guild = access::guild_mut(world, standing.guild)?;
    let role_name = match kind {
        OverwriteKind::Role => Some(guild.roles.get(id).ok_or(ApiError::UNKNOWN_OVERWRITE)?.name.clone()),
        OverwriteKind::Member => None,
    };
    let channel = guild.channels.get_mut(&spot.channel).ok_or(ApiError::UNKNOWN_CHANNEL)?;
    let new = Overwrite { id, kind, allow, deny };
    let full = channel.permission_overwrites.len() >= MAX_OVERWRITES;
    let old = channel.permission_overwrites.iter_mut().find(|overwrite| overwrite.id == id);
    let known = old.as_ref().map_or(0, |old| old.allow | old.deny);
    standing.grant((allow | deny) & !known)?;
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
    channels::tell_update(world, &channel);
    let draft = Draft::new(action, standing.user, channel.id, reason)
        .changes(changes)
        .options(audit::overwrite_options(id, role_name.as_deref()));
    world.audit(standing.guild, draft, call.now);
    let name = format!("{}:{id}", channel.id);
    Ok(Reply::no_content().with_effect(Effect::new(verb, "overwrite", Some(standing.guild), id, &name)))
}

pub(crate) fn delete(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let (spot, standing) = access::in_guild_channel(world, call)?;
    standing.need(MANAGE_ROLES)?;
    let id = call.params.id("overwrite.id")?;
    let reason = access::reason(call)?;
    let guild = access::guild_mut(world, standing.guild)?;
    let role_name = guild.roles.get(id).map(|role| role.name.clone());
    let channel = guild.channels.get_mut(&spot.channel).ok_or(ApiError::UNKNOWN_CHANNEL)?;
    let Some(index) = channel.permission_overwrites.iter().position(|overwrite| overwrite.id == id) else {
        return Ok(Reply::no_content());
    };
    let gone = channel.permission_overwrites.remove(index);
    let channel = channel.clone();
    channels::tell_update(world, &channel);
    let draft = Draft::new(audit::OVERWRITE_DELETE, standing.user, channel.id, reason)
        .changes(audit::changes(Some(&gone), None, AUDITED))
        .options(audit::overwrite_options(id, role_name.as_deref()));
    world.audit(standing.guild, draft, call.now);
    let name = format!("{}:{id}", channel.id);
    Ok(Reply::no_content().with_effect(Effect::new(Verb::Delete, "overwrite", Some(standing.guild), id, &name)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::rest::call::Verb;
    use crate::rest::testing::Stage;
    use crate::world::permissions;

    #[test]
    fn an_overwrite_is_made_changed_and_removed_each_once() {
        let mut stage = Stage::new();
        let path = stage.channel_path(&format!("/permissions/{}", stage.member));
        let body = json!({ "type": 1, "allow": "1024", "deny": 2048 });
        let made = stage.put(&path, body.clone());
        assert_eq!((made.status, made.effect.unwrap().verb), (204, Verb::Create));
        assert_eq!(made.events, ["CHANNEL_UPDATE", "GUILD_AUDIT_LOG_ENTRY_CREATE"]);
        let again = stage.put(&path, body);
        assert_eq!((again.status, again.effect, again.events.len()), (204, None, 0));
        let changed = stage.put(&path, json!({ "type": 1, "deny": "2048" }));
        assert_eq!(changed.effect.unwrap().verb, Verb::Update);
        let shown = stage.get(&stage.channel_path("")).json["permission_overwrites"].clone();
        assert_eq!(shown, json!([{ "id": stage.member, "type": 1, "allow": "0", "deny": "2048" }]));
        assert_eq!(stage.delete(&path).effect.unwrap().verb, Verb::Delete);
        let gone = stage.delete(&path);
        assert_eq!((gone.status, gone.effect, gone.events.len()), (204, None, 0));
        let log = stage.get(&stage.guild_path("/audit-logs")).json;
        let actions: Vec<_> =
            log["audit_log_entries"].as_array().unwrap().iter().map(|entry| entry["action_type"].clone()).collect();
        assert_eq!(actions, [15, 14, 13]);
    }

    #[test]
    fn the_1001st_overwrite_is_refused_but_a_known_one_can_change() {
        let mut stage = Stage::new();
        let path = stage.channel_path("/permissions");
        for number in 1..=1_000 {
            assert_eq!(stage.put(&format!("{path}/{number}"), json!({ "type": 1 })).status, 204);
        }
        assert_eq!(stage.put(&format!("{path}/1001"), json!({ "type": 1 })).code(), 30060);
        assert_eq!(stage.put(&format!("{path}/5"), json!({ "type": 1, "deny": "1024" })).status, 204);
    }

    #[test]
    fn nobody_allows_what_they_may_not_do() {
        let mut stage = Stage::new();
        let path = stage.channel_path(&format!("/permissions/{}", stage.member));
        stage.world.set_bot_permissions(stage.guild, permissions::MANAGE_ROLES).unwrap();
        assert_eq!(stage.put(&path, json!({ "type": 1, "allow": "8" })).code(), 50013);
        stage.world.set_bot_permissions(stage.guild, 0).unwrap();
        assert_eq!(stage.put(&path, json!({ "type": 1 })).code(), 50013);
    }

    #[test]
    fn a_role_nobody_knows_has_no_overwrite() {
        let mut stage = Stage::new();
        assert_eq!(stage.put(&stage.channel_path("/permissions/5"), json!({ "type": 0 })).code(), 10009);
        assert_eq!(stage.put(&stage.channel_path("/permissions/5"), json!({ "type": 2 })).code(), 50035);
    }
}
