//! A limit that Discord reports to one process reaches the others within a second.

use std::time::Duration;

use guildhall_sim::{CloudflareForm, Fault, FaultAction, Scope};

use super::{
    fleet::{FleetTiming, ProcessFleet, ROUTE},
    run_concurrently, secs, wait_for_full_rate,
};

/// Time limit for the others to learn of it.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(1);

/// The `retry_after` of Discord's responses.
const RETRY_AFTER: Duration = Duration::from_secs(4);
const RETRY_AFTER_MS: u64 = 4_000;

/// Discord gives this response to one call of one of three processes, and all of them stop.
fn stop_all(action: FaultAction, status: u16) -> ProcessFleet {
    let fleet = ProcessFleet::with_three_processes(FleetTiming::Fast);
    let before = fleet.now();
    let fault = Fault { route: ROUTE.to_owned(), action, probability: 1.0, count: Some(1), skip: 0 };
    fleet.world.sim.add_fault(fault).unwrap();
    fleet.wait_until("one process got the response", |fleet| {
        fleet.world.score().routes[ROUTE].statuses.get(&status) == Some(&1)
    });
    let responded = fleet.now();
    fleet.wait_until("the retry_after has passed", |fleet| fleet.now() >= responded + RETRY_AFTER);
    println!(
        "{:?} arrived before all processes knew of it",
        fleet.arrivals_between(responded, responded + NOTIFY_TIMEOUT).by_process()
    );
    let stopped = fleet.arrivals_between(responded + NOTIFY_TIMEOUT, before + RETRY_AFTER);
    assert_eq!(stopped.count(), 0, "{:?}", stopped.by_process());
    fleet
}

fn global_429() {
    let fleet = stop_all(FaultAction::RateLimit { scope: Scope::Global, retry_after_ms: RETRY_AFTER_MS }, 429);
    wait_for_full_rate(&fleet);
    fleet.stop_and_check_429s(1);
}

fn ban() {
    let fleet = banned_fleet();
    fleet.wait_until("calls arrive again", |fleet| {
        fleet.arrivals_between(fleet.now().saturating_sub(secs(1)), fleet.now()).count() > 0
    });
    fleet.stop_and_check_429s(1);
}

fn banned_fleet() -> ProcessFleet {
    let retry_after_ms = Some(RETRY_AFTER_MS);
    stop_all(FaultAction::Cloudflare { form: CloudflareForm::Html, retry_after_ms }, 429)
}

fn rejected_token() {
    let fleet = stop_all(FaultAction::Status { status: 401, code: 0 }, 401);
    let later = fleet.observe_for(secs(3));
    assert_eq!(later.count(), 0, "{:?}", later.by_process());
    fleet.stop_and_check();
}

#[test]
fn one_global_429_ban_or_401_stops_all_processes_within_a_second() {
    run_concurrently(&[("global 429", &global_429), ("ban", &ban), ("wrong token", &rejected_token)]);
}

#[test]
fn one_process_probes_for_the_fleet_after_a_ban() {
    let fleet = banned_fleet();
    wait_for_full_rate(&fleet);
    assert_eq!(fleet.world.score().rate_limited.user, 0, "{:?}", fleet.world.score().routes);
    fleet.stop_and_check_429s(1);
}
