use std::sync::atomic::{AtomicI64, AtomicU64};

use super::*;

const ORIGIN: u64 = 1_700_000_000_000;
const MINUTE: i64 = 60_000;

/// Clocks that a test controls. Discord's shows [`ORIGIN`] when the monotonic clock shows 0.
#[derive(Default)]
struct TestClock {
    ms: AtomicU64,
    wall_ahead: AtomicI64,
}

impl TimeSource for Arc<TestClock> {
    fn monotonic(&self) -> Timestamp {
        Timestamp::from_millis(self.ms.load(Ordering::SeqCst))
    }

    fn wall(&self) -> UnixMs {
        let ahead = self.wall_ahead.load(Ordering::SeqCst);
        UnixMs::new((ORIGIN + self.ms.load(Ordering::SeqCst)).saturating_add_signed(ahead))
    }

    fn boot(&self) -> Option<String> {
        Some("boot".to_owned())
    }
}

impl TestClock {
    fn at(ms: u64, wall_ahead: i64) -> Arc<Self> {
        Arc::new(Self { ms: AtomicU64::new(ms), wall_ahead: AtomicI64::new(wall_ahead) })
    }

    fn discord(&self) -> UnixMs {
        UnixMs::new(ORIGIN + self.ms.load(Ordering::SeqCst))
    }
}

fn machine(clock: &Arc<TestClock>) -> Clocks {
    Clocks::of_machine(Arc::new(Arc::clone(clock)), Duration::from_secs(7 * 86_400))
}

/// Observes `count` responses of Discord, one second apart.
fn observe_responses(clocks: &Clocks, clock: &TestClock, count: usize) {
    for _ in 0..count {
        let sent = clocks.monotonic();
        clock.ms.fetch_add(1_000, Ordering::SeqCst);
        let whole = clock.discord().millis() / 1_000 * 1_000;
        clocks.observe_discord(UnixMs::new(whole), sent, clocks.monotonic());
    }
}

#[test]
fn intents_are_searched_by_discord_time() {
    let clock = TestClock::at(5_000, 10 * MINUTE);
    let clocks = machine(&clock);
    let (intent, really) = (clocks.now(), clock.discord());
    assert_eq!(intent.since(really), Duration::from_millis(600_000));
    assert!(clocks.discord_time_of(intent) <= really, "a clock that was never compared may be minutes ahead");
    observe_responses(&clocks, &clock, 1);
    assert!(clocks.discord_time_of(intent) <= really);
    observe_responses(&clocks, &clock, 5);
    assert!(clocks.discord_time_of(intent) <= really, "includes times written before the clock was corrected");
    assert!(really.since(clocks.discord_time_of(intent)) < Duration::from_secs(10), "not much earlier than needed");
    assert!(clocks.now().since(clock.discord()) < Duration::from_secs(5), "store time now follows Discord's clock");
}

#[test]
fn clock_lead_survives_a_restart() {
    let clock = TestClock::at(5_000, 10 * MINUTE);
    let clocks = machine(&clock);
    let (intent, really) = (clocks.now(), clock.discord());
    observe_responses(&clocks, &clock, 3);
    let record = serde_json::to_string(&clocks.record(&ClockRecord::default())).unwrap();

    // The clock is correct by now, and nothing shows that it was wrong.
    clock.wall_ahead.store(0, Ordering::SeqCst);
    clock.ms.fetch_add(3_600_000, Ordering::SeqCst);
    let next = machine(&clock);
    next.resume(serde_json::from_str(&record).unwrap());
    observe_responses(&next, &clock, 3);
    assert!(next.discord_time_of(intent) <= really);

    let without_record = machine(&clock);
    observe_responses(&without_record, &clock, 3);
    assert!(without_record.discord_time_of(intent) > really, "without the record it would be missed");
}

#[test]
fn a_database_ahead_of_discord_widens_the_search() {
    let clock = TestClock::at(5_000, 0);
    let source: Arc<dyn TimeSource> = Arc::new(Arc::clone(&clock));
    let reading = |clock: &TestClock| clock.discord() + Duration::from_secs(600);
    let sent = Timestamp::from_millis(5_000);
    let clocks = Clocks::of_database(source, Duration::from_secs(86_400), reading(&clock), sent);
    let (intent, really) = (clocks.now(), clock.discord());
    observe_responses(&clocks, &clock, 3);
    clocks.observe_database(reading(&clock), clocks.monotonic());
    assert_eq!(
        clocks.now().since(clock.discord()),
        Duration::from_secs(600),
        "the database's clock applies to all \
        processes"
    );
    assert!(clocks.discord_time_of(intent) <= really);
}

#[test]
fn one_response_confirms_but_does_not_correct() {
    let clock = TestClock::at(5_000, 0);
    let clocks = machine(&clock);
    observe_responses(&clocks, &clock, 1);
    clock.wall_ahead.store(24 * 60 * MINUTE, Ordering::SeqCst);
    clock.ms.fetch_add(1_000, Ordering::SeqCst);
    assert!(clocks.now().since(clock.discord()) < Duration::from_secs(5), "Discord's clock contradicts the new time");

    let skewed = TestClock::at(5_000, 10 * MINUTE);
    let clocks = machine(&skewed);
    observe_responses(&clocks, &skewed, 1);
    assert_eq!(clocks.now().since(skewed.discord()), Duration::from_secs(600), "one response may be an outlier");
}

#[test]
fn a_clock_behind_discords_does_not_narrow_the_search() {
    let clock = TestClock::at(5_000, -MINUTE);
    let clocks = machine(&clock);
    let intent = clocks.now();
    observe_responses(&clocks, &clock, 3);
    assert!(clocks.discord_time_of(intent) <= intent);
}
