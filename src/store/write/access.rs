//! API keys and audit records.

use guildhall_actors::access::AuditRecord;
use guildhall_actors::ports::{AddKeyResult, NewApiKey, RevokeResult, RotateResult};
use guildhall_core::{
    access::{GuildSet, KeyId},
    time::UnixMs,
    usage::UsageScope,
};
use sea_orm::{DatabaseTransaction, QueryResult};

use super::{BatchNeeds, Context, EngineError, QUEUE_NUMBERS, WriteJob, WriteTx, signed};
use crate::store::rows::{Columns, Rows, columns, query, row, scalars, with_rows, without_nul};

/// Maximum number of rows of a kind that one sweep removes.
const SWEEP: i64 = 500;

/// Adds an API key, if none of its guilds belongs to another tenant.
pub(in crate::store) struct AddKey(pub(in crate::store) NewApiKey);

/// Revokes an API key.
pub(in crate::store) struct RevokeKey {
    pub(in crate::store) id: KeyId,
    pub(in crate::store) now: UnixMs,
}

/// Adds an API key that replaces another one, which ends soon.
pub(in crate::store) struct RotateKey {
    pub(in crate::store) old: KeyId,
    pub(in crate::store) new: NewApiKey,
    pub(in crate::store) until: UnixMs,
}

/// Only stores the audit record of the request.
pub(in crate::store) struct AuditOnly;

/// Removes audit records before a time, and keys that ended before it. Returns their number.
pub(in crate::store) struct SweepAccess(pub(in crate::store) UnixMs);

/// The queues of the guilds that a key is for.
fn guild_queues(new: &NewApiKey) -> Vec<i64> {
    match new.grant.guilds() {
        GuildSet::All => Vec::new(),
        GuildSet::Only(guilds) => guilds.iter().map(|guild| guild.cast_signed()).collect(),
    }
}

impl WriteJob for AddKey {
    type Output = AddKeyResult;

    fn prepare(&self, needs: &mut BatchNeeds<'_>) {
        needs.lock_queues(guild_queues(&self.0));
    }

    async fn run(&self, tx: &mut WriteTx<'_>) -> Result<AddKeyResult, EngineError> {
        add(tx, &self.0).await
    }

    fn is_change(result: &AddKeyResult) -> bool {
        *result == AddKeyResult::Done
    }
}

async fn add(tx: &WriteTx<'_>, new: &NewApiKey) -> Result<AddKeyResult, EngineError> {
    const TAKEN: &str = "SELECT q.queue FROM {v} JOIN guild_queues q ON q.queue = v.line WHERE q.tenant <> $2";
    const TAKE: &str = "INSERT INTO guild_queues (queue, tenant, next_seq, pending, paused, fence)
        SELECT line, $2, 1, 0, 0, $3 FROM {v} WHERE 1 = 1 ON CONFLICT (queue) DO NOTHING";
    const INSERT: &str = "INSERT INTO api_keys (id, tenant, name, digest, scopes, created_at, expires_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7)";
    let queues = Rows::of(guild_queues(new));
    if !queues.is_empty() {
        let taken = with_rows(tx.on, TAKEN, QUEUE_NUMBERS, queues.clone(), vec![new.tenant.to_string().into()]).await?;
        if let Some(guild) = scalars::<i64>(&taken)?.first() {
            return Ok(AddKeyResult::GuildTaken(guild.cast_unsigned()));
        }
        let values = vec![new.tenant.to_string().into(), tx.context.first_fence().into()];
        with_rows(tx.on, TAKE, QUEUE_NUMBERS, queues, values).await?;
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
    query(tx.on, INSERT, values).await?;
    Ok(AddKeyResult::Done)
}

impl WriteJob for RevokeKey {
    type Output = RevokeResult;

    async fn run(&self, tx: &mut WriteTx<'_>) -> Result<RevokeResult, EngineError> {
        const REVOKE: &str = "UPDATE api_keys SET revoked_at = $2
            WHERE id = $1 AND (revoked_at IS NULL OR revoked_at > $2) RETURNING id";
        let values = vec![self.id.to_string().into(), signed(self.now.millis()).into()];
        if !query(tx.on, REVOKE, values).await?.is_empty() {
            return Ok(RevokeResult::Revoked);
        }
        Ok(if exists(tx.on, self.id).await? { RevokeResult::AlreadyRevoked } else { RevokeResult::Unknown })
    }

    fn is_change(result: &RevokeResult) -> bool {
        *result == RevokeResult::Revoked
    }
}

impl WriteJob for RotateKey {
    type Output = RotateResult;

    fn prepare(&self, needs: &mut BatchNeeds<'_>) {
        needs.lock_queues(guild_queues(&self.new));
    }

    async fn run(&self, tx: &mut WriteTx<'_>) -> Result<RotateResult, EngineError> {
        const END: &str = "UPDATE api_keys SET rotated_to = $2, revoked_at = $3
            WHERE id = $1 AND rotated_to IS NULL AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $4)
            RETURNING id";
        let Self { old, new, until } = self;
        let (until, now) = (signed(until.millis()), signed(new.created_at.millis()));
        let values = vec![old.to_string().into(), new.id.to_string().into(), until.into(), now.into()];
        if query(tx.on, END, values).await?.is_empty() {
            return Ok(if exists(tx.on, *old).await? { RotateResult::NotValid } else { RotateResult::Unknown });
        }
        match add(tx, new).await? {
            AddKeyResult::Done => Ok(RotateResult::Done),
            // Its guilds are those of the replaced key, which already belong to its tenant.
            AddKeyResult::GuildTaken(guild) => {
                Err(EngineError::Corrupt(format!("guild {guild} no longer belongs to the tenant of key {old}")))
            }
        }
    }

    fn is_change(result: &RotateResult) -> bool {
        *result == RotateResult::Done
    }
}

