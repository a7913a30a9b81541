//! Free space in an SQLite file: new operations are refused before the file is full, so that all other writes still
//! succeed.

use std::sync::{Mutex, MutexGuard, PoisonError};

use guildhall_core::usage::{UsageBound, UsageBoundExceeded};
use sea_orm::ConnectionTrait;

use super::EngineError;
use crate::store::{events::FileMeasured, rows::query};

/// New operations may fill this fraction (1/n) of a file. An operation that dies is stored twice, as itself and as a
/// dead letter: an accepted operation can always finish, whatever its final state.
const ACCEPTED_PART: u64 = 2;
/// The file is measured again after this fraction (1/n) of it was accepted.
const MEASURE_PART: u64 = 128;

/// Space in a file of bounded size.
#[derive(Debug)]
pub(in crate::store) struct FileCapacity {
    /// Maximum size of the file.
    most: u64,
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
    pub(in crate::store) fn new(most: u64) -> Option<Self> {
        (most > 0).then(|| Self { most, measured: Mutex::default() })
    }

    /// Bytes that new operations may fill.
    pub(in crate::store) const fn for_operations(most: u64) -> u64 {
        most / ACCEPTED_PART
    }

    /// Bytes in use. Measured again after enough was accepted, and for each submission while space is short.
    pub(super) async fn used(&self, on: &impl ConnectionTrait) -> Result<u64, EngineError> {
        let known = *self.lock();
        let step = self.most / MEASURE_PART;
        let fits = |accepted: &u64| *accepted < step && known.used + accepted + step < Self::for_operations(self.most);
        if let Some(accepted) = known.accepted.filter(fits) {
            return Ok(known.used + accepted);
        }
        let used = measure(on).await?;
        crate::events::emit(FileMeasured { used, most: self.most });
        *self.lock() = Measurement { used, accepted: Some(0) };
        Ok(used)
    }

    /// Counts bytes that are about to be accepted.
    ///
    /// `used` is the result of [`Self::used`] for this transaction.
    pub(super) fn reserve(&self, used: u64, more: u64) -> Result<(), UsageBoundExceeded> {
        let most = Self::for_operations(self.most);
        let mut measured = self.lock();
        let used = used.max(measured.used + measured.accepted.unwrap_or_default());
        if used.saturating_add(more) > most {
            return Err(UsageBoundExceeded { bound: UsageBound::File, used, more, most });
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
    const USED: &str = "SELECT (c.page_count - f.freelist_count) * s.page_size
        FROM pragma_page_count() c, pragma_freelist_count() f, pragma_page_size() s";
    let rows = query(on, USED, Vec::new()).await?;
    let used: i64 = rows.first().map_or(Ok(0), |row| row.try_get_by_index(0))?;
    Ok(used.max(0).unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_leave_head_room() {
        let room = FileCapacity::new(1_400).unwrap();
        assert!(room.reserve(100, 500).is_ok());
        let exceeded = room.reserve(100, 201).unwrap_err();
        assert_eq!((exceeded.used, exceeded.more, exceeded.most), (500, 201, 700));
        assert!(FileCapacity::new(0).is_none());
    }
}
