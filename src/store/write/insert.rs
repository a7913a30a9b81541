//! Keeping operations that were accepted.

use std::{collections::BTreeMap, sync::Arc};

use guildhall_actors::operations::NewOperation;
use guildhall_core::operation::{OperationId, Queue};
use sea_orm::DatabaseTransaction;

use super::{Context, Trouble, signed};
use crate::store::rows::{Cell, Holds, Rows, Shape, with_rows};

/// A new operation, with its place in its queue and whose it is.
#[derive(Debug)]
pub(super) struct New<'a> {
    pub(super) operation: &'a NewOperation,
    pub(super) seq: i64,
    pub(super) tenant: Arc<str>,
    /// The tenant whose key asked for it, if one did.
    pub(super) of: Option<&'a str>,
}

const OPERATIONS: Shape = Shape(&[
    ("id", Holds::Uuid),
    ("tenant", Holds::Text),
    ("queue", Holds::Number),
    ("guild_id", Holds::Number),
    ("caller", Holds::Text),
    ("bounds", Holds::Number),
    ("scopes", Holds::Number),
    ("seq", Holds::Number),
    ("kind", Holds::Text),
    ("payload", Holds::Text),
    ("payload_hash", Holds::Bytes),
    ("lane", Holds::Text),
    ("max_attempts", Holds::Number),
    ("eligible_at", Holds::Number),
    ("deadline_at", Holds::Number),
    ("deployment_id", Holds::Uuid),
    ("trace", Holds::Text),
    ("reason", Holds::Text),
    ("redrive_of", Holds::Uuid),
    ("created_at", Holds::Number),
]);

const INSERT: &str = "INSERT INTO operations (id, tenant, queue, guild_id, caller, bounds, scopes, seq, kind, payload, payload_hash, lane,
    max_attempts, eligible_at, deadline_at, deployment_id, trace, reason, redrive_of, created_at, updated_at,
    state, attempts, delays, parked, changed)
    SELECT id, tenant, queue, guild_id, caller, bounds, scopes, seq, kind, payload, payload_hash, lane, max_attempts, eligible_at, deadline_at,
    deployment_id, trace, reason, redrive_of, created_at, created_at, 'queued', 0, 0, 0, {changed} FROM {v}";

