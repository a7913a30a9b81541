//! Accepts operations.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use guildhall_actors::access::default_tenant;
use guildhall_actors::ports::{NewOperation, StoreError, SubmitError, SubmitResult};
use guildhall_core::{
    operation::{OperationId, OperationState, Queue, QueueClass, QueueKey},
    time::UnixMs,
};
use sea_orm::{DatabaseTransaction, QueryResult};
use uuid::Uuid;

use super::{
    BatchNeeds, Context, EngineError, RunOrder, WriteJob, WriteTx,
    guild_tenants::GuildTenants,
    insert::{self, OperationInsert},
    schedule, signed,
    usage::Acceptance,
};
use crate::events::emit;
use crate::store::sql;
use crate::store::{
    events::FallbackRefused,
    operation_row::parse_state,
    rows::{Columns, Rows, columns, row, with_rows, without_nul},
};

/// An operation that already exists under the key or ID of a new one.
#[derive(Clone, Debug)]
struct ExistingOperation {
    id: OperationId,
    hash: [u8; 32],
    state: OperationState,
    result: Option<String>,
}

/// An operation that a new one may refer to.
#[derive(Debug)]
struct ReferenceTarget {
    tenant: Arc<str>,
    guild: Option<i64>,
    operation: ExistingOperation,
    /// Time when it joins its queue, if it is scheduled.
    joins_at: Option<i64>,
}

#[derive(Clone, Debug)]
struct SubmitQueue {
    /// Its tenant; `None` if the queue is new.
    tenant: Option<Arc<str>>,
    /// Its key within its tenant, unless it is a guild's.
    key: Option<Arc<str>>,
    next_seq: i64,
    pending: i64,
}

type ScopedKey = (String, String);

/// Operations that are accepted together or not at all.
#[derive(Clone, Copy, Debug)]
pub(super) struct SubmitBatch<'a> {
    pub(super) operations: &'a [NewOperation],
    /// Tenant of the API key that submits them, if any.
    pub(super) tenant: Option<&'a str>,
}

/// Rows that existed before, and what this batch has added.
#[derive(Debug, Default)]
struct SubmitBatchState {
    keys: HashMap<ScopedKey, ExistingOperation>,
    /// Idempotency keys that have expired.
    expired: Vec<ScopedKey>,
    operations: HashMap<OperationId, ReferenceTarget>,
    queues: HashMap<i64, SubmitQueue>,
}

/// Accepts operations, all of them or none.
pub(in crate::store) struct Submit {
    pub(in crate::store) operations: Vec<NewOperation>,
    /// Tenant of the API key that submits them, if any.
    pub(in crate::store) tenant: Option<Arc<str>>,
}

impl WriteJob for Submit {
    type Output = Result<Vec<SubmitResult>, SubmitError>;

    const ORDER: RunOrder = RunOrder::Submit;

    fn size(&self) -> (usize, usize) {
        (self.operations.len(), payload_bytes(&self.operations))
    }

    fn prepare<'a>(&'a self, needs: &mut BatchNeeds<'a>) {
        needs.submit(&self.operations);
    }

    async fn run_all(jobs: &[&Self], tx: &mut WriteTx<'_>) -> Result<Vec<Self::Output>, EngineError> {
        let batches: Vec<_> =
            jobs.iter().map(|job| SubmitBatch { operations: &job.operations, tenant: job.tenant.as_deref() }).collect();
        let submitted = submit_batches(tx, &batches).await?;
        for (job, submitted) in jobs.iter().zip(&submitted) {
            if submitted.is_ok() {
                tx.notify_added(&job.operations);
            }
            tx.operations_changed |= Self::is_change(submitted);
        }
        Ok(submitted)
    }

    fn is_change(submitted: &Self::Output) -> bool {
        let is_new = |one: &SubmitResult| matches!(one, SubmitResult::Accepted { .. });
        submitted.as_ref().is_ok_and(|submitted| submitted.iter().any(is_new))
    }
}

