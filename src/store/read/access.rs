//! API keys, audit records, and tenants of guilds.

use std::sync::Arc;

use guildhall_actors::access::{AuditAction, AuditFilter, AuditRecord, StoredAuditRecord};
use guildhall_actors::ports::{ApiKey, KeyFilter, NewApiKey};
use guildhall_core::{
    access::{Grant, KeyId},
    time::UnixMs,
};
use sea_orm::{ConnectionTrait, DbBackend, QueryResult};

use super::{WhereClause, limit};
use crate::store::{
    error::EngineError,
    operation_row::time,
    rows::{ColumnType, Columns, RowValue, Rows, query, with_rows},
    write::signed,
};

const KEY_COLUMNS: &str =
    "SELECT k.id, k.tenant, k.name, k.digest, k.scopes, k.created_at, k.expires_at, k.revoked_at, k.rotated_to";

pub(in crate::store) async fn key(on: &impl ConnectionTrait, id: KeyId) -> Result<Option<ApiKey>, EngineError> {
    let rows =
        query(on, &format!("{KEY_COLUMNS} FROM api_keys k WHERE k.id = $1"), vec![id.to_string().into()]).await?;
    rows.first().map(read_key).transpose()
}

/// The keys with these IDs.
pub(in crate::store) async fn find_keys(on: &impl ConnectionTrait, ids: &[KeyId]) -> Result<Vec<ApiKey>, EngineError> {
    const IDS: Columns = Columns(&[("id", ColumnType::Text)]);
    // A cross join, so that SQLite searches the keys by ID, whatever it estimates about their number.
    let sql = format!("{KEY_COLUMNS} FROM {{v}} CROSS JOIN api_keys k WHERE k.id = v.id");
    let rows = Rows::of(ids.iter().map(|id| RowValue::Text(id.as_str())));
    with_rows(on, &sql, IDS, rows, Vec::new()).await?.iter().map(read_key).collect()
}

/// IDs of the newest keys.
pub(in crate::store) async fn key_ids(
    on: &impl ConnectionTrait,
    since: UnixMs,
    limit: usize,
) -> Result<Vec<KeyId>, EngineError> {
    const IDS: &str = "SELECT k.id FROM api_keys k WHERE k.created_at >= $1 ORDER BY k.created_at DESC, k.id DESC
        LIMIT $2 + 0";
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = query(on, IDS, vec![signed(since.millis()).into(), limit.into()]).await?;
    let read = |row: &QueryResult| {
        let id: String = row.try_get_by_index(0)?;
        id.parse().map_err(|_| EngineError::Corrupt(format!("API key {id:?} has an invalid ID")))
    };
    rows.iter().map(read).collect()
}

pub(in crate::store) async fn keys(on: &impl ConnectionTrait, filter: &KeyFilter) -> Result<Vec<ApiKey>, EngineError> {
    let mut conditions = WhereClause::default();
    if let Some(tenant) = &filter.tenant {
        conditions.and("k.tenant = ?", tenant.to_string());
    }
    if let Some((at, id)) = &filter.before {
        // Keys of the same millisecond are ordered by their IDs, which are plain letters and digits.
        conditions.and(&format!("(k.created_at, k.id) < (?, '{id}')"), signed(at.millis()));
    }
    let (rest, values) = conditions.ordered("k.created_at DESC, k.id DESC", filter.limit);
    query(on, &format!("{KEY_COLUMNS} FROM api_keys k {rest}"), values).await?.iter().map(read_key).collect()
}

fn read_key(row: &QueryResult) -> Result<ApiKey, EngineError> {
    let id: String = row.try_get_by_index(0)?;
    let corrupt =
        |column_name: &str| EngineError::Corrupt(format!("API key {id:?} has an invalid value: {column_name}"));
    let parse_id = |name: &str| name.parse::<KeyId>().map_err(|_| corrupt("ID"));
    let tenant: String = row.try_get_by_index(1)?;
    let digest: Vec<u8> = row.try_get_by_index(3)?;
    let scopes: String = row.try_get_by_index(4)?;
    let rotated_to: Option<String> = row.try_get_by_index(8)?;
    let time_at = |column| row.try_get_by_index::<Option<i64>>(column).map(|at| at.map(time));
    Ok(ApiKey {
        key: NewApiKey {
            id: parse_id(&id)?,
            tenant: Arc::from(tenant),
            name: row.try_get_by_index(2)?,
            digest: digest.try_into().map_err(|_| corrupt("digest"))?,
            grant: Grant::read(scopes.split(' ')).map_err(|_| corrupt("scopes"))?,
            created_at: time(row.try_get_by_index(5)?),
            expires_at: time_at(6)?,
        },
        revoked_at: time_at(7)?,
        rotated_to: rotated_to.as_deref().map(parse_id).transpose()?,
    })
}

