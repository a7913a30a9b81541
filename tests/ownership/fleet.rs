//! Shared steps: daemons on one store, operations for all of them, and the check.

use std::{env, future::Future, net::SocketAddr, time::Duration};

use futures_util::future::join_all;
use guildhall_sim::{Fault, FaultAction, Stage as On};
use http::Method;
use serde_json::Value;
use tokio::{
    sync::Semaphore,
    time::{sleep, timeout},
};

use crate::{
    asker::{Asker, asks},
    caller::{Accepted, STUCK},
    errand::Sort,
    judge::{Finding, judge},
    life::Life,
    stage::{Furniture, Stage},
};

/// Interval between two checks of an awaited state.
const LOOK: Duration = Duration::from_millis(20);

/// Duration of a lease in tests in which one expires.
pub(crate) const LEASE: Duration = Duration::from_millis(3_000);

/// Leases that expire within a test, and calls to the store that time out within one.
///
/// The request timeout is longer than elsewhere: a call that outlives it shows as two concurrent calls in a guild, and
/// three daemons, PostgreSQL and the simulator may share a busy machine.
pub(crate) const BRISK: [(&str, &str); 5] = [
    ("GUILDHALL__REST__REQUEST_TIMEOUT_MS", "1500"),
    ("GUILDHALL__OPERATIONS__LEASE_MS", "3000"),
    ("GUILDHALL__OPERATIONS__HEARTBEAT_MS", "750"),
    ("GUILDHALL__OPERATIONS__LEASE_MARGIN_MS", "600"),
    ("GUILDHALL__STORE__TIMEOUT_MS", "1500"),
];

/// Operations whose duplicate or concurrent execution would show, and that finish by themselves.
pub(crate) const SORTS: [Sort; 9] = [
    Sort::CreateRole,
    Sort::SendMessage,
    Sort::AssignRole,
    Sort::CreateChannel,
    Sort::AssignByKey,
    Sort::UpdatePermissions,
    Sort::EnsureMessage,
    Sort::EnsureRole,
    Sort::SendDm,
];

/// A number from an environment variable.
pub(crate) fn set(name: &str, default: u32) -> u32 {
    env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Number of daemons, three by default.
pub(crate) fn processes() -> usize {
    set("OWNERSHIP_PROCESSES", 3) as usize
}

pub(crate) fn room(guilds: u32) -> Furniture {
    Furniture { guilds, roles: 2, doomed: 0, permissions: None }
}

/// Delays every call before or after its effect, so that events hit some calls in flight.
pub(crate) fn slow_down(stage: &Stage, at: On, fixed_ms: u64, jitter_ms: u64) {
    let action = FaultAction::Latency { fixed_ms, jitter_ms, at };
    stage.sim.add_fault(Fault { route: "*".to_owned(), action, probability: 1.0, count: None, skip: 0 }).unwrap();
}

/// Starts all daemons, and waits until they listen.
pub(crate) async fn begin_all(stage: &Stage, environment: &[(&str, &str)]) -> Vec<Life> {
    let lives: Vec<Life> = (0..processes()).map(|_| stage.begin_with(environment)).collect();
    join_all(lives.iter().map(listens)).await;
    lives
}

/// Waits until a daemon listens. Returns its address.
pub(crate) async fn listens(life: &Life) -> SocketAddr {
    let heard = timeout(STUCK, life.listens()).await;
    heard.ok().flatten().unwrap_or_else(|| panic!("it did not start\n{}", life.last_words()))
}

/// Submits operations in all guilds concurrently, in each guild one after the other, as long as there are permits.
/// Returns the accepted operations, grouped by guild, in order.
pub(crate) async fn ask_everywhere(stage: &Stage, permits: &Semaphore, seed: u64) -> Vec<Accepted> {
    let asked = stage.places.iter().zip(0..).map(|(place, nth)| {
        let seed = seed.wrapping_mul(1_000_003).wrapping_add(nth);
        asks(stage, Asker::new(place.clone()), &SORTS, permits, seed)
    });
    join_all(asked).await.into_iter().flatten().collect()
}

/// Waits until all accepted operations are finished, and checks them.
pub(crate) async fn verdict(stage: &Stage, accepted: &[Accepted], lives: &mut [Life]) -> Finding {
    let became = stage.all_became(accepted).await;
    stage.at_rest().await;
    let mut finding = judge(&stage.sim.score(), accepted, &became);
    for life in lives.iter_mut() {
        if let Some(status) = life.ended() {
            finding.wrong.push(format!("a daemon exited by itself: {status}"));
        }
    }
    if !finding.wrong.is_empty() {
        for life in lives {
            eprintln!("--- log of a daemon:\n{}", life.last_words());
        }
    }
    finding
}

/// The instances that a daemon reports.
pub(crate) async fn instances(stage: &Stage, at: SocketAddr) -> Option<Vec<Value>> {
    let told = stage.ask_at(at, Method::GET, "/v1/instances", None, None).await;
    let (200, mut told) = told.ok()? else { return None };
    told["instances"].as_array_mut().map(std::mem::take)
}

/// Number of queues that a daemon reports as its own; `None` if it does not respond.
pub(crate) async fn own_queues(stage: &Stage, at: SocketAddr) -> Option<u64> {
    let all = instances(stage, at).await?;
    all.iter().find(|instance| instance["is_self"] == true)?["queues"].as_u64()
}

/// Waits for a condition that is certain to become true.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let waits = async {
        while !holds().await {
            sleep(LOOK).await;
        }
    };
    assert!(timeout(STUCK, waits).await.is_ok(), "timed out: {what}");
}