/// Number of bytes of the payloads.
pub(super) fn payload_bytes(operations: &[NewOperation]) -> usize {
    operations.iter().map(|operation| operation.payload.len()).sum()
}

/// Accepts batches one after the other, each as a whole or not at all.
pub(super) async fn submit_batches(
    tx: &mut WriteTx<'_>,
    batches: &[SubmitBatch<'_>],
) -> Result<Vec<Result<Vec<SubmitResult>, SubmitError>>, EngineError> {
    if batches.is_empty() {
        return Ok(Vec::new());
    }
    let mut state = SubmitBatchState::read(tx, batches).await?;
    let WriteTx { on, context, tenants, .. } = &*tx;
    let mut acceptance = context.usage.acceptance(on, batches).await?;
    let mut accepted: Vec<OperationInsert<'_>> = Vec::new();
    let mut results = Vec::with_capacity(batches.len());
    for batch in batches {
        results.push(state.accept(*batch, tenants, context.max_queued, &mut acceptance).map(|(submitted, new)| {
            accepted.extend(new);
            submitted
        }));
    }
    remove_expired(on, context, &state.expired).await?;
    insert::insert_operations(tx, &accepted).await?;
    Ok(results)
}

/// The operations of a fallback: one or none.
pub(super) fn fallback_operations(fallback: &Option<Box<NewOperation>>) -> &[NewOperation] {
    fallback.as_deref().map_or(&[], std::slice::from_ref)
}

/// Accepts fallbacks, each one operation or none. One that is not accepted is reported and left out.
pub(super) async fn submit_fallbacks(
    tx: &mut WriteTx<'_>,
    fallbacks: &[&[NewOperation]],
) -> Result<Vec<Option<SubmitResult>>, EngineError> {
    // Handlers belong to the operator.
    let batch_of = |operations| SubmitBatch { operations, tenant: None };
    let batches: Vec<_> = fallbacks.iter().copied().filter(|operations| !operations.is_empty()).map(batch_of).collect();
    let mut submitted = submit_batches(tx, &batches).await?.into_iter();
    let mut results = Vec::with_capacity(fallbacks.len());
    for operations in fallbacks {
        let submitted = if operations.is_empty() { None } else { submitted.next() };
        results.push(match submitted {
            None => None,
            Some(Ok(accepted)) => {
                tx.operations_changed = true;
                tx.notify_added(operations);
                accepted.into_iter().next()
            }
            Some(Err(error)) => {
                emit(FallbackRefused { error: &error });
                None
            }
        });
    }
    Ok(results)
}

impl SubmitBatchState {
    /// Reads the state as the engine, not as the caller's tenant: it decides what the caller may do.
    async fn read(tx: &mut WriteTx<'_>, batches: &[SubmitBatch<'_>]) -> Result<Self, EngineError> {
        let (on, context, mut state) = (tx.on, tx.context, Self::default());
        let all = || batches.iter().flat_map(|batch| batch.operations);
        // Due scheduled operations join before operations that are accepted later; and before the scheduled operations
        // are read.
        let due = state.read_queues(on, &tx.tenants, all()).await?;
        for (queue, now) in due {
            let joined = schedule::join(tx, queue, now, usize::MAX).await?;
            if let Some(line) = state.queues.get_mut(&queue) {
                line.next_seq += signed(joined as u64);
            }
        }
        state.read_keys(on, context, all()).await?;
        state.read_operations(on, all()).await?;
        Ok(state)
    }

    async fn read_keys<'a>(
        &mut self,
        on: &DatabaseTransaction,
        context: &Context,
        all: impl Iterator<Item = &'a NewOperation>,
    ) -> Result<(), EngineError> {
        const SHAPE: Columns = columns![scope: Text, key: Text, at: Number];
        let mut rows = Rows::new();
        for operation in all {
            if let Some(key) = &operation.idempotency {
                let at = signed(context.expiry(operation.created_at).millis());
                rows.push(row! { &key.scope, &key.key, at });
            }
        }
        for row in with_rows(on, sql::submit::SELECT_KEYS, SHAPE, rows, Vec::new()).await? {
            let key = (row.try_get("", "scope")?, row.try_get("", "key")?);
            if row.try_get::<Option<bool>>("", "expired")? == Some(true) {
                self.expired.push(key);
            } else {
                self.keys.insert(key, ExistingOperation::read(&row)?);
            }
        }
        Ok(())
    }

    async fn read_operations<'a>(
        &mut self,
        on: &DatabaseTransaction,
        all: impl Iterator<Item = &'a NewOperation>,
    ) -> Result<(), EngineError> {
        const SHAPE: Columns = columns![op: Uuid];
        let mut ids = HashSet::new();
        for operation in all {
            ids.insert(operation.id);
            ids.extend(&operation.refers_to);
        }
        let rows = Rows::of(ids);
        let read = |row: &QueryResult| {
            Ok::<_, EngineError>(ReferenceTarget {
                operation: ExistingOperation::read(row)?,
                tenant: Arc::from(row.try_get::<String>("", "tenant")?),
                guild: row.try_get("", "guild_id")?,
                joins_at: row.try_get("", "joins_at")?,
            })
        };
        for row in with_rows(on, sql::submit::SELECT_OPERATIONS, SHAPE, rows, Vec::new()).await? {
            let target = read(&row)?;
            self.operations.insert(target.operation.id, target);
        }
        Ok(())
    }

    /// Reads the queues. Returns those in which scheduled operations are due, and the present time there.
    async fn read_queues<'a>(
        &mut self,
        on: &DatabaseTransaction,
        tenants: &GuildTenants,
        all: impl Iterator<Item = &'a NewOperation>,
    ) -> Result<BTreeMap<i64, UnixMs>, EngineError> {
        const SHAPE: Columns = columns![line: Number];
        let mut queues: HashMap<i64, UnixMs> = HashMap::new();
        for operation in all {
            let now = queues.entry(tenants.queue(operation).number()).or_default();
            *now = operation.created_at.max(*now);
        }
        let read = |row: &QueryResult| {
            let line = SubmitQueue {
                next_seq: row.try_get("", "next_seq")?,
                pending: row.try_get("", "pending")?,
                tenant: Some(Arc::from(row.try_get::<String>("", "tenant")?)),
                key: row.try_get::<Option<String>>("", "key")?.map(Arc::from),
            };
            Ok::<_, EngineError>((row.try_get::<i64>("", "queue")?, line, row.try_get::<Option<i64>>("", "joins_at")?))
        };
        let mut due = BTreeMap::new();
        let rows = Rows::of(queues.keys().copied());
        for row in with_rows(on, sql::submit::SELECT_QUEUES, SHAPE, rows, Vec::new()).await? {
            let (queue, line, first) = read(&row)?;
            self.queues.insert(queue, line);
            if let Some(now) = queues.get(&queue).filter(|now| first.is_some_and(|at| at <= signed(now.millis()))) {
                due.insert(queue, *now);
            }
        }
        Ok(due)
    }

    /// Accepts a batch, or leaves everything unchanged.
    fn accept<'a>(
        &mut self,
        batch: SubmitBatch<'a>,
        tenants: &GuildTenants,
        max_queued: u64,
        acceptance: &mut Acceptance<'_>,
    ) -> Result<(Vec<SubmitResult>, Vec<OperationInsert<'a>>), SubmitError> {
        let mut submitted = Vec::with_capacity(batch.operations.len());
        let mut new: Vec<OperationInsert<'a>> = Vec::new();
        let mut keys: HashMap<ScopedKey, ExistingOperation> = HashMap::new();
        let mut queues: HashMap<i64, SubmitQueue> = HashMap::new();
        for (index, operation) in batch.operations.iter().enumerate() {
            let key = operation.idempotency.as_ref().map(|key| (without_nul(&key.scope), without_nul(&key.key)));
            let by_key = key.as_ref().and_then(|key| keys.get(key).or_else(|| self.keys.get(key)));
            let by_id = || self.operations.get(&operation.id).map(|target| &target.operation);
            if let Some(existing) = by_key.or_else(by_id) {
                if existing.hash != operation.payload_hash {
                    return Err(SubmitError::KeyReused { index, id: existing.id });
                }
                let ExistingOperation { id, state, result, .. } = existing.clone();
                submitted.push(SubmitResult::Existing { id, state, result });
                continue;
            }
            let queue = tenants.queue(operation);
            let stored = || self.queues.get(&queue.number()).cloned();
            let line = queues.entry(queue.number()).or_insert_with(|| stored().unwrap_or_default());
            let is_theirs = |tenant: &Arc<str>| batch.tenant.is_none_or(|of| of == &**tenant);
            let tenant =
                line.tenant_for(operation, tenants).filter(is_theirs).ok_or(SubmitError::ForeignGuild { index })?;
            let identity = line.identity(operation, queue, &tenant)?;
            let is_later = operation.eligible_at > operation.created_at;
            let mut joins_at = is_later.then(|| signed(operation.eligible_at.millis()));
            for id in &operation.refers_to {
                let is_it = |earlier: &&OperationInsert<'_>| {
                    earlier.operation.id == *id && earlier.is_visible(operation.guild, &tenant)
                };
                let is_stored = |target: &&ReferenceTarget| target.is_visible(operation.guild, &tenant);
                let target_joins = match (new.iter().find(is_it), self.operations.get(id).filter(is_stored)) {
                    (Some(earlier), _) => earlier.joins_at,
                    (None, Some(target)) => target.joins_at,
                    (None, None) => return Err(SubmitError::UnknownOperation { index, id: *id }),
                };
                joins_at = joins_at.max(target_joins);
            }
            let deadline = operation.deadline_at.map(|at| signed(at.millis()));
            let joins_at = joins_at.map(|at| deadline.map_or(at, |deadline| at.min(deadline)));
            if line.pending >= signed(max_queued) {
                return Err(SubmitError::Full { queue, pending: line.pending.unsigned_abs(), max: max_queued });
            }
            if let Some(key) = key {
                keys.insert(key, ExistingOperation::of(operation, joins_at));
            }
            let (seq, position) = match joins_at {
                Some(_) => (-line.next_seq, 0),
                None => (line.next_seq, line.next_seq.unsigned_abs()),
            };
            submitted.push(SubmitResult::Accepted { seq: position, queue, state: state_of(joins_at) });
            line.tenant.get_or_insert_with(|| Arc::clone(&tenant));
            line.key = identity.as_ref().map(|(_, key)| Arc::clone(key));
            new.push(OperationInsert {
                operation,
                queue,
                identity,
                seq,
                joins_at,
                tenant,
                caller_tenant: batch.tenant,
            });
            line.next_seq += 1;
            line.pending += 1;
        }
        acceptance.charge(&new)?;
        self.keys.extend(keys);
        self.queues.extend(queues);
        for OperationInsert { operation, tenant, joins_at, .. } in &new {
            let target = ReferenceTarget {
                tenant: Arc::clone(tenant),
                guild: operation.guild.map(u64::cast_signed),
                operation: ExistingOperation::of(operation, *joins_at),
                joins_at: *joins_at,
            };
            self.operations.insert(operation.id, target);
        }
        Ok((submitted, new))
    }
}