const AUDIT_COLUMNS: &str =
    "SELECT a.place, a.at, a.tenant, a.api_key, a.action, a.guild_id, a.target, a.detail, a.request";

/// Audit records, newest first.
pub(in crate::store) async fn audit(
    on: &impl ConnectionTrait,
    filter: &AuditFilter,
) -> Result<Vec<StoredAuditRecord>, EngineError> {
    if filter.guilds.is_some() && on.get_database_backend() == DbBackend::Sqlite {
        return audit_of_guilds(on, filter, PIECES).await;
    }
    let mut conditions = WhereClause::default();
    apply_filter(&mut conditions, filter);
    let (rest, values) = conditions.ordered("a.place DESC", filter.limit);
    query(on, &format!("{AUDIT_COLUMNS} FROM audit a {rest}"), values).await?.iter().map(read_audit_record).collect()
}

fn apply_filter(conditions: &mut WhereClause, filter: &AuditFilter) {
    if let Some(tenant) = &filter.tenant {
        conditions.and("a.tenant = ?", tenant.to_string());
    }
    if let Some(key) = &filter.key {
        conditions.and("a.api_key = ?", key.clone());
    }
    if let Some(action) = filter.action {
        conditions.and("a.action = ?", action.name());
    }
    if let Some(guilds) = &filter.guilds {
        conditions.and_in("a.guild_id", guilds);
    }
    if let Some(before) = filter.before {
        conditions.and("a.place < ?", before);
    }
}

/// Number of audit records in one piece of the SQLite index; the index uses the same number.
const PIECE: i64 = 1_024;
/// Number of pieces that one statement searches for a guild's records.
const PIECES: i64 = 256;

/// Audit records of guilds on SQLite: piece by piece, until there are enough.
async fn audit_of_guilds(
    on: &impl ConnectionTrait,
    filter: &AuditFilter,
    pieces: i64,
) -> Result<Vec<StoredAuditRecord>, EngineError> {
    const ENDS: &str = "SELECT (SELECT MIN(place) FROM audit), (SELECT MAX(place) FROM audit)";
    let ends = query(on, ENDS, Vec::new()).await?;
    let end = |column| ends.first().map_or(Ok(None), |row| row.try_get_by_index::<Option<i64>>(column));
    let (Some(first), Some(last)) = (end(0)?, end(1)?) else { return Ok(Vec::new()) };
    let first = first / PIECE;
    let mut from = filter.before.map_or(last, |before| last.min(before.saturating_sub(1))) / PIECE;
    let max = usize::try_from(limit(filter.limit)).unwrap_or(filter.limit);
    let mut found = Vec::new();
    while from >= first && found.len() < max {
        let to = first.max(from.saturating_sub(pieces - 1));
        let (select, values) = piece_sql(filter, (from, to), max - found.len());
        for row in query(on, &select, values).await? {
            found.push(read_audit_record(&row)?);
        }
        from = to - 1;
    }
    Ok(found)
}

/// The statement that finds a guild's records from one piece down to another.
fn piece_sql(filter: &AuditFilter, (from, to): (i64, i64), max: usize) -> (String, Vec<sea_orm::Value>) {
    let mut conditions = WhereClause::after(vec![from.into(), to.into()]);
    apply_filter(&mut conditions, filter);
    let (rest, values) = conditions.ordered("a.place DESC", max);
    let select = format!(
        "WITH RECURSIVE piece (n) AS (SELECT $1 + 0 UNION ALL SELECT n - 1 FROM piece WHERE n > $2)
        {AUDIT_COLUMNS} FROM piece CROSS JOIN audit a INDEXED BY audit_guild ON a.place / {PIECE} = piece.n {rest}"
    );
    (select, values)
}

