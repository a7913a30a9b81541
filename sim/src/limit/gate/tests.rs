//! Compares the gate with an oracle that knows only the table and the list of allowed requests.

use proptest::prelude::*;

use super::*;
use crate::limit::{Algorithm, Rate};

const ROUTES: [(&str, &str); 4] = [("GET", "/a/{a.id}"), ("POST", "/a/{a.id}"), ("PUT", "/b/{b.id}"), ("GET", "/free")];

/// A request: time since the one before, caller, route, top-level id, and case.
#[derive(Clone, Debug)]
struct Arrival {
    gap_us: u64,
    credential: u64,
    route: usize,
    major: &'static str,
    case: Case,
    exempt: bool,
}

/// A request that was allowed.
#[derive(Clone, Debug)]
struct Passed {
    at: At,
    arrival: Arrival,
}

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let gap = prop_oneof![3 => 0u64..300, 2 => 0u64..8_000, 1 => Just(1_000u64), 1 => 0u64..60_000];
    let case = prop_oneof![
        3 => Just(Case::Any),
        1 => Just(Case::OldMessage),
        1 => Just(Case::Message),
        1 => Just(Case::NameOrTopic)
    ];
    let major = prop_oneof![Just("1"), Just("2")];
    let one = (gap, 1u64..3, 0..ROUTES.len(), major, case, prop::bool::weighted(0.1));
    prop::collection::vec(
        one.prop_map(|(gap_us, credential, route, major, case, exempt)| Arrival {
            gap_us,
            credential,
            route,
            major,
            case,
            exempt,
        }),
        1..200,
    )
}

fn tables() -> impl Strategy<Value = LimitConfig> {
    let rate = |first, second| {
        (1u32..5, 1u64..20, prop_oneof![Just(first), Just(second)])
            .prop_map(|(limit, per_ms, algorithm)| Rate::new(limit, per_ms, algorithm))
    };
    let route = move || rate(Algorithm::Fixed, Algorithm::Leaky);
    let global = rate(Algorithm::Sliding, Algorithm::Aligned);
    // Two routes share a bucket or not; one has limits by case; the last has none.
    let parts = (global, route(), route(), route(), route(), any::<bool>());
    parts.prop_map(|(global, shared, put, old, named, is_shared)| {
        let row = |(method, path): (&str, &str), case, bucket: Option<&str>, rate: Rate| RouteLimit {
            method: method.into(),
            path: path.into(),
            case,
            bucket: bucket.map(str::to_owned),
            limit: rate.limit,
            per_ms: rate.per_ms,
            algorithm: rate.algorithm,
        };
        let bucket = is_shared.then_some("a");
        let routes = vec![
            row(ROUTES[0], Case::Any, bucket, shared),
            row(ROUTES[1], Case::Any, bucket, shared),
            row(ROUTES[2], Case::Any, None, put),
            row(ROUTES[2], Case::OldMessage, None, old),
            row(ROUTES[2], Case::NameOrTopic, None, named),
        ];
        LimitConfig { global, routes, ..LimitConfig::default() }
    })
}

/// The buckets of a call by the table: (bucket, its rate).
fn buckets(config: &LimitConfig, arrival: &Arrival) -> Vec<(String, Rate)> {
    let row = |index: usize| config.routes[index].rate();
    match (arrival.route, arrival.case) {
        (route @ (0 | 1), _) => {
            let name = if config.routes[0].bucket.is_some() { "a".to_owned() } else { format!("route {route}") };
            vec![(name, row(route))]
        }
        (2, Case::OldMessage) => vec![("old".to_owned(), row(3))],
        (2, Case::NameOrTopic) => vec![("put".to_owned(), row(2)), ("named".to_owned(), row(4))],
        (2, Case::Any | Case::Message) => vec![("put".to_owned(), row(2))],
        _ => Vec::new(),
    }
}

