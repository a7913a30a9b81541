//! Ownership of queues.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use guildhall_actors::ports::{Claim, ClaimFrom, Fence, PauseTarget};
use guildhall_core::operation::{OperationId, Queue};
use guildhall_core::time::UnixMs;
use sea_orm::{
    ActiveValue::Set,
    ColumnTrait as _, ConnectionTrait as _, DatabaseTransaction, DbBackend, EntityTrait as _, QueryFilter as _,
    QueryResult, Value,
    sea_query::{Expr, ExprTrait as _},
};
use uuid::Uuid;

use super::{BatchNeeds, Context, EngineError, Reply, ResultDelivery, RunOrder, WriteJob, WriteTx, crashes, signed};
use crate::events::emit;
use crate::store::sql;
use crate::store::{
    cluster::ProcessLease,
    entities::{instances, shard_owners, switches},
    events::QueuesClaimed,
    rows::{Columns, Rows, columns, query, row, scalars, with_rows},
};

/// Queues by their numbers.
pub(in crate::store) const QUEUE_NUMBERS: Columns = columns![line: Number];
const HELD: Columns = columns![line: Number, held: Number];

/// The switch that pauses everything.
pub(in crate::store) const PAUSED: &str = "paused";

/// How long a queue waits for the process that should own it, in milliseconds; after that, any process takes it.
const OWNER_GRACE_MS: i64 = 3_000;

/// Makes this process the only live one. Returns the number of queues that it freed.
pub(super) async fn take_over(on: &DatabaseTransaction, own_id: Uuid, now: i64) -> Result<u64, EngineError> {
    instances::Entity::delete_many().exec(on).await?;
    let alone = instances::ActiveModel {
        id: Set(own_id),
        name: Set("alone".to_owned()),
        started_at: Set(now),
        seen_at: Set(now),
        lease_until: Set(i64::MAX),
        leaving: Set(0),
        ..Default::default()
    };
    instances::Entity::insert(alone).exec_without_returning(on).await?;
    let freed = query(on, &sql::queues::free_others(), vec![own_id.into()]).await?;
    shard_owners::Entity::update_many()
        .col_expr(shard_owners::Column::Owner, Expr::value(Value::Uuid(None)))
        .col_expr(shard_owners::Column::Fence, shard_owners::Column::Fence.into_expr().add(1_i64))
        .filter(shard_owners::Column::Owner.ne(own_id))
        .exec(on)
        .await?;
    query(on, sql::queues::FORGET_EMPTY, Vec::new()).await?;
    Ok(freed.len() as u64)
}

/// Locks queues until the transaction ends, and returns their owners. Sorted, so that no two processes wait for each
/// other.
pub(super) async fn lock(
    on: &DatabaseTransaction,
    queues: impl IntoIterator<Item = i64>,
) -> Result<HashMap<i64, Option<Uuid>>, EngineError> {
    let numbers: BTreeSet<i64> = queues.into_iter().collect();
    if numbers.is_empty() {
        return Ok(HashMap::new());
    }
    let rows = with_rows(on, sql::queues::LOCK, QUEUE_NUMBERS, Rows::of(numbers), Vec::new()).await?;
    let owner = |row: &QueryResult| Ok::<_, EngineError>((row.try_get("", "queue")?, row.try_get("", "owner")?));
    rows.iter().map(owner).collect()
}

/// Waits for an exclusive lock among the processes of this store, and holds it until the transaction ends. For data
/// that has no row to lock; only PostgreSQL needs it.
pub(super) async fn lock_exclusive(on: &DatabaseTransaction, name: &str) -> Result<(), EngineError> {
    if is_shared(on) {
        query(on, sql::queues::LOCK_NAME, vec![name.into()]).await?;
    }
    Ok(())
}

/// The queues of operations.
pub(super) async fn queues_of_operations(
    on: &DatabaseTransaction,
    operations: impl IntoIterator<Item = OperationId>,
) -> Result<Vec<i64>, EngineError> {
    const SHAPE: Columns = columns![op: Uuid];
    let rows = Rows::of(operations);
    let rows = with_rows(on, sql::queues::SELECT_OF_OPERATIONS, SHAPE, rows, Vec::new()).await?;
    Ok(scalars(&rows)?)
}

/// Frees queues that this process owns according to the store, but that no part of the process knows.
pub(super) async fn free_unknown(on: &DatabaseTransaction, context: &Context) -> Result<(), EngineError> {
    let owned = if is_shared(on) { sql::queues::LOCK_OWNED } else { sql::queues::SELECT_OWNED };
    let mut unknown = Rows::new();
    for row in query(on, owned, vec![context.members.id().into()]).await? {
        let (queue, fence) = held(&row)?;
        if !context.members.process_lease().has_queue(queue, fence) {
            unknown.push(row! { queue, fence });
        }
    }
    if !unknown.is_empty() {
        with_rows(on, &sql::queues::free_held(), HELD, unknown, Vec::new()).await?;
    }
    Ok(())
}

