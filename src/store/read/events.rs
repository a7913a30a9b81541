//! Sessions, handled events, and the inbox.

use std::{collections::HashMap, sync::Arc};

use guildhall_actors::ports::{InboxEntry, InboxKey, StoredSession};
use guildhall_core::time::UnixMs;
use sea_orm::{ConnectionTrait, QueryResult};

use super::{MAX_ROWS, limit};
use crate::store::{
    error::EngineError,
    operation_row::{read_u32, time},
    rows::{ColumnType, Columns, RowValue, Rows, query, with_rows, without_nul},
    write::signed,
};

pub(in crate::store) const SESSIONS: &str =
    "SELECT shards, shard, session, resume_url, confirmed, updated_at FROM sessions ORDER BY shards, shard";

pub(in crate::store) async fn sessions(on: &impl ConnectionTrait) -> Result<Vec<StoredSession>, EngineError> {
    let session = |row: &QueryResult| {
        Ok(StoredSession {
            shards: read_u32(row, 0)?,
            shard: read_u32(row, 1)?,
            session: Arc::from(row.try_get_by_index::<String>(2)?),
            resume_url: row.try_get_by_index(3)?,
            confirmed: row.try_get_by_index::<i64>(4)?.unsigned_abs(),
            at: time(row.try_get_by_index(5)?),
            fence: None,
        })
    };
    query(on, SESSIONS, Vec::new()).await?.iter().map(session).collect()
}

pub(in crate::store) const HANDLED_AFTER: &str = "SELECT seq, handler FROM handled WHERE session = $1
    AND (seq, handler) > ($2, $3) ORDER BY seq, handler LIMIT $4 + 0";

/// Reads all of them, page by page: if one was missing, a handler would get an event twice.
pub(in crate::store) async fn handled_after(
    on: &impl ConnectionTrait,
    session: &str,
    seq: u64,
) -> Result<Vec<(u64, Arc<str>)>, EngineError> {
    let mut found: Vec<(u64, Arc<str>)> = Vec::new();
    // The empty string sorts before every handler of the first sequence number to read.
    let mut after = (signed(seq.saturating_add(1)), String::new());
    loop {
        let values = vec![without_nul(session).into(), after.0.into(), after.1.clone().into(), limit(MAX_ROWS).into()];
        let page = query(on, HANDLED_AFTER, values).await?;
        for row in &page {
            after = (row.try_get_by_index(0)?, row.try_get_by_index(1)?);
            found.push((after.0.unsigned_abs(), Arc::from(after.1.as_str())));
        }
        if page.len() < MAX_ROWS {
            return Ok(found);
        }
    }
}

pub(in crate::store) const WAITING: &str =
    "SELECT place, session, seq, handler, lane, name, event, attempts, eligible_at,
    dead, created_at FROM inbox WHERE dead IS NULL AND place > $1 ORDER BY place LIMIT $2 + 0";

pub(in crate::store) const DEAD: &str = "SELECT place, session, seq, handler, lane, name, event, attempts, eligible_at,
    dead, created_at FROM inbox WHERE dead IS NOT NULL AND place < $1 ORDER BY place DESC LIMIT $2 + 0";

pub(in crate::store) async fn inbox(
    on: &impl ConnectionTrait,
    after: i64,
    max: usize,
) -> Result<Vec<InboxEntry>, EngineError> {
    query(on, WAITING, vec![after.into(), limit(max).into()]).await?.iter().map(read_entry).collect()
}

pub(in crate::store) async fn dead(
    on: &impl ConnectionTrait,
    before: Option<i64>,
    max: usize,
) -> Result<Vec<InboxEntry>, EngineError> {
    let before = before.unwrap_or(i64::MAX);
    query(on, DEAD, vec![before.into(), limit(max).into()]).await?.iter().map(read_entry).collect()
}

fn read_entry(row: &QueryResult) -> Result<InboxEntry, EngineError> {
    let key = InboxKey {
        session: Arc::from(row.try_get_by_index::<String>(1)?),
        seq: row.try_get_by_index::<i64>(2)?.unsigned_abs(),
        handler: Arc::from(row.try_get_by_index::<String>(3)?),
    };
    Ok(InboxEntry {
        key,
        position: row.try_get_by_index(0)?,
        lane: row.try_get_by_index(4)?,
        name: row.try_get_by_index(5)?,
        event: row.try_get_by_index(6)?,
        attempts: read_u32(row, 7)?,
        eligible_at: time(row.try_get_by_index(8)?),
        dead: row.try_get_by_index(9)?,
        created_at: time(row.try_get_by_index(10)?),
    })
}

pub(in crate::store) const STATE_KEYS: Columns = Columns(&[("its_key", ColumnType::Text)]);

pub(in crate::store) const VALUES: &str = "SELECT s.key, s.value FROM {v} JOIN state s ON s.key = v.its_key
    WHERE s.expires_at IS NULL OR s.expires_at > $2";

/// Values by their keys, unless they have expired.
pub(in crate::store) async fn values(
    on: &impl ConnectionTrait,
    keys: &[String],
    now: UnixMs,
) -> Result<Vec<Option<String>>, EngineError> {
    let rows = Rows::of(keys.iter().map(|key| RowValue::Text(key)));
    let found = with_rows(on, VALUES, STATE_KEYS, rows, vec![signed(now.millis()).into()]).await?;
    let value = |row: &QueryResult| Ok::<_, EngineError>((row.try_get_by_index(0)?, row.try_get_by_index(1)?));
    let found: HashMap<String, String> = found.iter().map(value).collect::<Result<_, _>>()?;
    Ok(keys.iter().map(|key| found.get(&without_nul(key)).cloned()).collect())
}
