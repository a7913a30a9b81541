//! Redrives and discards dead letters.

use std::{collections::HashMap, sync::Arc};

use guildhall_actors::ports::{DeadLetterFilter, NewOperation, SubmitError, SubmitResult};
use guildhall_core::operation::OperationId;
use sea_orm::{ConnectionTrait as _, DatabaseTransaction, Statement};
use uuid::Uuid;

use super::{
    BatchNeeds, EngineError, WriteJob, WriteTx,
    submit::{self, SubmitBatch, payload_bytes},
};
use crate::store::sql;
use crate::store::{
    read::dead_letters,
    rows::{Columns, Rows, columns, query, row, with_rows},
};

const IDS: Columns = columns![op: Uuid];
const PAIRS: Columns = columns![op: Uuid, again: Uuid];

/// Submits the operations of dead letters that are not redriven yet.
pub(in crate::store) struct Redrive {
    pub(in crate::store) operations: Vec<NewOperation>,
    /// Tenant of the API key that redrives them, if any.
    pub(in crate::store) tenant: Option<Arc<str>>,
}

/// Removes dead letters, the oldest first. Returns their number.
pub(in crate::store) struct Discard {
    pub(in crate::store) filter: DeadLetterFilter,
    /// Tenant that the dead letters must belong to.
    pub(in crate::store) tenant: Option<Arc<str>>,
}

impl WriteJob for Redrive {
    type Output = Result<Vec<OperationId>, SubmitError>;

    fn size(&self) -> (usize, usize) {
        (self.operations.len(), payload_bytes(&self.operations))
    }

    fn prepare<'a>(&'a self, needs: &mut BatchNeeds<'a>) {
        needs.submit(&self.operations);
    }

    async fn run(&self, tx: &mut WriteTx<'_>) -> Result<Self::Output, EngineError> {
        let redriven = self.redrive(tx).await?;
        if redriven.is_ok() {
            tx.notify_added(&self.operations);
        }
        tx.operations_changed |= Self::is_change(&redriven);
        Ok(redriven)
    }

    fn is_change(redriven: &Self::Output) -> bool {
        redriven.as_ref().is_ok_and(|redriven| !redriven.is_empty())
    }
}

impl Redrive {
    async fn redrive(&self, tx: &mut WriteTx<'_>) -> Result<Result<Vec<OperationId>, SubmitError>, EngineError> {
        let (on, tenant) = (tx.on, self.tenant.as_deref());
        let caller = tx.context.tenant_scope(tenant);
        caller.begin(on).await?;
        let mut origins = origins(on, &self.operations, tenant).await?;
        caller.end(on).await?;
        let mut to_submit = Vec::new();
        let mut redriven = Vec::new();
        for operation in &self.operations {
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
        let batch = SubmitBatch { operations: &to_submit, tenant };
        let submitted = match submit::submit_batches(tx, &[batch]).await?.pop() {
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
            pairs.push(row! { origin, id });
            redriven.push(id);
        }
        caller.begin(on).await?;
        link_redrives(on, pairs).await?;
        caller.end(on).await?;
        Ok(Ok(redriven))
    }
}

/// Dead letters and operations that the batch redrives, and the operation that already redrives each of them, if any.
async fn origins(
    on: &DatabaseTransaction,
    batch: &[NewOperation],
    tenant: Option<&str>,
) -> Result<HashMap<OperationId, Option<OperationId>>, EngineError> {
    let rows = Rows::of(batch.iter().filter_map(|operation| operation.redrive_of));
    let mut origins = HashMap::new();
    for row in with_rows(on, sql::dead_letters::TO_REDRIVE, IDS, rows, vec![tenant.map(str::to_owned).into()]).await? {
        let id: Uuid = row.try_get("", "id")?;
        let again: Option<Uuid> = row.try_get("", "redriven_as")?;
        origins.insert(OperationId::from_uuid(id), again.map(OperationId::from_uuid));
    }
    Ok(origins)
}

async fn link_redrives(on: &DatabaseTransaction, pairs: Rows) -> Result<(), EngineError> {
    let rows = pairs.clone();
    with_rows(on, sql::dead_letters::SET_REDRIVEN, PAIRS, rows, Vec::new()).await?;
    with_rows(on, sql::dead_letters::TENANTS, PAIRS, pairs, Vec::new()).await?;
    Ok(())
}

impl WriteJob for Discard {
    type Output = u64;

    async fn run(&self, tx: &mut WriteTx<'_>) -> Result<u64, EngineError> {
        let tenant = self.tenant.as_ref().or(self.filter.tenant.as_ref()).cloned();
        let filter = DeadLetterFilter { tenant, ..self.filter.clone() };
        let Statement { sql, values, .. } = dead_letters::oldest_ids(tx.on.get_database_backend(), &filter);
        let caller = tx.context.tenant_scope(self.tenant.as_deref());
        caller.begin(tx.on).await?;
        let delete = format!("DELETE FROM dead_letters WHERE id IN ({sql}) RETURNING caller, tenant, bytes");
        let gone = query(tx.on, &delete, values.map_or_else(Vec::new, |values| values.0)).await?;
        caller.end(tx.on).await?;
        tx.context.count_removed(&gone)?;
        Ok(gone.len() as u64)
    }

    fn is_change(discarded: &u64) -> bool {
        *discarded > 0
    }
}
