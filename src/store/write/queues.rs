//! Ownership of queues.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use guildhall_actors::ports::{Claim, ClaimFrom, Fence, PauseTarget};
use guildhall_core::operation::{OperationId, Queue};
use guildhall_core::time::UnixMs;
use sea_orm::{ConnectionTrait as _, DatabaseTransaction, DbBackend, QueryResult, Value};
use uuid::Uuid;

use super::{BatchNeeds, Context, EngineError, Reply, ResultDelivery, RunOrder, WriteJob, WriteTx, crashes, signed};
use crate::events::emit;
use crate::store::{
    cluster::{ProcessLease, SLOT},
    events::QueuesClaimed,
    rows::{Columns, Rows, columns, query, row, scalars, with_rows},
};

/// Queues by their numbers.
pub(in crate::store) const QUEUE_NUMBERS: Columns = columns![line: Number];
const HELD: Columns = columns![line: Number, held: Number];

/// The switch that pauses everything.
pub(in crate::store) const PAUSED: &str = "paused";

/// SQL expression for the time when a queue is due again: the earliest of its first operation, those that others may
/// pass, and the first scheduled one.
pub(in crate::store) const NEXT_DUE: &str =
    "(SELECT MIN(d.due) FROM (SELECT MIN(o.eligible_at) AS due FROM operations o WHERE o.queue = guild_queues.queue
    AND o.finished_at IS NULL AND o.seq > 0 AND (o.parked = 1 OR o.seq = (SELECT MIN(p.seq) FROM operations p
    WHERE p.queue = guild_queues.queue AND p.finished_at IS NULL AND p.seq > 0 AND p.parked = 0))
    UNION ALL SELECT MIN(s.joins_at) FROM operations s WHERE s.queue = guild_queues.queue
    AND s.joins_at IS NOT NULL) d)";

/// Takes due queues, the longest waiting first.
pub(in crate::store) const TAKE_DUE: &str = "UPDATE guild_queues SET owner = $1, fence = fence + 1 WHERE queue IN
    (SELECT queue FROM guild_queues WHERE owner IS NULL AND paused = 0 AND ready_at IS NOT NULL AND ready_at <= $2
    ORDER BY ready_at LIMIT $3 + 0) RETURNING queue, fence, paused, ready_at";

/// Like [`TAKE_DUE`], for several processes: takes queues of the slots of this process, and queues that have waited too
/// long for the process that should own them. Skips queues that another process is taking.
pub(in crate::store) fn take_due_shared_sql() -> String {
    format!(
        "UPDATE guild_queues SET owner = $1, fence = fence + 1 WHERE queue IN
        (SELECT queue FROM guild_queues WHERE owner IS NULL AND paused = 0 AND ready_at IS NOT NULL AND ready_at <= $2
        AND (ready_at <= $4 OR get_bit($5, {SLOT}) = 1) ORDER BY ready_at LIMIT $3 FOR UPDATE SKIP LOCKED)
        RETURNING queue, fence, paused, ready_at"
    )
}

/// How long a queue waits for the process that should own it, in milliseconds; after that, any process takes it.
const OWNER_GRACE_MS: i64 = 3_000;

/// Makes this process the only live one. Returns the number of queues that it freed.
pub(super) async fn take_over(on: &DatabaseTransaction, own_id: Uuid, now: i64) -> Result<u64, EngineError> {
    const BEGIN: &str = "INSERT INTO instances (id, name, started_at, seen_at, lease_until, leaving)
        VALUES ($1, $2, $3, $3, $4, 0)";
    query(on, "DELETE FROM instances", Vec::new()).await?;
    query(on, BEGIN, vec![own_id.into(), "alone".into(), now.into(), i64::MAX.into()]).await?;
    let free = format!(
        "UPDATE guild_queues SET owner = NULL, fence = fence + 1, ready_at = {NEXT_DUE}
        WHERE owner IS NOT NULL AND owner <> $1 RETURNING queue"
    );
    let freed = query(on, &free, vec![own_id.into()]).await?;
    const SHARDS: &str =
        "UPDATE shard_owners SET owner = NULL, fence = fence + 1 WHERE owner IS NOT NULL AND owner <> $1";
    query(on, SHARDS, vec![own_id.into()]).await?;
    // Queues of interactions and users are temporary; empty ones are removed.
    const FORGET: &str = "DELETE FROM guild_queues WHERE queue IN (SELECT q.queue FROM guild_queues q
        WHERE q.queue < 0 AND q.pending = 0 AND q.owner IS NULL AND q.paused = 0
        AND NOT EXISTS (SELECT 1 FROM operations o WHERE o.queue = q.queue) LIMIT 10000)";
    query(on, FORGET, Vec::new()).await?;
    Ok(freed.len() as u64)
}