/// Takes queues that have no owner.
impl WriteJob for ClaimFrom {
    type Output = Vec<Claim>;

    async fn run(&self, tx: &mut WriteTx<'_>) -> Result<Vec<Claim>, EngineError> {
        let claims = claim(tx.on, tx.context, self).await?;
        crashes::set_aside(tx, &claims).await?;
        Ok(claims)
    }

    fn deliver(&self, claims: Vec<Claim>, reply: Reply<Vec<Claim>>, lease: &ProcessLease) -> ResultDelivery {
        let taken: Vec<(i64, i64)> = claims.iter().map(|claim| numbers(claim.queue, claim.fence)).collect();
        taken.iter().for_each(|(queue, fence)| lease.add_queue(*queue, *fence));
        if reply.send(Ok(claims)).is_ok() {
            emit(QueuesClaimed { queues: taken.len() });
            return ResultDelivery::Done;
        }
        // No part of the process will handle these queues, so they are released.
        taken.iter().for_each(|(queue, fence)| lease.remove_queue(*queue, *fence));
        if taken.is_empty() { ResultDelivery::Done } else { ResultDelivery::ClaimsInDoubt }
    }
}

async fn claim(on: &DatabaseTransaction, context: &Context, from: &ClaimFrom) -> Result<Vec<Claim>, EngineError> {
    let (own_id, shared) = (context.members.id(), is_shared(on));
    if shared && !is_alive(on, own_id).await? {
        return Ok(Vec::new());
    }
    let all_paused = is_all_paused(on).await?;
    let rows = match from {
        ClaimFrom::Due { .. } if all_paused => Vec::new(),
        ClaimFrom::Due { now, limit } => {
            let (now, limit) = (signed(now.millis()), signed(*limit as u64));
            let values: Vec<Value> = vec![own_id.into(), now.into(), limit.into()];
            if shared {
                let ours = [(now - OWNER_GRACE_MS).into(), context.members.slots().bytes().into()];
                query(on, &sql::queues::take_due_shared(), values.into_iter().chain(ours).collect()).await?
            } else {
                query(on, sql::queues::TAKE_DUE, values).await?
            }
        }
        ClaimFrom::Queues(queues) => {
            let ours = |line: &i64| !shared || context.members.is_ours(*line);
            let numbers: BTreeSet<i64> = queues.iter().map(|queue| queue.number()).filter(ours).collect();
            let rows = || Rows::of(numbers.iter().copied());
            if numbers.is_empty() {
                return Ok(Vec::new());
            }
            // Queues with keys of their own exist if they contain operations.
            let guilds = Rows::of(numbers.iter().copied().filter(|line| *line > 0));
            with_rows(on, sql::queues::CREATE, QUEUE_NUMBERS, guilds, vec![context.first_fence().into()]).await?;
            with_rows(
                on,
                if shared { sql::queues::TAKE_SHARED } else { sql::queues::TAKE },
                QUEUE_NUMBERS,
                rows(),
                vec![own_id.into()],
            )
            .await?
        }
    };
    let mut claims = rows.iter().map(|row| claim_of(row, all_paused)).collect::<Result<Vec<_>, EngineError>>()?;
    claims.sort_by_key(|(ready_at, claim)| (ready_at.unwrap_or(i64::MAX), claim.queue));
    Ok(claims.into_iter().map(|(_, claim)| claim).collect())
}

/// Whether other processes may use this store.
pub(super) fn is_shared(on: &DatabaseTransaction) -> bool {
    on.get_database_backend() == DbBackend::Postgres
}

/// Whether this process counts as alive, and will until the transaction has ended: a queue that a dead process takes
/// would have no owner.
pub(super) async fn is_alive(on: &DatabaseTransaction, own_id: Uuid) -> Result<bool, EngineError> {
    Ok(!query(on, sql::queues::LOCK_INSTANCE, vec![own_id.into()]).await?.is_empty())
}

fn claim_of(row: &QueryResult, all_paused: bool) -> Result<(Option<i64>, Claim), EngineError> {
    let (queue, fence) = held(row)?;
    let paused = row.try_get::<i64>("", "paused")? != 0 || all_paused;
    let claim = Claim { queue: Queue::from_number(queue), fence: Fence(fence.unsigned_abs()), paused };
    Ok((row.try_get("", "ready_at")?, claim))
}

/// Releases a queue. One that was released before, and that no process has taken since, counts as released.
pub(in crate::store) struct ReleaseQueue {
    pub(in crate::store) queue: Queue,
    pub(in crate::store) fence: Fence,
}

impl ReleaseQueue {
    fn numbers(&self) -> (i64, i64) {
        numbers(self.queue, self.fence)
    }
}

