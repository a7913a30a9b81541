//! Operations whose attempts got no response end in the state that Discord shows, also over a restart.

use guildhall_sim::{BotConfig, Fault, FaultAction, JoinSpec, Sim, SimConfig, SimHandle, Snowflake};
use guildhall_testkit::program::CANARY;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::daemon::Daemon;

const ASSIGN: &str = "PUT /guilds/{guild.id}/members/{user.id}/roles/{role.id}";
const MEMBER: &str = "GET /guilds/{guild.id}/members/{user.id}";

async fn sim() -> SimHandle {
    let bots = vec![BotConfig { token: CANARY.to_owned(), ..BotConfig::default() }];
    Sim::start(SimConfig { guilds: 1, bots, ..SimConfig::default() }).await.unwrap()
}

fn fault(sim: &SimHandle, route: &str, action: FaultAction, count: Option<u64>) {
    sim.add_fault(Fault { route: route.to_owned(), action, probability: 1.0, count, skip: 0 }).unwrap();
}

/// With short waits, and breakers that stay closed.
fn start(sim: &SimHandle, folder: &TempDir) -> Daemon {
    let settings = [
        ("GUILDHALL__REST__REQUEST_TIMEOUT_MS", "300"),
        ("GUILDHALL__OPERATIONS__BACKOFF_BASE_MS", "10"),
        ("GUILDHALL__BREAKER__FAILURES_IN_ROW", "1000"),
        ("GUILDHALL__BREAKER__MIN_CALLS", "1000"),
    ];
    Daemon::start_with(sim, folder, &settings)
}

/// A role that the member does not have.
fn new_role(daemon: &Daemon, guild: Snowflake, name: &str) -> Value {
    let role = daemon.submit(guild, &json!([{ "kind": "create_role", "payload": { "name": name } }])).remove(0);
    daemon.until(&role, "succeeded")["result"]["role_id"].clone()
}

fn assign(daemon: &Daemon, guild: Snowflake, user: Snowflake, role: &Value) -> String {
    let payload = json!({ "user_id": user, "role_id": role });
    daemon.submit(guild, &json!([{ "kind": "assign_role", "payload": payload }])).remove(0)
}

/// The roles that the member has in Discord.
fn roles(daemon: &Daemon, guild: Snowflake, user: Snowflake) -> Value {
    let operation = json!([{ "kind": "read", "payload": { "path": format!("/guilds/{guild}/members/{user}") } }]);
    let operation = daemon.submit(guild, &operation).remove(0);
    daemon.until(&operation, "succeeded")["result"]["roles"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn unanswered_operation_gets_the_state_that_discord_shows() {
    let (sim, folder) = (sim().await, tempfile::tempdir().unwrap());
    let guild = sim.guilds()[0];
    let user = sim.join(guild, JoinSpec { count: 1, ..JoinSpec::default() }).await.unwrap().id.unwrap();
    let daemon = start(&sim, &folder);
    let (given, refused) = (new_role(&daemon, guild, "given"), new_role(&daemon, guild, "refused"));
    // Cut after the effect, 502, cut before it.
    for action in [FaultAction::DropAfter, FaultAction::Status { status: 502, code: 0 }, FaultAction::DropBefore] {
        fault(&sim, ASSIGN, action, Some(1));
    }
    let done = assign(&daemon, guild, user, &given);
    let operation = daemon.until(&done, "succeeded");
    assert_eq!((&operation["attempts"], &operation["result"]["role_id"]), (&json!(3), &given), "{operation}");
    // None of them took effect.
    for action in [FaultAction::DropBefore, FaultAction::Status { status: 502, code: 0 }, FaultAction::DropBefore] {
        fault(&sim, ASSIGN, action, Some(1));
    }
    let failed = assign(&daemon, guild, user, &refused);
    daemon.until(&failed, "dead");
    assert_eq!(roles(&daemon, guild, user), json!([given]));
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn check_of_an_unknown_outcome_continues_after_a_restart() {
    let (sim, folder) = (sim().await, tempfile::tempdir().unwrap());
    let guild = sim.guilds()[0];
    let user = sim.join(guild, JoinSpec { count: 1, ..JoinSpec::default() }).await.unwrap().id.unwrap();
    let daemon = start(&sim, &folder);
    let role = new_role(&daemon, guild, "given");
    fault(&sim, ASSIGN, FaultAction::DropAfter, Some(1));
    // A later attempt is refused, which says nothing about the first one, and the check gets no response.
    fault(&sim, ASSIGN, FaultAction::Status { status: 403, code: 50_013 }, None);
    fault(&sim, MEMBER, FaultAction::Status { status: 503, code: 0 }, None);
    let id = assign(&daemon, guild, user, &role);
    let checked = daemon.until(&id, "reconciling");
    assert_eq!(checked["waits_for"]["reason"], "reconciliation", "{checked}");
    daemon.stop();
    sim.remove_faults(None);
    let daemon = start(&sim, &folder);
    let operation = daemon.until(&id, "succeeded");
    assert_eq!(operation["attempts"], 2, "a check uses no attempt: {operation}");
    assert_eq!(roles(&daemon, guild, user), json!([role]));
    daemon.stop();
}
