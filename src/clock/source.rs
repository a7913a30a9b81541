//! Sources of the current time.

use std::time::Duration;

use guildhall_actors::wall_clock::unix_now_ms;
use guildhall_core::time::{Timestamp, UnixMs};

/// The clocks of a machine.
pub trait TimeSource: Send + Sync {
    /// A clock that continues while the machine sleeps and that is never set.
    fn monotonic(&self) -> Timestamp;

    /// The wall clock, which may be set at any time.
    fn wall(&self) -> UnixMs;

    /// Id of the boot that the monotonic clock counts from; `None` if it is unknown.
    fn boot(&self) -> Option<String>;
}

/// The clocks of this machine.
#[derive(Clone, Copy, Debug)]
pub struct SystemTimeSource;

impl TimeSource for SystemTimeSource {
    fn monotonic(&self) -> Timestamp {
        Timestamp::ZERO + boot_time()
    }

    fn wall(&self) -> UnixMs {
        unix_now_ms()
    }

    fn boot(&self) -> Option<String> {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        Some(id.trim().to_owned()).filter(|id| !id.is_empty())
    }
}

/// Returns the time of a clock that continues while the machine sleeps and that is never set.
pub fn boot_time() -> Duration {
    #[cfg(target_os = "linux")]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
    let now = rustix::time::clock_gettime(CLOCK);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}
