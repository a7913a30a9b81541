//! `/guilds/{guild.id}/members`: members and their roles.

use serde_json::json;

use super::access::{self, GuildAccess};
use super::call::{Call, Effect, Reply, Verb};
use super::error::ApiError;
use super::form::{Field, Form, Query};
use crate::dispatch::Dispatch;
use crate::id::Snowflake;
use crate::time::At;
use crate::world::audit::{self, Change, Draft};
use crate::world::guild::Guild;
use crate::world::member::{Member, MemberEvent};
use crate::world::permissions::{
    CHANGE_NICKNAME, DEAFEN_MEMBERS, KICK_MEMBERS, MANAGE_NICKNAMES, MANAGE_ROLES, MODERATE_MEMBERS, MUTE_MEMBERS,
};
use crate::world::role::Role;
use crate::world::{World, intents, wire};

const AUDITED: &[&str] = &["nick", "mute", "deaf", "communication_disabled_until"];

pub(crate) fn list(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let guild_access = access::in_guild(world, call)?;
    let mut query = Query::of(call);
    let limit = query.limit(1..=1_000, 1);
    let after = query.snowflake("after").unwrap_or_default();
    query.finish()?;
    let first = Snowflake::new(after.get().saturating_add(1));
    let guild = access::guild(world, guild_access.guild)?;
    let page: Vec<&Member> = guild.members.range(first..).map(|(_, member)| member).take(limit).collect();
    Ok(Reply::ok(&page))
}

pub(crate) fn get(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let guild_access = access::in_guild(world, call)?;
    let user = call.params.id("user.id")?;
    if !world.users.contains_key(&user) {
        return Err(ApiError::UNKNOWN_USER);
    }
    let member = access::guild(world, guild_access.guild)?.members.get(&user).ok_or(ApiError::UNKNOWN_MEMBER)?;
    Ok(Reply::ok(member))
}

/// Queues an event for a changed member.
fn notify_update(world: &mut World, guild: Snowflake, member: &Member) {
    let event = MemberEvent { guild_id: guild, member };
    world.dispatches.push(Dispatch::guild("GUILD_MEMBER_UPDATE", guild, intents::GUILD_MEMBERS, &event));
}

/// A role that this bot may assign: below its own, not managed, and not `@everyone`.
fn assignable<'g>(guild: &'g Guild, guild_access: &GuildAccess, role: Snowflake) -> Result<&'g Role, ApiError> {
    let role = guild.roles.get(role).ok_or(ApiError::UNKNOWN_ROLE)?;
    if role.managed || role.id == guild.id {
        return Err(ApiError::INVALID_ROLE);
    }
    guild_access.require_above(role.position)?;
    Ok(role)
}

/// The audit log entry of a role that was added (`$add`) or removed (`$remove`).
fn role_change(key: &str, role: &Role) -> Change {
    let value = json!([{ "id": role.id, "name": role.name }]);
    Change { key: key.to_owned(), old_value: None, new_value: Some(value) }
}

/// Whether a role is added to a member or removed.
#[derive(Clone, Copy)]
enum RoleAction {
    Add,
    Remove,
}

pub(crate) fn put_role(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    set_role(world, call, RoleAction::Add)
}

pub(crate) fn delete_role(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    set_role(world, call, RoleAction::Remove)
}

fn set_role(world: &mut World, call: &Call<'_>, action: RoleAction) -> Result<Reply, ApiError> {
    let guild_access = access::in_guild(world, call)?;
    guild_access.require(MANAGE_ROLES)?;
    let (user, role) = (call.params.id("user.id")?, call.params.id("role.id")?);
    let reason = access::reason(call)?;
    if !world.users.contains_key(&user) {
        return Err(ApiError::UNKNOWN_USER);
    }
    let guild = access::guild_mut(world, guild_access.guild)?;
    if !guild.members.contains_key(&user) {
        return Err(ApiError::UNKNOWN_MEMBER);
    }
    let key = match action {
        RoleAction::Add => "$add",
        RoleAction::Remove => "$remove",
    };
    let change = role_change(key, assignable(guild, &guild_access, role)?);
    let member = guild.members.get_mut(&user).ok_or(ApiError::UNKNOWN_MEMBER)?;
    let held = member.data.roles.contains(&role);
    let verb = match action {
        RoleAction::Add if !held => {
            member.data.roles.push(role);
            Verb::Create
        }
        RoleAction::Remove if held => {
            member.data.roles.retain(|other| *other != role);
            Verb::Delete
        }
        // Idempotent: no event and no log entry if nothing changes.
        RoleAction::Add | RoleAction::Remove => return Ok(Reply::no_content()),
    };
    let member = member.clone();
    notify_update(world, guild_access.guild, &member);
    let draft = Draft::new(audit::MEMBER_ROLE_UPDATE, guild_access.user, user, reason).changes(vec![change]);
    world.audit(guild_access.guild, draft, call.now);
    let effect = Effect::new(verb, "member_role", Some(guild_access.guild), role, &format!("{user}:{role}"));
    Ok(Reply::no_content().with_effect(effect))
}