impl WriteJob for ReleaseQueue {
    type Output = bool;

    const ORDER: RunOrder = RunOrder::Release;

    fn prepare(&self, needs: &mut BatchNeeds<'_>) {
        needs.lock_queues([self.queue.number()]);
    }

    async fn run_all(jobs: &[&Self], tx: &mut WriteTx<'_>) -> Result<Vec<bool>, EngineError> {
        let mut rows = Rows::new();
        let distinct: HashSet<(i64, i64)> = jobs.iter().map(|job| job.numbers()).collect();
        for (queue, fence) in &distinct {
            rows.push(row! { *queue, *fence });
        }
        let own_id = vec![tx.context.members.id().into()];
        let released = with_rows(tx.on, &sql::queues::release(), HELD, rows, own_id).await?;
        let released: HashSet<(i64, i64)> = released.iter().map(held).collect::<Result<_, _>>()?;
        let results: Vec<bool> = jobs.iter().map(|job| released.contains(&job.numbers())).collect();
        for (job, _) in jobs.iter().zip(&results).filter(|(_, released)| **released) {
            tx.notify_released(job.queue);
        }
        Ok(results)
    }

    fn deliver(&self, released: bool, reply: Reply<bool>, lease: &ProcessLease) -> ResultDelivery {
        let (queue, fence) = self.numbers();
        lease.remove_queue(queue, fence);
        let _ = reply.send(Ok(released));
        ResultDelivery::Done
    }
}

/// Reads a queue and its fence.
fn held(row: &QueryResult) -> Result<(i64, i64), EngineError> {
    Ok((row.try_get("", "queue")?, row.try_get("", "fence")?))
}

fn numbers(queue: Queue, fence: Fence) -> (i64, i64) {
    (queue.number(), signed(fence.0))
}

/// Makes a queue without an owner due when its next operation is.
pub(super) async fn refresh_ready_at(on: &DatabaseTransaction, queue: Queue) -> Result<(), EngineError> {
    query(on, &sql::queues::refresh_ready_at(), vec![queue.number().into()]).await?;
    Ok(())
}

/// Makes queues without an owner due in which an operation waits for the gate, up to a limit. Returns their number.
pub(in crate::store) struct ReleaseHeld {
    pub(in crate::store) now: UnixMs,
    pub(in crate::store) limit: usize,
}

impl WriteJob for ReleaseHeld {
    type Output = usize;

    async fn run(&self, tx: &mut WriteTx<'_>) -> Result<usize, EngineError> {
        let update = sql::queues::release_held(is_shared(tx.on));
        let values = vec![signed(self.now.millis()).into(), signed(self.limit as u64).into()];
        let rows = query(tx.on, &update, values).await?;
        tx.woken.extend(scalars::<i64>(&rows)?);
        Ok(rows.len())
    }
}

/// Pauses or resumes queues.
pub(in crate::store) struct Pause {
    pub(in crate::store) target: PauseTarget,
    pub(in crate::store) paused: bool,
    /// Tenant that a single queue must belong to. A caller who may pause everything may do so for all tenants.
    pub(in crate::store) tenant: Option<Arc<str>>,
}

impl WriteJob for Pause {
    type Output = ();

    fn prepare(&self, needs: &mut BatchNeeds<'_>) {
        match self.target {
            PauseTarget::Queue(queue) => needs.lock_queues([queue.number()]),
            PauseTarget::All => {}
        }
    }

    async fn run(&self, tx: &mut WriteTx<'_>) -> Result<(), EngineError> {
        let (on, paused, tenant) = (tx.on, i64::from(self.paused), self.tenant.as_deref());
        let of = |queue: Queue| -> Vec<Value> {
            vec![queue.number().into(), paused.into(), tenant.map(str::to_owned).into()]
        };
        let (sql, values, tenant) = match self.target {
            PauseTarget::All => (sql::queues::PAUSE_ALL, vec![PAUSED.into(), paused.into()], None),
            PauseTarget::Queue(queue @ Queue::Keyed(_)) => (sql::queues::PAUSE_KEYED, of(queue), tenant),
            PauseTarget::Queue(queue @ Queue::Guild(_)) => {
                (sql::queues::PAUSE_GUILD, [of(queue), vec![tx.context.first_fence().into()]].concat(), tenant)
            }
        };
        let caller = tx.context.tenant_scope(tenant);
        caller.begin(on).await?;
        query(on, sql, values).await?;
        caller.end(on).await?;
        tx.notify_pauses();
        Ok(())
    }
}

async fn is_all_paused(on: &DatabaseTransaction) -> Result<bool, EngineError> {
    let switch = switches::Entity::find_by_id(PAUSED).one(on).await?;
    Ok(switch.is_some_and(|switch| switch.is_on == 1))
}
