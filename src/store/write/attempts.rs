//! Attempts of operations, for display. The first and the last attempts of each operation are stored.

use guildhall_actors::ports::OperationUpdate;
use guildhall_core::usage::{FIRST_ATTEMPTS, LAST_ATTEMPTS, attempt_bytes};
use sea_orm::DatabaseTransaction;

use super::{EngineError, signed};
use crate::store::rows::{Columns, Rows, columns, row, with_rows};
use crate::store::sql;

/// Number of attempts and delays of an operation, including this change.
fn count(change: &OperationUpdate) -> u32 {
    change.attempts.saturating_add(change.delays)
}

/// Number of bytes by which an operation grows with a change.
pub(super) fn growth(change: &OperationUpdate, error: Option<&str>) -> i64 {
    let attempt = change.attempt.as_ref().map_or(0, |_| attempt_bytes(count(change)));
    let end = match change.state.is_final() {
        true => change.result.as_ref().map_or(0, String::len) + error.map_or(0, str::len),
        false => 0,
    };
    let progress = change.progress.as_ref().map_or(0, |progress| progress.added_bytes);
    signed(attempt + (end + progress) as u64)
}

pub(super) async fn insert(on: &DatabaseTransaction, done: &[&OperationUpdate]) -> Result<(), EngineError> {
    const SHAPE: Columns = columns![
        op: Uuid, n: Number, started_at: Number, ended_at: Number, status: Number, class: Text, detail: Text,
    ];
    let mut rows = Rows::new();
    for (change, attempt) in done.iter().filter_map(|change| change.attempt.as_ref().map(|attempt| (change, attempt))) {
        rows.push(row! {
            change.id, attempt.n, attempt.started_at, attempt.ended_at, attempt.status.map(i64::from), &attempt.class,
            attempt.detail.as_deref(),
        });
    }
    if rows.is_empty() {
        return Ok(());
    }
    with_rows(on, sql::attempts::INSERT, SHAPE, rows, Vec::new()).await?;
    trim(on, done).await
}

/// Removes attempts between the first and the last ones.
async fn trim(on: &DatabaseTransaction, done: &[&OperationUpdate]) -> Result<(), EngineError> {
    const IDS: Columns = columns![op: Uuid];
    let many = done.iter().filter(|change| change.attempt.is_some() && count(change) > FIRST_ATTEMPTS + LAST_ATTEMPTS);
    let rows = Rows::of(many.map(|change| change.id));
    with_rows(on, &sql::attempts::trim(FIRST_ATTEMPTS, LAST_ATTEMPTS), IDS, rows, Vec::new()).await?;
    Ok(())
}
