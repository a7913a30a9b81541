//! `/guilds/{guild.id}/members`: members and their roles.

use serde_json::json;

use super::access::{self, Standing};
use super::call::{Call, Effect, Reply, Verb};
use super::error::ApiError;
use super::form::{Field, Form, Query};
use crate::dispatch::Dispatch;
use crate::id::Snowflake;
use crate::time::At;
use crate::world::audit::{self, Change, Draft};
use crate::world::guild::Guild;
use crate::world::member::{Member, MemberOf};
use crate::world::permissions::{
    CHANGE_NICKNAME, DEAFEN_MEMBERS, KICK_MEMBERS, MANAGE_NICKNAMES, MANAGE_ROLES, MODERATE_MEMBERS, MUTE_MEMBERS,
};
use crate::world::role::Role;
use crate::world::{World, intents, wire};

const AUDITED: &[&str] = &["nick", "mute", "deaf", "communication_disabled_until"];

pub(crate) fn list(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let standing = access::in_guild(world, call)?;
    let mut query = Query::of(call);
    let limit = query.limit(1..=1_000, 1);
    let after = query.snowflake("after").unwrap_or_default();
    query.finish()?;
    let first = Snowflake::new(after.get().saturating_add(1));
    let guild = access::guild(world, standing.guild)?;
    let page: Vec<&Member> = guild.members.range(first..).map(|(_, member)| member).take(limit).collect();
    Ok(Reply::ok(&page))
}

pub(crate) fn get(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let standing = access::in_guild(world, call)?;
    let user = call.params.id("user.id")?;
    if !world.users.contains_key(&user) {
        return Err(ApiError::UNKNOWN_USER);
    }
    let member = access::guild(world, standing.guild)?.members.get(&user).ok_or(ApiError::UNKNOWN_MEMBER)?;
    Ok(Reply::ok(member))
}

/// Queues an event for a changed member.
fn tell_update(world: &mut World, guild: Snowflake, member: &Member) {
    let event = MemberOf { guild_id: guild, member };
    world.outbox.push(Dispatch::guild("GUILD_MEMBER_UPDATE", guild, intents::GUILD_MEMBERS, &event));
}

/// A role that this bot may assign: below its own, not managed, and not `@everyone`.
fn assignable<'g>(guild: &'g Guild, standing: &Standing, role: Snowflake) -> Result<&'g Role, ApiError> {
    let role = guild.roles.get(role).ok_or(ApiError::UNKNOWN_ROLE)?;
    if role.managed || role.id == guild.id {
        return Err(ApiError::INVALID_ROLE);
    }
    standing.above(role.position)?;
    Ok(role)
}

/// The audit log entry of a role that was added (`$add`) or removed (`$remove`).
fn role_change(key: &str, role: &Role) -> Change {
    let value = json!([{ "id": role.id, "name": role.name }]);
    Change { key: key.to_owned(), old_value: None, new_value: Some(value) }
}

/// Whether a role is added to a member or removed.
#[derive(Clone, Copy)]
enum Hand {
    Give,
    Take,
}

pub(crate) fn put_role(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    set_role(world, call, Hand::Give)
}

pub(crate) fn delete_role(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    set_role(world, call, Hand::Take)
}

