//! `/guilds/{guild.id}/roles`: the roles of a guild.

use serde_json::{Value, json};

use super::access;
use super::call::{Call, Effect, Reply, Verb};
use super::error::ApiError;
use super::form::{Field, Form};
use crate::dispatch::Dispatch;
use crate::id::Snowflake;
use crate::world::audit::{self, Draft};
use crate::world::permissions::MANAGE_ROLES;
use crate::world::role::{Colors, MAX_ROLES, Role};
use crate::world::{World, intents};

/// The fields of a role that the audit log records.
const AUDITED: &[&str] = &["name", "permissions", "color", "hoist", "mentionable"];
const MAX_COLOR: u32 = 0xff_ff_ff;

pub(crate) fn list(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let guild_access = access::in_guild(world, call)?;
    let roles: Vec<&Role> = access::guild(world, guild_access.guild)?.roles.iter().collect();
    Ok(Reply::ok(&roles))
}

pub(crate) fn get(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let guild_access = access::in_guild(world, call)?;
    let id = call.params.id("role.id")?;
    let role = access::guild(world, guild_access.guild)?.roles.get(id).ok_or(ApiError::UNKNOWN_ROLE)?;
    Ok(Reply::ok(role))
}

/// Fields of a role in a form.
struct RoleForm {
    name: Field<String>,
    permissions: Field<u64>,
    colors: Field<Colors>,
    hoist: Field<bool>,
    mentionable: Field<bool>,
}

impl RoleForm {
    fn read(call: &Call<'_>) -> Result<Self, ApiError> {
        let mut form = Form::of(call)?;
        let read = Self {
            name: form.string("name", 1..=100).map(str::to_owned),
            permissions: form.bits("permissions"),
            colors: colors(&mut form),
            hoist: form.boolean("hoist"),
            mentionable: form.boolean("mentionable"),
        };
        form.finish().map(|()| read)
    }

    fn apply(self, role: &mut Role) {
        self.name.update(&mut role.name);
        self.permissions.update(&mut role.permissions);
        self.colors.update(&mut role.colors);
        role.color = role.colors.primary_color;
        self.hoist.update(&mut role.hoist);
        self.mentionable.update(&mut role.mentionable);
    }
}

/// `colors` takes precedence over the older `color`.
fn colors(form: &mut Form<'_>) -> Field<Colors> {
    let single = form.small("color", 0..=MAX_COLOR);
    let Field::Given(value) = form.raw("colors") else {
        return single.map(|primary_color| Colors { primary_color, ..Colors::default() });
    };
    let read = form.nested("colors", value, |inner| {
        let primary = inner.small("primary_color", 0..=MAX_COLOR);
        Some(Colors {
            primary_color: inner.required("primary_color", primary)?,
            secondary_color: inner.small("secondary_color", 0..=MAX_COLOR).value(),
            tertiary_color: inner.small("tertiary_color", 0..=MAX_COLOR).value(),
        })
    });
    read.flatten().map_or(Field::Absent, Field::Given)
}

pub(crate) fn create(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let guild_access = access::in_guild(world, call)?;
    guild_access.require(MANAGE_ROLES)?;
    let form = RoleForm::read(call)?;
    let reason = access::reason(call)?;
    let guild = world.guilds.get_mut(&guild_access.guild).ok_or(ApiError::UNKNOWN_GUILD)?;
    if guild.roles.len() >= MAX_ROLES {
        return Err(ApiError::MAX_ROLES);
    }
    let everyone = guild.roles.get(guild.id).map_or(0, |role| role.permissions);
    let mut role = Role::new(world.mint.generate(call.now), "new role".into(), everyone, 1);
    form.apply(&mut role);
    guild_access.require_grantable(role.permissions & !everyone)?;
    let event = json!({ "guild_id": guild_access.guild, "role": &role });
    guild.roles.insert_lowest(role.clone());
    world.dispatches.push(Dispatch::guild("GUILD_ROLE_CREATE", guild_access.guild, intents::GUILDS, &event));
    let changes = audit::changes(None, Some(&role), AUDITED);
    let draft = Draft::new(audit::ROLE_CREATE, guild_access.user, role.id, reason).changes(changes);
    world.audit(guild_access.guild, draft, call.now);
    Ok(Reply::ok(&role).with_effect(Effect::new_object("role", Some(guild_access.guild), role.id, &role.name)))
}