fn read_audit_record(row: &QueryResult) -> Result<StoredAuditRecord, EngineError> {
    let text = |column| row.try_get_by_index::<String>(column);
    let (place, action): (i64, String) = (row.try_get_by_index(0)?, text(4)?);
    let unknown = || EngineError::Corrupt(format!("audit record {place} has an unknown action: {action:?}"));
    let note = AuditRecord {
        at: time(row.try_get_by_index(1)?),
        tenant: Arc::from(text(2)?),
        key: Arc::from(text(3)?),
        action: AuditAction::from_name(&action).ok_or_else(unknown)?,
        guild: row.try_get_by_index::<Option<i64>>(5)?.map(i64::cast_unsigned),
        target: text(6)?,
        detail: text(7)?,
        request: Arc::from(text(8)?),
    };
    Ok(StoredAuditRecord { position: place, record: note })
}

/// Tenant of a guild, if the guild is in the store.
pub(in crate::store) async fn tenant(on: &impl ConnectionTrait, guild: u64) -> Result<Option<Arc<str>>, EngineError> {
    let select = "SELECT tenant FROM guild_queues WHERE queue = $1";
    let rows = query(on, select, vec![guild.cast_signed().into()]).await?;
    let tenant: Option<String> = rows.first().map(|row| row.try_get_by_index(0)).transpose()?;
    Ok(tenant.map(Arc::from))
}

#[cfg(test)]
mod tests {
    use sea_orm::Statement;

    use super::*;
    use crate::store::{Store, connect, query_plan_tests::settings};

    /// Records 1 to 9,000. Every thousandth belongs to guild 7, except in the last pieces.
    const FILL: &str = "INSERT INTO audit (at, tenant, api_key, action, guild_id, target, detail, request)
        WITH RECURSIVE count (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM count WHERE n < 9000)
        SELECT n, 'default', 'k', 'refused', CASE WHEN n % 1000 = 0 AND n < 6000 THEN 7 ELSE 8 END, '', '', '' FROM count";

    #[tokio::test]
    async fn guild_audit_is_read_in_pieces_by_its_index() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(&format!("sqlite:{}", folder.path().join("guildhall.db").display()));
        Store::open(&settings).await.unwrap().close().await;
        let on = connect::open_writer(&settings).await.unwrap();
        let found = async |before, limit, at_once| {
            let filter = AuditFilter { guilds: Some(vec![7]), before, limit, ..AuditFilter::default() };
            let rows = audit_of_guilds(&on, &filter, at_once).await.unwrap();
            rows.into_iter().map(|row| row.position).collect::<Vec<_>>()
        };
        assert_eq!(found(None, 9, 4).await, [0; 0]);
        query(&on, FILL, Vec::new()).await.unwrap();
        for at_once in [1, 2, 5, PIECES] {
            assert_eq!(found(None, 9, at_once).await, [5_000, 4_000, 3_000, 2_000, 1_000]);
            assert_eq!(found(Some(4_000), 2, at_once).await, [3_000, 2_000]);
            assert_eq!(found(Some(1_000), 2, at_once).await, [0; 0]);
            assert_eq!(found(Some(i64::MAX), 1, at_once).await, [5_000]);
            assert_eq!(found(Some(i64::MIN), 1, at_once).await, [0; 0]);
        }
        query(&on, "DELETE FROM audit WHERE place < 3000", Vec::new()).await.unwrap();
        assert_eq!(found(None, 9, 1).await, [5_000, 4_000, 3_000]);

        let filter = AuditFilter { guilds: Some(vec![7]), limit: 9, ..AuditFilter::default() };
        let (sql, values) = piece_sql(&filter, (8, 0), 9);
        let plan = Statement::from_sql_and_values(DbBackend::Sqlite, format!("EXPLAIN QUERY PLAN {sql}"), values);
        let plan = on.query_all_raw(plan).await.unwrap();
        let plan: Vec<String> = plan.iter().map(|row| row.try_get_by_index(3).unwrap()).collect();
        assert!(plan.iter().any(|line| line.contains("audit_guild (<expr>=? AND guild_id=?)")), "{plan:?}");
    }
}
