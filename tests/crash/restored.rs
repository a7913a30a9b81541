//! A daemon runs on a store that was restored from a backup. What was unfinished in the backup has been executed since, and
//! is not executed again.
//!
//! ```text
//!  accepted while paused ─▶ backup ─▶ resumed: executed ─▶ more operations ─▶ kill -9 ─▶ restore ─▶ checked, and not sent
//!  accepted while its guild is paused ──────────────── not executed ────────────────────────────▶ dead letter ─▶ redrive
//! ```

use std::{fs, path::Path, time::Duration};

use guildhall_testkit::{
    crash::{
        checker::{CheckReport, check_outcomes},
        client::{AcceptedOperation, NoResponse, OperationOutcome, TEST_TIMEOUT},
        daemon_process::DaemonProcess,
        fixture::{DaemonFixture, Engine, FixtureSize},
        generator::OperationGenerator,
        test_operation::TestKind,
    },
    postgres,
};
use http::Method;
use serde_json::{Value, json};
use tokio::{
    task::block_in_place,
    time::{sleep, timeout},
};

const FIXTURE_SIZE: FixtureSize = FixtureSize { guilds: 2, roles: 10, to_delete: 4, permissions: None };

/// What is unfinished in the backup. A pause does not hold back responses to interactions.
const UNFINISHED: [TestKind; 14] = [
    TestKind::AssignRole,
    TestKind::UpdatePermissions,
    TestKind::CreateRole,
    TestKind::AssignByKey,
    TestKind::CreateChannel,
    TestKind::EnsureRole,
    TestKind::EnsureChannel,
    TestKind::SendMessage,
    TestKind::EnsureMessage,
    TestKind::PinMessage,
    TestKind::SendDm,
    TestKind::Post,
    TestKind::DeleteRole,
    TestKind::DeleteChannel,
];

const NEVER_EXECUTED: [TestKind; 4] =
    [TestKind::CreateRole, TestKind::SendMessage, TestKind::AssignRole, TestKind::DeleteRole];

/// How a store is restored and started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Restore {
    /// The files are copied, and the first start has `--restored`.
    CopyAndFlag,
    /// With `guildhall backup restore`.
    Command,
    /// The files are copied, and the daemon is not told.
    CopyOnly,
}

async fn submit_all(
    fixture: &DaemonFixture,
    generator: &mut OperationGenerator,
    kinds: &[TestKind],
) -> Vec<AcceptedOperation> {
    let mut accepted = Vec::new();
    for kind in kinds {
        let operation = generator.next(*kind, fixture).await;
        accepted.push(fixture.submit(&operation).await);
    }
    accepted
}

/// Sends a request that may be repeated, until the daemon has started.
async fn post(fixture: &DaemonFixture, path: &str, body: &Value) -> Value {
    let request = async {
        loop {
            match fixture.request(Method::POST, path, None, Some(body)).await {
                Ok((503, _)) | Err(NoResponse) => sleep(Duration::from_millis(10)).await,
                Ok((200 | 202, response)) => return response,
                Ok(other) => panic!("{path}: {other:?}"),
            }
        }
    };
    timeout(TEST_TIMEOUT, request).await.expect("the daemon starts")
}

/// Submits an operation of the second guild that is due in so many milliseconds.
async fn schedule(fixture: &DaemonFixture, generator: &mut OperationGenerator, delay_ms: u64) -> AcceptedOperation {
    let operation = generator.next(TestKind::CreateRole, fixture).await;
    let body = json!({ "kind": operation.kind, "payload": operation.payload, "delay_ms": delay_ms });
    let path = format!("/v1/guilds/{}/operations", operation.guild.unwrap());
    AcceptedOperation::new(operation, &post(fixture, &path, &body).await)
}

fn back_up(fixture: &DaemonFixture, engine: Engine, to: &Path) {
    match engine {
        Engine::Sqlite => {
            let report = fixture.run_command(&["backup", "create", to.to_str().unwrap()]);
            assert!(report.contains("unfinished operations"), "{report}");
        }
        Engine::Postgres => postgres::shared().dump(fixture.store(), to),
    }
}

/// Destroys the store and restores the backup. Returns the daemon that continues with it.
async fn restore(fixture: &DaemonFixture, engine: Engine, from: &Path, restore: Restore) -> DaemonProcess {
    match (engine, restore) {
        (Engine::Sqlite, Restore::Command) => {
            let report = fixture.run_command(&["backup", "restore", from.to_str().unwrap()]);
            assert!(report.contains("checked in Discord and not sent"), "{report}");
        }
        (Engine::Sqlite, Restore::CopyAndFlag | Restore::CopyOnly) => {
            for name in ["guildhall.db", "guildhall.db-wal", "guildhall.db-shm"] {
                fs::remove_file(fixture.file(name)).unwrap();
            }
            fs::copy(from, fixture.file("guildhall.db")).unwrap();
        }
        (Engine::Postgres, _) => postgres::shared().restore_dump(fixture.store(), from).await,
    }
    if restore == Restore::CopyAndFlag {
        let mut first = fixture.start_restored_daemon();
        assert!(first.wait_until_listening().await.is_some(), "{}", first.log_tail());
        // The next one is not told, and is as careful.
        block_in_place(|| first.kill());
    }
    fixture.start_daemon()
}