impl ExistingOperation {
    fn of(operation: &NewOperation, joins_at: Option<i64>) -> Self {
        Self { id: operation.id, hash: operation.payload_hash, state: state_of(joins_at), result: None }
    }

    /// Reads the columns `id`, `payload_hash`, `state` and `result`.
    fn read(row: &QueryResult) -> Result<Self, EngineError> {
        let id: Uuid = row.try_get("", "id")?;
        let hash: Vec<u8> = row.try_get("", "payload_hash")?;
        let state: Option<String> = row.try_get("", "state")?;
        let state = state.ok_or_else(|| {
            EngineError::Corrupt(format!("the key of operation {id} has no state, and the operation does not exist"))
        })?;
        let unreadable = |_| EngineError::Corrupt(format!("operation {id} has an invalid hash"));
        Ok(Self {
            id: OperationId::from_uuid(id),
            hash: hash.try_into().map_err(unreadable)?,
            state: parse_state(&state)?,
            result: row.try_get("", "result")?,
        })
    }
}

/// The state of a new operation.
fn state_of(joins_at: Option<i64>) -> OperationState {
    if joins_at.is_some() { OperationState::Scheduled } else { OperationState::Queued }
}

impl ReferenceTarget {
    fn is_visible(&self, guild: Option<u64>, tenant: &str) -> bool {
        self.guild == guild.map(u64::cast_signed) && *self.tenant == *tenant
    }
}

