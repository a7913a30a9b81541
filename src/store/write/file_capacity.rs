//! Free space in an SQLite file: new operations are refused before the file is full, so that all other writes still
//! succeed.

use std::sync::{Mutex, MutexGuard, PoisonError};

use guildhall_core::usage::{UsageBound, UsageBoundExceeded};
use sea_orm::ConnectionTrait;

use super::EngineError;
use crate::store::sql;
use crate::store::{events::FileMeasured, rows::query_scalar};

/// New operations may fill this fraction (1/n) of a file. An operation that dies is stored twice, as itself and as a
/// dead letter: an accepted operation can always finish, whatever its final state.
const ACCEPTED_PART: u64 = 2;
/// The file is measured again after this fraction (1/n) of it was accepted.
const MEASURE_PART: u64 = 128;

/// Space in a file of bounded size.
#[derive(Debug)]
pub(in crate::store) struct FileCapacity {
    /// Maximum size of the file.
    max_bytes: u64,
    measured: Mutex<Measurement>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Measurement {
    /// Bytes in use at the last measurement.
    used: u64,
    /// Bytes accepted since then; `None` before the first measurement.
    accepted: Option<u64>,
}

impl FileCapacity {
    /// Space in a file of at most this many bytes. `None` if the file has no bound.
    pub(in crate::store) fn new(max_bytes: u64) -> Option<Self> {
        (max_bytes > 0).then(|| Self { max_bytes, measured: Mutex::default() })
    }

    /// Bytes that new operations may fill.
    pub(in crate::store) const fn for_operations(max_bytes: u64) -> u64 {
        max_bytes / ACCEPTED_PART
    }

    /// Bytes in use. Measured again after enough was accepted, and for each submission while space is short.
    pub(super) async fn used(&self, on: &impl ConnectionTrait) -> Result<u64, EngineError> {
        let cached = *self.lock();
        let step = self.max_bytes / MEASURE_PART;
        let fits =
            |accepted: &u64| *accepted < step && cached.used + accepted + step < Self::for_operations(self.max_bytes);
        if let Some(accepted) = cached.accepted.filter(fits) {
            return Ok(cached.used + accepted);
        }
        let used = measure(on).await?;
        crate::events::emit(FileMeasured { used, max_bytes: self.max_bytes });
        *self.lock() = Measurement { used, accepted: Some(0) };
        Ok(used)
    }

    /// Counts bytes that are about to be accepted.
    ///
    /// `used` is the result of [`Self::used`] for this transaction.
    pub(super) fn reserve(&self, used: u64, more: u64) -> Result<(), UsageBoundExceeded> {
        let max = Self::for_operations(self.max_bytes);
        let mut measured = self.lock();
        let used = used.max(measured.used + measured.accepted.unwrap_or_default());
        if used.saturating_add(more) > max {
            return Err(UsageBoundExceeded { bound: UsageBound::File, used, more, max });
        }
        measured.accepted = Some(measured.accepted.unwrap_or_default() + more);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Measurement> {
        self.measured.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of all pages in use.
pub(in crate::store) async fn measure(on: &impl ConnectionTrait) -> Result<u64, EngineError> {
    let used: Option<i64> = query_scalar(on, sql::file_capacity::USED, Vec::new()).await?;
    Ok(used.unwrap_or(0).max(0).unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_leave_head_room() {
        let capacity = FileCapacity::new(1_400).unwrap();
        assert!(capacity.reserve(100, 500).is_ok());
        let exceeded = capacity.reserve(100, 201).unwrap_err();
        assert_eq!((exceeded.used, exceeded.more, exceeded.max), (500, 201, 700));
        assert!(FileCapacity::new(0).is_none());
    }
}
