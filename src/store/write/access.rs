//! API keys and audit records.

use guildhall_actors::access::AuditRecord;
use guildhall_actors::ports::{AddKeyResult, NewApiKey, RevokeResult, RotateResult};
use guildhall_core::{
    access::{GuildSet, KeyId},
    time::UnixMs,
    usage::UsageScope,
};
use sea_orm::{DatabaseTransaction, QueryResult};

use super::{Context, EngineError, signed};
use crate::store::rows::{ColumnType, Columns, RowValue, Rows, query, with_rows, without_nul};

/// Maximum number of rows of a kind that one sweep removes.
const SWEEP: i64 = 500;

/// The queues of the guilds that a key is for.
pub(super) fn guild_queues(new: &NewApiKey) -> Vec<i64> {
    match new.grant.guilds() {
        GuildSet::All => Vec::new(),
        GuildSet::Only(guilds) => guilds.iter().map(|guild| guild.cast_signed()).collect(),
    }
}

/// Stores a key, if none of its guilds belongs to another tenant.
pub(super) async fn add(
    on: &DatabaseTransaction,
    context: &Context,
    new: &NewApiKey,
) -> Result<AddKeyResult, EngineError> {
    const LINES: Columns = Columns(&[("line", ColumnType::Number)]);
    const TAKEN: &str = "SELECT q.queue FROM {v} JOIN guild_queues q ON q.queue = v.line WHERE q.tenant <> $2";
    const TAKE: &str = "INSERT INTO guild_queues (queue, tenant, next_seq, pending, paused, fence)
        SELECT line, $2, 1, 0, 0, $3 FROM {v} WHERE 1 = 1 ON CONFLICT (queue) DO NOTHING";
    const INSERT: &str = "INSERT INTO api_keys (id, tenant, name, digest, scopes, created_at, expires_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7)";
    let queues = Rows::of(guild_queues(new).into_iter().map(RowValue::Number));
    if !queues.is_empty() {
        let taken = with_rows(on, TAKEN, LINES, queues.clone(), vec![new.tenant.to_string().into()]).await?;
        if let Some(row) = taken.first() {
            return Ok(AddKeyResult::GuildTaken(row.try_get_by_index::<i64>(0)?.cast_unsigned()));
        }
        let values = vec![new.tenant.to_string().into(), context.first_fence().into()];
        with_rows(on, TAKE, LINES, queues, values).await?;
    }
    let values = vec![
        new.id.to_string().into(),
        new.tenant.to_string().into(),
        without_nul(&new.name).into(),
        new.digest.to_vec().into(),
        new.grant.names().join(" ").into(),
        signed(new.created_at.millis()).into(),
        new.expires_at.map(|at| signed(at.millis())).into(),
    ];
    query(on, INSERT, values).await?;
    Ok(AddKeyResult::Done)
}

/// Revokes a key.
pub(super) async fn revoke(on: &DatabaseTransaction, id: KeyId, now: UnixMs) -> Result<RevokeResult, EngineError> {
    const REVOKE: &str = "UPDATE api_keys SET revoked_at = $2 WHERE id = $1 AND (revoked_at IS NULL OR revoked_at > $2)
        RETURNING id";
    let values = vec![id.to_string().into(), signed(now.millis()).into()];
    if !query(on, REVOKE, values).await?.is_empty() {
        return Ok(RevokeResult::Revoked);
    }
    let existing = query(on, "SELECT 1 FROM api_keys WHERE id = $1", vec![id.to_string().into()]).await?;
    Ok(if existing.is_empty() { RevokeResult::Unknown } else { RevokeResult::AlreadyRevoked })
}

/// Stores a key that replaces another one, which ends soon.
pub(super) async fn rotate(
    on: &DatabaseTransaction,
    context: &Context,
    old: KeyId,
    new: &NewApiKey,
    until: UnixMs,
) -> Result<RotateResult, EngineError> {
    const END: &str = "UPDATE api_keys SET rotated_to = $2, revoked_at = $3
        WHERE id = $1 AND rotated_to IS NULL AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $4)
        RETURNING id";
    let (until, now) = (signed(until.millis()), signed(new.created_at.millis()));
    let values = vec![old.to_string().into(), new.id.to_string().into(), until.into(), now.into()];
    if query(on, END, values).await?.is_empty() {
        let existing = query(on, "SELECT 1 FROM api_keys WHERE id = $1", vec![old.to_string().into()]).await?;
        return Ok(if existing.is_empty() { RotateResult::Unknown } else { RotateResult::NotValid });
    }
    match add(on, context, new).await? {
        AddKeyResult::Done => Ok(RotateResult::Done),
        // Its guilds are those of the replaced key, which already belong to its tenant.
        AddKeyResult::GuildTaken(guild) => {
            Err(EngineError::Corrupt(format!("guild {guild} no longer belongs to the tenant of key {old}")))
        }
    }
}

