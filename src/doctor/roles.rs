//! Checks the position of the bot's roles in its guilds: which roles it can assign and change.

use serde_json::Value;

use super::{
    DoctorOptions, Finding,
    bot::failure_finding,
    discord::{CallFailure, DiscordCaller},
};
use crate::terminal_text::escape_controls;

const CHECK: &str = "roles";
const ADMINISTRATOR: u64 = 1 << 3;
const MANAGE_ROLES: u64 = 1 << 28;
/// Maximum number of roles above the bot that are named.
const MAX_NAMED_ROLES: usize = 10;

/// Checks the roles in the given guilds, or in the first that the bot is in.
pub(crate) async fn check_roles(
    options: &DoctorOptions<'_>,
    bot: Option<u64>,
    caller: &mut DiscordCaller,
    report: &mut impl FnMut(Finding),
) {
    let Some(bot) = bot else {
        let reason = caller.stopped().unwrap_or("the bot's id is unknown").to_owned();
        return report(Finding::skip(CHECK, CallFailure::Stopped(reason).describe()));
    };
    let guilds = match guilds_to_check(options, caller).await {
        Ok(guilds) => guilds,
        Err(failure) => return report(failure_finding(CHECK, &failure)),
    };
    if guilds.is_empty() {
        let seen = if options.max_guilds == 0 { "no guild to check" } else { "the bot is in no guild" };
        return report(Finding::skip(CHECK, seen));
    }
    for guild in guilds {
        let id = guild;
        let finding = match fetch_guild(guild, bot, caller).await {
            Ok((guild, member)) => evaluate_roles(&guild, &member),
            Err(CallFailure::Refused { status: status @ (403 | 404), .. }) => Finding::fail(
                CHECK,
                format!("the bot is not in guild {id}, or the guild does not exist ({status})"),
                "check --guild, and invite the bot to the guild",
            ),
            Err(failure) => failure_finding(CHECK, &failure),
        };
        report(finding);
    }
}

async fn guilds_to_check(options: &DoctorOptions<'_>, caller: &mut DiscordCaller) -> Result<Vec<u64>, CallFailure> {
    if !options.guilds.is_empty() || options.max_guilds == 0 {
        return Ok(options.guilds.clone());
    }
    let response = caller.get(&format!("/users/@me/guilds?limit={}", options.max_guilds)).await?;
    let id = |guild: &Value| guild["id"].as_str()?.parse().ok();
    Ok(response.as_array().into_iter().flatten().filter_map(id).take(options.max_guilds as usize).collect())
}

async fn fetch_guild(guild: u64, bot: u64, caller: &mut DiscordCaller) -> Result<(Value, Value), CallFailure> {
    let guild_object = caller.get(&format!("/guilds/{guild}")).await?;
    let member = caller.get(&format!("/guilds/{guild}/members/{bot}")).await?;
    Ok((guild_object, member))
}

/// The fields of a role that the check needs.
struct GuildRole<'a> {
    id: u64,
    name: &'a str,
    position: u64,
    permissions: u64,
}

impl<'a> GuildRole<'a> {
    fn parse(role: &'a Value) -> Option<Self> {
        Some(Self {
            id: role["id"].as_str()?.parse().ok()?,
            name: role["name"].as_str().unwrap_or_default(),
            position: role["position"].as_u64()?,
            permissions: role["permissions"].as_str()?.parse().ok()?,
        })
    }

    /// Of two roles the one with the larger rank is higher; at the same position, the older one is.
    fn rank(&self) -> (u64, u64) {
        (self.position, u64::MAX - self.id)
    }
}