async fn exists(on: &DatabaseTransaction, id: KeyId) -> Result<bool, EngineError> {
    Ok(!query(on, "SELECT 1 FROM api_keys WHERE id = $1", vec![id.to_string().into()]).await?.is_empty())
}

impl WriteJob for AuditOnly {
    type Output = ();

    async fn run(&self, _: &mut WriteTx<'_>) -> Result<(), EngineError> {
        Ok(())
    }
}

/// Stores audit records, in order.
pub(super) async fn store_audit_records<'a>(
    on: &DatabaseTransaction,
    context: &Context,
    records: impl Iterator<Item = &'a AuditRecord>,
) -> Result<(), EngineError> {
    const NOTES: Columns = columns![
        at: Number, tenant: Text, api_key: Text, action: Text, guild_id: Number, target: Text, detail: Text,
        request: Text,
    ];
    // What the operator does in a guild is visible to the tenant of that guild, and to no other.
    const INSERT: &str = "INSERT INTO audit (at, tenant, api_key, action, guild_id, target, detail, request)
        SELECT v.at, COALESCE(q.tenant, v.tenant), v.api_key, v.action, v.guild_id, v.target, v.detail, v.request
        FROM {v} LEFT JOIN guild_queues q ON q.queue = v.guild_id";
    let mut rows = Rows::new();
    for note in records {
        context.usage.count_audit(&note.key, 1);
        rows.push(row! {
            note.at, &note.tenant, &note.key, note.action.name(), note.guild.map(u64::cast_signed), &note.target,
            &note.detail, &note.request,
        });
    }
    with_rows(on, INSERT, NOTES, rows, Vec::new()).await?;
    Ok(())
}

impl WriteJob for SweepAccess {
    type Output = u64;

    async fn run(&self, WriteTx { on, context, .. }: &mut WriteTx<'_>) -> Result<u64, EngineError> {
        const FORGET: &str = "DELETE FROM audit WHERE place IN
            (SELECT place FROM audit WHERE at <= $1 ORDER BY at LIMIT $2 + 0) RETURNING api_key";
        const KEYS: &str = "DELETE FROM api_keys WHERE id IN (SELECT id FROM api_keys
            WHERE revoked_at <= $1 OR expires_at <= $1 LIMIT $2 + 0) RETURNING id";
        let bound = || vec![signed(self.0.millis()).into(), SWEEP.into()];
        let mut forgotten = query(*on, FORGET, bound()).await?;
        if forgotten.is_empty() {
            forgotten = trim(on, context).await?;
        }
        scalars::<String>(&forgotten)?.iter().for_each(|key| context.usage.count_audit(key, -1));
        let keys = query(*on, KEYS, bound()).await?;
        Ok((forgotten.len() + keys.len()) as u64)
    }
}

/// Removes the oldest audit records of a key that has more than the limit.
async fn trim(on: &DatabaseTransaction, context: &Context) -> Result<Vec<QueryResult>, EngineError> {
    const OVER: &str =
        "SELECT scope, CAST(SUM(operations) AS BIGINT) AS stored FROM usage WHERE scope LIKE 'audit:%' GROUP BY scope
        HAVING SUM(operations) > $1 LIMIT 1";
    const REMOVE: &str = "DELETE FROM audit WHERE place IN
        (SELECT place FROM audit WHERE api_key = $1 ORDER BY place LIMIT $2 + 0) RETURNING api_key";
    if context.max_audit == 0 {
        return Ok(Vec::new());
    }
    let over = query(on, OVER, vec![signed(context.max_audit).into()]).await?;
    let Some(row) = over.first() else { return Ok(Vec::new()) };
    let scope: String = row.try_get("", "scope")?;
    let Some(UsageScope::Audit(key)) = UsageScope::read(&scope) else { return Ok(Vec::new()) };
    let over: i64 = row.try_get::<i64>("", "stored")? - signed(context.max_audit);
    Ok(query(on, REMOVE, vec![key.into(), over.min(SWEEP).into()]).await?)
}
