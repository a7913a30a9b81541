use proptest::prelude::*;

use super::*;

const MAX_RETENTION: Duration = Duration::from_secs(7 * 24 * 3_600);
const KEY_TTL: Duration = Duration::from_secs(24 * 3_600);
/// True time at the origin of the monotonic clock.
const ORIGIN: i64 = 1_700_000_000_000;
const HOUR: u64 = 3_600_000;
const DAY: u64 = 24 * HOUR;

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

/// A reading of a wall clock that is wrong by `error`.
fn wall(error: i64) -> Offset {
    Offset { low: ORIGIN + error, high: ORIGIN + error }
}

/// The offset of Discord's clock, which is right.
const DISCORD: Offset = Offset { low: ORIGIN - 600, high: ORIGIN + 700 };

fn machine(error: i64) -> StoreTime {
    StoreTime::start(Authority::Machine, MAX_RETENTION, wall(error), at(0))
}

fn error(time: &StoreTime) -> i64 {
    time.offset() - ORIGIN
}

#[test]
fn a_wrong_step_forward_of_the_wall_clock_is_not_followed() {
    let mut time = machine(0);
    assert_eq!(time.on_reading(wall(0), at(1_000), Some(DISCORD)), None);
    assert_eq!(time.on_reading(wall(DAY.cast_signed()), at(2_000), Some(DISCORD)), None, "Discord's clock decides");
    assert!(error(&time).abs() < 1_000, "{}", error(&time));
    assert_eq!(time.expiry_lag(at(2_000)), Duration::ZERO);

    let mut alone = machine(0);
    let step = alone.on_reading(wall(DAY.cast_signed()), at(2_000), None);
    assert_eq!(step, Some(ClockStep::Unconfirmed(DAY.cast_signed())));
    assert_eq!(alone.on_reading(wall(DAY.cast_signed()), at(3_000), None), None, "once");
    assert_eq!(alone.now(at(3_000)), UnixMs::new(ORIGIN.unsigned_abs() + 3_000));
    assert_eq!(alone.on_reading(wall(0), at(4_000), None), None);
    assert_eq!(error(&alone), 0);
}

#[test]
fn a_step_forward_that_is_right_is_followed_and_delays_expiry() {
    let behind = -HOUR.cast_signed();
    let mut time = machine(behind);
    assert_eq!(time.on_reading(wall(behind), at(1_000), None), None);
    assert_eq!(time.on_reading(wall(0), at(2_000), None), Some(ClockStep::Unconfirmed(HOUR.cast_signed())));
    assert_eq!(time.on_reading(wall(0), at(3_000), Some(DISCORD)), Some(ClockStep::Forward(HOUR)));
    assert_eq!(error(&time), 0);
    assert_eq!(time.expiry_lag(at(3_000)), Duration::from_millis(HOUR));
    assert_eq!(time.expiry_lag(at(3_000 + 7 * DAY)), Duration::ZERO, "records written before have expired by then");
}

#[test]
fn a_small_step_back_is_followed_slowly_and_a_large_one_at_once() {
    let mut time = machine(60_000);
    // At the start nothing waits for the wrong time yet.
    assert_eq!(time.on_reading(wall(60_000), at(1_000), Some(DISCORD)), Some(ClockStep::Backward(59_950)));
    assert_eq!(error(&time), 50);
    let mut time = machine(0);
    time.on_reading(wall(0), at(1_000), Some(DISCORD));
    let ahead = Offset { low: ORIGIN - 60_600, high: ORIGIN - 59_300 };
    assert_eq!(time.on_reading(wall(-60_000), at(2_000), Some(ahead)), Some(ClockStep::Backward(60_000)));
    let mut last = time.now(at(2_000));
    for second in 3..200 {
        assert_eq!(time.on_reading(wall(-60_000), at(second * 1_000), Some(ahead)), None, "reported once");
        let now = time.now(at(second * 1_000));
        assert!(now >= last);
        last = now;
    }
    assert!(error(&time) <= -55_000, "{}", error(&time));
    let day = Offset { low: DISCORD.low - DAY.cast_signed(), high: DISCORD.high - DAY.cast_signed() };
    let step = time.on_reading(wall(-DAY.cast_signed()), at(300_000), Some(day));
    assert!(matches!(step, Some(ClockStep::Backward(_))), "{step:?}");
    assert_eq!(error(&time), -DAY.cast_signed());
}

#[test]
fn the_databases_clock_is_followed_and_its_steps_delay_expiry() {
    let mut time = StoreTime::start(Authority::Database, MAX_RETENTION, wall(0), at(0));
    let reading = |error: i64| Offset { low: ORIGIN + error - 3, high: ORIGIN + error + 3 };
    assert_eq!(time.on_reading(reading(10), at(5_000), None), None);
    assert_eq!(error(&time), 0, "within the uncertainty of the measurement");
    assert_eq!(time.on_reading(reading(HOUR.cast_signed()), at(10_000), None), Some(ClockStep::Forward(HOUR - 3)));
    assert_eq!(time.expiry_lag(at(10_000)), Duration::from_millis(HOUR - 3));
    assert_eq!(time.on_reading(reading(0), at(15_000), None), Some(ClockStep::Backward(HOUR - 6)));
    assert!(error(&time).abs() <= 3);
    assert!(time.expiry_lag(at(15_000)) < Duration::from_millis(10));
}