fn evaluate_roles(guild: &Value, member: &Value) -> Finding {
    let roles: Vec<_> = guild["roles"].as_array().into_iter().flatten().filter_map(GuildRole::parse).collect();
    let everyone = guild["id"].as_str().and_then(|id| id.parse::<u64>().ok());
    let ids: Vec<u64> =
        member["roles"].as_array().into_iter().flatten().filter_map(|id| id.as_str()?.parse().ok()).collect();
    let held = || roles.iter().filter(|role| ids.contains(&role.id));
    let permissions =
        held().chain(roles.iter().filter(|role| Some(role.id) == everyone)).fold(0, |all, role| all | role.permissions);
    let name = format!("{} ({})", escape_controls(guild["name"].as_str().unwrap_or_default()), everyone.unwrap_or(0));
    let can_manage = permissions & (ADMINISTRATOR | MANAGE_ROLES) != 0;
    let lacks_note = "it lacks MANAGE_ROLES, so it can neither create nor assign roles";
    let grant_advice = "grant Manage Roles to a role of the bot in the guild's settings, or invite the bot with that \
        permission";
    let Some(top) = held().max_by_key(|role| role.rank()) else {
        let advice = "give the bot a role with Manage Roles, above those that it should manage";
        return Finding::warn(CHECK, format!("{name}: the bot has no role of its own"), advice);
    };
    let mut above: Vec<_> = roles.iter().filter(|role| role.rank() > top.rank()).collect();
    above.sort_by_key(|role| std::cmp::Reverse(role.rank()));
    let below = roles.iter().filter(|role| role.rank() < top.rank() && Some(role.id) != everyone).count();
    let position = format!(
        "{name}: its highest role is {}, above {below} of {}",
        escape_controls(top.name),
        roles.len().saturating_sub(1)
    );
    if above.is_empty() {
        return if can_manage {
            Finding::ok(CHECK, position)
        } else {
            Finding::warn(CHECK, format!("{position}; {lacks_note}"), grant_advice)
        };
    }
    let names: Vec<_> = above.iter().take(MAX_NAMED_ROLES).map(|role| escape_controls(role.name)).collect();
    let more = match above.len().saturating_sub(MAX_NAMED_ROLES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let lacks_note = if can_manage { String::new() } else { format!("; {lacks_note}") };
    let grant_advice = if can_manage { String::new() } else { format!("{grant_advice}. Then ") };
    Finding::warn(
        CHECK,
        format!("{position}; it can neither assign nor change {}{more}{lacks_note}", names.join(", ")),
        format!("{grant_advice}drag its role above those that it should manage, under Roles in the guild's settings"),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::doctor::CheckStatus;

    fn role(id: u64, name: &str, position: u64, permissions: u64) -> Value {
        json!({"id": id.to_string(), "name": name, "position": position, "permissions": permissions.to_string()})
    }

    fn evaluate(roles: &[Value], held: &[&str]) -> Finding {
        evaluate_roles(&json!({"id": "1", "name": "Hall", "roles": roles}), &json!({ "roles": held }))
    }

    #[test]
    fn roles_above_the_bot_are_named_from_the_top() {
        let roles = [
            role(1, "@everyone", 0, 0),
            role(2, "Low", 1, 0),
            role(3, "Bot", 2, MANAGE_ROLES),
            role(5, "Younger", 3, 0),
            role(4, "Older\u{1b}", 3, 0),
            role(6, "Top", 4, ADMINISTRATOR),
        ];
        let finding = evaluate(&roles, &["3"]);
        assert_eq!(finding.status, CheckStatus::Warn);
        assert_eq!(
            finding.seen,
            "Hall (1): its highest role is Bot, above 1 of 5; it can neither assign nor change Top, Older\\u{1b}, \
             Younger"
        );
        assert_eq!(evaluate(&roles, &["3", "6"]).status, CheckStatus::Ok);
    }

    #[test]
    fn missing_permission_or_role_is_a_warning() {
        let roles = [role(1, "@everyone", 0, 0), role(3, "Bot", 1, 0)];
        let finding = evaluate(&roles, &["3"]);
        assert!(finding.status == CheckStatus::Warn && finding.seen.contains("lacks MANAGE_ROLES"), "{finding:?}");
        let open = [role(1, "@everyone", 0, MANAGE_ROLES), role(3, "Bot", 1, 0)];
        assert_eq!(evaluate(&open, &["3"]).status, CheckStatus::Ok, "the permissions of @everyone count, too");
        assert!(evaluate(&roles, &[]).seen.contains("no role of its own"));
    }

    #[test]
    fn many_roles_above_are_counted() {
        let mut roles: Vec<_> = (10..25).map(|id| role(id, &format!("r{id}"), id, 0)).collect();
        roles.push(role(3, "Bot", 1, ADMINISTRATOR));
        assert!(evaluate(&roles, &["3"]).seen.ends_with("r15 and 5 more"), "{:?}", evaluate(&roles, &["3"]));
    }
}