pub(crate) fn modify(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let guild_access = access::in_guild(world, call)?;
    guild_access.require(MANAGE_ROLES)?;
    let id = call.params.id("role.id")?;
    let form = RoleForm::read(call)?;
    let reason = access::reason(call)?;
    let role = access::guild_mut(world, guild_access.guild)?.roles.get_mut(id).ok_or(ApiError::UNKNOWN_ROLE)?;
    if role.managed {
        return Err(ApiError::MISSING_PERMISSIONS);
    }
    guild_access.require_above(role.position)?;
    let mut edited = role.clone();
    form.apply(&mut edited);
    guild_access.require_grantable(edited.permissions & !role.permissions)?;
    let changes = audit::changes(Some(role), Some(&edited), AUDITED);
    *role = edited.clone();
    world.notify_role_update(guild_access.guild, id);
    if !changes.is_empty() {
        world.audit(
            guild_access.guild,
            Draft::new(audit::ROLE_UPDATE, guild_access.user, id, reason).changes(changes),
            call.now,
        );
    }
    Ok(Reply::ok(&edited).with_effect(Effect::new(Verb::Update, "role", Some(guild_access.guild), id, &edited.name)))
}

pub(crate) fn delete(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let guild_access = access::in_guild(world, call)?;
    guild_access.require(MANAGE_ROLES)?;
    let id = call.params.id("role.id")?;
    let reason = access::reason(call)?;
    let guild = access::guild_mut(world, guild_access.guild)?;
    let role = guild.roles.get(id).ok_or(ApiError::UNKNOWN_ROLE)?;
    if role.managed || id == guild.id {
        return Err(ApiError::INVALID_ROLE);
    }
    guild_access.require_above(role.position)?;
    let role = guild.roles.remove(id).ok_or(ApiError::UNKNOWN_ROLE)?;
    // Discord sends no events for what follows: clients remove the role from members and overwrites themselves.
    for member in guild.members.values_mut() {
        member.data.roles.retain(|held| *held != id);
    }
    for channel in guild.channels.values_mut() {
        channel.permission_overwrites.retain(|overwrite| overwrite.id != id);
    }
    let event = json!({ "guild_id": guild_access.guild, "role_id": id });
    world.dispatches.push(Dispatch::guild("GUILD_ROLE_DELETE", guild_access.guild, intents::GUILDS, &event));
    let changes = audit::changes(Some(&role), None, AUDITED);
    let draft = Draft::new(audit::ROLE_DELETE, guild_access.user, id, reason).changes(changes);
    world.audit(guild_access.guild, draft, call.now);
    Ok(Reply::no_content().with_effect(Effect::new(Verb::Delete, "role", Some(guild_access.guild), id, &role.name)))
}

pub(crate) fn reorder(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let guild_access = access::in_guild(world, call)?;
    guild_access.require(MANAGE_ROLES)?;
    let moves = moves(call.list()?)?;
    let guild = access::guild_mut(world, guild_access.guild)?;
    for (id, _) in &moves {
        let role = guild.roles.get(*id).ok_or(ApiError::UNKNOWN_ROLE)?;
        if *id == guild.id {
            return Err(ApiError::INVALID_ROLE);
        }
        guild_access.require_above(role.position)?;
    }
    let positions = guild.roles.positions_after(&moves);
    let own_rank = guild.members.get(&guild_access.user).and_then(|own| {
        positions.iter().filter(|(id, _)| own.data.roles.contains(id)).map(|(_, position)| *position).max()
    });
    let highest =
        positions.iter().filter(|(id, _)| moves.iter().any(|(moved, _)| moved == id)).map(|(_, to)| *to).max();
    if guild_access.user != guild.owner && highest >= own_rank && highest.is_some() {
        return Err(ApiError::MISSING_PERMISSIONS);
    }
    let changed = guild.roles.set_positions(&positions);
    let roles: Vec<&Role> = guild.roles.iter().collect();
    let mut reply = Reply::ok(&roles);
    if let Some(first) = changed.first() {
        reply = reply.with_effect(Effect::new(Verb::Update, "role_positions", Some(guild_access.guild), *first, ""));
    }
    for id in changed {
        world.notify_role_update(guild_access.guild, id);
    }
    Ok(reply)
}

