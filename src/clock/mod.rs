//! The clocks of this process: store time, and the offsets of this machine's clock from Discord's and the database's.
//!
//! [`Clocks`] is the only source of durable times. The decisions of the state machines in [`guildhall_core::clock`] are
//! logged and counted here.

mod events;
mod source;

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use guildhall_actors::wall_clock::WallClock;
use guildhall_core::{
    clock::{AheadLog, Authority, ClockStep, Offset, OffsetEstimator, SavedTime, StoreTime, TOLERANCE},
    time::{Timestamp, UnixMs},
};
use serde::{Deserialize, Serialize};

use self::events::{
    ClockCompared, ClockSkewDetected, ClockSkewResolved, ExpiryLagMeasured, ReferenceClock, StoreTimeAdvanced,
    StoreTimeSetBack, WallClockUnconfirmed,
};
pub use self::source::{SystemTimeSource, TimeSource, boot_time};
use crate::events::emit;

/// The `Date` header has whole seconds.
const DATE_RESOLUTION: Duration = Duration::from_secs(1);
/// How far searches reach back while the offset of Discord's clock is unknown: store time may have been ahead by this
/// much.
const MAX_UNKNOWN_OFFSET: Duration = Duration::from_secs(10 * 60);
/// Minimum interval between readings of the wall clock for store time: an event must not cost more than one clock
/// reading.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(50);

/// The clocks of this process. Clones share them.
#[derive(Clone)]
pub struct Clocks(Arc<Shared>);

struct Shared {
    source: Arc<dyn TimeSource>,
    authority: Authority,
    boot: Option<String>,
    state: Mutex<State>,
    /// Store time minus monotonic time, in milliseconds: a copy of the value in `state`.
    offset: AtomicI64,
    /// When the wall clock was last read for store time, in microseconds of the monotonic clock.
    followed: AtomicU64,
    /// Whether the stored record is out of date.
    changed: AtomicBool,
}

struct State {
    store: StoreTime,
    discord: OffsetEstimator,
    database: OffsetEstimator,
    ahead: AheadLog,
    /// References that the wall clock was reported to differ from.
    skewed: Vec<ReferenceClock>,
}

/// State of the clocks that is stored for the next process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClockRecord {
    /// Store time, if this machine is its authority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<SavedTime>,
    /// How far store time was ahead of Discord's clock, by day.
    #[serde(default)]
    pub ahead: AheadLog,
}

impl fmt::Debug for Clocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clocks").field("authority", &self.0.authority).finish_non_exhaustive()
    }
}

impl Clocks {
    /// Creates clocks whose store time follows this machine, as long as Discord's clock does not contradict it.
    /// `max_ttl` is the maximum time that anything that expires is stored.
    #[must_use]
    pub fn of_machine(source: Arc<dyn TimeSource>, max_ttl: Duration) -> Self {
        let (before, wall, after) = (source.monotonic(), source.wall(), source.monotonic());
        let reading = Offset::measured(wall, Duration::ZERO, before, after);
        Self::new(source, Authority::Machine, max_ttl, reading, after)
    }

    /// Creates clocks whose store time follows the database, which returned `reading` between `sent` and now.
    #[must_use]
    pub fn of_database(source: Arc<dyn TimeSource>, max_ttl: Duration, reading: UnixMs, sent: Timestamp) -> Self {
        let at = source.monotonic();
        Self::new(source, Authority::Database, max_ttl, Offset::measured(reading, Duration::ZERO, sent, at), at)
    }

    fn new(
        source: Arc<dyn TimeSource>,
        authority: Authority,
        max_ttl: Duration,
        reading: Offset,
        at: Timestamp,
    ) -> Self {
        let state = State {
            store: StoreTime::start(authority, max_ttl, reading, at),
            discord: OffsetEstimator::default(),
            database: OffsetEstimator::default(),
            ahead: AheadLog::default(),
            skewed: Vec::new(),
        };
        Self(Arc::new(Shared {
            boot: source.boot(),
            source,
            authority,
            offset: AtomicI64::new(state.store.offset()),
            followed: AtomicU64::new(0),
            state: Mutex::new(state),
            changed: AtomicBool::new(false),
        }))
    }

