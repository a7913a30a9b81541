//! What all of these tests do: daemons on one store, work for all of them, and the verdict.

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

/// Between two looks at something that is waited for.
const LOOK: Duration = Duration::from_millis(20);

/// How long a lease lasts where one is to end within a test.
pub(crate) const LEASE: Duration = Duration::from_millis(3_000);

/// Leases that end within a test, and calls to the store that are given up within one.
///
/// A call may take longer than elsewhere: what outlives its time shows as two calls at once in a guild, and three daemons, their
/// PostgreSQL and the simulator may have to share a busy machine.
pub(crate) const BRISK: [(&str, &str); 5] = [
    ("GUILDHALL__REST__REQUEST_TIMEOUT_MS", "1500"),
    ("GUILDHALL__OPERATIONS__LEASE_MS", "3000"),
    ("GUILDHALL__OPERATIONS__HEARTBEAT_MS", "750"),
    ("GUILDHALL__OPERATIONS__LEASE_MARGIN_MS", "600"),
    ("GUILDHALL__STORE__TIMEOUT_MS", "1500"),
];

/// What is asked for: what would show if it were done twice, or by two at once, and what ends by itself.
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

/// A number that whoever runs the tests may set.
pub(crate) fn set(name: &str, default: u32) -> u32 {
    env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// How many daemons there are: three, unless it was said otherwise.
pub(crate) fn processes() -> usize {
    set("OWNERSHIP_PROCESSES", 3) as usize
}

pub(crate) fn room(guilds: u32) -> Furniture {
    Furniture { guilds, roles: 2, doomed: 0, permissions: None }
}

/// Every call takes its time, before its effect or after it, so that whatever happens meets some on their way.
pub(crate) fn slow_down(stage: &Stage, at: On, fixed_ms: u64, jitter_ms: u64) {
    let action = FaultAction::Latency { fixed_ms, jitter_ms, at };
    stage.sim.add_fault(Fault { route: "*".to_owned(), action, probability: 1.0, count: None, skip: 0 }).unwrap();
}

/// Begins as many lives as there should be, and waits until all of them listen.
pub(crate) async fn begin_all(stage: &Stage, environment: &[(&str, &str)]) -> Vec<Life> {
    let lives: Vec<Life> = (0..processes()).map(|_| stage.begin_with(environment)).collect();
    join_all(lives.iter().map(listens)).await;
    lives
}

/// Waits until a life listens; where.
pub(crate) async fn listens(life: &Life) -> SocketAddr {
    let heard = timeout(STUCK, life.listens()).await;
    heard.ok().flatten().unwrap_or_else(|| panic!("it does not start\n{}", life.last_words()))
}

/// Asks for things in all guilds at once, in each one after the other, until nothing more is permitted. What was accepted,
/// guild by guild in its order.
pub(crate) async fn ask_everywhere(stage: &Stage, permits: &Semaphore, seed: u64) -> Vec<Accepted> {
    let asked = stage.places.iter().zip(0..).map(|(place, nth)| {
        let seed = seed.wrapping_mul(1_000_003).wrapping_add(nth);
        asks(stage, Asker::new(place.clone()), &SORTS, permits, seed)
    });
    join_all(asked).await.into_iter().flatten().collect()
}

/// Waits for the end of everything that was accepted, and judges.
pub(crate) async fn verdict(stage: &Stage, accepted: &[Accepted], lives: &mut [Life]) -> Finding {
    let became = stage.all_became(accepted).await;
    stage.at_rest().await;
    let mut finding = judge(&stage.sim.score(), accepted, &became);
    for life in lives.iter_mut() {
        if let Some(status) = life.ended() {
            finding.wrong.push(format!("a daemon has ended by itself: {status}"));
        }
    }
    if !finding.wrong.is_empty() {
        for life in lives {
            eprintln!("--- one of them:\n{}", life.last_words());
        }
    }
    finding
}

/// What a daemon says of all that share the work.
pub(crate) async fn instances(stage: &Stage, at: SocketAddr) -> Option<Vec<Value>> {
    let told = stage.ask_at(at, Method::GET, "/v1/instances", None, None).await;
    let (200, mut told) = told.ok()? else { return None };
    told["instances"].as_array_mut().map(std::mem::take)
}

/// How many queues a daemon says are its own; nothing if it does not answer.
pub(crate) async fn own_queues(stage: &Stage, at: SocketAddr) -> Option<u64> {
    let all = instances(stage, at).await?;
    all.iter().find(|instance| instance["is_self"] == true)?["queues"].as_u64()
}

/// Waits for something that is certain to come.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let waits = async {
        while !holds().await {
            sleep(LOOK).await;
        }
    };
    assert!(timeout(STUCK, waits).await.is_ok(), "never: {what}");
}
