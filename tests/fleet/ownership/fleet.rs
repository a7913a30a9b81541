//! Shared steps: daemons on one store, operations for all of them, and the check.

use std::{env, future::Future, net::SocketAddr, time::Duration};

use futures_util::future::join_all;
use guildhall_sim::{Fault, FaultAction, Stage as On};
use guildhall_testkit::crash::{
    checker::{CheckReport, check_outcomes},
    client::{AcceptedOperation, TEST_TIMEOUT},
    daemon_process::DaemonProcess,
    fixture::{DaemonFixture, FixtureSize},
    generator::{OperationGenerator, submit_operations},
    test_operation::TestKind,
};
use http::Method;
use serde_json::Value;
use tokio::{
    sync::Semaphore,
    time::{sleep, timeout},
};

/// Interval between two checks of an awaited state.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Duration of a lease in tests in which one expires.
pub(crate) const LEASE: Duration = Duration::from_millis(3_000);

/// Leases that expire within a test, and calls to the store that time out within one.
///
/// The request timeout is longer than elsewhere: a call that outlives it shows as two concurrent calls in a guild, and
/// three daemons, PostgreSQL and the simulator may share a busy machine.
pub(crate) const SHORT_LEASE: [(&str, &str); 5] = [
    ("GUILDHALL__REST__REQUEST_TIMEOUT_MS", "1500"),
    ("GUILDHALL__OPERATIONS__LEASE_MS", "3000"),
    ("GUILDHALL__OPERATIONS__HEARTBEAT_MS", "750"),
    ("GUILDHALL__OPERATIONS__LEASE_MARGIN_MS", "600"),
    ("GUILDHALL__STORE__TIMEOUT_MS", "1500"),
];

/// Operations whose duplicate or concurrent execution would show, and that finish by themselves.
pub(crate) const KINDS: [TestKind; 9] = [
    TestKind::CreateRole,
    TestKind::SendMessage,
    TestKind::AssignRole,
    TestKind::CreateChannel,
    TestKind::AssignByKey,
    TestKind::UpdatePermissions,
    TestKind::EnsureMessage,
    TestKind::EnsureRole,
    TestKind::SendDm,
];

/// A number from an environment variable.
pub(crate) fn env_number(name: &str, default: u32) -> u32 {
    env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Number of daemons, three by default.
pub(crate) fn processes() -> usize {
    env_number("OWNERSHIP_PROCESSES", 3) as usize
}

pub(crate) fn fixture_size(guilds: u32) -> FixtureSize {
    FixtureSize { guilds, roles: 2, to_delete: 0, permissions: None }
}

/// Delays every call before or after its effect, so that events hit some calls in flight.
pub(crate) fn slow_down(fixture: &DaemonFixture, at: On, fixed_ms: u64, jitter_ms: u64) {
    let action = FaultAction::Latency { fixed_ms, jitter_ms, at };
    fixture.sim.add_fault(Fault { route: "*".to_owned(), action, probability: 1.0, count: None, skip: 0 }).unwrap();
}

/// Starts all daemons, and waits until they listen.
pub(crate) async fn start_daemons(fixture: &DaemonFixture, environment: &[(&str, &str)]) -> Vec<DaemonProcess> {
    let daemons: Vec<DaemonProcess> = (0..processes()).map(|_| fixture.start_daemon_with(environment)).collect();
    join_all(daemons.iter().map(wait_until_listening)).await;
    daemons
}

/// Waits until a daemon listens. Returns its address.
pub(crate) async fn wait_until_listening(daemon: &DaemonProcess) -> SocketAddr {
    let address = timeout(TEST_TIMEOUT, daemon.wait_until_listening()).await;
    address.ok().flatten().unwrap_or_else(|| panic!("it did not start\n{}", daemon.log_tail()))
}

/// Submits operations in all guilds concurrently, in each guild one after the other, as long as there are permits.
/// Returns the accepted operations, grouped by guild, in order.
pub(crate) async fn submit_in_all_guilds(
    fixture: &DaemonFixture,
    permits: &Semaphore,
    seed: u64,
) -> Vec<AcceptedOperation> {
    let submissions = fixture.guilds.iter().zip(0..).map(|(guild_fixture, nth)| {
        let seed = seed.wrapping_mul(1_000_003).wrapping_add(nth);
        submit_operations(fixture, OperationGenerator::new(guild_fixture.clone()), &KINDS, permits, seed)
    });
    join_all(submissions).await.into_iter().flatten().collect()
}

/// Waits until all accepted operations are finished, and checks them.
pub(crate) async fn check_all(
    fixture: &DaemonFixture,
    accepted: &[AcceptedOperation],
    daemons: &mut [DaemonProcess],
) -> CheckReport {
    let outcomes = fixture.wait_for_outcomes(accepted).await;
    fixture.wait_until_idle().await;
    let mut report = check_outcomes(&fixture.sim.score(), accepted, &outcomes);
    for daemon in daemons.iter_mut() {
        if let Some(status) = daemon.exit_status() {
            report.violations.push(format!("a daemon exited by itself: {status}"));
        }
    }
    if !report.violations.is_empty() {
        for daemon in daemons {
            eprintln!("--- log of a daemon:\n{}", daemon.log_tail());
        }
    }
    report
}

/// The instances that a daemon reports.
pub(crate) async fn instances(fixture: &DaemonFixture, at: SocketAddr) -> Option<Vec<Value>> {
    let response = fixture.request_at(at, Method::GET, "/v1/instances", None, None).await;
    let (200, mut response) = response.ok()? else { return None };
    response["instances"].as_array_mut().map(std::mem::take)
}

/// Number of queues that a daemon reports as its own; `None` if it does not respond.
pub(crate) async fn own_queues(fixture: &DaemonFixture, at: SocketAddr) -> Option<u64> {
    let all = instances(fixture, at).await?;
    all.iter().find(|instance| instance["is_self"] == true)?["queues"].as_u64()
}

/// Waits for a condition that is certain to become true.
pub(crate) async fn wait_until<F: Future<Output = bool>>(description: &str, mut condition: impl FnMut() -> F) {
    let waiting = async {
        while !condition().await {
            sleep(POLL_INTERVAL).await;
        }
    };
    assert!(timeout(TEST_TIMEOUT, waiting).await.is_ok(), "timed out: {description}");
}