#[test]
fn a_jump_while_no_process_ran_is_seen_by_the_monotonic_clock() {
    let saved = machine(0).save("boot", at(10_000));
    let mut next = StoreTime::start(Authority::Machine, MAX_RETENTION, wall(DAY.cast_signed()), at(20_000));
    next.resume(saved.clone(), "boot", at(20_000));
    assert_eq!(error(&next), 0);
    assert_eq!(next.expiry_lag(at(20_000)), Duration::ZERO);
    let step = next.on_reading(wall(DAY.cast_signed()), at(21_000), None);
    assert_eq!(step, Some(ClockStep::Unconfirmed(DAY.cast_signed())));

    // After a reboot, a wrong clock cannot be distinguished from a day without power until Discord responds.
    let mut other = StoreTime::start(Authority::Machine, MAX_RETENTION, wall(DAY.cast_signed()), at(500));
    other.resume(saved.clone(), "another", at(500));
    assert_eq!(error(&other), DAY.cast_signed());
    let expiry = other.now(at(600)).before(other.expiry_lag(at(600)));
    assert_eq!(expiry, saved.now + Duration::from_millis(100), "as if no time had passed");
    let really = Offset { low: DISCORD.low + DAY.cast_signed(), high: DISCORD.high + DAY.cast_signed() };
    assert_eq!(other.on_reading(wall(DAY.cast_signed()), at(1_000), Some(really)), None);
    assert_eq!(other.expiry_lag(at(1_000)), Duration::ZERO, "a day without power");

    let mut lost = StoreTime::start(Authority::Machine, MAX_RETENTION, wall(-ORIGIN), at(500));
    lost.resume(saved.clone(), "another", at(500));
    assert_eq!(lost.now(at(500)), saved.now, "a machine that has lost its clock");
}

/// An event between two checks.
#[derive(Clone, Debug)]
enum Event {
    Pass(u64),
    SetWall(i64),
    DiscordKnown,
    Write,
    Restart { reboot: bool },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let steps =
        prop_oneof![Just(0), Just(DAY.cast_signed()), -3 * DAY.cast_signed()..3 * DAY.cast_signed(), -9_000..9_000_i64];
    let event = prop_oneof![
        4 => (1..8 * HOUR).prop_map(Event::Pass),
        2 => steps.prop_map(Event::SetWall),
        2 => Just(Event::DiscordKnown),
        4 => Just(Event::Write),
        1 => any::<bool>().prop_map(|reboot| Event::Restart { reboot }),
    ];
    proptest::collection::vec(event, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Regardless of the wall clock, a key that is written for a day exists for a day. While the wall clock is within
    /// the tolerance, drift included, it is considered right.
    #[test]
    fn nothing_expires_early(events in events()) {
        let (mut mono, mut boots, mut error) = (0_u64, 0_u32, 0_i64);
        // True time at the origin of the monotonic clock.
        let mut base = ORIGIN;
        let mut discord_known = false;
        let reading = |base: i64, error: i64| Offset { low: base + error, high: base + error };
        let discord = |base: i64, known: bool| known.then_some(Offset { low: base - 600, high: base + 700 });
        let mut time = StoreTime::start(Authority::Machine, MAX_RETENTION, reading(base, 0), at(0));
        let mut keys: Vec<(i64, UnixMs)> = Vec::new();
        for event in events {
            match event {
                Event::Pass(ms) => mono += ms,
                Event::SetWall(to) => error = to,
                Event::DiscordKnown => discord_known = true,
                Event::Write => keys.push((base + mono.cast_signed(), time.now(at(mono)) + KEY_TTL)),
                Event::Restart { reboot } => {
                    let saved = time.save(&boots.to_string(), at(mono));
                    if reboot {
                        boots += 1;
                        (base, mono) = (base + mono.cast_signed(), 0);
                    }
                    discord_known = false;
                    time = StoreTime::start(Authority::Machine, MAX_RETENTION, reading(base, error), at(mono));
                    time.resume(saved, &boots.to_string(), at(mono));
                }
            }
            time.on_reading(reading(base, error), at(mono), discord(base, discord_known));
            let truly = base + mono.cast_signed();
            let expiry = time.now(at(mono)).before(time.expiry_lag(at(mono)));
            for (written, expires_at) in &keys {
                let age = truly - written;
                // Two readings within the tolerance may differ by twice the tolerance.
                let slack = 4 * tolerance_ms();
                prop_assert!(
                    expiry < *expires_at || age >= signed(KEY_TTL.as_secs() * 1_000) - slack,
                    "expired after {} s of a day", age / 1_000
                );
            }
            keys.retain(|(written, _)| truly - written < signed(KEY_TTL.as_secs() * 1_000));
        }
    }

    /// A right clock, once confirmed, ends every delay.
    #[test]
    fn expiry_catches_up_once_the_clock_is_right(steps in proptest::collection::vec(-DAY.cast_signed()..DAY.cast_signed(), 0..12)) {
        let mut time = machine(0);
        let mut mono = 0;
        for step in steps {
            mono += 60_000;
            time.on_reading(wall(step), at(mono), Some(Offset { low: DISCORD.low + step, high: DISCORD.high + step }));
        }
        for _ in 0..40 {
            mono += 60_000;
            time.on_reading(wall(0), at(mono), Some(DISCORD));
        }
        prop_assert!(error(&time).abs() <= 1_000, "{}", error(&time));
        mono += 8 * DAY;
        time.on_reading(wall(0), at(mono), Some(DISCORD));
        prop_assert_eq!(time.expiry_lag(at(mono)), Duration::ZERO);
    }
}
