//! Values that a bot stores.

use std::collections::BTreeMap;

use guildhall_actors::ports::StateWrite;
use sea_orm::DatabaseTransaction;

use super::{EngineError, signed};
use crate::store::rows::{ColumnType, Columns, RowValue, Rows, with_rows, without_nul};

/// Stores or removes values. If a key occurs several times, the last one counts.
pub(super) async fn set<'a>(
    on: &DatabaseTransaction,
    values: impl IntoIterator<Item = &'a StateWrite>,
) -> Result<(), EngineError> {
    const VALUES: Columns =
        Columns(&[("its_key", ColumnType::Text), ("value", ColumnType::Text), ("expires_at", ColumnType::Number)]);
    const UPSERT: &str =
        "INSERT INTO state (key, value, expires_at) SELECT its_key, value, expires_at FROM {v} WHERE 1 = 1
        ON CONFLICT (key) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at";
    const KEYS: Columns = Columns(&[("its_key", ColumnType::Text)]);
    const REMOVE: &str = "DELETE FROM state WHERE key IN (SELECT its_key FROM {v})";
    // Sorted, so that no two processes wait for each other's keys.
    let last: BTreeMap<String, &StateWrite> = values.into_iter().map(|set| (without_nul(&set.key), set)).collect();
    let (mut stored, mut removed) = (Rows::new(), Rows::new());
    for (key, set) in &last {
        match &set.value {
            Some(value) => {
                let expires_at = set.expires_at.map(|at| signed(at.millis()));
                stored.push(&[RowValue::Text(key), RowValue::Text(value), expires_at.into()]);
            }
            None => removed.push(&[RowValue::Text(key)]),
        }
    }
    with_rows(on, UPSERT, VALUES, stored, Vec::new()).await?;
    with_rows(on, REMOVE, KEYS, removed, Vec::new()).await?;
    Ok(())
}