impl OperationInsert<'_> {
    fn is_visible(&self, guild: Option<u64>, tenant: &str) -> bool {
        self.operation.guild == guild && *self.tenant == *tenant
    }
}

impl Default for SubmitQueue {
    fn default() -> Self {
        Self { tenant: None, key: None, next_seq: 1, pending: 0 }
    }
}

impl SubmitQueue {
    /// Tenant of an operation in this queue; `None` if it is not permitted here. A caller without a tenant acts for the
    /// tenant of the guild. A guild without a tenant belongs to the default tenant, and only a key can assign it to
    /// another. An operation of a guild in another queue also belongs to the guild's tenant.
    fn tenant_for(&self, operation: &NewOperation, tenants: &GuildTenants) -> Option<Arc<str>> {
        let requested = Some(&operation.tenant).filter(|tenant| !tenant.is_empty());
        let own = match (&operation.queue, operation.guild) {
            (QueueKey::Guild(_), _) => self.tenant.clone().unwrap_or_else(default_tenant),
            (QueueKey::Keyed { .. }, Some(guild)) => tenants.tenant(guild),
            (QueueKey::Keyed { .. }, None) => requested.map_or_else(default_tenant, Arc::clone),
            (QueueKey::Existing(_), _) => self.tenant.clone()?,
        };
        (requested.is_none_or(|requested| *requested == own)).then_some(own)
    }

