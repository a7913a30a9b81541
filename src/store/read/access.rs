//! API keys, audit records, and tenants of guilds.

use std::sync::Arc;

use guildhall_actors::access::{AuditAction, AuditFilter, AuditRecord, StoredAuditRecord};
use guildhall_actors::ports::{ApiKey, KeyFilter, NewApiKey};
use guildhall_core::{
    access::{Grant, KeyId},
    time::UnixMs,
};
use sea_orm::{
    ColumnTrait as _, Condition, ConnectionTrait, DbBackend, EntityTrait as _, FromQueryResult as _, QueryFilter as _,
    QueryOrder as _, QuerySelect as _, Statement,
    sea_query::{self, Expr},
};

use super::limit;
use crate::store::sql;
use crate::store::{
    entities::{api_keys, audit, guild_queues},
    error::EngineError,
    operation_row::time,
    rows::{ColumnType, Columns, RowValue, Rows, SqlText, first_rows, query_scalar, with_rows_as},
    write::signed,
};

pub(in crate::store) async fn key(on: &impl ConnectionTrait, id: KeyId) -> Result<Option<ApiKey>, EngineError> {
    let found = api_keys::Entity::find_by_id(id.to_string()).all(on).await?;
    found.into_iter().next().map(read_key).transpose()
}

/// The keys with these IDs.
pub(in crate::store) async fn find_keys(on: &impl ConnectionTrait, ids: &[KeyId]) -> Result<Vec<ApiKey>, EngineError> {
    const IDS: Columns = Columns(&[("its_id", ColumnType::Text)]);
    let rows = Rows::of(ids.iter().map(|id| RowValue::Text(id.as_str())));
    with_rows_as(on, sql::access::FIND_KEYS, IDS, rows, Vec::new()).await?.into_iter().map(read_key).collect()
}

/// IDs of the newest keys.
pub(in crate::store) async fn key_ids(
    on: &impl ConnectionTrait,
    since: UnixMs,
    limit: usize,
) -> Result<Vec<KeyId>, EngineError> {
    use api_keys::Column::{CreatedAt, Id};
    let select = api_keys::Entity::find().select_only().column(Id).filter(CreatedAt.gte(signed(since.millis())));
    let limit = i64::try_from(limit).unwrap_or(i64::MAX).cast_unsigned();
    let select = select.order_by_desc(CreatedAt).order_by_desc(Id).limit(limit);
    let parse = |id: String| id.parse().map_err(|_| EngineError::Corrupt(format!("API key {id:?} has an invalid ID")));
    select.into_tuple::<String>().all(on).await?.into_iter().map(parse).collect()
}

pub(in crate::store) async fn keys(on: &impl ConnectionTrait, filter: &KeyFilter) -> Result<Vec<ApiKey>, EngineError> {
    use api_keys::Column::{CreatedAt, Id, Tenant};
    let before = filter.before.as_ref().map(|(at, id)| {
        let last = [Expr::from(signed(at.millis())), Expr::from(id.to_string())];
        sea_query::ExprTrait::lt(Expr::tuple([CreatedAt.into_expr(), Id.into_expr()]), Expr::tuple(last))
    });
    let conditions =
        Condition::all().add_option(filter.tenant.as_deref().map(|tenant| Tenant.eq(tenant))).add_option(before);
    let select = api_keys::Entity::find().filter(conditions).order_by_desc(CreatedAt).order_by_desc(Id);
    let select = first_rows(on.get_database_backend(), &select, filter.limit);
    api_keys::Model::find_by_statement(select).all(on).await?.into_iter().map(read_key).collect()
}

fn read_key(row: api_keys::Model) -> Result<ApiKey, EngineError> {
    let corrupt =
        |column_name: &str| EngineError::Corrupt(format!("API key {:?} has an invalid value: {column_name}", row.id));
    let parse_id = |name: &str| name.parse::<KeyId>().map_err(|_| corrupt("ID"));
    Ok(ApiKey {
        key: NewApiKey {
            id: parse_id(&row.id)?,
            tenant: Arc::from(row.tenant),
            name: row.name,
            digest: row.digest.try_into().map_err(|_| corrupt("digest"))?,
            grant: Grant::read(row.scopes.split(' ')).map_err(|_| corrupt("scopes"))?,
            created_at: time(row.created_at),
            expires_at: row.expires_at.map(time),
        },
        revoked_at: row.revoked_at.map(time),
        rotated_to: row.rotated_to.as_deref().map(parse_id).transpose()?,
    })
}

