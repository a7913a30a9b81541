//! A limit that Discord reports to one process reaches the others within a second.

use std::time::Duration;

use guildhall_sim::{CloudflareForm, Fault, FaultAction, Scope};

use crate::{
    fleet::{Fleet, ROUTE, Rules},
    full_rate, secs, side_by_side,
};

/// Time limit for the others to learn of it.
const HEARD: Duration = Duration::from_secs(1);

/// The `retry_after` of Discord's responses.
const LEFT_ALONE: Duration = Duration::from_secs(4);
const LEFT_ALONE_MS: u64 = 4_000;

/// Discord gives this response to one call of one of three processes, and all of them stop.
fn all_stop(action: FaultAction, status: u16) -> Fleet {
    let fleet = Fleet::of_three(Rules::Brisk);
    let before = fleet.now();
    let fault = Fault { route: ROUTE.to_owned(), action, probability: 1.0, count: Some(1), skip: 0 };
    fleet.world.sim.add_fault(fault).unwrap();
    fleet.until("one process got the response", |fleet| {
        fleet.world.score().routes[ROUTE].statuses.get(&status) == Some(&1)
    });
    let told = fleet.now();
    fleet.until("the retry_after has passed", |fleet| fleet.now() >= told + LEFT_ALONE);
    println!("{:?} arrived before all processes knew of it", fleet.between(told, told + HEARD).by_process());
    let stopped = fleet.between(told + HEARD, before + LEFT_ALONE);
    assert_eq!(stopped.count(), 0, "{:?}", stopped.by_process());
    fleet
}

fn global_429() {
    let fleet = all_stop(FaultAction::RateLimit { scope: Scope::Global, retry_after_ms: LEFT_ALONE_MS }, 429);
    full_rate(&fleet);
    fleet.end_after(1);
}

fn ban() {
    let fleet = banned();
    fleet.until("calls arrive again", |fleet| {
        fleet.between(fleet.now().saturating_sub(secs(1)), fleet.now()).count() > 0
    });
    fleet.end_after(1);
}

fn banned() -> Fleet {
    let retry_after_ms = Some(LEFT_ALONE_MS);
    all_stop(FaultAction::Cloudflare { form: CloudflareForm::Html, retry_after_ms }, 429)
}

fn wrong_token() {
    let fleet = all_stop(FaultAction::Status { status: 401, code: 0 }, 401);
    let later = fleet.pass(secs(3));
    assert_eq!(later.count(), 0, "{:?}", later.by_process());
    fleet.end();
}

#[test]
fn a_global_429_or_a_ban_or_a_401_that_one_process_sees_stops_all_of_them_within_a_second() {
    side_by_side(&[("global 429", &global_429), ("ban", &ban), ("wrong token", &wrong_token)]);
}

#[test]
fn one_process_probes_for_the_fleet_after_a_ban() {
    let fleet = banned();
    full_rate(&fleet);
    assert_eq!(fleet.world.score().rate_limited.user, 0, "{:?}", fleet.world.score().routes);
    fleet.end_after(1);
}
