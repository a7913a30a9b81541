//! Each part of the daemon panics under load in turn: the process notices it and ends, and the next one continues.

use std::{collections::BTreeSet, time::Duration};

use futures_util::future::join_all;
use guildhall_actors::supervision::{Part, Policy};
use guildhall_sim::{FireSpec, Snowflake};
use guildhall_testkit::{
    crash::{
        checker::check_outcomes,
        client::{AcceptedOperation, NoResponse, TEST_TIMEOUT},
        fixture::{ADMIN_KEY, DaemonFixture, Engine, FixtureSize},
        generator::{OperationGenerator, submit_operations},
        killed_parts,
        part_exit::{assert_ended_by, failpoint},
        test_operation::TestKind,
    },
    redis::RedisServer,
};
use http::Method;
use serde_json::json;
use tokio::{
    sync::Semaphore,
    time::{sleep, timeout},
};

const FIXTURE_SIZE: FixtureSize = FixtureSize { guilds: 4, roles: 4, to_delete: 0, permissions: None };

/// Operations that may be submitted while a process runs that a part ends.
const MAX_OPERATIONS: usize = 12;

const KINDS: [TestKind; 5] = [
    TestKind::CreateRole,
    TestKind::SendMessage,
    TestKind::AssignRole,
    TestKind::EnsureMessage,
    TestKind::CreateChannel,
];

/// Interval between API calls other than submissions.
const REQUEST_INTERVAL: Duration = Duration::from_millis(30);

/// Submits messages to a guild and waits until each is finished.
async fn submit_and_wait(
    fixture: &DaemonFixture,
    mut generator: OperationGenerator,
    permits: &Semaphore,
) -> Vec<AcceptedOperation> {
    let mut accepted = Vec::new();
    while let Ok(permit) = permits.acquire().await {
        permit.forget();
        let operation = generator.next(TestKind::SendMessage, fixture).await;
        let body = json!({ "kind": operation.kind, "payload": operation.payload });
        let path = format!("/v1/guilds/{}/operations", generator.guild_fixture.guild);
        let bearer = format!("Bearer {ADMIN_KEY}");
        let headers = [("Authorization", bearer.as_str()), ("Idempotency-Key", &operation.key), ("Prefer", "wait=1")];
        let response = loop {
            let url = format!("http://{}{path}", fixture.any_address().await);
            match fixture.http.call(Method::POST, &url, &headers, Some(&body)).await {
                Ok((200 | 202, response)) => break response,
                Ok((408 | 503, _)) | Err(NoResponse) => sleep(REQUEST_INTERVAL).await,
                Ok((status, response)) => panic!("{}: {status} {response}", operation.key),
            }
        };
        accepted.push(AcceptedOperation::new(operation, &response));
    }
    accepted
}

/// Uses parts that operations do not use: budgets, API keys, interactions. Their responses are lost with the process.
async fn call_other_endpoints(fixture: &DaemonFixture) {
    let guild = Snowflake::new(fixture.guilds[0].guild);
    let cost = json!({ "cost": 1, "max_wait_ms": 0 });
    for nth in 0_u64.. {
        let address = fixture.any_address().await;
        let unknown = format!("Bearer gh_{nth:012x}_{}", "0".repeat(43));
        let url = format!("http://{address}/v1/operations");
        let _ = fixture.sim.fire(FireSpec::command(guild, "hello")).await;
        let _ = fixture.request_at(address, Method::POST, "/v1/budgets/shop/acquire", None, Some(&cost)).await;
        let _ = fixture.http.call(Method::GET, &url, &[("Authorization", &unknown)], None).await;
        sleep(REQUEST_INTERVAL).await;
    }
}

