//! A call takes effect in Discord after the process that made it has ended.

use guildhall_sim::{Fault, FaultAction, Stage as On};
use guildhall_testkit::crash::{
    checker::check_outcomes,
    fixture::{DaemonFixture, Engine, FixtureSize},
    generator::OperationGenerator,
    test_operation::TestKind,
};

const FIXTURE_SIZE: FixtureSize = FixtureSize { guilds: 1, roles: 1, to_delete: 0, permissions: None };

/// Longer than a new process waits before its first call, and shorter than the request timeout.
const EFFECT_DELAY_MS: u64 = 2_000;
const TIMEOUT: (&str, &str) = ("GUILDHALL__REST__REQUEST_TIMEOUT_MS", "2500");

/// A role is assigned by a call that takes effect late, the process ends, and then the role is to be removed again.
async fn run_with_late_effect(engine: Engine) {
    let fixture = DaemonFixture::new(engine, FIXTURE_SIZE).await;
    let action = FaultAction::Latency { fixed_ms: EFFECT_DELAY_MS, jitter_ms: 0, at: On::Effect };
    let route = "PUT /guilds/{guild.id}/members/{user.id}/roles/{role.id}".to_owned();
    fixture.sim.add_fault(Fault { route, action, probability: 1.0, count: Some(1), skip: 0 }).unwrap();
    let mut daemon = fixture.start_daemon_with(&[TIMEOUT]);
    let assign = OperationGenerator::new(fixture.guilds[0].clone()).next(TestKind::AssignRole, &fixture).await;
    let remove = assign.inverse();
    let mut accepted = vec![fixture.submit(&assign).await];
    fixture.wait_for_request().await;
    daemon.kill();
    let _daemon = fixture.start_daemon_with(&[TIMEOUT]);
    accepted.push(fixture.submit(&remove).await);
    let outcomes = fixture.wait_for_outcomes(&accepted).await;
    // Waits until the late call is finished as well.
    fixture.wait_until_idle().await;
    check_outcomes(&fixture.sim.score(), &accepted, &outcomes).assert_ok(engine.name());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_operation_does_not_overtake_a_call_of_a_dead_process() {
    tokio::join!(run_with_late_effect(Engine::Sqlite), run_with_late_effect(Engine::Postgres));
}
