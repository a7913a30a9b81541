//! The daemon is killed at every step boundary, for every class of operations, on both engines.

use guildhall_actors::failpoint::Point;
use guildhall_testkit::crash::{
    checker::{CheckReport, check_outcomes},
    client::{AcceptedOperation, NotFinished, OperationOutcome, TEST_TIMEOUT},
    daemon_process::{DaemonProcess, was_killed},
    fixture::{DaemonFixture, Engine, FixtureSize},
    generator::OperationGenerator,
    test_operation::TestKind,
};
use tokio::time::timeout;

const FIXTURE_SIZE: FixtureSize = FixtureSize { guilds: 1, roles: 18, to_delete: 18, permissions: None };

/// For each of the consecutive runs, how often a boundary is passed before the daemon is killed there. The later runs
/// continue the work of the earlier ones, and are killed meanwhile. Commits include more than operations, so more runs
/// are needed to hit an acceptance, a claim, a start and an end.
fn passes_per_run(point: Point) -> &'static [u64] {
    match point {
        Point::WaitingForPermit => &[0],
        Point::BeforeIntent
        | Point::AfterIntent
        | Point::BeforeSend
        | Point::AfterSend
        | Point::BeforeOutcome
        | Point::AfterOutcome => &[0, 1],
        Point::BeforeCommit | Point::AfterCommit => &[0, 1, 2, 3, 5],
    }
}

async fn kill_at(fixture: &DaemonFixture, point: Point, passes: u64) {
    let failpoint = format!("{}:{passes}", point.name());
    // With one call a second, the second call has to wait.
    let global = if point == Point::WaitingForPermit { "1" } else { "200" };
    let mut daemon =
        fixture.start_daemon_with(&[("GUILDHALL_FAILPOINT", &failpoint), ("GUILDHALL__LIMITS__GLOBAL", global)]);
    let exited = timeout(TEST_TIMEOUT, daemon.wait_for_exit()).await;
    assert!(exited.is_ok(), "{} was not passed {passes} times\n{}", point.name(), daemon.log_tail());
    assert!(was_killed(daemon.kill()), "it exited by itself\n{}", daemon.log_tail());
}

async fn wait_for_outcomes(
    daemon: &DaemonProcess,
    fixture: &DaemonFixture,
    accepted: &[AcceptedOperation],
) -> Vec<Result<OperationOutcome, NotFinished>> {
    let outcomes = fixture.wait_for_outcomes(accepted).await;
    if outcomes.iter().any(Result::is_err) {
        eprintln!("{}", daemon.log_tail());
    }
    outcomes
}

/// Kills the daemon at every boundary while it executes these.
async fn kill_at_every_boundary(engine: Engine, class: &[TestKind]) -> CheckReport {
    let fixture = DaemonFixture::new(engine, FIXTURE_SIZE).await;
    let mut generator = OperationGenerator::new(fixture.guilds[0].clone());
    let (mut accepted, mut outcomes) = (Vec::new(), Vec::new());
    for point in Point::ALL {
        let mut operations = Vec::new();
        for kind in class {
            operations.push(generator.next(*kind, &fixture).await);
        }
        let submissions = async {
            let mut accepted = Vec::new();
            for operation in &operations {
                accepted.push(fixture.submit(operation).await);
            }
            accepted
        };
        let kills = async {
            for passes in passes_per_run(point) {
                kill_at(&fixture, point, *passes).await;
            }
            fixture.start_daemon()
        };
        let (new, daemon) = tokio::join!(submissions, kills);
        outcomes.extend(wait_for_outcomes(&daemon, &fixture, &new).await);
        accepted.extend(new);
    }
    check_outcomes(&fixture.sim.score(), &accepted, &outcomes)
}

async fn check_both_engines(class: &[TestKind]) {
    let (sqlite, postgres) =
        tokio::join!(kill_at_every_boundary(Engine::Sqlite, class), kill_at_every_boundary(Engine::Postgres, class));
    sqlite.assert_ok("sqlite");
    postgres.assert_ok("postgres");
    assert_eq!(
        (sqlite.operations, postgres.operations),
        (class.len() * Point::ALL.len(), class.len() * Point::ALL.len())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeatable_operations_stay_in_order_across_kills() {
    use TestKind::{AssignRole, UpdatePermissions};
    check_both_engines(&[AssignRole, UpdatePermissions, AssignRole, UpdatePermissions]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roles_and_channels_are_created_once_across_kills() {
    use TestKind::{AssignByKey, CreateChannel, CreateRole, EnsureChannel, EnsureRole};
    check_both_engines(&[CreateRole, CreateChannel, EnsureRole, AssignByKey, EnsureChannel]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_sent_once_across_kills() {
    use TestKind::{EnsureMessage, PinMessage, SendDm, SendMessage};
    check_both_engines(&[SendMessage, EnsureMessage, PinMessage, SendDm, SendDm]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unverifiable_operations_are_sent_at_most_once_across_kills() {
    use TestKind::{Followup, Post};
    // Operations in flight at a kill need review. Three in one queue are needed for two kills and one more.
    check_both_engines(&[Post, Followup, Post, Followup, Post]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletions_complete_across_kills() {
    use TestKind::{DeleteChannel, DeleteRole};
    check_both_engines(&[DeleteRole, DeleteChannel, DeleteRole, DeleteChannel]).await;
}

/// An operation waits for its permit when the process is killed. The next process would check or send it again only
/// after the request timeout, which is longer than this test waits.
async fn kill_while_waiting_for_permit(engine: Engine, kinds: &[TestKind]) {
    let fixture = DaemonFixture::new(engine, FIXTURE_SIZE).await;
    let mut generator = OperationGenerator::new(fixture.guilds[0].clone());
    let mut operations = Vec::new();
    for kind in kinds {
        operations.push(generator.next(*kind, &fixture).await);
    }
    let submissions = async {
        let mut accepted = Vec::new();
        for operation in &operations {
            accepted.push(fixture.submit(operation).await);
        }
        accepted
    };
    let timeout = (2 * TEST_TIMEOUT).as_millis().to_string();
    let kills = async {
        kill_at(&fixture, Point::WaitingForPermit, 0).await;
        fixture.start_daemon_with(&[("GUILDHALL__REST__REQUEST_TIMEOUT_MS", &timeout)])
    };
    let (accepted, daemon) = tokio::join!(submissions, kills);
    let outcomes = wait_for_outcomes(&daemon, &fixture, &accepted).await;
    check_outcomes(&fixture.sim.score(), &accepted, &outcomes).assert_ok(engine.name());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operation_killed_while_waiting_for_a_permit_resumes_at_once() {
    let kinds = [TestKind::CreateRole, TestKind::AssignRole, TestKind::SendMessage];
    tokio::join!(
        kill_while_waiting_for_permit(Engine::Sqlite, &kinds),
        kill_while_waiting_for_permit(Engine::Postgres, &kinds)
    );
}
