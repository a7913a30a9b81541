//! Wrong clocks: created objects are found again, and nothing expires too early.

use std::time::Duration;

use guildhall_sim::{BotConfig, Fault, FaultAction, GuildsSpec, Sim, SimConfig, SimHandle};
use guildhall_testkit::{movable_clock::MovableClock, postgres, program::CANARY};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::daemon::Daemon;

const ROLES: &str = "POST /guilds/{guild.id}/roles";
const MANAGE_ROLES: u64 = 1 << 28;
const DAY: i64 = 24 * 60 * 60;

async fn sim(clock_ahead_s: i64) -> SimHandle {
    let bots = vec![BotConfig { token: CANARY.to_owned(), ..BotConfig::default() }];
    Sim::start(SimConfig { bots, clock_ahead_s, ..SimConfig::default() }).await.unwrap()
}

/// Offset between the daemon's clock and the reference, as its metric reports it.
fn offset(daemon: &Daemon, reference: &str) -> f64 {
    let name = format!("guildhall_clock_offset_seconds{{reference=\"{reference}\"}} ");
    let metrics = daemon.metrics();
    let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
    line.unwrap_or_else(|| panic!("{reference} is not measured: {metrics}")).parse().unwrap()
}

/// Loses the response to a POST that took effect, without an audit log to find it in. Returns how often the role was
/// created.
async fn count_created_roles(sim: &SimHandle, store: &str) -> usize {
    let spec = GuildsSpec { bot_permissions: Some(MANAGE_ROLES), ..GuildsSpec::default() };
    let guild = sim.create_guilds(&spec).unwrap()[0];
    let settings = [("GUILDHALL__OPERATIONS__SETTLE_MS", "2000"), ("GUILDHALL__REST__REQUEST_TIMEOUT_MS", "2000")];
    let daemon = Daemon::start_on(sim, store, &settings);
    daemon.line_with("\"part is ready\",\"part\":\"gateway\"");
    let fault =
        Fault { route: ROLES.to_owned(), action: FaultAction::DropAfter, probability: 1.0, count: Some(1), skip: 0 };
    sim.add_fault(fault).unwrap();
    let operation = json!([{"kind": "create_role", "payload": {"name": "Pilots"}}]);
    let id = daemon.submit(guild, &operation).remove(0);
    daemon.until(&id, "succeeded");
    assert!((offset(&daemon, "discord") - 600.0).abs() < 30.0, "{}", offset(&daemon, "discord"));
    daemon.stop();
    sim.score().effects[&guild.to_string()].len()
}

#[tokio::test(flavor = "multi_thread")]
async fn clock_ten_minutes_ahead_creates_nothing_twice() {
    let (sim, folder) = (sim(-600).await, tempfile::tempdir().unwrap());
    let store = format!("sqlite:{}/guildhall.db", folder.path().display());
    assert_eq!(count_created_roles(&sim, &store).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn database_ten_minutes_ahead_creates_nothing_twice() {
    let sim = sim(-600).await;
    let store = postgres::shared().create_database().await;
    assert_eq!(count_created_roles(&sim, &store).await, 1);
}

#[test]
fn clock_jump_expires_neither_keys_nor_deadlines() {
    let runtime = Runtime::new().unwrap();
    let (clock, folder) = (MovableClock::compile(), tempfile::tempdir().unwrap());
    let environment = clock.environment();
    let [(preload, library), (name, file)] = &environment;
    let settings =
        [(*preload, library.as_str()), (*name, file.as_str()), ("GUILDHALL__OPERATIONS__SWEEP_EVERY_MS", "50")];
    let sim = runtime.block_on(sim(0));
    let guild = sim.guilds()[0];
    let daemon = Daemon::start_with(&sim, &folder, &settings);
    daemon.line_with("\"part is ready\",\"part\":\"gateway\"");
    let role = |name: &str, key: &str| json!([{"kind": "create_role", "payload": {"name": name}, "key": key}]);
    let first = daemon.submit(guild, &role("Pilots", "once")).remove(0);
    daemon.until(&first, "succeeded");
    let waiting = json!([{"kind": "create_role", "payload": {"name": "Gunners"}, "delay_ms": 3_600_000,
        "deadline_ms": 7_200_000}]);
    let waiting = daemon.submit(guild, &waiting).remove(0);

    // The log line shows that the daemon has seen the new time. Sweeps run all the time.
    for jump in [2 * DAY, -2 * DAY] {
        clock.set_offset(jump, 0);
        daemon.line_with("the clock of this machine is wrong");
        let repeated = daemon.request(
            "POST",
            &format!("/v1/guilds/{guild}/operations"),
            &json!({"operations": role("Pilots", "once")}),
        );
        assert_eq!(repeated.json()["operations"][0]["id"], first, "{}", repeated.body);
        assert_eq!(daemon.show(&waiting)["state"], "scheduled", "{jump}");
        clock.set_offset(0, 0);
        daemon.line_with("the clock of this machine is correct again");
    }
    // And over a restart with a wrong clock.
    daemon.stop();
    clock.set_offset(2 * DAY, 0);
    let daemon = Daemon::start_with(&sim, &folder, &settings);
    let repeated = daemon.request(
        "POST",
        &format!("/v1/guilds/{guild}/operations"),
        &json!({"operations": role("Pilots", "once")}),
    );
    assert_eq!(repeated.json()["operations"][0]["id"], first, "{}", repeated.body);
    assert_eq!(daemon.show(&waiting)["state"], "scheduled");
    assert_eq!(daemon.show(&waiting)["error"], Value::Null);
    daemon.stop();
    assert_eq!(sim.score().effects[&guild.to_string()].len(), 1);
    runtime.shutdown_timeout(Duration::from_secs(1));
}