/// The list of a bulk reorder; an entry whose position is null or absent is ignored.
fn moves(body: &Value) -> Result<Vec<(Snowflake, u32)>, ApiError> {
    let wrap = json!({ "list": body });
    let mut form = Form::new(wrap.as_object().expect("invariant: built as an object"));
    let mut moves = Vec::new();
    for (index, item) in form.list("list", MAX_ROLES).value().unwrap_or_default().iter().enumerate() {
        let read = form.nested(&index.to_string(), item, |item| {
            let id = item.snowflake("id");
            (item.required("id", id), item.small("position", 0..=10_000).value())
        });
        if let Some((Some(id), Some(position))) = read {
            moves.push((id, position));
        }
    }
    form.finish().map(|()| moves)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::rest::testing::RestFixture;
    use crate::world::permissions;

    #[test]
    fn created_role_is_stored_dispatched_and_logged() {
        let mut fixture = RestFixture::new();
        let path = fixture.guild_path("/roles");
        let made =
            fixture.reason("season 2").post(&path, json!({ "name": "Captain", "color": 255, "permissions": "1024" }));
        assert_eq!((made.status, &made.json["name"], &made.json["position"]), (200, &json!("Captain"), &json!(1)));
        assert_eq!(made.json["colors"]["primary_color"], 255);
        let effect = made.effect.unwrap();
        assert_eq!((effect.kind, effect.name.as_str()), ("role", "Captain"));
        assert_eq!(made.events, ["GUILD_ROLE_CREATE", "GUILD_AUDIT_LOG_ENTRY_CREATE"]);
        let listed = fixture.get(&path).json;
        assert!(listed.as_array().unwrap().contains(&made.json));
        let log = fixture.get(&fixture.guild_path("/audit-logs?action_type=30")).json;
        let entry = &log["audit_log_entries"][0];
        assert_eq!((&entry["target_id"], &entry["reason"]), (&made.json["id"], &json!("season 2")));
        assert!(entry["changes"].as_array().unwrap().contains(&json!({ "key": "name", "new_value": "Captain" })));
    }

    #[test]
    fn edit_changes_only_the_given_fields() {
        let mut fixture = RestFixture::new();
        let path = fixture.guild_path("/roles");
        let made = fixture.post(&path, json!({ "name": "a", "hoist": true })).json;
        let one = format!("{path}/{}", made["id"].as_str().unwrap());
        let edited = fixture.patch(&one, json!({ "name": "b", "colors": { "primary_color": 7 } }));
        assert_eq!(
            (&edited.json["name"], &edited.json["hoist"], &edited.json["color"]),
            (&json!("b"), &json!(true), &json!(7))
        );
        assert_eq!(edited.events, ["GUILD_ROLE_UPDATE", "GUILD_AUDIT_LOG_ENTRY_CREATE"]);
        assert_eq!(fixture.patch(&one, json!({ "name": "b" })).events, ["GUILD_ROLE_UPDATE"]);
        assert_eq!(fixture.get(&one).json, edited.json);
    }

    #[test]
    fn deleted_role_is_removed_from_members_and_overwrites() {
        let mut fixture = RestFixture::new();
        let path = fixture.guild_path("/roles");
        let role = fixture.post(&path, json!({ "name": "gone" })).id();
        let member = fixture.guild_path(&format!("/members/{}", fixture.member));
        fixture.put(&format!("{member}/roles/{role}"), json!(null));
        let overwrite = format!("/channels/{}/permissions/{role}", fixture.channel);
        fixture.put(&overwrite, json!({ "type": 0, "deny": "1024" }));
        let deleted = fixture.delete(&format!("{path}/{role}"));
        assert_eq!((deleted.status, deleted.effect.unwrap().name.as_str()), (204, "gone"));
        assert_eq!(deleted.events, ["GUILD_ROLE_DELETE", "GUILD_AUDIT_LOG_ENTRY_CREATE"]);
        assert_eq!(fixture.get(&member).json["roles"], json!([]));
        assert_eq!(fixture.get(&format!("/channels/{}", fixture.channel)).json["permission_overwrites"], json!([]));
        assert_eq!(fixture.delete(&format!("{path}/{role}")).code(), 10011);
    }

    #[test]
    fn the_251st_role_is_refused() {
        let mut fixture = RestFixture::new();
        let path = fixture.guild_path("/roles");
        let existing = fixture.get(&path).json.as_array().unwrap().len();
        for _ in existing..250 {
            assert_eq!(fixture.post(&path, json!({})).status, 200);
        }
        let refused = fixture.post(&path, json!({}));
        assert_eq!((refused.code(), refused.effect), (30005, None));
    }

    #[test]
    fn invalid_form_reports_each_error_and_creates_nothing() {
        let mut fixture = RestFixture::new();
        let path = fixture.guild_path("/roles");
        let refused = fixture.post(&path, json!({ "name": "n".repeat(101), "color": -1, "hoist": 3 }));
        assert_eq!(refused.code(), 50035);
        assert_eq!(refused.json["errors"].as_object().unwrap().len(), 3);
        assert_eq!(refused.events, [""; 0]);
    }

    #[test]
    fn writing_roles_needs_manage_roles() {
        let mut fixture = RestFixture::new();
        fixture.world.set_bot_permissions(fixture.guild, permissions::VIEW_CHANNEL).unwrap();
        let path = fixture.guild_path("/roles");
        assert_eq!(fixture.post(&path, json!({})).code(), 50013);
        assert_eq!(fixture.patch(&path, json!([])).code(), 50013);
        assert_eq!(fixture.get(&path).status, 200);
    }

    #[test]
    fn granting_permissions_needs_those_permissions() {
        let mut fixture = RestFixture::new();
        fixture.world.set_bot_permissions(fixture.guild, permissions::MANAGE_ROLES).unwrap();
        let path = fixture.guild_path("/roles");
        assert_eq!(fixture.post(&path, json!({ "permissions": "8" })).code(), 50013);
        let role = fixture.post(&path, json!({ "permissions": "0" })).id();
        assert_eq!(fixture.patch(&format!("{path}/{role}"), json!({ "permissions": "8" })).code(), 50013);
    }

    #[test]
    fn roles_at_or_above_the_bots_own_cannot_be_managed() {
        let mut fixture = RestFixture::new();
        let path = fixture.guild_path("/roles");
        let role = fixture.post(&path, json!({ "name": "high" })).id();
        fixture.world.set_bot_role_position(fixture.guild, 1).unwrap();
        let one = format!("{path}/{role}");
        assert_eq!(fixture.patch(&one, json!({ "name": "x" })).code(), 50013);
        assert_eq!(fixture.delete(&one).code(), 50013);
        let low = fixture.post(&path, json!({ "name": "low" })).id();
        assert_eq!(fixture.patch(&path, json!([{ "id": low, "position": 3 }])).code(), 50013);
    }

    #[test]
    fn managed_and_everyone_roles_cannot_be_deleted() {
        let mut fixture = RestFixture::new();
        let roles = fixture.get(&fixture.guild_path("/roles")).json;
        let managed = roles.as_array().unwrap().iter().find(|role| role["managed"] == true).unwrap();
        let path = fixture.guild_path(&format!("/roles/{}", managed["id"].as_str().unwrap()));
        assert_eq!(fixture.delete(&path).code(), 50028);
        assert_eq!(fixture.patch(&path, json!({ "name": "x" })).code(), 50013);
        let everyone = fixture.guild_path(&format!("/roles/{}", fixture.guild));
        assert_eq!(fixture.delete(&everyone).code(), 50028);
    }

    #[test]
    fn reorder_returns_all_roles_and_dispatches_each_moved_one() {
        let mut fixture = RestFixture::new();
        let path = fixture.guild_path("/roles");
        let first = fixture.post(&path, json!({ "name": "first" })).id();
        let second = fixture.post(&path, json!({ "name": "second" })).id();
        let moved = fixture.patch(&path, json!([{ "id": second, "position": 2 }, { "id": first, "position": null }]));
        assert_eq!(moved.events, ["GUILD_ROLE_UPDATE"; 2]);
        let position = |id: &str| {
            let roles = moved.json.as_array().unwrap();
            roles.iter().find(|role| role["id"] == id).unwrap()["position"].as_u64().unwrap()
        };
        assert_eq!((position(&first), position(&second)), (1, 2));
    }
}