/// Locks queues until the transaction ends, and returns their owners. Sorted, so that no two processes wait for each
/// other.
pub(super) async fn lock(
    on: &DatabaseTransaction,
    queues: impl IntoIterator<Item = i64>,
) -> Result<HashMap<i64, Option<Uuid>>, EngineError> {
    const LOCK: &str = "SELECT q.queue, q.owner FROM guild_queues q WHERE q.queue IN (SELECT line FROM {v})
        ORDER BY q.queue FOR NO KEY UPDATE OF q";
    let numbers: BTreeSet<i64> = queues.into_iter().collect();
    if numbers.is_empty() {
        return Ok(HashMap::new());
    }
    let rows = with_rows(on, LOCK, QUEUE_NUMBERS, Rows::of(numbers), Vec::new()).await?;
    let owner = |row: &QueryResult| Ok::<_, EngineError>((row.try_get("", "queue")?, row.try_get("", "owner")?));
    rows.iter().map(owner).collect()
}

/// Waits for an exclusive lock among the processes of this store, and holds it until the transaction ends. For data
/// that has no row to lock; only PostgreSQL needs it.
pub(super) async fn lock_exclusive(on: &DatabaseTransaction, name: &str) -> Result<(), EngineError> {
    const TAKE: &str =
        "SELECT 1 FROM pg_advisory_xact_lock(hashtextextended(current_schema() || '/guildhall/' || $1, 0))";
    if is_shared(on) {
        query(on, TAKE, vec![name.into()]).await?;
    }
    Ok(())
}

/// The queues of operations.
pub(super) async fn queues_of_operations(
    on: &DatabaseTransaction,
    operations: impl IntoIterator<Item = OperationId>,
) -> Result<Vec<i64>, EngineError> {
    const SHAPE: Columns = columns![op: Uuid];
    const SELECT: &str = "SELECT o.queue FROM {v} JOIN operations o ON o.id = v.op";
    let rows = Rows::of(operations);
    let rows = with_rows(on, SELECT, SHAPE, rows, Vec::new()).await?;
    Ok(scalars(&rows)?)
}