fn set_role(world: &mut World, call: &Call<'_>, hand: Hand) -> Result<Reply, ApiError> {
    let standing = access::in_guild(world, call)?;
    standing.need(MANAGE_ROLES)?;
    let (user, role) = (call.params.id("user.id")?, call.params.id("role.id")?);
    let reason = access::reason(call)?;
    if !world.users.contains_key(&user) {
        return Err(ApiError::UNKNOWN_USER);
    }
    let guild = access::guild_mut(world, standing.guild)?;
    if !guild.members.contains_key(&user) {
        return Err(ApiError::UNKNOWN_MEMBER);
    }
    let key = match hand {
        Hand::Give => "$add",
        Hand::Take => "$remove",
    };
    let change = role_change(key, assignable(guild, &standing, role)?);
    let member = guild.members.get_mut(&user).ok_or(ApiError::UNKNOWN_MEMBER)?;
    let held = member.part.roles.contains(&role);
    let verb = match hand {
        Hand::Give if !held => {
            member.part.roles.push(role);
            Verb::Create
        }
        Hand::Take if held => {
            member.part.roles.retain(|other| *other != role);
            Verb::Delete
        }
        // Idempotent: no event and no log entry if nothing changes.
        Hand::Give | Hand::Take => return Ok(Reply::no_content()),
    };
    let member = member.clone();
    tell_update(world, standing.guild, &member);
    let draft = Draft::new(audit::MEMBER_ROLE_UPDATE, standing.user, user, reason).changes(vec![change]);
    world.audit(standing.guild, draft, call.now);
    let effect = Effect::new(verb, "member_role", Some(standing.guild), role, &format!("{user}:{role}"));
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
        const LONGEST_TIMEOUT_DAYS: u64 = 28;
        let mut form = Form::of(call)?;
        let until = form.string("communication_disabled_until", 0..=64).map(wire::parse_iso);
        let timeout = match until {
            Field::Absent => Field::Absent,
            Field::Null => Field::Null,
            Field::Given(Some(at)) if at.since(call.now).as_secs() <= LONGEST_TIMEOUT_DAYS * 24 * 60 * 60 => {
                Field::Given(at)
            }
            Field::Given(_) => {
                let message = "Must be an ISO 8601 time at most 28 days ahead.";
                form.fault("communication_disabled_until", "DATE_TIME_TYPE_PARSE", message);
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
    fn needs(&self) -> u64 {
        let need = |given: bool, bits: u64| if given { bits } else { 0 };
        need(!matches!(self.nick, Field::Absent), MANAGE_NICKNAMES)
            | need(!matches!(self.roles, Field::Absent), MANAGE_ROLES)
            | need(self.mute.is_given(), MUTE_MEMBERS)
            | need(self.deaf.is_given(), DEAFEN_MEMBERS)
            | need(!matches!(self.timeout, Field::Absent), MODERATE_MEMBERS)
    }
}

pub(crate) fn modify(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let standing = access::in_guild(world, call)?;
    let user = call.params.id("user.id")?;
    let form = MemberForm::read(call)?;
    standing.need(form.needs())?;
    let guild = access::guild(world, standing.guild)?;
    if !guild.members.contains_key(&user) {
        return Err(ApiError::UNKNOWN_MEMBER);
    }
    if user != standing.user && (form.needs() & !MANAGE_ROLES != 0) {
        standing.above(guild.rank_of(user))?;
    }
    edit(world, call, &standing, user, form)
}

pub(crate) fn modify_own(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let standing = access::in_guild(world, call)?;
    let nick = MemberForm::read(call)?.nick;
    if !matches!(nick, Field::Absent) {
        standing.need(CHANGE_NICKNAME)?;
    }
    let (roles, mute, deaf, timeout) = (Field::Absent, Field::Absent, Field::Absent, Field::Absent);
    edit(world, call, &standing, standing.user, MemberForm { nick, roles, mute, deaf, timeout })
}

fn edit(
    world: &mut World,
    call: &Call<'_>,
    standing: &Standing,
    user: Snowflake,
    form: MemberForm,
) -> Result<Reply, ApiError> {
    let reason = access::reason(call)?;
    let guild = access::guild_mut(world, standing.guild)?;
    let old = guild.members.get(&user).ok_or(ApiError::UNKNOWN_MEMBER)?.clone();
    let mut new = old.clone();
    let mut role_changes = Vec::new();
    if let Field::Given(mut wanted) = form.roles {
        wanted.sort_unstable();
        wanted.dedup();
        for role in wanted.iter().filter(|role| !old.part.roles.contains(role)) {
            role_changes.push(role_change("$add", assignable(guild, standing, *role)?));
        }
        for role in old.part.roles.iter().filter(|role| !wanted.contains(role)) {
            role_changes.push(role_change("$remove", assignable(guild, standing, *role)?));
        }
        new.part.roles = wanted;
    }
    form.nick.update_or_clear(&mut new.part.nick);
    new.part.nick = new.part.nick.filter(|nick| !nick.is_empty());
    form.mute.update(&mut new.part.mute);
    form.deaf.update(&mut new.part.deaf);
    form.timeout.update_or_clear(&mut new.part.communication_disabled_until);
    let changes = audit::changes(Some(&old), Some(&new), AUDITED);
    if changes.is_empty() && role_changes.is_empty() {
        return Ok(Reply::ok(&old));
    }
    guild.members.insert(user, new.clone());
    tell_update(world, standing.guild, &new);
    for (action, changes) in [(audit::MEMBER_UPDATE, changes), (audit::MEMBER_ROLE_UPDATE, role_changes)] {
        if !changes.is_empty() {
            let draft = Draft::new(action, standing.user, user, reason.clone()).changes(changes);
            world.audit(standing.guild, draft, call.now);
        }
    }
    let name = new.part.nick.as_deref().unwrap_or(&new.user.username);
    Ok(Reply::ok(&new).with_effect(Effect::new(Verb::Update, "member", Some(standing.guild), user, name)))
}

pub(crate) fn kick(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let standing = access::in_guild(world, call)?;
    standing.need(KICK_MEMBERS)?;
    let user = call.params.id("user.id")?;
    let reason = access::reason(call)?;
    let guild = access::guild(world, standing.guild)?;
    let name = guild.members.get(&user).ok_or(ApiError::UNKNOWN_MEMBER)?.user.username.clone();
    standing.above(guild.rank_of(user))?;
    world.remove_member(standing.guild, user);
    world.audit(standing.guild, Draft::new(audit::MEMBER_KICK, standing.user, user, reason), call.now);
    Ok(Reply::no_content().with_effect(Effect::new(Verb::Delete, "member", Some(standing.guild), user, &name)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use crate::rest::call::Verb;
    use crate::rest::testing::Stage;
    use crate::world::permissions;

    fn member_path(stage: &Stage, rest: &str) -> String {
        stage.guild_path(&format!("/members/{}{rest}", stage.member))
    }

    #[test]
    fn giving_a_role_twice_does_it_once() {
        let mut stage = Stage::new();
        let role = stage.post(&stage.guild_path("/roles"), json!({ "name": "captain" })).id();
        let path = member_path(&stage, &format!("/roles/{role}"));
        let given = stage.reason("won").put(&path, json!(null));
        assert_eq!((given.status, given.effect.unwrap().verb), (204, Verb::Create));
        assert_eq!(given.events, ["GUILD_MEMBER_UPDATE", "GUILD_AUDIT_LOG_ENTRY_CREATE"]);
        let again = stage.put(&path, json!(null));
        assert_eq!((again.status, again.effect, again.events.len()), (204, None, 0));
        assert_eq!(stage.get(&member_path(&stage, "")).json["roles"], json!([role]));
        let entry = stage.get(&stage.guild_path("/audit-logs?action_type=25")).json["audit_log_entries"][0].clone();
        assert_eq!(entry["changes"], json!([{ "key": "$add", "new_value": [{ "id": role, "name": "captain" }] }]));
        assert_eq!(stage.delete(&path).effect.unwrap().verb, Verb::Delete);
        assert_eq!(stage.delete(&path).effect, None);
    }

    #[test]
    fn managed_high_and_unknown_roles_cannot_be_given() {
        let mut stage = Stage::new();
        let roles = stage.get(&stage.guild_path("/roles")).json;
        let managed = roles.as_array().unwrap().iter().find(|role| role["managed"] == true).unwrap()["id"].clone();
        let give =
            |stage: &mut Stage, role: &str| stage.put(&member_path(stage, &format!("/roles/{role}")), json!(null));
        assert_eq!(give(&mut stage, managed.as_str().unwrap()).code(), 50028);
        assert_eq!(give(&mut stage, "5").code(), 10011);
        let high = stage.post(&stage.guild_path("/roles"), json!({})).id();
        stage.world.set_bot_role_position(stage.guild, 1).unwrap();
        assert_eq!(give(&mut stage, &high).code(), 50013);
        let stranger = stage.guild_path(&format!("/members/5/roles/{high}"));
        assert_eq!(stage.put(&stranger, json!(null)).code(), 10013);
    }

    #[test]
    fn an_edit_sets_nick_roles_and_timeout_and_logs_both_kinds() {
        let mut stage = Stage::new();
        let role = stage.post(&stage.guild_path("/roles"), json!({ "name": "r" })).id();
        let until = stage.now.after(Duration::from_secs(600)).iso8601();
        let body = json!({ "nick": "Ace", "roles": [role], "communication_disabled_until": until });
        let edited = stage.patch(&member_path(&stage, ""), body.clone());
        assert_eq!((&edited.json["nick"], &edited.json["roles"]), (&json!("Ace"), &json!([role])));
        assert_eq!(edited.json["communication_disabled_until"], json!(until));
        let logged = "GUILD_AUDIT_LOG_ENTRY_CREATE";
        assert_eq!(edited.events, ["GUILD_MEMBER_UPDATE", logged, logged]);
        let again = stage.patch(&member_path(&stage, ""), body);
        assert_eq!((again.status, again.effect), (200, None));
        let far = stage.now.after(Duration::from_secs(29 * 24 * 60 * 60)).iso8601();
        let refused = stage.patch(&member_path(&stage, ""), json!({ "communication_disabled_until": far }));
        assert_eq!(refused.code(), 50035);
    }

    #[test]
    fn each_edit_needs_its_own_permission() {
        let mut stage = Stage::new();
        let path = member_path(&stage, "");
        stage.world.set_bot_permissions(stage.guild, permissions::MANAGE_NICKNAMES).unwrap();
        assert_eq!(stage.patch(&path, json!({ "nick": "x" })).status, 200);
        for body in [json!({ "roles": [] }), json!({ "mute": true }), json!({ "communication_disabled_until": null })] {
            assert_eq!(stage.patch(&path, body).code(), 50013);
        }
        let owner = stage.world.guilds[&stage.guild].owner;
        let boss = stage.guild_path(&format!("/members/{owner}"));
        assert_eq!(stage.patch(&boss, json!({ "nick": "x" })).code(), 50013);
        assert_eq!(stage.patch(&stage.guild_path("/members/@me"), json!({ "nick": "Bot" })).json["nick"], "Bot");
    }

    #[test]
    fn a_kicked_member_is_gone() {
        let mut stage = Stage::new();
        let path = member_path(&stage, "");
        stage.world.set_bot_permissions(stage.guild, 0).unwrap();
        assert_eq!(stage.delete(&path).code(), 50013);
        stage.world.set_bot_permissions(stage.guild, permissions::KICK_MEMBERS).unwrap();
        let kicked = stage.delete(&path);
        assert_eq!((kicked.status, kicked.events[0]), (204, "GUILD_MEMBER_REMOVE"));
        assert_eq!(stage.get(&path).code(), 10007);
        assert_eq!(stage.get(&stage.guild_path("/members/5")).code(), 10013);
    }

    #[test]
    fn members_are_listed_in_pages_by_id() {
        let mut stage = Stage::new();
        let path = stage.guild_path("/members");
        let all = stage.get(&format!("{path}?limit=1000")).json;
        let all = all.as_array().unwrap();
        let second = all[1]["user"]["id"].as_str().unwrap();
        let page = stage.get(&format!("{path}?limit=2&after={second}")).json;
        assert_eq!(page.as_array().unwrap(), &all[2..4]);
        assert_eq!(stage.get(&format!("{path}?limit=1001")).code(), 50035);
    }
}
