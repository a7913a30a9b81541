//! A gate snapshot as text, including damaged text.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::breaker::{BreakerConfig, Breakers, CallInfo, CallResult};
use crate::invalid::{InvalidConfig, InvalidLedger, Submitter};
use crate::lane::Lane;
use crate::limit::{AcquireOutcome, CallerId, LimitConfig, Limiter, PermitRequest};
use crate::response::{Credential, RateHeaders, RateLimitScope, ResponseClass, ResponseInfo};
use crate::route::{Route, RouteKey, SublimitKind, TopLevelId};
use crate::time::{Timestamp, UnixMs};

const BOT: Credential = Credential::Application(7);

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn request(path: &str, sub: Option<SublimitKind>) -> PermitRequest {
    let mut route = Route::parse("POST", path, 1, 0);
    route.sub = sub;
    PermitRequest { credential: BOT, route, lane: Lane::Operation, caller: CallerId::NONE, deadline: at(100_000) }
}

fn call() -> CallInfo {
    CallInfo {
        credential: BOT,
        route: RouteKey::new("POST /guilds/{id}/roles"),
        major: TopLevelId::of(1),
        lane: Lane::Operation,
        guild: None,
        submitter: Submitter::default(),
        may_probe: false,
    }
}

struct Gate {
    limiter: Limiter,
    breakers: Breakers,
    ledger: InvalidLedger,
}

impl Gate {
    fn new() -> Self {
        Self {
            limiter: Limiter::new(LimitConfig::default(), at(0)),
            breakers: Breakers::new(BreakerConfig::default(), 1),
            ledger: InvalidLedger::new(InvalidConfig::default()),
        }
    }

    /// A gate with state of every kind.
    fn with_state() -> Self {
        let mut gate = Self::new();
        let limited = |scope| ResponseClass::RateLimited { scope, retry_after: Duration::from_secs(100) };
        let reset_after = Duration::from_secs(50);
        let rate = RateHeaders { bucket: "b".into(), limit: 5, remaining: 0, reset_ms: 60_000, reset_after };
        for (path, class, sub) in [
            ("/guilds/1/roles", ResponseClass::Success, None),
            ("/guilds/2/channels", limited(RateLimitScope::Shared), None),
            ("/channels/3", ResponseClass::Success, Some(SublimitKind::ChannelName)),
            ("/guilds/4", limited(RateLimitScope::Global), None),
        ] {
            let acquired = gate.limiter.acquire(request(path, sub), at(2_000));
            let AcquireOutcome::Granted(permit) = acquired else { panic!("{path} must wait: {acquired:?}") };
            gate.limiter.on_response(permit, &ResponseInfo { class, rate: Some(rate.clone()) }, at(2_000));
        }
        let _ = gate.breakers.restore(&Default::default(), [(BOT, "token")], age(0), at(0));
        for class in [ResponseClass::Blocked { retry_after: None }, ResponseClass::Unauthorized] {
            let pass = gate.breakers.admit(&call(), at(0)).unwrap();
            let _ = gate.breakers.report(pass, CallResult::Answered(class), Duration::ZERO, at(0));
            gate.breakers.reset(&crate::breaker::BreakerKey::Address, at(0));
        }
        for route in ["GET /a", "GET /b"] {
            let reserved = gate.ledger.admit(Lane::Operation, Some(7), &RouteKey::new(route), at(0)).unwrap();
            gate.ledger.complete(reserved, true, at(0));
        }
        gate
    }

    fn save(&self) -> GateSnapshot {
        GateSnapshot::new(
            UnixMs::new(1_700_000_000_000),
            ShutdownKind::Sudden,
            self.limiter.save(at(2_000)),
            self.breakers.save(at(2_000)),
            (self.ledger.save(at(2_000)), self.ledger.save_holders(at(2_000))),
        )
    }

    /// Restores a snapshot, then continues for a while.
    fn restore(&mut self, snapshot: &GateSnapshot, now: UnixMs) {
        let age = snapshot.age(now);
        self.limiter.restore(&snapshot.limits, age, snapshot.ending, at(0));
        let _ = self.breakers.restore(&snapshot.breakers, [(BOT, "token")], age, at(0));
        self.ledger.restore(&snapshot.invalid, 50, age, at(0));
        self.ledger.restore_holders(&snapshot.invalid_holders, 50, age, at(0));
        for ms in [0, 2_000, 60_000, 700_000] {
            self.limiter.on_time(at(ms));
            let _ = self.breakers.on_time(at(ms));
            for path in ["/guilds/1/roles", "/guilds/2/channels", "/guilds/4"] {
                let _ = self.limiter.acquire(request(path, None), at(ms));
            }
            let _ = self.limiter.acquire(request("/channels/3", Some(SublimitKind::ChannelName)), at(ms));
            let _ = self.breakers.admit(&call(), at(ms));
            let _ = self.ledger.admit(Lane::Operation, None, &RouteKey::new("GET /a"), at(ms));
        }
        let again = self.save();
        assert!(again.encode().len() <= 8 << 20);
    }
}

fn age(ms: u64) -> SnapshotAge {
    SnapshotAge::of(UnixMs::new(0), UnixMs::new(ms))
}

#[test]
fn snapshot_round_trips() {
    let saved = Gate::with_state().save();
    assert_eq!(saved.limits.closed(), 1 + 4 + 2, "{saved:?}");
    assert_eq!((saved.breakers.len(), saved.invalid.total()), (1, 2));
    assert_eq!(GateSnapshot::decode(&saved.encode()), Ok(saved));
}