/// Keeps operations that were accepted: each as whoever asked for it, so that nobody can be given a row by mistake. The queues
/// are the engine's own, and some of them are used by several tenants.
pub(super) async fn all(on: &DatabaseTransaction, context: &Context, accepted: &[New<'_>]) -> Result<(), Trouble> {
    if accepted.is_empty() {
        return Ok(());
    }
    count_in(on, accepted).await?;
    // In order, so that no two processes wait for each other's keys: a key is one tenant's.
    let mut groups: BTreeMap<Option<&str>, Vec<&New<'_>>> = BTreeMap::new();
    for new in accepted {
        groups.entry(new.of).or_default().push(new);
    }
    for (of, group) in groups {
        let caller = context.on_behalf(of);
        caller.begin(on).await?;
        insert(on, context, &group).await?;
        caller.end(on).await?;
    }
    Ok(())
}

async fn insert(on: &DatabaseTransaction, context: &Context, accepted: &[&New<'_>]) -> Result<(), Trouble> {
    const KEYS: Shape = Shape(&[
        ("scope", Holds::Text),
        ("key", Holds::Text),
        ("payload_hash", Holds::Bytes),
        ("operation_id", Holds::Uuid),
    ]);
    // Another process may keep the same key at the same moment: what it has kept is found next time.
    const INSERT_KEYS: &str = "INSERT INTO idempotency (scope, key, payload_hash, operation_id)
        SELECT scope, key, payload_hash, operation_id FROM {v} WHERE 1 = 1 ON CONFLICT DO NOTHING RETURNING key";
    const REFS: Shape = Shape(&[("operation_id", Holds::Uuid), ("target", Holds::Uuid)]);
    const INSERT_REFS: &str = "INSERT INTO operation_refs (operation_id, target)
        SELECT operation_id, target FROM {v} WHERE 1 = 1 ON CONFLICT DO NOTHING";
    let mut operations = Rows::new();
    let mut keyed = BTreeMap::new();
    let mut refs = Rows::new();
    for new in accepted {
        push(&mut operations, new);
        let operation = new.operation;
        let id = Cell::Uuid(operation.id.uuid());
        if let Some(key) = &operation.idempotency {
            keyed.insert(key, operation);
        }
        for target in &operation.refers_to {
            refs.push(&[id, Cell::Uuid(target.uuid())]);
        }
    }
    let (insert, values) = context.stamp.put(INSERT, Vec::new(), 1);
    with_rows(on, &insert, OPERATIONS, operations, values).await?;
    if !keyed.is_empty() {
        // In order, so that no two processes wait for each other's keys.
        let mut keys = Rows::new();
        for (key, operation) in &keyed {
            let id = Cell::Uuid(operation.id.uuid());
            keys.push(&[Cell::Text(&key.scope), Cell::Text(&key.key), Cell::Bytes(&operation.payload_hash), id]);
        }
        if with_rows(on, INSERT_KEYS, KEYS, keys, Vec::new()).await?.len() < keyed.len() {
            return Err(Trouble::Raced("an idempotency key was used by another process at the same moment"));
        }
    }
    if !refs.is_empty() {
        with_rows(on, INSERT_REFS, REFS, refs, Vec::new()).await?;
    }
    Ok(())
}

fn push(rows: &mut Rows, New { operation, seq, tenant, .. }: &New<'_>) {
    let trace = operation.trace.map(|trace| trace.to_string());
    rows.push(&[
        Cell::Uuid(operation.id.uuid()),
        Cell::Text(tenant),
        Cell::Number(operation.queue.number()),
        operation.guild.map(u64::cast_signed).into(),
        Cell::Text(&operation.caller),
        Cell::Number(operation.bounds.number()),
        Cell::Number(operation.scopes.number()),
        Cell::Number(*seq),
        Cell::Text(operation.kind.name()),
        Cell::Text(&operation.payload),
        Cell::Bytes(&operation.payload_hash),
        Cell::Text(operation.lane.name()),
        Cell::Number(operation.max_attempts.into()),
        Cell::Number(signed(operation.eligible_at.millis())),
        operation.deadline_at.map(|at| signed(at.millis())).into(),
        operation.deployment.map(OperationId::uuid).into(),
        trace.as_deref().into(),
        operation.reason.as_deref().into(),
        operation.redrive_of.map(OperationId::uuid).into(),
        Cell::Number(signed(operation.created_at.millis())),
    ]);
}

/// What a batch adds to one queue.
struct Added {
    tenant: Arc<str>,
    count: i64,
    next_seq: i64,
    ready_at: i64,
}

/// Counts operations into their queues, and makes the queues due when they are.
async fn count_in(on: &DatabaseTransaction, accepted: &[New<'_>]) -> Result<(), Trouble> {
    const SHAPE: Shape = Shape(&[
        ("line", Holds::Number),
        ("tenant", Holds::Text),
        ("next_seq", Holds::Number),
        ("n", Holds::Number),
        ("ready_at", Holds::Number),
    ]);
    const UPSERT: &str = "INSERT INTO guild_queues (queue, tenant, next_seq, pending, paused, ready_at, fence)
        SELECT line, tenant, next_seq, n, 0, ready_at, $2 FROM {v} WHERE 1 = 1
        ON CONFLICT (queue) DO UPDATE SET next_seq = excluded.next_seq, pending = guild_queues.pending + excluded.pending,
        ready_at = CASE WHEN guild_queues.ready_at IS NULL OR guild_queues.ready_at > excluded.ready_at
        THEN excluded.ready_at ELSE guild_queues.ready_at END";
    let mut added: BTreeMap<Queue, Added> = BTreeMap::new();
    for New { operation, seq, tenant, .. } in accepted {
        let eligible_at = signed(operation.eligible_at.millis());
        let tenant = Arc::clone(tenant);
        let fresh = Added { tenant, count: 0, next_seq: 0, ready_at: i64::MAX };
        let line = added.entry(operation.queue).or_insert(fresh);
        line.count += 1;
        line.next_seq = seq + 1;
        line.ready_at = line.ready_at.min(eligible_at);
    }
    let mut rows = Rows::new();
    for (queue, line) in &added {
        rows.push(&[
            Cell::Number(queue.number()),
            Cell::Text(&line.tenant),
            Cell::Number(line.next_seq),
            Cell::Number(line.count),
            Cell::Number(line.ready_at),
        ]);
    }
    with_rows(on, UPSERT, SHAPE, rows, vec![Context::first_fence().into()]).await?;
    Ok(())
}
