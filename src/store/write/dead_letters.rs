//! Redrives and discards dead letters.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use guildhall_actors::ports::{DeadLetterFilter, NewOperation, SubmitError, SubmitResult};
use guildhall_core::operation::OperationId;
use sea_orm::DatabaseTransaction;
use uuid::Uuid;

use super::{
    Context, EngineError,
    guild_tenants::GuildTenants,
    submit::{self, SubmitBatch},
};
use crate::store::{
    read::dead_letters::DeadLetterCondition,
    rows::{ColumnType, Columns, RowValue, Rows, query, with_rows},
};

const IDS: Columns = Columns(&[("op", ColumnType::Uuid)]);
const PAIRS: Columns = Columns(&[("op", ColumnType::Uuid), ("again", ColumnType::Uuid)]);

/// Stores the operations of dead letters that are not redriven yet.
pub(super) async fn redrive(
    on: &DatabaseTransaction,
    context: &Context,
    tenants: &GuildTenants,
    batch: &[NewOperation],
    tenant: Option<&str>,
    woken: &mut BTreeSet<i64>,
) -> Result<Result<Vec<OperationId>, SubmitError>, EngineError> {
    let caller = context.tenant_scope(tenant);
    caller.begin(on).await?;
    let mut origins = origins(on, batch, tenant).await?;
    caller.end(on).await?;
    let mut to_submit = Vec::new();
    let mut redriven = Vec::new();
    for operation in batch {
        let Some(origin) = operation.redrive_of else { continue };
        match origins.get(&origin) {
            Some(None) => {
                origins.insert(origin, Some(operation.id));
                to_submit.push(operation.clone());
            }
            // It was stored before, and its caller did not get the result.
            Some(Some(again)) if *again == operation.id && !redriven.contains(&operation.id) => {
                redriven.push(operation.id);
            }
            Some(Some(_)) | None => {}
        }
    }
    if to_submit.is_empty() {
        return Ok(Ok(redriven));
    }
    let submitted =
        match submit::submit_batches(on, context, tenants, &[SubmitBatch { operations: &to_submit, tenant }], woken)
            .await?
            .pop()
        {
            Some(Ok(submitted)) => submitted,
            Some(Err(error)) => return Ok(Err(error)),
            None => Vec::new(),
        };
    let mut pairs = Rows::new();
    for (operation, submitted) in to_submit.iter().zip(submitted) {
        let id = match submitted {
            SubmitResult::Accepted { .. } => operation.id,
            SubmitResult::Existing { id, .. } => id,
        };
        let origin = operation.redrive_of.expect("invariant: an operation to store is a redrive");
        pairs.push(&[RowValue::Uuid(origin.uuid()), RowValue::Uuid(id.uuid())]);
        redriven.push(id);
    }
    caller.begin(on).await?;
    link_redrives(on, pairs).await?;
    caller.end(on).await?;
    Ok(Ok(redriven))
}

/// Dead letters and operations that the batch redrives, and the operation that already redrives each of them, if any.
async fn origins(
    on: &DatabaseTransaction,
    batch: &[NewOperation],
    tenant: Option<&str>,
) -> Result<HashMap<OperationId, Option<OperationId>>, EngineError> {
    const SELECT: &str = "SELECT l.id, l.redriven_as FROM {v} JOIN dead_letters l ON l.id = v.op
        WHERE l.tenant = COALESCE($2, l.tenant)
        UNION SELECT o.id, o.redriven_as FROM {v} JOIN operations o ON o.id = v.op
        WHERE o.state = 'needs_review' AND o.tenant = COALESCE($2, o.tenant)";
    let rows = Rows::of(batch.iter().filter_map(|operation| operation.redrive_of).map(|id| RowValue::Uuid(id.uuid())));
    if rows.is_empty() {
        return Ok(HashMap::new());
    }
    let mut origins = HashMap::new();
    for row in with_rows(on, SELECT, IDS, rows, vec![tenant.map(str::to_owned).into()]).await? {
        let id: Uuid = row.try_get_by_index(0)?;
        let again: Option<Uuid> = row.try_get_by_index(1)?;
        origins.insert(OperationId::from_uuid(id), again.map(OperationId::from_uuid));
    }
    Ok(origins)
}

async fn link_redrives(on: &DatabaseTransaction, pairs: Rows) -> Result<(), EngineError> {
    let rows = pairs.clone();
    const SET_REDRIVEN: &str = "UPDATE dead_letters SET redriven_as = v.again FROM {v} WHERE id = v.op";
    with_rows(on, SET_REDRIVEN, PAIRS, rows, Vec::new()).await?;
    const OPERATIONS: &str = "UPDATE operations SET redriven_as = v.again FROM {v} WHERE id = v.op";
    with_rows(on, OPERATIONS, PAIRS, pairs, Vec::new()).await?;
    Ok(())
}

/// Removes dead letters, the oldest first.
pub(super) async fn discard(
    on: &DatabaseTransaction,
    context: &Context,
    filter: &DeadLetterFilter,
    of: Option<&str>,
) -> Result<u64, EngineError> {
    let tenant = of.map(Arc::from).or_else(|| filter.tenant.clone());
    let DeadLetterCondition { sql, values } =
        DeadLetterCondition::oldest_first(&DeadLetterFilter { tenant, ..filter.clone() });
    let caller = context.tenant_scope(of);
    caller.begin(on).await?;
    let delete = format!(
        "DELETE FROM dead_letters WHERE id IN (SELECT l.id FROM dead_letters l {sql})
        RETURNING caller, tenant, bytes"
    );
    let gone = query(on, &delete, values).await?;
    caller.end(on).await?;
    context.count_removed(&gone, 0)?;
    Ok(gone.len() as u64)
}