    /// Class and key of an operation's queue, unless it is a guild's. Two queues whose numbers collide are never
    /// treated as one.
    fn identity(
        &self,
        operation: &NewOperation,
        queue: Queue,
        tenant: &str,
    ) -> Result<Option<(QueueClass, Arc<str>)>, SubmitError> {
        let (class, key) = match &operation.queue {
            QueueKey::Guild(_) => return Ok(None),
            QueueKey::Keyed { class, key } => (*class, Arc::clone(key)),
            QueueKey::Existing(_) => match &self.key {
                Some(key) => (queue.class(), Arc::clone(key)),
                None => return Ok(None),
            },
        };
        match (self.tenant.as_deref(), &self.key) {
            (Some(its_tenant), its_key) if its_tenant != tenant || its_key.as_ref() != Some(&key) => {
                let message = format!(
                    "{} of tenant {tenant} has the number {}, which another queue already uses",
                    operation.queue,
                    queue.number()
                );
                Err(StoreError::Corrupt(message).into())
            }
            (Some(_) | None, _) => Ok(Some((class, key))),
        }
    }
}

async fn remove_expired(on: &DatabaseTransaction, context: &Context, expired: &[ScopedKey]) -> Result<(), EngineError> {
    const SHAPE: Columns = columns![its_scope: Text, its_key: Text];
    let mut rows = Rows::new();
    for (scope, key) in expired {
        rows.push(row! { scope, key });
    }
    context.count_removed(&with_rows(on, sql::submit::DELETE_EXPIRED_KEYS, SHAPE, rows, Vec::new()).await?)
}
