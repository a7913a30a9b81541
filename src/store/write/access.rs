//! API keys and audit records.

use guildhall_actors::access::AuditRecord;
use guildhall_actors::ports::{AddKeyResult, NewApiKey, RevokeResult, RotateResult};
use guildhall_core::{
    access::{GuildSet, KeyId},
    time::UnixMs,
    usage::UsageScope,
};
use sea_orm::{
    ActiveValue::Set, ColumnTrait as _, Condition, DatabaseTransaction, EntityTrait as _, QueryFilter as _,
    QueryResult, QuerySelect as _, QueryTrait as _, sea_query::Expr,
};

use super::{BatchNeeds, Context, EngineError, QUEUE_NUMBERS, WriteJob, WriteTx, signed};
use crate::store::sql;
use crate::store::{
    entities::api_keys,
    rows::{Columns, Rows, columns, query, row, scalars, with_rows, without_nul},
};

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
    let queues = Rows::of(guild_queues(new));
    if !queues.is_empty() {
        let taken = with_rows(
            tx.on,
            sql::access::GUILDS_OF_OTHERS,
            QUEUE_NUMBERS,
            queues.clone(),
            vec![new.tenant.to_string().into()],
        )
        .await?;
        if let Some(guild) = scalars::<i64>(&taken)?.first() {
            return Ok(AddKeyResult::GuildTaken(guild.cast_unsigned()));
        }
        let values = vec![new.tenant.to_string().into(), tx.context.first_fence().into()];
        with_rows(tx.on, sql::access::TAKE_GUILDS, QUEUE_NUMBERS, queues, values).await?;
    }
    let row = api_keys::ActiveModel {
        id: Set(new.id.to_string()),
        tenant: Set(new.tenant.to_string()),
        name: Set(without_nul(&new.name)),
        digest: Set(new.digest.to_vec()),
        scopes: Set(new.grant.names().join(" ")),
        created_at: Set(signed(new.created_at.millis())),
        expires_at: Set(new.expires_at.map(|at| signed(at.millis()))),
        revoked_at: Set(None),
        rotated_to: Set(None),
    };
    api_keys::Entity::insert(row).exec_without_returning(tx.on).await?;
    Ok(AddKeyResult::Done)
}

impl WriteJob for RevokeKey {
    type Output = RevokeResult;

    async fn run(&self, tx: &mut WriteTx<'_>) -> Result<RevokeResult, EngineError> {
        use api_keys::Column::{Id, RevokedAt};
        let now = signed(self.now.millis());
        let revoke = api_keys::Entity::update_many()
            .col_expr(RevokedAt, Expr::value(now))
            .filter(Id.eq(self.id.to_string()))
            .filter(Condition::any().add(RevokedAt.is_null()).add(RevokedAt.gt(now)));
        if revoke.exec(tx.on).await?.rows_affected > 0 {
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
        use api_keys::Column::{ExpiresAt, Id, RevokedAt, RotatedTo};
        let Self { old, new, until } = self;
        let now = signed(new.created_at.millis());
        let end = api_keys::Entity::update_many()
            .col_expr(RotatedTo, Expr::value(new.id.to_string()))
            .col_expr(RevokedAt, Expr::value(signed(until.millis())))
            .filter(Id.eq(old.to_string()))
            .filter(RotatedTo.is_null())
            .filter(RevokedAt.is_null())
            .filter(Condition::any().add(ExpiresAt.is_null()).add(ExpiresAt.gt(now)));
        if end.exec(tx.on).await?.rows_affected == 0 {
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
    let id = api_keys::Entity::find_by_id(id.to_string()).select_only().column(api_keys::Column::Id);
    Ok(id.into_tuple::<String>().one(on).await?.is_some())
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
    let mut rows = Rows::new();
    for note in records {
        context.usage.count_audit(&note.key, 1);
        rows.push(row! {
            note.at, &note.tenant, &note.key, note.action.name(), note.guild.map(u64::cast_signed), &note.target,
            &note.detail, &note.request,
        });
    }
    with_rows(on, sql::access::INSERT_AUDIT, NOTES, rows, Vec::new()).await?;
    Ok(())
}

impl WriteJob for SweepAccess {
    type Output = u64;

    async fn run(&self, WriteTx { on, context, .. }: &mut WriteTx<'_>) -> Result<u64, EngineError> {
        use api_keys::Column::{ExpiresAt, Id, RevokedAt};
        let before = signed(self.0.millis());
        let mut forgotten = query(*on, sql::access::SWEEP_AUDIT, vec![before.into(), SWEEP.into()]).await?;
        if forgotten.is_empty() {
            forgotten = trim(on, context).await?;
        }
        scalars::<String>(&forgotten)?.iter().for_each(|key| context.usage.count_audit(key, -1));
        let ended = api_keys::Entity::find()
            .select_only()
            .column(Id)
            .filter(Condition::any().add(RevokedAt.lte(before)).add(ExpiresAt.lte(before)))
            .limit(SWEEP.unsigned_abs());
        let keys = api_keys::Entity::delete_many().filter(Id.in_subquery(ended.into_query()));
        Ok(forgotten.len() as u64 + keys.exec(*on).await?.rows_affected)
    }
}

/// Removes the oldest audit records of a key that has more than the limit.
async fn trim(on: &DatabaseTransaction, context: &Context) -> Result<Vec<QueryResult>, EngineError> {
    if context.max_audit == 0 {
        return Ok(Vec::new());
    }
    let over = query(on, sql::access::KEY_OVER_LIMIT, vec![signed(context.max_audit).into()]).await?;
    let Some(row) = over.first() else { return Ok(Vec::new()) };
    let scope: String = row.try_get("", "scope")?;
    let Some(UsageScope::Audit(key)) = UsageScope::read(&scope) else { return Ok(Vec::new()) };
    let over: i64 = row.try_get::<i64>("", "stored")? - signed(context.max_audit);
    Ok(query(on, sql::access::TRIM_AUDIT, vec![key.into(), over.min(SWEEP).into()]).await?)
}
