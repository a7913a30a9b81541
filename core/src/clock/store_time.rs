//! Store time: the clock by which all durable records are written and expire.
//!
//! It runs with the monotonic clock and follows a reference: the clock of the database, which all processes share, or
//! the wall clock of the machine that has the store's file. A wall clock may be set to a wrong time, so a step of it is
//! followed only if Discord's clock confirms it. If Discord's clock contradicts it, store time follows Discord's clock.
//!
//! After a step forward, earlier records look older than they are. Expiry therefore lags behind by the size of the step
//! until the longest retention has passed: a step delays expiry, and never makes it early.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::offset::{Offset, ms, signed};
use crate::time::{Timestamp, UnixMs};

/// Clocks that differ by more than this do not show the same time.
pub const TOLERANCE: Duration = Duration::from_secs(5);
/// Differences below this are measurement noise, and are not followed.
const DEAD_BAND_MS: i64 = 20;
/// Steps forward below this do not delay expiry.
const MIN_LAG_MS: i64 = 1_000;
/// Store time goes back by running at half speed, so that waiting operations are not delayed for long. If it is ahead
/// by more than this, it goes back at once.
const MAX_SLOWED_MS: i64 = 10 * 60 * 1_000;
/// Maximum number of separate steps; more are merged.
const MAX_LAGS: usize = 8;

/// Which clock is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authority {
    /// The clock of the database server, without confirmation: all processes have to agree.
    Database,
    /// The clock of this machine, unless Discord's clock contradicts it.
    Machine,
}

/// A delay of expiry for records that were written before a step forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpiryLag {
    /// Delay in milliseconds.
    pub ms: u64,
    /// End of the delay, in store time.
    pub until: UnixMs,
}

/// Saved state, for the next process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedTime {
    /// Id of the machine's boot that this monotonic clock belongs to.
    pub boot: String,
    /// The monotonic clock, in milliseconds.
    pub monotonic_ms: u64,
    /// Store time at that moment.
    pub now: UnixMs,
    /// Steps that still delay expiry.
    pub lags: Vec<ExpiryLag>,
    /// The time that expiry has to assume, if store time was not confirmed yet.
    #[serde(default)]
    pub unconfirmed: Option<UnixMs>,
}

/// Result of a reading of the reference that is worth a log line. In milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockStep {
    /// Store time went forward.
    Forward(u64),
    /// Store time goes back, at once or slowly.
    Backward(u64),
    /// The reference was set by this much, and is not followed until it is confirmed.
    Unconfirmed(i64),
}

/// The time that expiry has to assume until the reference is confirmed: as if no time had passed while no process ran.
#[derive(Clone, Copy, Debug)]
struct UnconfirmedTime {
    now: UnixMs,
    since: Timestamp,
}

impl UnconfirmedTime {
    fn at(self, at: Timestamp) -> UnixMs {
        // Rounded down.
        UnixMs::new(
            self.now.millis()
                + at.since(self.since).as_secs() * 1_000
                + u64::from(at.since(self.since).subsec_millis()),
        )
    }
}

/// Store time. See the [module](self).
#[derive(Clone, Debug)]
pub struct StoreTime {
    authority: Authority,
    max_retention: Duration,
    /// Store time minus monotonic time, in milliseconds.
    offset: i64,
    read_at: Timestamp,
    lags: Vec<ExpiryLag>,
    unconfirmed: Option<UnconfirmedTime>,
    /// Whether Discord's clock has confirmed it once.
    confirmed: bool,
    /// Whether the current deviation of the reference was reported.
    is_reported: bool,
}

impl StoreTime {
    /// Starts with a reading of the reference. No record is stored for longer than `max_retention`.
    #[must_use]
    pub fn start(authority: Authority, max_retention: Duration, reading: Offset, at: Timestamp) -> Self {
        Self {
            authority,
            max_retention,
            offset: reading.mid(),
            read_at: at,
            lags: Vec::new(),
            unconfirmed: None,
            confirmed: false,
            is_reported: false,
        }
    }

    /// Continues from the saved state of an earlier process. If the machine has not been rebooted since, its monotonic
    /// clock gives the elapsed time. Otherwise only the reference does, and expiry waits until it is confirmed.
    pub fn resume(&mut self, saved: SavedTime, boot: &str, at: Timestamp) {
        self.lags = saved.lags;
        self.lags.truncate(MAX_LAGS);
        if self.authority == Authority::Database || self.confirmed {
            return;
        }
        if saved.boot == boot && signed(saved.monotonic_ms) <= ms(at) {
            self.offset = signed(saved.now.millis()) - signed(saved.monotonic_ms);
            let since = Timestamp::from_millis(saved.monotonic_ms);
            self.unconfirmed = saved.unconfirmed.map(|now| UnconfirmedTime { now, since });
        } else {
            self.unconfirmed = Some(UnconfirmedTime { now: saved.unconfirmed.unwrap_or(saved.now), since: at });
            // A machine that has lost its clock starts in the past.
            self.offset = self.offset.max(signed(saved.now.millis()) - ms(at));
        }
    }

