//! Tests a bucket against a simulated Discord that counts independently, with arbitrary latencies.

use proptest::prelude::*;

use super::*;
use crate::limit::test_server::TestBucketServer;

const AGREEMENT: Duration = Duration::from_millis(50);

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn rate(limit: u32, remaining: u32, reset_ms: u64, reset_after_ms: u64) -> RateHeaders {
    let reset_after = Duration::from_millis(reset_after_ms);
    RateHeaders { bucket: "b".into(), limit, remaining, reset_ms, reset_after }
}

#[test]
fn equal_resets_mean_fixed_and_a_moving_reset_means_leaky() {
    let mut fixed = Bucket::from_headers(&rate(5, 4, 10_000, 5_000), at(0));
    let number = fixed.take();
    fixed.on_response(Some(number), &rate(5, 3, 10_000, 4_900), AGREEMENT, at(100));
    assert_eq!(fixed.view().algorithm, "fixed");

    let mut leaky = Bucket::from_headers(&rate(5, 4, 6_000, 1_000), at(0));
    let number = leaky.take();
    leaky.on_response(Some(number), &rate(5, 3, 7_000, 1_900), AGREEMENT, at(100));
    assert_eq!(leaky.view().algorithm, "leaky");
}

#[test]
fn response_never_raises_remaining_slots_in_any_order() {
    let mut bucket = Bucket::from_headers(&rate(5, 4, 10_000, 5_000), at(0));
    let numbers: Vec<u64> = (0..4).map(|_| bucket.take()).collect();
    // The last response arrives first, then the others, each with a higher remaining count.
    bucket.on_response(Some(numbers[3]), &rate(5, 0, 10_000, 4_900), AGREEMENT, at(100));
    for (index, remaining) in [(2, 1), (1, 2), (0, 3)] {
        bucket.on_response(Some(numbers[index]), &rate(5, remaining, 10_000, 4_900), AGREEMENT, at(100));
        assert_eq!(bucket.readiness(at(110)), Readiness::At(at(5_000)));
    }
}

#[test]
fn fixed_window_returns_all_slots_at_reset_except_those_in_flight() {
    let mut bucket =
        Bucket::from_spec(BucketSpec { limit: 3, kind: BucketAlgorithm::Fixed { per: Duration::from_secs(5) } });
    let numbers: Vec<u64> = (0..3).map(|_| bucket.take()).collect();
    bucket.on_response(Some(numbers[0]), &rate(3, 2, 10_000, 5_000), AGREEMENT, at(50));
    assert_eq!(bucket.readiness(at(60)), Readiness::At(at(5_050)));
    assert_eq!(bucket.readiness(at(5_050)), Readiness::Now);
    bucket.take();
    assert_eq!(
        bucket.readiness(at(5_050)),
        Readiness::OnResponse,
        "two are still in flight, and may arrive in this window"
    );
}

#[test]
fn lost_call_counts_until_it_can_no_longer_arrive_and_a_429_closes() {
    let mut bucket = Bucket::from_headers(&rate(1, 0, 2_000, 1_000), at(0));
    assert_eq!(bucket.readiness(at(1_000)), Readiness::Now);
    bucket.take();
    bucket.mark_lost(1, at(9_000));
    assert_eq!(bucket.readiness(at(2_000)), Readiness::At(at(9_000)));
    assert_eq!(bucket.readiness(at(9_000)), Readiness::At(at(10_000)), "as if it had arrived at the last moment");
    bucket.close(at(60_000));
    assert_eq!(bucket.readiness(at(20_000)), Readiness::At(at(60_000)));
}

#[test]
fn unsent_call_returns_its_slot() {
    let mut bucket = Bucket::from_headers(&rate(2, 1, 2_000, 500), at(0));
    bucket.take();
    assert_eq!(bucket.readiness(at(10)), Readiness::At(at(500)), "one slot must drain first");
    bucket.refund(1);
    assert_eq!(bucket.readiness(at(10)), Readiness::Now);
}

/// A call: the time to the server and back, and whether its response is lost.
#[derive(Clone, Debug)]
struct Trip {
    there: u64,
    back: u64,
    lost: bool,
}

fn trips() -> impl Strategy<Value = Vec<Trip>> {
    let time = || prop_oneof![3 => 0u64..30_000, 1 => 0u64..900_000];
    let trip = (time(), time(), prop::bool::weighted(0.05)).prop_map(|(there, back, lost)| Trip { there, back, lost });
    prop::collection::vec(trip, 20..150)
}

/// Sends a call whenever the bucket permits it. Returns the number of refused and of accepted calls.
fn drive(limit: u32, per_ms: u64, leaky: bool, trips: &[Trip]) -> (u32, u32) {
    const TIMEOUT: u64 = 2_000_000;
    let mut server = TestBucketServer::new(limit, per_ms, leaky);
    let mut now = 1_000;
    // The first call is the probe that every route starts with.
    let first = server.arrive(now).expect("the bucket is empty at the first call");
    let mut bucket = Bucket::from_headers(&first, Timestamp::from_micros(now));
    let (mut refused, mut passed) = (0, 1);
    // (arrival, number, trip) and (response, number, headers)
    let mut there: Vec<(u64, u64, Trip)> = Vec::new();
    let mut back: Vec<(u64, u64, Option<RateHeaders>)> = Vec::new();
    let mut trips = trips.iter().cloned();
    let mut next = trips.next();
    while next.is_some() || !there.is_empty() || !back.is_empty() {
        let turn = bucket.readiness(Timestamp::from_micros(now));
        if turn == Readiness::Now
            && let Some(trip) = next.take()
        {
            there.push((now + trip.there, bucket.take(), trip));
            next = trips.next();
            continue;
        }
        let wake = match (turn, next.is_some()) {
            (Readiness::At(then), true) => Some(then.micros()),
            _ => None,
        };
        let arrival = there.iter().map(|(then, ..)| *then).min();
        let answer = back.iter().map(|(then, ..)| *then).min();
        now = [wake, arrival, answer].into_iter().flatten().min().expect("an event is always due").max(now);
        if let Some(index) = there.iter().position(|(then, ..)| *then <= now) {
            let (then, number, trip) = there.remove(index);
            let rate = server.arrive(then);
            refused += u32::from(rate.is_none());
            passed += u32::from(rate.is_some());
            if trip.lost {
                bucket.mark_lost(number, Timestamp::from_micros(then - trip.there + TIMEOUT));
            } else {
                back.push((then + trip.back, number, rate));
            }
        } else if let Some(index) = back.iter().position(|(then, ..)| *then <= now) {
            let (then, number, rate) = back.remove(index);
            match rate {
                Some(rate) => bucket.on_response(Some(number), &rate, AGREEMENT, Timestamp::from_micros(then)),
                None => bucket.on_response_without_headers(number, Timestamp::from_micros(then)),
            }
        }
    }
    (refused, passed)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(600), ..ProptestConfig::default() })]

    #[test]
    fn no_call_is_ever_refused_and_every_call_goes_through(
        limit in 1u32..12, per_ms in 100u64..6_000, leaky: bool, trips in trips()
    ) {
        let (refused, passed) = drive(limit, per_ms, leaky, &trips);
        prop_assert_eq!(refused, 0);
        prop_assert_eq!(passed as usize, trips.len() + 1);
    }
}