/// Stores audit records, in order.
pub(super) async fn store_audit_records<'a>(
    on: &DatabaseTransaction,
    context: &Context,
    records: impl Iterator<Item = &'a AuditRecord>,
) -> Result<(), EngineError> {
    const NOTES: Columns = Columns(&[
        ("at", ColumnType::Number),
        ("tenant", ColumnType::Text),
        ("api_key", ColumnType::Text),
        ("action", ColumnType::Text),
        ("guild_id", ColumnType::Number),
        ("target", ColumnType::Text),
        ("detail", ColumnType::Text),
        ("request", ColumnType::Text),
    ]);
    // What the operator does in a guild is visible to the tenant of that guild, and to no other.
    const INSERT: &str = "INSERT INTO audit (at, tenant, api_key, action, guild_id, target, detail, request)
        SELECT v.at, COALESCE(q.tenant, v.tenant), v.api_key, v.action, v.guild_id, v.target, v.detail, v.request
        FROM {v} LEFT JOIN guild_queues q ON q.queue = v.guild_id";
    let mut rows = Rows::new();
    for note in records {
        context.usage.count_audit(&note.key, 1);
        rows.push(&[
            RowValue::Number(signed(note.at.millis())),
            RowValue::Text(&note.tenant),
            RowValue::Text(&note.key),
            RowValue::Text(note.action.name()),
            note.guild.map(u64::cast_signed).into(),
            RowValue::Text(&note.target),
            RowValue::Text(&note.detail),
            RowValue::Text(&note.request),
        ]);
    }
    if !rows.is_empty() {
        with_rows(on, INSERT, NOTES, rows, Vec::new()).await?;
    }
    Ok(())
}

/// Removes audit records before this time, and keys that ended before it.
pub(super) async fn sweep(on: &DatabaseTransaction, context: &Context, before: UnixMs) -> Result<u64, EngineError> {
    const FORGET: &str = "DELETE FROM audit WHERE place IN
        (SELECT place FROM audit WHERE at <= $1 ORDER BY at LIMIT $2 + 0) RETURNING api_key";
    const KEYS: &str = "DELETE FROM api_keys WHERE id IN (SELECT id FROM api_keys
        WHERE revoked_at <= $1 OR expires_at <= $1 LIMIT $2 + 0) RETURNING id";
    let bound = || vec![signed(before.millis()).into(), SWEEP.into()];
    let mut forgotten = query(on, FORGET, bound()).await?;
    if forgotten.is_empty() {
        forgotten = trim(on, context).await?;
    }
    for row in &forgotten {
        context.usage.count_audit(&row.try_get_by_index::<String>(0)?, -1);
    }
    let notes = forgotten.len();
    let keys = query(on, KEYS, bound()).await?.len();
    Ok((notes + keys) as u64)
}

/// Removes the oldest audit records of a key that has more than the limit.
async fn trim(on: &DatabaseTransaction, context: &Context) -> Result<Vec<QueryResult>, EngineError> {
    const OVER: &str =
        "SELECT scope, CAST(SUM(operations) AS BIGINT) FROM usage WHERE scope LIKE 'audit:%' GROUP BY scope
        HAVING SUM(operations) > $1 LIMIT 1";
    const REMOVE: &str = "DELETE FROM audit WHERE place IN
        (SELECT place FROM audit WHERE api_key = $1 ORDER BY place LIMIT $2 + 0) RETURNING api_key";
    if context.max_audit == 0 {
        return Ok(Vec::new());
    }
    let over = query(on, OVER, vec![signed(context.max_audit).into()]).await?;
    let Some(row) = over.first() else { return Ok(Vec::new()) };
    let scope: String = row.try_get_by_index(0)?;
    let Some(UsageScope::Audit(key)) = UsageScope::read(&scope) else { return Ok(Vec::new()) };
    let over: i64 = row.try_get_by_index::<i64>(1)? - signed(context.max_audit);
    Ok(query(on, REMOVE, vec![key.into(), over.min(SWEEP).into()]).await?)
}
