//! Inserts accepted operations.

use std::{collections::BTreeMap, sync::Arc};

use guildhall_actors::ports::{DelayedBy, NewOperation};
use guildhall_core::operation::{Queue, QueueClass};
use sea_orm::DatabaseTransaction;

use super::{Context, EngineError, WriteTx, signed, usage};
use crate::store::rows::{Columns, Rows, columns, row, with_rows};
use crate::store::sql;

/// A new operation, with its position in its queue and its tenant.
#[derive(Debug)]
pub(super) struct OperationInsert<'a> {
    pub(super) operation: &'a NewOperation,
    pub(super) queue: Queue,
    /// Class and key of its queue, unless it is a guild's.
    pub(super) identity: Option<(QueueClass, Arc<str>)>,
    /// Negative if it is scheduled.
    pub(super) seq: i64,
    /// Time when it joins its queue, if it is scheduled.
    pub(super) joins_at: Option<i64>,
    pub(super) tenant: Arc<str>,
    /// Tenant of the API key that submitted it, if any.
    pub(super) caller_tenant: Option<&'a str>,
}

/// Inserts accepted operations: each in the scope of its caller's tenant, so that no tenant can get a row by mistake.
/// The queues are written by the engine itself.
pub(super) async fn insert_operations(
    WriteTx { on, context, .. }: &WriteTx<'_>,
    accepted: &[OperationInsert<'_>],
) -> Result<(), EngineError> {
    if accepted.is_empty() {
        return Ok(());
    }
    add_to_queues(on, context, accepted).await?;
    // Sorted, so that no two processes wait for each other's keys: a key belongs to one tenant.
    let mut groups: BTreeMap<Option<&str>, Vec<&OperationInsert<'_>>> = BTreeMap::new();
    for new in accepted {
        groups.entry(new.caller_tenant).or_default().push(new);
    }
    for (tenant, group) in groups {
        let caller = context.tenant_scope(tenant);
        caller.begin(on).await?;
        insert(on, context, &group).await?;
        caller.end(on).await?;
    }
    Ok(())
}

async fn insert(
    on: &DatabaseTransaction,
    context: &Context,
    accepted: &[&OperationInsert<'_>],
) -> Result<(), EngineError> {
    const KEYS: Columns = columns![
        scope: Text, key: Text, payload_hash: Bytes, operation_id: Uuid, tenant: Text, bytes: Number,
    ];
    const REFS: Columns = columns![operation_id: Uuid, target: Uuid];
    let (mut operations, mut scheduled) = (Rows::new(), Rows::new());
    let mut keyed = BTreeMap::new();
    let mut refs = Rows::new();
    for new in accepted {
        match new.joins_at {
            None => push(&mut operations, new),
            Some(joins_at) => {
                push(&mut scheduled, new);
                let postponed = i64::from(new.operation.delayed_by == DelayedBy::Policy);
                scheduled.push(row! { joins_at, postponed });
            }
        }
        let operation = new.operation;
        if let Some(key) = &operation.idempotency {
            keyed.insert(key, (operation, &*new.tenant));
        }
        for target in &operation.refers_to {
            refs.push(row! { operation.id, *target });
        }
    }
    let (insert, values) = context.change_seq.bind(sql::insert::INSERT, Vec::new(), 1);
    with_rows(on, &insert, sql::insert::OPERATIONS, operations, values).await?;
    if !scheduled.is_empty() {
        let (insert, values) = context.change_seq.bind(sql::insert::INSERT_SCHEDULED, Vec::new(), 1);
        with_rows(on, &insert, sql::insert::SCHEDULED, scheduled, values).await?;
    }
    // Sorted, so that no two processes wait for each other's keys.
    let mut keys = Rows::new();
    for (key, (operation, tenant)) in &keyed {
        keys.push(row! {
            &key.scope, &key.key, &operation.payload_hash, operation.id, *tenant, signed(usage::key_bytes(key)),
        });
    }
    if with_rows(on, sql::insert::INSERT_KEYS, KEYS, keys, Vec::new()).await?.len() < keyed.len() {
        return Err(EngineError::Raced("another process used the same idempotency key at the same moment"));
    }
    with_rows(on, sql::insert::INSERT_REFS, REFS, refs, Vec::new()).await?;
    Ok(())
}

fn push(rows: &mut Rows, OperationInsert { operation, queue, seq, tenant, .. }: &OperationInsert<'_>) {
    let trace = operation.trace.map(|trace| trace.to_string());
    rows.push(row! {
        operation.id, tenant, *queue, operation.guild.map(u64::cast_signed), &operation.caller, packed(operation),
        *seq, operation.kind.name(), &operation.payload, &operation.payload_hash, operation.lane.name(),
        operation.eligible_at, operation.deadline_at, operation.deployment, trace.as_deref(),
        operation.reason.as_deref(), operation.redrive_of, operation.created_at,
    });
}

/// Packs the small numbers of an operation into one parameter, which [`sql::insert::INSERT`] unpacks: on SQLite each parameter of
/// each row costs the writer time. From the lowest bit: 24 bits of scopes, 2 of bounds, 8 of attempts, then the bytes.
fn packed(operation: &NewOperation) -> i64 {
    const MAX_BYTES: u64 = (1 << 29) - 1;
    let bytes = signed(usage::operation_bytes(operation).min(MAX_BYTES));
    let attempts = i64::from(operation.max_attempts.min(255));
    debug_assert!(operation.scopes.number() < 1 << 24 && operation.bounds.number() < 4, "scopes and bounds fit");
    bytes << 34 | attempts << 26 | operation.bounds.number() << 24 | operation.scopes.number()
}

/// Changes of one queue by a batch.
struct QueueAddition<'a> {
    tenant: Arc<str>,
    identity: Option<&'a (QueueClass, Arc<str>)>,
    count: i64,
    next_seq: i64,
    ready_at: i64,
}

/// Adds operations to the counts of their queues, and makes the queues due when the operations are.
async fn add_to_queues(
    on: &DatabaseTransaction,
    context: &Context,
    accepted: &[OperationInsert<'_>],
) -> Result<(), EngineError> {
    const SHAPE: Columns = columns![line: Number, tenant: Text, next_seq: Number, n: Number, ready_at: Number];
    const KEYED: Columns = columns![
        line: Number, tenant: Text, next_seq: Number, n: Number, ready_at: Number, class: Text, key: Text,
    ];
    let mut added: BTreeMap<Queue, QueueAddition<'_>> = BTreeMap::new();
    for OperationInsert { operation, queue, identity, seq, joins_at, tenant, .. } in accepted {
        let due = joins_at.unwrap_or_else(|| signed(operation.eligible_at.millis()));
        let (tenant, identity) = (Arc::clone(tenant), identity.as_ref());
        let fresh = QueueAddition { tenant, identity, count: 0, next_seq: 0, ready_at: i64::MAX };
        let addition = added.entry(*queue).or_insert(fresh);
        addition.count += 1;
        addition.next_seq = seq.abs() + 1;
        addition.ready_at = addition.ready_at.min(due);
    }
    let (mut rows, mut keyed, mut count) = (Rows::new(), Rows::new(), 0);
    for (queue, addition) in &added {
        let cells = row! { *queue, &addition.tenant, addition.next_seq, addition.count, addition.ready_at };
        if let Some((class, key)) = addition.identity {
            keyed.push(cells);
            keyed.push(row! { class.name(), key });
            count += 1;
        } else {
            rows.push(cells);
        }
    }
    let fence = || vec![context.first_fence().into()];
    with_rows(on, sql::insert::ADD_TO_QUEUES, SHAPE, rows, fence()).await?;
    if with_rows(on, sql::insert::ADD_TO_KEYED_QUEUES, KEYED, keyed, fence()).await?.len() < count {
        // It did not exist when the queues were read.
        return Err(EngineError::Raced("another process created a queue with the same number at the same moment"));
    }
    Ok(())
}