async fn outcomes(fixture: &DaemonFixture, accepted: &[AcceptedOperation]) -> Vec<OperationOutcome> {
    let outcomes = fixture.wait_for_outcomes(accepted).await;
    outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|last| panic!("not finished: {last:?}"))).collect()
}

async fn check_restore(engine: Engine, how: Restore) -> CheckReport {
    let folder = tempfile::tempdir().unwrap();
    let store = match engine {
        Engine::Sqlite => format!("sqlite:{}/guildhall.db", folder.path().display()),
        // Row-level security applies to its owner, too.
        Engine::Postgres => postgres::shared().create_database_with_owner("CREATEROLE").await.0,
    };
    let fixture = DaemonFixture::with_store(store, folder, FIXTURE_SIZE).await;
    let [mut generator, mut paused_generator] =
        [0, 1].map(|index: usize| OperationGenerator::new(fixture.guilds[index].clone()));
    let mut daemon = fixture.start_daemon();

    let first = submit_all(&fixture, &mut generator, &UNFINISHED[..4]).await;
    let first_outcomes = outcomes(&fixture, &first).await;
    post(&fixture, "/v1/pause", &json!({})).await;
    post(&fixture, &format!("/v1/guilds/{}/pause", paused_generator.guild_fixture.guild), &json!({})).await;
    let unfinished = submit_all(&fixture, &mut generator, &UNFINISHED).await;
    let never_executed = submit_all(&fixture, &mut paused_generator, &NEVER_EXECUTED).await;
    let scheduled = schedule(&fixture, &mut paused_generator, 3_600_000).await;
    let backup = fixture.file("backup");
    block_in_place(|| back_up(&fixture, engine, &backup));

    post(&fixture, "/v1/resume", &json!({})).await;
    outcomes(&fixture, &unfinished).await;
    let later = submit_all(&fixture, &mut generator, &UNFINISHED[..8]).await;
    let later_outcomes = outcomes(&fixture, &later).await;
    block_in_place(|| daemon.kill());

    let mut restored = restore(&fixture, engine, &backup, how).await;
    for path in ["/v1/resume".to_owned(), format!("/v1/guilds/{}/resume", paused_generator.guild_fixture.guild)] {
        post(&fixture, &path, &json!({})).await;
    }
    let unfinished_outcomes = outcomes(&fixture, &unfinished).await;
    let mut accepted = [first, unfinished, later].concat();
    let mut results = [first_outcomes, unfinished_outcomes, later_outcomes].concat();
    if how == Restore::CopyOnly {
        results.extend(outcomes(&fixture, &never_executed).await);
        accepted.extend(never_executed);
    } else {
        check_never_executed(&fixture, &never_executed, &scheduled).await;
        accepted.push(scheduled);
        accepted.extend(never_executed);
        // Each was executed in the end.
        results.resize(accepted.len(), OperationOutcome { state: "succeeded".to_owned(), error: String::new() });
    }
    block_in_place(|| restored.kill());
    let results: Vec<_> = results.into_iter().map(Ok).collect();
    check_outcomes(&fixture.sim.score(), &accepted, &results)
}

/// Operations whose effect does not exist are not sent, and are executed once when they are redriven. A scheduled one is
/// executed when it is due.
async fn check_never_executed(fixture: &DaemonFixture, accepted: &[AcceptedOperation], scheduled: &AcceptedOperation) {
    for (accepted, outcome) in accepted.iter().zip(outcomes(fixture, accepted).await) {
        assert_eq!(outcome.state, "dead", "{outcome:?}");
        assert!(outcome.error.contains("restored from a backup"), "{outcome:?}");
        assert_eq!(fixture.count_effects(&accepted.operation.effect), 0, "{accepted:?}");
    }
    let (status, shown) =
        fixture.request(Method::GET, &format!("/v1/operations/{}", scheduled.id), None, None).await.unwrap();
    assert_eq!((status, &shown["state"]), (200, &json!("scheduled")), "{shown}");
    post(fixture, &format!("/v1/operations/{}/retry", scheduled.id), &json!({})).await;
    let redriven = post(fixture, "/v1/dead-letters/redrive", &json!({ "class": "restored" })).await;
    assert_eq!(redriven["redriven"], accepted.len(), "{redriven}");
    let effects = || {
        let count = |accepted: &AcceptedOperation| fixture.count_effects(&accepted.operation.effect);
        accepted.iter().chain([scheduled]).map(count).sum::<usize>()
    };
    fixture.wait_until(|| effects() > accepted.len()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_sqlite_backup_repeats_no_operation() {
    let report = check_restore(Engine::Sqlite, Restore::CopyAndFlag).await;
    report.assert_ok("sqlite, serve --restored");
    assert_eq!(report.needs_review, 1, "the outcome of a POST cannot be found: {report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backup_command_restores_without_repeating_operations() {
    let report = check_restore(Engine::Sqlite, Restore::Command).await;
    report.assert_ok("sqlite, backup restore");
    assert_eq!(report.needs_review, 1, "the outcome of a POST cannot be found: {report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_postgres_dump_repeats_no_operation() {
    let report = check_restore(Engine::Postgres, Restore::CopyAndFlag).await;
    report.assert_ok("postgres, serve --restored");
    assert_eq!(report.needs_review, 1, "the outcome of a POST cannot be found: {report:?}");
}

/// Shows that the tests above would notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restore_without_the_flag_repeats_operations() {
    let report = check_restore(Engine::Sqlite, Restore::CopyOnly).await;
    assert!(report.duplicates > 0, "{report:?}");
}