/// Frees queues that this process owns according to the store, but that no part of the process knows.
pub(super) async fn free_unknown(on: &DatabaseTransaction, context: &Context) -> Result<(), EngineError> {
    let lock = if is_shared(on) { "ORDER BY queue FOR UPDATE" } else { "" };
    let select = format!("SELECT queue, fence FROM guild_queues WHERE owner = $1 {lock}");
    let mut unknown = Rows::new();
    for row in query(on, &select, vec![context.members.id().into()]).await? {
        let (queue, fence) = held(&row)?;
        if !context.members.process_lease().has_queue(queue, fence) {
            unknown.push(row! { queue, fence });
        }
    }
    if !unknown.is_empty() {
        let free = format!(
            "UPDATE guild_queues SET owner = NULL, fence = fence + 1, ready_at = {NEXT_DUE}
            FROM {{v}} WHERE queue = v.line AND fence = v.held"
        );
        with_rows(on, &free, HELD, unknown, Vec::new()).await?;
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
    const MAKE: &str = "INSERT INTO guild_queues (queue, tenant, next_seq, pending, paused, fence)
        SELECT line, 'default', 1, 0, 0, $2 FROM {v} WHERE 1 = 1 ON CONFLICT DO NOTHING";
    const TAKE: &str = "UPDATE guild_queues SET owner = $2, fence = fence + 1 FROM {v}
        WHERE queue = v.line AND owner IS NULL RETURNING queue, fence, paused, ready_at";
    const TAKE_SHARED: &str = "UPDATE guild_queues SET owner = $2, fence = fence + 1 WHERE queue IN
        (SELECT q.queue FROM guild_queues q WHERE q.queue IN (SELECT line FROM {v}) AND q.owner IS NULL
        FOR UPDATE OF q SKIP LOCKED) RETURNING queue, fence, paused, ready_at";
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
                query(on, &take_due_shared_sql(), values.into_iter().chain(ours).collect()).await?
            } else {
                query(on, TAKE_DUE, values).await?
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
            with_rows(on, MAKE, QUEUE_NUMBERS, guilds, vec![context.first_fence().into()]).await?;
            with_rows(on, if shared { TAKE_SHARED } else { TAKE }, QUEUE_NUMBERS, rows(), vec![own_id.into()]).await?
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
    let select = "SELECT 1 FROM instances WHERE id = $1 FOR KEY SHARE";
    Ok(!query(on, select, vec![own_id.into()]).await?.is_empty())
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
        let sql = format!(
            "UPDATE guild_queues SET owner = NULL, ready_at = {NEXT_DUE} FROM {{v}}
            WHERE queue = v.line AND fence = v.held AND (owner = $2 OR owner IS NULL) RETURNING queue, fence"
        );
        let released = with_rows(tx.on, &sql, HELD, rows, vec![tx.context.members.id().into()]).await?;
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
    let update = format!("UPDATE guild_queues SET ready_at = {NEXT_DUE} WHERE queue = $1 AND owner IS NULL");
    query(on, &update, vec![queue.number().into()]).await?;
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
        let page = if is_shared(tx.on) { "LIMIT $2 FOR NO KEY UPDATE OF q" } else { "LIMIT $2 + 0" };
        // As `Failure` is serialized: the field exists only if the gate holds the operation.
        let update = format!(
            "UPDATE guild_queues SET ready_at = $1 WHERE queue IN (SELECT q.queue FROM guild_queues q
            WHERE q.owner IS NULL AND q.paused = 0 AND q.ready_at > $1 AND EXISTS (SELECT 1 FROM operations o
            WHERE o.queue = q.queue AND o.finished_at IS NULL AND o.state IN ('delayed', 'reconciling')
            AND o.error LIKE '%\"held_by\":%') ORDER BY q.queue {page}) RETURNING queue"
        );
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
        const ALL: &str = "INSERT INTO switches (name, is_on) VALUES ($1, $2)
            ON CONFLICT (name) DO UPDATE SET is_on = excluded.is_on";
        const KEYED: &str = "UPDATE guild_queues SET paused = $2 WHERE queue = $1 AND tenant = COALESCE($3, tenant)";
        const ONE: &str = "INSERT INTO guild_queues (queue, tenant, next_seq, pending, paused, fence)
            VALUES ($1, COALESCE($3, 'default'), 1, 0, $2, $4) ON CONFLICT (queue) DO UPDATE SET paused = excluded.paused
            WHERE guild_queues.tenant = COALESCE($3, guild_queues.tenant)";
        let (on, paused, tenant) = (tx.on, i64::from(self.paused), self.tenant.as_deref());
        let of = |queue: Queue| -> Vec<Value> {
            vec![queue.number().into(), paused.into(), tenant.map(str::to_owned).into()]
        };
        let (sql, values, tenant) = match self.target {
            PauseTarget::All => (ALL, vec![PAUSED.into(), paused.into()], None),
            PauseTarget::Queue(queue @ Queue::Keyed(_)) => (KEYED, of(queue), tenant),
            PauseTarget::Queue(queue @ Queue::Guild(_)) => {
                (ONE, [of(queue), vec![tx.context.first_fence().into()]].concat(), tenant)
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
    let rows = query(on, "SELECT 1 FROM switches WHERE name = $1 AND is_on = 1", vec![PAUSED.into()]).await?;
    Ok(!rows.is_empty())
}
