//! Creation times of objects, derived from their ids.

use std::time::Duration;

use guildhall_core::time::UnixMs;

/// Discord's epoch, the first millisecond of 2015.
const EPOCH: u64 = 1_420_070_400_000;

/// Lowest id of an object that was created at `at` minus `slack`.
pub(crate) fn lowest_id_at(at: UnixMs, slack: Duration) -> u64 {
    at.before(slack).millis().saturating_sub(EPOCH) << 22
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When the object with this id was created.
    fn created_at(id: u64) -> UnixMs {
        UnixMs::new((id >> 22) + EPOCH)
    }

    #[test]
    fn lowest_id_of_a_time_has_that_time() {
        let at = UnixMs::new(1_700_000_000_123);
        assert_eq!(created_at(lowest_id_at(at, Duration::ZERO)), at);
        assert_eq!(created_at(lowest_id_at(at, Duration::from_secs(60))).millis(), 1_699_999_940_123);
        // Discord's own example.
        assert_eq!(created_at(175_928_847_299_117_063).millis(), 1_462_015_105_796);
        assert_eq!(lowest_id_at(UnixMs::new(5), Duration::ZERO), 0, "before Discord's epoch");
    }
}