/// Fields of a member in a form.
struct MemberForm {
    nick: Field<String>,
    roles: Field<Vec<Snowflake>>,
    mute: Field<bool>,
    deaf: Field<bool>,
    timeout: Field<At>,
}

impl MemberForm {
    fn read(call: &Call<'_>) -> Result<Self, ApiError> {
        const MAX_TIMEOUT_DAYS: u64 = 28;
        let mut form = Form::of(call)?;
        let until = form.string("communication_disabled_until", 0..=64).map(wire::parse_iso);
        let timeout = match until {
            Field::Absent => Field::Absent,
            Field::Null => Field::Null,
            Field::Given(Some(at)) if at.since(call.now).as_secs() <= MAX_TIMEOUT_DAYS * 24 * 60 * 60 => {
                Field::Given(at)
            }
            Field::Given(_) => {
                let message = "Must be an ISO 8601 time at most 28 days ahead.";
                form.add_error("communication_disabled_until", "DATE_TIME_TYPE_PARSE", message);
                Field::Absent
            }
        };
        let read = Self {
            nick: form.string("nick", 0..=32).map(str::to_owned),
            roles: form.snowflakes("roles"),
            mute: form.boolean("mute"),
            deaf: form.boolean("deaf"),
            timeout,
        };
        form.finish().map(|()| read)
    }

    /// The permissions that this edit of another member needs.
    fn required_permissions(&self) -> u64 {
        let need = |given: bool, bits: u64| if given { bits } else { 0 };
        need(!matches!(self.nick, Field::Absent), MANAGE_NICKNAMES)
            | need(!matches!(self.roles, Field::Absent), MANAGE_ROLES)
            | need(self.mute.is_given(), MUTE_MEMBERS)
            | need(self.deaf.is_given(), DEAFEN_MEMBERS)
            | need(!matches!(self.timeout, Field::Absent), MODERATE_MEMBERS)
    }
}

pub(crate) fn modify(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let guild_access = access::in_guild(world, call)?;
    let user = call.params.id("user.id")?;
    let form = MemberForm::read(call)?;
    guild_access.require(form.required_permissions())?;
    let guild = access::guild(world, guild_access.guild)?;
    if !guild.members.contains_key(&user) {
        return Err(ApiError::UNKNOWN_MEMBER);
    }
    if user != guild_access.user && (form.required_permissions() & !MANAGE_ROLES != 0) {
        guild_access.require_above(guild.rank_of(user))?;
    }
    edit(world, call, &guild_access, user, form)
}

pub(crate) fn modify_own(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let guild_access = access::in_guild(world, call)?;
    let nick = MemberForm::read(call)?.nick;
    if !matches!(nick, Field::Absent) {
        guild_access.require(CHANGE_NICKNAME)?;
    }
    let (roles, mute, deaf, timeout) = (Field::Absent, Field::Absent, Field::Absent, Field::Absent);
    edit(world, call, &guild_access, guild_access.user, MemberForm { nick, roles, mute, deaf, timeout })
}

