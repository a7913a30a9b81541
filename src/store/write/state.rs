//! Values that a bot stores.

use std::collections::BTreeMap;

use guildhall_actors::ports::StateWrite;
use sea_orm::DatabaseTransaction;

use super::{EngineError, RunOrder, WriteJob, WriteTx, signed};
use crate::store::rows::{Columns, Rows, columns, row, with_rows, without_nul};
use crate::store::sql;

/// Stores or removes a value.
impl WriteJob for StateWrite {
    type Output = ();

    const ORDER: RunOrder = RunOrder::SetState;

    fn size(&self) -> (usize, usize) {
        (1, self.value.as_ref().map_or(0, String::len))
    }

    async fn run_all(jobs: &[&Self], tx: &mut WriteTx<'_>) -> Result<Vec<()>, EngineError> {
        set(tx.on, jobs.iter().copied()).await?;
        Ok(vec![(); jobs.len()])
    }
}

/// Stores or removes values. If a key occurs several times, the last one counts.
pub(super) async fn set<'a>(
    on: &DatabaseTransaction,
    values: impl IntoIterator<Item = &'a StateWrite>,
) -> Result<(), EngineError> {
    const VALUES: Columns = columns![its_key: Text, value: Text, expires_at: Number];
    const KEYS: Columns = columns![its_key: Text];
    // Sorted, so that no two processes wait for each other's keys.
    let last: BTreeMap<String, &StateWrite> = values.into_iter().map(|set| (without_nul(&set.key), set)).collect();
    let (mut stored, mut removed) = (Rows::new(), Rows::new());
    for (key, set) in &last {
        match &set.value {
            Some(value) => {
                let expires_at = set.expires_at.map(|at| signed(at.millis()));
                stored.push(row! { key, value, expires_at });
            }
            None => removed.push(row! { key }),
        }
    }
    with_rows(on, sql::state::STORE, VALUES, stored, Vec::new()).await?;
    with_rows(on, sql::state::REMOVE, KEYS, removed, Vec::new()).await?;
    Ok(())
}
