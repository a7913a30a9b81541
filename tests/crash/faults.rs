//! Discord fails too: it drops connections after or before the effect of a create, or responds with a 502. Meanwhile
//! the daemon is killed.

use guildhall_sim::{Fault, FaultAction};
use guildhall_testkit::crash::{
    checker::check_outcomes,
    fixture::{DaemonFixture, Engine, FixtureSize},
    generator::OperationGenerator,
    test_operation::TestKind,
};

use crate::random::{Workload, run_round};

/// Manage channels and roles, view and send, manage messages, read history; but not the audit log.
const WITHOUT_AUDIT_LOG: u64 = 1 << 4 | 1 << 28 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16;
const WITH_AUDIT_LOG: u64 = WITHOUT_AUDIT_LOG | 1 << 7;

/// The routes that create objects.
const CREATE_ROUTES: [&str; 3] = ["POST /guilds/**", "POST /channels/**", "POST /webhooks/**"];

fn create_faults(action: &FaultAction, probability: f64) -> impl Iterator<Item = Fault> {
    let action = action.clone();
    CREATE_ROUTES.into_iter().map(move |route| Fault {
        route: route.to_owned(),
        action: action.clone(),
        probability,
        count: None,
        skip: 0,
    })
}

fn create_kinds() -> Vec<TestKind> {
    vec![
        TestKind::CreateRole,
        TestKind::CreateChannel,
        TestKind::EnsureRole,
        TestKind::EnsureChannel,
        TestKind::SendMessage,
        TestKind::EnsureMessage,
        TestKind::PinMessage,
        TestKind::SendDm,
        TestKind::Followup,
        TestKind::Post,
    ]
}

/// Every create is cut off after its effect, in addition to kills.
async fn drop_after_effect(engine: Engine, permissions: Option<u64>, seed: u64) {
    let faults = create_faults(&FaultAction::DropAfter, 1.0).collect();
    let report = run_round(engine, 4, seed, &Workload { kinds: create_kinds(), faults, permissions }).await;
    report.assert_ok(engine.name());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_response_is_reconciled_by_the_audit_log() {
    tokio::join!(drop_after_effect(Engine::Sqlite, None, 21), drop_after_effect(Engine::Postgres, None, 22));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_response_is_reconciled_without_the_audit_log() {
    tokio::join!(
        drop_after_effect(Engine::Sqlite, Some(WITHOUT_AUDIT_LOG), 23),
        drop_after_effect(Engine::Postgres, Some(WITHOUT_AUDIT_LOG), 24)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_faults_and_errors_lose_and_duplicate_nothing() {
    let run = async |engine: Engine, seed| {
        let faults = create_faults(&FaultAction::DropAfter, 0.3)
            .chain(create_faults(&FaultAction::DropBefore, 0.3))
            .chain(create_faults(&FaultAction::Status { status: 502, code: 0 }, 0.3))
            .collect();
        let report =
            run_round(engine, 4, seed, &Workload { kinds: TestKind::ALL.to_vec(), faults, permissions: None }).await;
        report.assert_ok(engine.name());
    };
    tokio::join!(run(Engine::Sqlite, 25), run(Engine::Postgres, 26));
}

/// Creates channels that the bot cannot see, and kills the daemon before it gets the response.
async fn create_hidden_channels(permissions: u64) -> (usize, usize) {
    let size = FixtureSize { guilds: 1, roles: 0, to_delete: 0, permissions: Some(permissions) };
    let fixture = DaemonFixture::new(Engine::Sqlite, size).await;
    for fault in create_faults(&FaultAction::DropAfter, 1.0) {
        fixture.sim.add_fault(fault).unwrap();
    }
    let mut generator = OperationGenerator::new(fixture.guilds[0].clone());
    let (mut accepted, mut outcomes) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let mut daemon = fixture.start_daemon();
        let operation = generator.next(TestKind::CreateChannel, &fixture).await.hidden(&fixture.guilds[0]);
        let accepted_one = fixture.submit(&operation).await;
        fixture.wait_for_effects(accepted.len() + 1).await;
        daemon.kill();
        let effects = fixture.sim.score().effects;
        let channels = effects.values().flatten().map(|effect| effect.object).collect();
        let action = FaultAction::HideChannels { channels };
        let route = "GET /guilds/{guild.id}/channels".to_owned();
        fixture.sim.add_fault(Fault { route, action, probability: 1.0, count: None, skip: 0 }).unwrap();
        let _daemon = fixture.start_daemon();
        outcomes.extend(fixture.wait_for_outcomes(std::slice::from_ref(&accepted_one)).await);
        accepted.push(accepted_one);
    }
    let report = check_outcomes(&fixture.sim.score(), &accepted, &outcomes);
    report.assert_ok("hidden channels");
    (report.operations, report.needs_review)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hidden_channel_is_found_by_the_audit_log_or_needs_review() {
    let (with_log, without_log) =
        tokio::join!(create_hidden_channels(WITH_AUDIT_LOG), create_hidden_channels(WITHOUT_AUDIT_LOG));
    assert_eq!(with_log, (3, 0), "the audit log shows the channel");
    assert_eq!(without_log, (3, 3), "nothing shows the channel, and nothing is created twice");
}