fn edit(
    world: &mut World,
    call: &Call<'_>,
    guild_access: &GuildAccess,
    user: Snowflake,
    form: MemberForm,
) -> Result<Reply, ApiError> {
    let reason = access::reason(call)?;
    let guild = access::guild_mut(world, guild_access.guild)?;
    let old = guild.members.get(&user).ok_or(ApiError::UNKNOWN_MEMBER)?.clone();
    let mut new = old.clone();
    let mut role_changes = Vec::new();
    if let Field::Given(mut desired) = form.roles {
        desired.sort_unstable();
        desired.dedup();
        for role in desired.iter().filter(|role| !old.data.roles.contains(role)) {
            role_changes.push(role_change("$add", assignable(guild, guild_access, *role)?));
        }
        for role in old.data.roles.iter().filter(|role| !desired.contains(role)) {
            role_changes.push(role_change("$remove", assignable(guild, guild_access, *role)?));
        }
        new.data.roles = desired;
    }
    form.nick.update_or_clear(&mut new.data.nick);
    new.data.nick = new.data.nick.filter(|nick| !nick.is_empty());
    form.mute.update(&mut new.data.mute);
    form.deaf.update(&mut new.data.deaf);
    form.timeout.update_or_clear(&mut new.data.communication_disabled_until);
    let changes = audit::changes(Some(&old), Some(&new), AUDITED);
    if changes.is_empty() && role_changes.is_empty() {
        return Ok(Reply::ok(&old));
    }
    guild.members.insert(user, new.clone());
    notify_update(world, guild_access.guild, &new);
    for (action, changes) in [(audit::MEMBER_UPDATE, changes), (audit::MEMBER_ROLE_UPDATE, role_changes)] {
        if !changes.is_empty() {
            let draft = Draft::new(action, guild_access.user, user, reason.clone()).changes(changes);
            world.audit(guild_access.guild, draft, call.now);
        }
    }
    let name = new.data.nick.as_deref().unwrap_or(&new.user.username);
    Ok(Reply::ok(&new).with_effect(Effect::new(Verb::Update, "member", Some(guild_access.guild), user, name)))
}

