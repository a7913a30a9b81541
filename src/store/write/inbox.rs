//! The inbox: events that wait for a handler, independent of their session.

use std::collections::{BTreeMap, HashSet};

use guildhall_actors::ports::{InboxDisposition, InboxEntry, InboxKey};
use guildhall_core::time::UnixMs;
use sea_orm::{DatabaseTransaction, QueryResult};

use super::{
    EngineError,
    event_commit::{HandledKey, KEYS, key, read_key, rows_of},
    queues, signed,
};
use crate::store::rows::{ColumnType, Columns, RowValue, Rows, query, with_rows};

/// An entry to append.
pub(super) struct NewInboxEntry<'a> {
    key: &'a HandledKey,
    lane: i64,
    name: &'a str,
    event: &'a str,
    attempts: i64,
    eligible_at: i64,
    dead: Option<&'a str>,
    last_error: Option<&'a str>,
    created_at: i64,
    died_at: Option<i64>,
}

impl<'a> NewInboxEntry<'a> {
    pub(super) fn of(entry: &'a InboxEntry, key: &'a HandledKey, now: UnixMs) -> Self {
        Self {
            key,
            lane: entry.lane,
            name: &entry.name,
            event: &entry.event,
            attempts: entry.attempts.into(),
            eligible_at: signed(entry.eligible_at.millis()),
            dead: entry.dead.as_deref(),
            last_error: entry.dead.as_deref(),
            created_at: signed(entry.created_at.millis()),
            died_at: entry.dead.as_ref().map(|_| signed(now.millis())),
        }
    }
}

pub(in crate::store) const PRESENT: &str = "SELECT session, seq, handler FROM inbox
    WHERE (session, seq, handler) IN (SELECT its_session, its_seq, its_handler FROM {v})";

/// Which of these are in the inbox, waiting or dead. No other process changes them until the transaction ends.
pub(super) async fn present<'a>(
    on: &DatabaseTransaction,
    keys: impl IntoIterator<Item = &'a HandledKey>,
) -> Result<HashSet<HandledKey>, EngineError> {
    let lock = if queues::is_shared(on) { " ORDER BY session, seq, handler FOR UPDATE" } else { "" };
    let select = format!("{PRESENT}{lock}");
    with_rows(on, &select, KEYS, rows_of(keys), Vec::new()).await?.iter().map(read_key).collect()
}

pub(super) async fn remove<'a>(
    on: &DatabaseTransaction,
    keys: impl IntoIterator<Item = &'a HandledKey>,
) -> Result<(), EngineError> {
    const REMOVE: &str =
        "DELETE FROM inbox WHERE (session, seq, handler) IN (SELECT its_session, its_seq, its_handler FROM {v})";
    with_rows(on, REMOVE, KEYS, rows_of(keys), Vec::new()).await?;
    Ok(())
}

/// Appends entries, in this order.
pub(super) async fn insert(on: &DatabaseTransaction, entries: &[NewInboxEntry<'_>]) -> Result<(), EngineError> {
    const SHAPE: Columns = Columns(&[
        ("n", ColumnType::Number),
        ("session", ColumnType::Text),
        ("seq", ColumnType::Number),
        ("handler", ColumnType::Text),
        ("lane", ColumnType::Number),
        ("name", ColumnType::Text),
        ("event", ColumnType::Text),
        ("attempts", ColumnType::Number),
        ("eligible_at", ColumnType::Number),
        ("dead", ColumnType::Text),
        ("why", ColumnType::Text),
        ("created_at", ColumnType::Number),
        ("died_at", ColumnType::Number),
    ]);
    // The condition is true for every actual row. Without it SQLite applies the order before the limit of `{v}`, and
    // treats its unused room as rows.
    const INSERT: &str = "INSERT INTO inbox (session, seq, handler, lane, name, event, attempts, eligible_at, dead, why,
        created_at, died_at) SELECT session, seq, handler, lane, name, event, attempts, eligible_at, dead, why, created_at,
        died_at FROM {v} WHERE n >= 0 ORDER BY n";
    if entries.is_empty() {
        return Ok(());
    }
    // Positions are assigned in commit order: a reader that continues after a position misses no earlier one.
    queues::lock_exclusive(on, "inbox").await?;
    let mut rows = Rows::new();
    for (n, new) in entries.iter().enumerate() {
        let (session, seq, handler) = new.key;
        rows.push(&[
            RowValue::Number(signed(n as u64)),
            RowValue::Text(session),
            RowValue::Number(*seq),
            RowValue::Text(handler),
            RowValue::Number(new.lane),
            RowValue::Text(new.name),
            RowValue::Text(new.event),
            RowValue::Number(new.attempts),
            RowValue::Number(new.eligible_at),
            new.dead.into(),
            new.last_error.into(),
            RowValue::Number(new.created_at),
            new.died_at.into(),
        ]);
    }
    with_rows(on, INSERT, SHAPE, rows, Vec::new()).await?;
    Ok(())
}