    /// Returns the monotonic time, which readings are taken at.
    #[must_use]
    pub fn monotonic(&self) -> Timestamp {
        self.0.source.monotonic()
    }

    /// Returns store time.
    #[must_use]
    pub fn now(&self) -> UnixMs {
        let at = self.monotonic();
        let followed = Timestamp::from_micros(self.0.followed.load(Ordering::Relaxed));
        if self.0.authority == Authority::Machine && at.since(followed) >= FOLLOW_INTERVAL {
            let mut state = self.state();
            let step = self.follow_machine(&mut state, at);
            drop(state);
            self.report(step);
        }
        let now = i64::try_from(at.micros() / 1_000).unwrap_or(i64::MAX) + self.0.offset.load(Ordering::Relaxed);
        UnixMs::new(u64::try_from(now).unwrap_or(0))
    }

    /// Returns how far expiry must lag behind store time so that nothing expires too early.
    #[must_use]
    pub fn expiry_lag(&self) -> Duration {
        let (at, mut state) = (self.monotonic(), self.state());
        let step = self.follow_machine(&mut state, at);
        let lag = state.store.expiry_lag(at);
        drop(state);
        self.report(step);
        emit(ExpiryLagMeasured { seconds: lag.as_secs_f64() });
        lag
    }

    /// Returns store time as a clock, for everything that writes durable times.
    #[must_use]
    pub fn store_time(&self) -> WallClock {
        let clocks = self.clone();
        WallClock::provided(move || clocks.now())
    }

    /// Returns the earliest time by Discord's clock of anything that was created after `at` by store time.
    #[must_use]
    pub fn discord_time_of(&self, at: UnixMs) -> UnixMs {
        let (monotonic, mut state) = (self.monotonic(), self.state());
        let step = self.follow_machine(&mut state, monotonic);
        let ahead = match state.discord.estimate(monotonic) {
            Some(discord) => {
                let now = u64::try_from(state.store.offset() - discord.low).unwrap_or(0);
                state.ahead.max_since(at).max(Duration::from_millis(now))
            }
            None => state.ahead.max_since(at).max(MAX_UNKNOWN_OFFSET),
        };
        let now = state.store.now(monotonic);
        drop(state);
        self.report(step);
        let at = at.before(ahead);
        // A time in the future was written by a clock that was further ahead than was ever measured.
        if at > now { now.before(MAX_UNKNOWN_OFFSET) } else { at }
    }

    /// Records that Discord's clock showed `date` in the response to a call that was sent at `sent`; the response
    /// arrived at `received`.
    pub fn observe_discord(&self, date: UnixMs, sent: Timestamp, received: Timestamp) {
        let mut state = self.state();
        state.discord.observe(Offset::measured(date, DATE_RESOLUTION, sent, received), received);
        let estimate = state.discord.estimate(received);
        if estimate.is_some_and(|discord| discord.distance(state.store.offset()).abs() <= tolerance_ms()) {
            state.discord.confirm();
        }
        let confirmed = state.discord.confirmed(received);
        // Before store time follows: everything written until now used store time as it is.
        let changed = confirmed.is_some_and(|discord| {
            let (ahead, now) = (state.store.offset() - discord.low, state.store.now(received));
            state.ahead.observe(ahead, now)
        });
        let step = self.follow_machine(&mut state, received);
        drop(state);
        self.report(step);
        if changed {
            self.0.changed.store(true, Ordering::Release);
        }
        if let Some(discord) = confirmed {
            self.compare(ReferenceClock::Discord, discord);
        }
    }

    /// Records that the database's clock showed `reading` in the response to a statement that was sent at `sent`; the
    /// response has just arrived.
    pub fn observe_database(&self, reading: UnixMs, sent: Timestamp) {
        let at = self.monotonic();
        let measured = Offset::measured(reading, Duration::from_millis(1), sent, at);
        let mut state = self.state();
        state.database.observe(measured, at);
        let step = match self.0.authority {
            Authority::Database => state.store.on_reading(measured, at, None),
            Authority::Machine => None,
        };
        self.0.offset.store(state.store.offset(), Ordering::Relaxed);
        let estimate = state.database.estimate(at);
        drop(state);
        self.report(step);
        if let Some(database) = estimate {
            self.compare(ReferenceClock::Database, database);
        }
    }