#[test]
fn other_versions_long_texts_and_invalid_texts_are_rejected() {
    let text = Gate::with_state().save().encode().replacen(r#""version":1"#, r#""version":2"#, 1);
    assert_eq!(GateSnapshot::decode(&text), Err(SnapshotDecodeError::Version(2)));
    assert_eq!(
        GateSnapshot::decode(r#"{"version":9,"limits":"of another kind"}"#),
        Err(SnapshotDecodeError::Version(9))
    );
    for broken in ["", "null", "[]", "{}", r#"{"version":-1}"#, &text[..text.len() / 2]] {
        assert!(matches!(GateSnapshot::decode(broken), Err(SnapshotDecodeError::Broken(_))), "{broken}");
    }
    assert_eq!(GateSnapshot::decode(&" ".repeat(9 << 20)), Err(SnapshotDecodeError::TooLong(9 << 20)));
}

#[test]
fn elapsed_time_is_subtracted_unless_the_clock_was_set_back() {
    assert_eq!(age(600).remaining(1_000), Some(Duration::from_millis(400)));
    assert_eq!(
        (age(1_000).remaining(1_000), age(1_500).elapsed_since_end(1_000)),
        (None, Some(Duration::from_millis(500)))
    );
    let set_back = SnapshotAge::of(UnixMs::new(1_000_000), UnixMs::new(0));
    assert_eq!(set_back.remaining(1_000), Some(Duration::from_secs(1)));
    assert_eq!(set_back.remaining(u64::MAX), Some(MAX_DURATION));
}

#[test]
fn invalid_requests_count_over_a_restart_until_they_leave_the_window() {
    let config = InvalidConfig { limit: 100, ..InvalidConfig::default() };
    let mut before = InvalidLedger::new(config);
    let route = RouteKey::new("GET /a");
    for second in 0..70 {
        let reserved = before.admit(Lane::Interactive, None, &route, at(second * 1_000)).unwrap();
        before.complete(reserved, true, at(second * 1_000));
    }
    let saved = before.save(at(70_000));
    assert_eq!(saved.total(), 70);
    let mut after = InvalidLedger::new(config);
    after.restore(&saved, 10, age(10_000), at(0));
    assert_eq!(after.used(at(0)), 80);
    let spent = after.admit(Lane::Operation, None, &route, at(0)).unwrap_err();
    assert!(spent.until > at(500_000) && spent.until <= at(530_000), "{spent:?}");
    assert!(after.admit(Lane::Operation, None, &route, spent.until).is_ok());
    assert!(after.admit(Lane::Interactive, None, &route, at(0)).is_ok());
    assert_eq!(after.used(at(611_000)), 0);
}

#[test]
fn repeatedly_restarted_process_stops_before_the_limit() {
    let config = InvalidConfig { limit: 1_000, ..InvalidConfig::default() };
    let route = RouteKey::new("GET /a");
    let (mut saved, mut sent) = (None, 0);
    // Each run makes fifty invalid calls, and dies when it has saved only the first.
    for _ in 0..100 {
        let mut ledger = InvalidLedger::new(config);
        if let Some(saved) = &saved {
            ledger.restore(saved, 50, age(2_000), at(0));
        }
        for number in 0..50 {
            if let Ok(reserved) = ledger.admit(Lane::Interactive, None, &route, at(0)) {
                ledger.complete(reserved, true, at(0));
                sent += 1;
            }
            if number == 0 {
                saved = Some(ledger.save(at(0)));
            }
        }
    }
    assert!((900..=1_000).contains(&sent), "{sent}");
}

/// Numbers that are likely to be limits of a type.
fn numbers() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<u64>().prop_map(|number| number.to_string()),
        any::<u8>().prop_map(|number| number.to_string()),
        Just("18446744073709551615".to_owned()),
        Just("4294967295".to_owned()),
        Just("-1".to_owned()),
        Just("1e300".to_owned()),
        Just("null".to_owned()),
    ]
}

proptest! {
    #[test]
    fn invalid_numbers_break_nothing(
        swaps in prop::collection::vec((any::<prop::sample::Index>(), numbers()), 1..6),
        now in any::<u64>(),
    ) {
        let text = Gate::with_state().save().encode();
        // Every number of the text, and the text between them.
        let mut parts: Vec<String> = vec![String::new()];
        for letter in text.chars() {
            let is_digit = letter.is_ascii_digit();
            let last = parts.last_mut().unwrap();
            let follows = last.chars().next().is_none_or(|first| first.is_ascii_digit() == is_digit);
            if follows { last.push(letter) } else { parts.push(letter.to_string()) }
        }
        let mut places: Vec<usize> =
            (0..parts.len()).filter(|at| parts[*at].starts_with(|first: char| first.is_ascii_digit())).collect();
        // The first is the version.
        places.remove(0);
        for (index, number) in swaps {
            parts[*index.get(&places)] = number;
        }
        if let Ok(saved) = GateSnapshot::decode(&parts.concat()) {
            Gate::new().restore(&saved, UnixMs::new(now));
        }
    }

    #[test]
    fn damaged_text_breaks_nothing(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..8),
    ) {
        let mut text = Gate::with_state().save().encode().into_bytes();
        for (index, byte, how) in damage {
            let at = index.index(text.len());
            match how {
                0 => text[at] = byte,
                1 => text.insert(at, byte),
                _ => { text.remove(at); }
            }
        }
        if let Ok(saved) = GateSnapshot::decode(&String::from_utf8_lossy(&text)) {
            Gate::new().restore(&saved, UnixMs::new(1_700_000_000_000));
        }
    }
}