pub(crate) fn kick(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let guild_access = access::in_guild(world, call)?;
    guild_access.require(KICK_MEMBERS)?;
    let user = call.params.id("user.id")?;
    let reason = access::reason(call)?;
    let guild = access::guild(world, guild_access.guild)?;
    let name = guild.members.get(&user).ok_or(ApiError::UNKNOWN_MEMBER)?.user.username.clone();
    guild_access.require_above(guild.rank_of(user))?;
    world.remove_member(guild_access.guild, user);
    world.audit(guild_access.guild, Draft::new(audit::MEMBER_KICK, guild_access.user, user, reason), call.now);
    Ok(Reply::no_content().with_effect(Effect::new(Verb::Delete, "member", Some(guild_access.guild), user, &name)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use crate::rest::call::Verb;
    use crate::rest::testing::RestFixture;
    use crate::world::permissions;

    fn member_path(fixture: &RestFixture, rest: &str) -> String {
        fixture.guild_path(&format!("/members/{}{rest}", fixture.member))
    }

    #[test]
    fn adding_a_role_twice_is_idempotent() {
        let mut fixture = RestFixture::new();
        let role = fixture.post(&fixture.guild_path("/roles"), json!({ "name": "captain" })).id();
        let path = member_path(&fixture, &format!("/roles/{role}"));
        let given = fixture.reason("won").put(&path, json!(null));
        assert_eq!((given.status, given.effect.unwrap().verb), (204, Verb::Create));
        assert_eq!(given.events, ["GUILD_MEMBER_UPDATE", "GUILD_AUDIT_LOG_ENTRY_CREATE"]);
        let again = fixture.put(&path, json!(null));
        assert_eq!((again.status, again.effect, again.events.len()), (204, None, 0));
        assert_eq!(fixture.get(&member_path(&fixture, "")).json["roles"], json!([role]));
        let entry = fixture.get(&fixture.guild_path("/audit-logs?action_type=25")).json["audit_log_entries"][0].clone();
        assert_eq!(entry["changes"], json!([{ "key": "$add", "new_value": [{ "id": role, "name": "captain" }] }]));
        assert_eq!(fixture.delete(&path).effect.unwrap().verb, Verb::Delete);
        assert_eq!(fixture.delete(&path).effect, None);
    }

    #[test]
    fn managed_high_and_unknown_roles_cannot_be_assigned() {
        let mut fixture = RestFixture::new();
        let roles = fixture.get(&fixture.guild_path("/roles")).json;
        let managed = roles.as_array().unwrap().iter().find(|role| role["managed"] == true).unwrap()["id"].clone();
        let give = |fixture: &mut RestFixture, role: &str| {
            fixture.put(&member_path(fixture, &format!("/roles/{role}")), json!(null))
        };
        assert_eq!(give(&mut fixture, managed.as_str().unwrap()).code(), 50028);
        assert_eq!(give(&mut fixture, "5").code(), 10011);
        let high = fixture.post(&fixture.guild_path("/roles"), json!({})).id();
        fixture.world.set_bot_role_position(fixture.guild, 1).unwrap();
        assert_eq!(give(&mut fixture, &high).code(), 50013);
        let unknown_user = fixture.guild_path(&format!("/members/5/roles/{high}"));
        assert_eq!(fixture.put(&unknown_user, json!(null)).code(), 10013);
    }

    #[test]
    fn an_edit_sets_nick_roles_and_timeout_and_logs_both_kinds() {
        let mut fixture = RestFixture::new();
        let role = fixture.post(&fixture.guild_path("/roles"), json!({ "name": "r" })).id();
        let until = fixture.now.after(Duration::from_secs(600)).iso8601();
        let body = json!({ "nick": "Ace", "roles": [role], "communication_disabled_until": until });
        let edited = fixture.patch(&member_path(&fixture, ""), body.clone());
        assert_eq!((&edited.json["nick"], &edited.json["roles"]), (&json!("Ace"), &json!([role])));
        assert_eq!(edited.json["communication_disabled_until"], json!(until));
        let logged = "GUILD_AUDIT_LOG_ENTRY_CREATE";
        assert_eq!(edited.events, ["GUILD_MEMBER_UPDATE", logged, logged]);
        let again = fixture.patch(&member_path(&fixture, ""), body);
        assert_eq!((again.status, again.effect), (200, None));
        let far = fixture.now.after(Duration::from_secs(29 * 24 * 60 * 60)).iso8601();
        let refused = fixture.patch(&member_path(&fixture, ""), json!({ "communication_disabled_until": far }));
        assert_eq!(refused.code(), 50035);
    }

    #[test]
    fn each_edit_needs_its_own_permission() {
        let mut fixture = RestFixture::new();
        let path = member_path(&fixture, "");
        fixture.world.set_bot_permissions(fixture.guild, permissions::MANAGE_NICKNAMES).unwrap();
        assert_eq!(fixture.patch(&path, json!({ "nick": "x" })).status, 200);
        for body in [json!({ "roles": [] }), json!({ "mute": true }), json!({ "communication_disabled_until": null })] {
            assert_eq!(fixture.patch(&path, body).code(), 50013);
        }
        let owner = fixture.world.guilds[&fixture.guild].owner;
        let owner_path = fixture.guild_path(&format!("/members/{owner}"));
        assert_eq!(fixture.patch(&owner_path, json!({ "nick": "x" })).code(), 50013);
        assert_eq!(fixture.patch(&fixture.guild_path("/members/@me"), json!({ "nick": "Bot" })).json["nick"], "Bot");
    }

    #[test]
    fn a_kicked_member_is_gone() {
        let mut fixture = RestFixture::new();
        let path = member_path(&fixture, "");
        fixture.world.set_bot_permissions(fixture.guild, 0).unwrap();
        assert_eq!(fixture.delete(&path).code(), 50013);
        fixture.world.set_bot_permissions(fixture.guild, permissions::KICK_MEMBERS).unwrap();
        let kicked = fixture.delete(&path);
        assert_eq!((kicked.status, kicked.events[0]), (204, "GUILD_MEMBER_REMOVE"));
        assert_eq!(fixture.get(&path).code(), 10007);
        assert_eq!(fixture.get(&fixture.guild_path("/members/5")).code(), 10013);
    }

    #[test]
    fn members_are_listed_in_pages_by_id() {
        let mut fixture = RestFixture::new();
        let path = fixture.guild_path("/members");
        let all = fixture.get(&format!("{path}?limit=1000")).json;
        let all = all.as_array().unwrap();
        let second = all[1]["user"]["id"].as_str().unwrap();
        let page = fixture.get(&format!("{path}?limit=2&after={second}")).json;
        assert_eq!(page.as_array().unwrap(), &all[2..4]);
        assert_eq!(fixture.get(&format!("{path}?limit=1001")).code(), 50035);
    }
}