    /// Returns the state to save.
    #[must_use]
    pub fn save(&self, boot: &str, at: Timestamp) -> SavedTime {
        let now = self.now(at);
        let lags = self.lags.iter().copied().filter(|lag| lag.until > now).collect();
        let unconfirmed = self.unconfirmed.map(|held| held.at(at));
        SavedTime { boot: boot.to_owned(), monotonic_ms: at.micros() / 1_000, now, lags, unconfirmed }
    }

    /// The reference was read at `at`. `discord` is the confirmed offset of Discord's clock, if there is one.
    pub fn on_reading(&mut self, reading: Offset, at: Timestamp, discord: Option<Offset>) -> Option<ClockStep> {
        let elapsed = i64::try_from(at.since(self.read_at).as_millis()).unwrap_or(i64::MAX);
        if at < self.read_at {
            // An older reading than the last one.
            return None;
        }
        let reference = clamp(self.offset, reading, DEAD_BAND_MS);
        let was_confirmed = self.confirmed;
        self.confirmed |= discord.is_some();
        let target = match self.authority {
            Authority::Database => Some(reference),
            Authority::Machine => self.confirm(reference, discord),
        };
        if elapsed > 0 {
            self.read_at = at;
        }
        let Some(target) = target else {
            let was_reported = std::mem::replace(&mut self.is_reported, true);
            return (!was_reported).then_some(ClockStep::Unconfirmed(reference - self.offset));
        };
        let by = target - self.offset;
        let is_step = by.abs() > tolerance_ms();
        let was_reported = self.is_reported && is_step;
        if by >= 0 {
            self.is_reported = false;
            self.go_forward(by, at);
            return is_step.then_some(ClockStep::Forward(by.unsigned_abs()));
        }
        let is_slow = was_confirmed && self.authority == Authority::Machine && by >= -MAX_SLOWED_MS;
        let back = if is_slow { by.max(-(elapsed / 2)) } else { by };
        self.is_reported = is_slow && is_step;
        self.go_back(-back);
        (is_step && !was_reported).then_some(ClockStep::Backward(by.unsigned_abs()))
    }

    /// The target of store time, if known.
    fn confirm(&mut self, reference: i64, discord: Option<Offset>) -> Option<i64> {
        let Some(discord) = discord else {
            return ((reference - self.offset).abs() <= tolerance_ms()).then_some(reference);
        };
        self.unconfirmed = None;
        if discord.distance(reference).abs() <= tolerance_ms() {
            return Some(reference);
        }
        let is_near = discord.distance(self.offset).abs() <= tolerance_ms();
        Some(if is_near { clamp(self.offset, discord, 0) } else { discord.mid() })
    }

    fn go_forward(&mut self, by: i64, at: Timestamp) {
        self.offset += by;
        if by < MIN_LAG_MS {
            return;
        }
        let (by, until) = (by.unsigned_abs(), self.now(at) + self.max_retention);
        for lag in &mut self.lags {
            lag.ms += by;
        }
        self.lags.push(ExpiryLag { ms: by, until });
        if self.lags.len() > MAX_LAGS {
            // The oldest is the largest.
            let (oldest, next) = (self.lags.remove(0), &mut self.lags[0]);
            next.ms = next.ms.max(oldest.ms);
        }
    }

    fn go_back(&mut self, by: i64) {
        self.offset -= by;
        for lag in &mut self.lags {
            lag.ms = lag.ms.saturating_sub(by.unsigned_abs());
        }
        self.lags.retain(|lag| lag.ms > 0);
    }

    /// Store time.
    #[must_use]
    pub fn now(&self, at: Timestamp) -> UnixMs {
        UnixMs::new(u64::try_from(ms(at) + self.offset).unwrap_or(0))
    }

    /// How much expiry has to lag behind store time, so that no record expires early.
    #[must_use]
    pub fn expiry_lag(&self, at: Timestamp) -> Duration {
        let now = self.now(at);
        let stepped = self.lags.iter().filter(|lag| lag.until > now).map(|lag| lag.ms).max().unwrap_or(0);
        let unconfirmed = self.unconfirmed.map_or(Duration::ZERO, |unconfirmed| now.since(unconfirmed.at(at)));
        Duration::from_millis(stepped).max(unconfirmed)
    }

    /// Store time minus monotonic time, in milliseconds.
    #[must_use]
    pub const fn offset(&self) -> i64 {
        self.offset
    }
}

/// The value nearest to `value` in an interval; `value` itself if it is within the dead band.
fn clamp(value: i64, interval: Offset, dead_band: i64) -> i64 {
    let distance = interval.distance(value);
    if distance.abs() <= dead_band { value } else { value - distance }
}

fn tolerance_ms() -> i64 {
    i64::try_from(TOLERANCE.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