pub(in crate::store) const POSTPONE_COLUMNS: Columns = Columns(&[
    ("its_session", ColumnType::Text),
    ("its_seq", ColumnType::Number),
    ("its_handler", ColumnType::Text),
    ("tried", ColumnType::Number),
    ("says", ColumnType::Text),
    ("again_at", ColumnType::Number),
    ("ends_at", ColumnType::Number),
]);

pub(in crate::store) const POSTPONE: &str =
    "UPDATE inbox SET attempts = v.tried, why = v.says, eligible_at = COALESCE(v.again_at, eligible_at),
    dead = CASE WHEN v.again_at IS NULL THEN v.says END,
    died_at = CASE WHEN v.again_at IS NULL THEN COALESCE(died_at, v.ends_at) END
    FROM {v} WHERE session = v.its_session AND seq = v.its_seq AND handler = v.its_handler
    AND (dead IS NULL OR v.again_at IS NULL) RETURNING session, seq, handler";

/// Stores the result of entries that could not be handled. Returns which of them exist. A late retry does not revive a
/// dead entry.
pub(super) async fn postpone(
    on: &DatabaseTransaction,
    requests: &[(usize, (&InboxKey, &InboxDisposition, UnixMs))],
) -> Result<Vec<(usize, bool)>, EngineError> {
    let keys: Vec<HandledKey> = requests.iter().map(|(_, (inbox_key, ..))| key(inbox_key)).collect();
    // Sorted; for each entry the last result counts.
    let last: BTreeMap<&HandledKey, &(&InboxKey, &InboxDisposition, UnixMs)> =
        keys.iter().zip(requests.iter().map(|(_, requests)| requests)).collect();
    let mut rows = Rows::new();
    for ((session, seq, handler), (_, disposition, now)) in last {
        let (attempts, cause, again_at) = match disposition {
            InboxDisposition::Retry { at, attempts, reason: cause } => (*attempts, cause, Some(signed(at.millis()))),
            InboxDisposition::Dead { attempts, reason: cause } => (*attempts, cause, None),
        };
        rows.push(&[
            RowValue::Text(session),
            RowValue::Number(*seq),
            RowValue::Text(handler),
            RowValue::Number(attempts.into()),
            RowValue::Text(cause),
            again_at.into(),
            RowValue::Number(signed(now.millis())),
        ]);
    }
    let changed = with_rows(on, POSTPONE, POSTPONE_COLUMNS, rows, Vec::new()).await?;
    let changed: HashSet<HandledKey> = changed.iter().map(read_key).collect::<Result<_, _>>()?;
    Ok(requests.iter().zip(&keys).map(|((index, _), key)| (*index, changed.contains(key))).collect())
}

/// Appends a dead entry again, without its attempts. Returns whether it exists.
pub(super) async fn revive(on: &DatabaseTransaction, position: i64, now: UnixMs) -> Result<bool, EngineError> {
    const TAKE: &str = "DELETE FROM inbox WHERE place = $1 AND dead IS NOT NULL
        RETURNING session, seq, handler, lane, name, event, why, created_at";
    let rows = query(on, TAKE, vec![position.into()]).await?;
    let Some(row) = rows.first() else { return Ok(false) };
    append_again(on, row, now).await?;
    Ok(true)
}

async fn append_again(on: &DatabaseTransaction, row: &QueryResult, now: UnixMs) -> Result<(), EngineError> {
    let name: String = row.try_get_by_index(4)?;
    let event: String = row.try_get_by_index(5)?;
    let last_error: Option<String> = row.try_get_by_index(6)?;
    let new = NewInboxEntry {
        key: &read_key(row)?,
        lane: row.try_get_by_index(3)?,
        name: &name,
        event: &event,
        attempts: 0,
        eligible_at: signed(now.millis()),
        dead: None,
        last_error: last_error.as_deref(),
        created_at: row.try_get_by_index(7)?,
        died_at: None,
    };
    insert(on, &[new]).await
}