    /// Continues from the record of an earlier process.
    pub fn resume(&self, record: ClockRecord) {
        let mut state = self.state();
        state.ahead.merge(&record.ahead);
        if let Some(time) = record.time {
            // A boot without an id never counts as the same boot.
            let boot = self.0.boot.clone().unwrap_or_else(|| format!("not {}", time.boot));
            state.store.resume(time, &boot, self.monotonic());
            self.0.offset.store(state.store.offset(), Ordering::Relaxed);
        }
    }

    /// Returns the record to store. `other` is the record in the store, which another process may have written.
    #[must_use]
    pub fn record(&self, other: &ClockRecord) -> ClockRecord {
        let (at, mut state) = (self.monotonic(), self.state());
        state.ahead.merge(&other.ahead);
        let boot = self.0.boot.as_deref().unwrap_or_default();
        let time = (self.0.authority == Authority::Machine).then(|| state.store.save(boot, at));
        ClockRecord { time, ahead: state.ahead.clone() }
    }

    /// Returns whether the record has changed since the last call.
    #[must_use]
    pub fn take_changed(&self) -> bool {
        self.0.changed.swap(false, Ordering::AcqRel)
    }

    /// Compares the wall clock with the known references again: it may have been set since they were last read.
    pub fn compare_again(&self) {
        let (at, state) = (self.monotonic(), self.state());
        let references = [
            (ReferenceClock::Discord, state.discord.confirmed(at)),
            (ReferenceClock::Database, state.database.estimate(at)),
        ];
        drop(state);
        for (reference, offset) in references {
            if let Some(offset) = offset {
                self.compare(reference, offset);
            }
        }
        // Follows the wall clock even if nothing else reads the time.
        let _ = self.expiry_lag();
    }

    /// Follows the wall clock, if this machine is the authority for store time.
    fn follow_machine(&self, state: &mut State, at: Timestamp) -> Option<ClockStep> {
        match self.0.authority {
            Authority::Database => None,
            Authority::Machine => {
                let discord = state.discord.confirmed(at);
                let (wall, at) = self.wall();
                let step = state.store.on_reading(wall, at, discord);
                self.0.offset.store(state.store.offset(), Ordering::Relaxed);
                self.0.followed.store(at.micros(), Ordering::Relaxed);
                step
            }
        }
    }

    /// Reads the wall clock. Returns its offset and when it was read. The process may be suspended in between.
    fn wall(&self) -> (Offset, Timestamp) {
        let (before, wall, after) = (self.monotonic(), self.0.source.wall(), self.monotonic());
        (Offset::measured(wall, Duration::ZERO, before, after), after)
    }

    /// Compares the wall clock with a reference.
    fn compare(&self, reference: ReferenceClock, offset: Offset) {
        let wall = self.wall().0.mid();
        let (ahead_ms, distance) = (wall - offset.mid(), offset.distance(wall));
        emit(ClockCompared { reference, ahead_ms });
        let is_skewed = distance.abs() > tolerance_ms();
        let mut state = self.state();
        let was_skewed = state.skewed.contains(&reference);
        match (was_skewed, is_skewed) {
            (false, true) => state.skewed.push(reference),
            (true, false) => state.skewed.retain(|one| *one != reference),
            (true, true) | (false, false) => return,
        }
        drop(state);
        if is_skewed {
            emit(ClockSkewDetected { reference, ahead_ms });
        } else {
            emit(ClockSkewResolved { reference, ahead_ms });
        }
    }

    fn report(&self, step: Option<ClockStep>) {
        match step {
            None => return,
            Some(ClockStep::Forward(by_ms)) => emit(StoreTimeAdvanced { by_ms }),
            Some(ClockStep::Backward(by_ms)) => emit(StoreTimeSetBack { by_ms }),
            Some(ClockStep::Unconfirmed(by_ms)) => emit(WallClockUnconfirmed { by_ms }),
        }
        self.0.changed.store(true, Ordering::Release);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tolerance_ms() -> i64 {
    i64::try_from(TOLERANCE.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