/// Whether a rate allows a request at `now` after those in `passed`: counted from the list, without a window.
fn has_room(rate: Rate, passed: &[At], now: At) -> bool {
    let (per, limit) = (rate.per(), rate.limit as usize);
    match rate.algorithm {
        Algorithm::Sliding => passed.iter().filter(|at| now < at.after(per)).count() < limit,
        Algorithm::Aligned => {
            let slot = |at: At| u128::from(at.micros()) / per.as_micros();
            passed.iter().filter(|at| slot(**at) == slot(now)).count() < limit
        }
        Algorithm::Fixed => {
            let mut window: &[At] = &[];
            let mut rest = passed;
            while let Some(first) = rest.first() {
                let (inside, after) = rest.split_at(rest.partition_point(|at| *at < first.after(per)));
                (window, rest) = (inside, after);
            }
            window.first().is_none_or(|first| now >= first.after(per)) || window.len() < limit
        }
        // No interval that ends now may have more than the limit plus what drained in it.
        Algorithm::Leaky => (0..passed.len()).all(|from| {
            let requests = (passed.len() - from + 1) as u128;
            let drained = now.since(passed[from]).as_micros() * u128::from(rate.limit);
            requests * per.as_micros() <= u128::from(rate.limit) * per.as_micros() + drained
        }),
    }
}

fn times(passed: &[Passed], matches: impl Fn(&Arrival) -> bool) -> Vec<At> {
    passed.iter().filter(|one| matches(&one.arrival)).map(|one| one.at).collect()
}

/// The decision of the whole table on a call, from the list of allowed requests.
fn expected_refusal(config: &LimitConfig, passed: &[Passed], arrival: &Arrival, now: At) -> Option<Scope> {
    let counted = times(passed, |other| other.credential == arrival.credential && !other.exempt);
    if !arrival.exempt && !has_room(config.global, &counted, now) {
        return Some(Scope::Global);
    }
    let full = buckets(config, arrival).into_iter().any(|(name, rate)| {
        let earlier = times(passed, |other| {
            other.credential == arrival.credential
                && other.major == arrival.major
                && buckets(config, other).iter().any(|(own, _)| *own == name)
        });
        !has_room(rate, &earlier, now)
    });
    full.then_some(Scope::User)
}

fn limit_request(arrival: &Arrival) -> LimitRequest<'_> {
    let (method, template) = ROUTES[arrival.route];
    let credential = Credential::Application(Snowflake::new(arrival.credential));
    LimitRequest { credential, method, template, major: arrival.major, case: arrival.case, exempt: arrival.exempt }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn gate_allows_exactly_what_the_table_allows(
        config in tables(),
        arrivals in arrivals(),
    ) {
        let mut gate = Gate::new(config.clone());
        // Receives only the allowed requests: if a refusal changed any state, the two would differ.
        let mut spared = Gate::new(config.clone());
        let mut passed: Vec<Passed> = Vec::new();
        let mut now = At::from_micros(1_700_000_000_000_000);
        for arrival in arrivals {
            now = now.after(Duration::from_micros(arrival.gap_us));
            let expected = expected_refusal(&config, &passed, &arrival, now);
            let ruling = gate.check(&limit_request(&arrival), now);
            prop_assert_eq!(ruling.refusal.map(|(scope, _)| scope), expected, "at {:?}: {:?}", now, arrival);
            prop_assert_eq!(ruling.bucket.is_some(), expected != Some(Scope::Global) && arrival.route != 3);
            if let Some((_, wait)) = ruling.refusal {
                let then = now.after(wait);
                let early = now.after(wait - Duration::from_micros(1));
                prop_assert_eq!(expected_refusal(&config, &passed, &arrival, early), expected, "not longer than necessary");
                prop_assert_ne!(expected_refusal(&config, &passed, &arrival, then), expected, "long enough");
            } else {
                prop_assert_eq!(spared.check(&limit_request(&arrival), now), ruling);
                passed.push(Passed { at: now, arrival });
            }
        }
    }
}

#[test]
fn sweep_removes_only_idle_windows() {
    let mut gate = Gate::new(LimitConfig::default());
    let now = At::from_micros(1_700_000_000_000_000);
    fn role(major: &str) -> LimitRequest<'_> {
        LimitRequest {
            credential: Credential::Application(Snowflake::new(1)),
            method: "POST",
            template: "/guilds/{guild.id}/roles",
            major,
            case: Case::Any,
            exempt: true,
        }
    }
    for _ in 0..250 {
        assert_eq!(gate.check(&role("first"), now).refusal, None);
    }
    for other in 0..SWEEP_AT * 2 {
        gate.check(&role(&other.to_string()), now);
    }
    assert!(matches!(gate.check(&role("first"), now).refusal, Some((Scope::User, _))));
    let later = now.after(Duration::from_secs(29 * 3_600));
    for other in 0..SWEEP_AT * 4 {
        gate.check(&role(&format!("later {other}")), later);
    }
    assert!(gate.buckets.keys().all(|key| key.major.starts_with("later")), "idle windows are removed");
}