/// Audit records, newest first.
pub(in crate::store) async fn audit(
    on: &impl ConnectionTrait,
    filter: &AuditFilter,
) -> Result<Vec<StoredAuditRecord>, EngineError> {
    if filter.guilds.is_some() && on.get_database_backend() == DbBackend::Sqlite {
        return audit_of_guilds(on, filter, PIECES).await;
    }
    let select = audit::Entity::find().filter(conditions(filter)).order_by_desc(audit::Column::Place);
    let select = first_rows(on.get_database_backend(), &select, filter.limit);
    audit::Model::find_by_statement(select).all(on).await?.into_iter().map(read_audit_record).collect()
}

fn conditions(filter: &AuditFilter) -> Condition {
    use audit::Column::{Action, ApiKey, GuildId, Place, Tenant};
    Condition::all()
        .add_option(filter.tenant.as_deref().map(|tenant| Tenant.eq(tenant)))
        .add_option(filter.key.as_deref().map(|key| ApiKey.eq(key)))
        .add_option(filter.action.map(|action| Action.eq(action.name())))
        .add_option(filter.guilds.as_ref().map(|guilds| GuildId.is_in(guilds.iter().map(|id| id.cast_signed()))))
        .add_option(filter.before.map(|before| Place.lt(before)))
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
    let first: Option<i64> = query_scalar(on, sql::access::FIRST_PLACE, Vec::new()).await?.flatten();
    let last: Option<i64> = query_scalar(on, sql::access::LAST_PLACE, Vec::new()).await?.flatten();
    let (Some(first), Some(last)) = (first, last) else { return Ok(Vec::new()) };
    let first = first / PIECE;
    let mut from = filter.before.map_or(last, |before| last.min(before.saturating_sub(1))) / PIECE;
    let max = usize::try_from(limit(filter.limit)).unwrap_or(filter.limit);
    let mut found = Vec::new();
    while from >= first && found.len() < max {
        let to = first.max(from.saturating_sub(pieces - 1));
        let select = piece_statement(filter, (from, to), max - found.len());
        for row in audit::Model::find_by_statement(select).all(on).await? {
            found.push(read_audit_record(row)?);
        }
        from = to - 1;
    }
    Ok(found)
}

/// The statement that finds a guild's records from one piece down to another. SeaORM's builders cannot name an index.
fn piece_statement(filter: &AuditFilter, (from, to): (i64, i64), max: usize) -> Statement {
    let mut sql = SqlText::new(DbBackend::Sqlite);
    sql.push("WITH RECURSIVE piece (n) AS (SELECT ")
        .value(from)
        .push(" + 0 UNION ALL SELECT n - 1 FROM piece WHERE n > ");
    sql.value(to).push(&format!(
        ") SELECT audit.* FROM piece CROSS JOIN audit INDEXED BY audit_guild ON audit.place / {PIECE} = piece.n WHERE "
    ));
    sql.condition(conditions(filter)).push(" ORDER BY audit.place DESC").limit(max);
    sql.finish()
}

fn read_audit_record(row: audit::Model) -> Result<StoredAuditRecord, EngineError> {
    let action = AuditAction::from_name(&row.action).ok_or_else(|| {
        EngineError::Corrupt(format!("audit record {} has an unknown action: {:?}", row.place, row.action))
    })?;
    let record = AuditRecord {
        at: time(row.at),
        tenant: Arc::from(row.tenant),
        key: Arc::from(row.api_key),
        action,
        guild: row.guild_id.map(i64::cast_unsigned),
        target: row.target,
        detail: row.detail,
        request: Arc::from(row.request),
    };
    Ok(StoredAuditRecord { position: row.place, record })
}

/// Tenant of a guild, if the guild is in the store.
pub(in crate::store) async fn tenant(on: &impl ConnectionTrait, guild: u64) -> Result<Option<Arc<str>>, EngineError> {
    let select = guild_queues::Entity::find_by_id(guild.cast_signed()).select_only();
    let found = select.column(guild_queues::Column::Tenant).into_tuple::<String>().all(on).await?;
    Ok(found.into_iter().next().map(Arc::from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{
        Store, connect,
        query_plan_tests::{plan, settings},
        rows::query,
    };

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
        let plan = plan(&on, "EXPLAIN QUERY PLAN", piece_statement(&filter, (8, 0), 9)).await;
        assert!(plan.contains("audit_guild (<expr>=? AND guild_id=?)"), "{plan}");
    }
}
