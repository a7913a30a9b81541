//! The store is unavailable or full while operations run. Accepted operations are finished; operations that could not
//! be stored are refused.

use std::time::Duration;

use guildhall_testkit::{
    crash::{
        checker::check_outcomes,
        client::{AcceptedOperation, NoResponse},
        fixture::{DaemonFixture, Engine, FixtureSize},
        generator::OperationGenerator,
        test_operation::TestKind,
    },
    postgres::PostgresServer,
};
use tokio::{task::block_in_place, time::sleep};

const FIXTURE_SIZE: FixtureSize = FixtureSize { guilds: 1, roles: 10, to_delete: 5, permissions: None };

const KINDS: [TestKind; 6] = [
    TestKind::CreateRole,
    TestKind::SendMessage,
    TestKind::AssignRole,
    TestKind::CreateChannel,
    TestKind::UpdatePermissions,
    TestKind::DeleteRole,
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accepted_operations_survive_a_postgres_restart() {
    let mut server = block_in_place(PostgresServer::start);
    let fixture =
        DaemonFixture::with_store(server.create_database().await, tempfile::tempdir().unwrap(), FIXTURE_SIZE).await;
    let _daemon = fixture.start_daemon_with(&[("GUILDHALL__STORE__TIMEOUT_MS", "1000")]);
    let mut generator = OperationGenerator::new(fixture.guilds[0].clone());
    let mut accepted: Vec<AcceptedOperation> = Vec::new();
    for nth in 0..24 {
        let operation = generator.next(KINDS[nth % KINDS.len()], &fixture).await;
        if nth == 12 {
            fixture.wait_for_more_effects(2, Duration::from_secs(5)).await;
            block_in_place(|| server.kill());
            let refused = loop {
                match fixture.submit_once(&operation).await {
                    Ok((503, problem)) => break problem,
                    Ok(other) => panic!("accepted without a store: {other:?}"),
                    Err(NoResponse) => sleep(Duration::from_millis(10)).await,
                }
            };
            assert!(refused["type"].as_str().unwrap().contains("store"), "{refused}");
            block_in_place(|| server.start_again());
        }
        accepted.push(fixture.submit(&operation).await);
    }
    let outcomes = fixture.wait_for_outcomes(&accepted).await;
    check_outcomes(&fixture.sim.score(), &accepted, &outcomes).assert_ok("postgres restarted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_file_refuses_operations_and_loses_none() {
    let fixture = DaemonFixture::new(Engine::Sqlite, FIXTURE_SIZE).await;
    let mut daemon = fixture.start_daemon();
    daemon.wait_until_listening().await.unwrap();
    daemon.kill();
    // The WAL will be moved into the file.
    let size = |name| std::fs::metadata(fixture.file(name)).map_or(0, |file| file.len());
    // New operations may fill half of it.
    let max_bytes = 2 * (size("guildhall.db") + size("guildhall.db-wal") + 100_000);
    let mut daemon = fixture.start_daemon_with(&[("GUILDHALL__STORE__MAX_BYTES", &max_bytes.to_string())]);
    let mut generator = OperationGenerator::new(fixture.guilds[0].clone());
    let mut accepted: Vec<AcceptedOperation> = Vec::new();
    let mut operation = generator.next(TestKind::SendMessage, &fixture).await.padded();
    let refused = loop {
        assert!(accepted.len() < 500, "the file never became full");
        match fixture.submit_once(&operation).await {
            Ok((200 | 202, response)) => {
                accepted.push(AcceptedOperation::new(operation, &response));
                operation = generator.next(TestKind::SendMessage, &fixture).await.padded();
            }
            Ok((507, problem)) if problem["setting"] == "store.max_bytes" => break operation,
            // Not open yet, or still the previous process.
            Ok((503, _)) | Err(NoResponse) => sleep(Duration::from_millis(10)).await,
            Ok(other) => panic!("{other:?}"),
        }
    };
    assert!(accepted.len() > 10, "accepted only {}", accepted.len());
    daemon.kill();
    let _daemon = fixture.start_daemon();
    let resubmitted = loop {
        match fixture.submit_once(&refused).await {
            Ok((503, _)) | Err(NoResponse) => sleep(Duration::from_millis(10)).await,
            Ok(response) => break response,
        }
    };
    assert_eq!((resubmitted.0, &resubmitted.1["replayed"]), (202, &false.into()), "a refused operation was not stored");
    accepted.push(AcceptedOperation::new(refused, &resubmitted.1));
    let outcomes = fixture.wait_for_outcomes(&accepted).await;
    check_outcomes(&fixture.sim.score(), &accepted, &outcomes).assert_ok("full");
}