/// Kills these parts in turn while operations are submitted, then waits until everything is finished.
async fn kill_parts_in_turn(engine: Engine, parts: &[(Part, u64)], environment: &[(&str, &str)]) {
    let environment = [environment, &[("GUILDHALL__BUDGETS__NAMED", "shop=1000/50")]].concat();
    let fixture = DaemonFixture::new(engine, FIXTURE_SIZE).await;
    let permits = Semaphore::new(0);
    let (waiting_caller, guild_fixtures) = fixture.guilds.split_last().unwrap();
    let waiting_caller = submit_and_wait(&fixture, OperationGenerator::new(waiting_caller.clone()), &permits);
    let callers = guild_fixtures.iter().zip(1..);
    let callers: Vec<_> = callers
        .map(|(guild_fixture, seed)| {
            submit_operations(&fixture, OperationGenerator::new(guild_fixture.clone()), &KINDS, &permits, seed)
        })
        .collect();
    let runs = async {
        for (part, messages) in parts {
            permits.add_permits(MAX_OPERATIONS);
            let failpoint_setting = failpoint(*part, *messages);
            let mut daemon =
                fixture.start_daemon_with(&[&environment[..], &[("GUILDHALL_FAILPOINT", &failpoint_setting)]].concat());
            tokio::select! {
                () = assert_ended_by(&mut daemon, *part) => {}
                () = call_other_endpoints(&fixture) => {}
            }
        }
        permits.close();
        fixture.start_daemon_with(&environment)
    };
    let (accepted, accepted_by_waiting, daemon) = tokio::join!(join_all(callers), waiting_caller, runs);
    let accepted: Vec<AcceptedOperation> = accepted.into_iter().flatten().chain(accepted_by_waiting).collect();
    assert!(accepted.len() >= MAX_OPERATIONS, "there was no load");
    let outcomes = fixture.wait_for_outcomes(&accepted).await;
    let last = parts.last().unwrap().0.name();
    let previous = daemon.log_lines_with("previous process was ended by a part");
    assert!(previous.len() == 1 && previous[0]["part"] == last, "{previous:?}, not {last}\n{}", daemon.log_tail());
    let report = check_outcomes(&fixture.sim.score(), &accepted, &outcomes);
    if !report.violations.is_empty() {
        eprintln!("{}", daemon.log_tail());
    }
    report.assert_ok(engine.name());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panic_in_gate_or_operations_loses_and_duplicates_nothing() {
    kill_parts_in_turn(Engine::Sqlite, killed_parts::GATE_AND_OPERATIONS, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panic_in_store_or_gateway_loses_and_duplicates_nothing() {
    kill_parts_in_turn(Engine::Sqlite, killed_parts::STORE_AND_GATEWAY, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panic_in_a_redis_part_loses_and_duplicates_nothing() {
    let (redis, lock_dir) = (RedisServer::start(), tempfile::tempdir().unwrap());
    let url = redis.url().to_string();
    let environment = [
        ("GUILDHALL__REDIS__URL", url.as_str()),
        ("GUILDHALL__REDIS__SEAT_DIR", lock_dir.path().to_str().unwrap()),
        ("GUILDHALL__REDIS__HEARTBEAT_MS", "300"),
        ("GUILDHALL__REDIS__SILENCE_MS", "1000"),
        ("GUILDHALL__REDIS__NEWCOMER_MS", "700"),
        ("GUILDHALL__REDIS__GUARD_MS", "500"),
    ];
    kill_parts_in_turn(Engine::Sqlite, killed_parts::REDIS, &environment).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ending_process_is_not_ready_and_reports_the_ended_part() {
    let fixture = DaemonFixture::new(Engine::Sqlite, FIXTURE_SIZE).await;
    let continue_file = fixture.file("goes-on");
    let hold = format!("supervision,watchdog:{}", continue_file.display());
    let failpoint_setting = failpoint(Part::StoreHealth, 0);
    let mut daemon =
        fixture.start_daemon_with(&[("GUILDHALL_FAILPOINT", &failpoint_setting), ("GUILDHALL_FAILPOINT_HOLD", &hold)]);
    let url = format!("http://{}/readyz", daemon.wait_until_listening().await.unwrap());
    let ending = async {
        loop {
            match fixture.http.call(Method::GET, &url, &[], None).await {
                Ok((503, report)) if report["stopping"] == true => return report,
                Ok(_) | Err(NoResponse) => sleep(REQUEST_INTERVAL).await,
            }
        }
    };
    let report = timeout(TEST_TIMEOUT, ending).await.unwrap();
    let reason = report["parts"]["store"]["reason"].as_str().unwrap();
    assert!(reason.starts_with("store_health panicked at"), "{report}");
    std::fs::write(continue_file, "").unwrap();
    assert_ended_by(&mut daemon, Part::StoreHealth).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchdog_ends_a_process_that_hangs_at_shutdown() {
    let fixture = DaemonFixture::new(Engine::Sqlite, FIXTURE_SIZE).await;
    let hold = format!("supervision:{}", fixture.file("never").display());
    let failpoint_setting = failpoint(Part::StoreHealth, 0);
    let mut daemon =
        fixture.start_daemon_with(&[("GUILDHALL_FAILPOINT", &failpoint_setting), ("GUILDHALL_FAILPOINT_HOLD", &hold)]);
    assert_ended_by(&mut daemon, Part::StoreHealth).await;
}

/// Parts that no test kills, and the reason.
const NOT_KILLED: [(Part, &str); 5] = [
    (
        Part::InteractionsListener,
        "runs only with a public key, and is started by the same function as the API's listener",
    ),
    (Part::EgressListener, "runs only with egress.enabled, and is spawned like any task"),
    (Part::BrokerConnection, "runs only with broker.url, and is spawned like any task"),
    (Part::Certificates, "runs only with TLS, and is spawned like any task"),
    (Part::SpanExporter, "runs only with a collector, and is spawned like any task"),
];

#[test]
fn every_part_is_killed_by_a_test_or_listed_with_a_reason() {
    let lists = [
        killed_parts::GATE_AND_OPERATIONS,
        killed_parts::STORE_AND_GATEWAY,
        killed_parts::REDIS,
        killed_parts::FLEET,
        killed_parts::EVENTS,
    ];
    let killed: BTreeSet<Part> = lists.concat().into_iter().map(|(part, _)| part).collect();
    let reasons: BTreeSet<Part> = NOT_KILLED.iter().map(|(part, _)| *part).collect();
    assert!(killed.is_disjoint(&reasons), "listed here but killed: {:?}", killed.intersection(&reasons));
    let ends = Part::ALL.iter().copied().filter(|part| part.policy() == Policy::EndProcess);
    let missing: Vec<Part> = ends.filter(|part| !killed.contains(part) && !reasons.contains(part)).collect();
    assert!(missing.is_empty(), "in no list of tests/crash/killed_parts.rs, and without a reason here: {missing:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guild_that_panics_is_restarted_and_the_process_continues() {
    let fixture = DaemonFixture::new(Engine::Sqlite, FIXTURE_SIZE).await;
    let permits = Semaphore::new(30);
    let mut daemon = fixture.start_daemon_with(&[("GUILDHALL_FAILPOINT", &failpoint(Part::OperationGuild, 5))]);
    let callers = fixture.guilds.iter().zip(1..);
    let callers: Vec<_> = callers
        .map(|(guild_fixture, seed)| {
            submit_operations(&fixture, OperationGenerator::new(guild_fixture.clone()), &KINDS, &permits, seed)
        })
        .collect();
    let done = async {
        assert!(timeout(TEST_TIMEOUT, fixture.wait_for_effects(20)).await.is_ok(), "{}", daemon.log_tail());
        permits.close();
    };
    let (accepted, ()) = tokio::join!(join_all(callers), done);
    let accepted: Vec<AcceptedOperation> = accepted.into_iter().flatten().collect();
    let outcomes = fixture.wait_for_outcomes(&accepted).await;
    check_outcomes(&fixture.sim.score(), &accepted, &outcomes).assert_ok("guild restarted");
    assert_eq!(daemon.log_lines_with("failpoint of operation_guild").len(), 1, "{}", daemon.log_tail());
    assert_eq!(daemon.exit_status(), None, "{}", daemon.log_tail());
}
