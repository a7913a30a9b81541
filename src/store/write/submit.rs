//! Accepting operations.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use guildhall_actors::{
    access::default_tenant,
    operations::{NewOperation, SubmitError, Submitted},
};
use guildhall_core::operation::{OperationId, State};
use sea_orm::{DatabaseTransaction, QueryResult};
use uuid::Uuid;

use super::{
    Context, Trouble,
    insert::{self, New},
    signed,
};
use crate::store::{
    operation_row::state_named,
    rows::{Cell, Holds, Rows, Shape, kept, with_rows},
};

/// What stands in the way of a new operation, or is there already.
#[derive(Clone, Debug)]
struct Known {
    id: OperationId,
    hash: [u8; 32],
    state: State,
    result: Option<String>,
}

/// An operation that a new one may refer to.
#[derive(Debug)]
struct Target {
    tenant: Arc<str>,
    guild: Option<i64>,
    known: Known,
}

#[derive(Clone, Debug)]
struct Line {
    /// Whose it is; nobody's yet if it is new.
    tenant: Option<Arc<str>>,
    next_seq: i64,
    pending: i64,
}

type Key = (String, String);

/// Operations that are accepted together or not at all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch<'a> {
    pub(super) operations: &'a [NewOperation],
    /// The tenant whose key asks for them, if one does.
    pub(super) of: Option<&'a str>,
}

/// What the store held before, and what this batch has added.
#[derive(Debug, Default)]
struct Desk {
    keys: HashMap<Key, Known>,
    /// Keys whose time is up.
    expired: Vec<Key>,
    operations: HashMap<OperationId, Target>,
    lines: HashMap<i64, Line>,
}

/// Accepts batches one after the other, each of them as a whole or not at all.
pub(super) async fn all(
    on: &DatabaseTransaction,
    context: &Context,
    batches: &[Batch<'_>],
) -> Result<Vec<Result<Vec<Submitted>, SubmitError>>, Trouble> {
    if batches.is_empty() {
        return Ok(Vec::new());
    }
    let mut desk = Desk::read(on, batches).await?;
    let mut accepted: Vec<New<'_>> = Vec::new();
    let mut answers = Vec::with_capacity(batches.len());
    for batch in batches {
        answers.push(desk.accept(*batch, context.max_queued).map(|(submitted, new)| {
            accepted.extend(new);
            submitted
        }));
    }
    forget(on, &desk.expired).await?;
    insert::all(on, context, &accepted).await?;
    Ok(answers)
}

impl Desk {
    /// Whose everything is: what is read here decides who may do what, so it is not read as who asks.
    async fn read(on: &DatabaseTransaction, batches: &[Batch<'_>]) -> Result<Self, Trouble> {
        let mut desk = Self::default();
        let all = || batches.iter().flat_map(|batch| batch.operations);
        desk.read_keys(on, all()).await?;
        desk.read_operations(on, all()).await?;
        desk.read_lines(on, all()).await?;
        Ok(desk)
    }

    async fn read_keys<'a>(
        &mut self,
        on: &DatabaseTransaction,
        all: impl Iterator<Item = &'a NewOperation>,
    ) -> Result<(), Trouble> {
        const SHAPE: Shape = Shape(&[("scope", Holds::Text), ("key", Holds::Text), ("at", Holds::Number)]);
        const SELECT: &str = "SELECT i.scope, i.key, i.operation_id, i.payload_hash, COALESCE(i.state, o.state),
            COALESCE(i.result, o.result), i.expires_at <= v.at FROM {v}
            JOIN idempotency i ON i.scope = v.scope AND i.key = v.key LEFT JOIN operations o ON o.id = i.operation_id";
        let mut rows = Rows::new();
        for operation in all {
            if let Some(key) = &operation.idempotency {
                let at = signed(operation.created_at.millis());
                rows.push(&[Cell::Text(&key.scope), Cell::Text(&key.key), Cell::Number(at)]);
            }
        }
        if rows.is_empty() {
            return Ok(());
        }
        for row in with_rows(on, SELECT, SHAPE, rows, Vec::new()).await? {
            let key = (row.try_get_by_index(0)?, row.try_get_by_index(1)?);
            if row.try_get_by_index::<Option<bool>>(6)? == Some(true) {
                self.expired.push(key);
            } else {
                self.keys.insert(key, known(&row, 2)?);
            }
        }
        Ok(())
    }

    async fn read_operations<'a>(
        &mut self,
        on: &DatabaseTransaction,
        all: impl Iterator<Item = &'a NewOperation>,
    ) -> Result<(), Trouble> {
        const SHAPE: Shape = Shape(&[("op", Holds::Uuid)]);
        const SELECT: &str = "SELECT o.tenant, o.guild_id, o.id, o.payload_hash, o.state, o.result
            FROM {v} JOIN operations o ON o.id = v.op";
        let mut asked = HashSet::new();
        for operation in all {
            asked.insert(operation.id);
            asked.extend(&operation.refers_to);
        }
        let rows = Rows::of(asked.iter().map(|id| Cell::Uuid(id.uuid())));
        for row in with_rows(on, SELECT, SHAPE, rows, Vec::new()).await? {
            let known = known(&row, 2)?;
            let tenant: String = row.try_get_by_index(0)?;
            let target = Target { tenant: Arc::from(tenant), guild: row.try_get_by_index(1)?, known };
            self.operations.insert(target.known.id, target);
        }
        Ok(())
    }

    async fn read_lines<'a>(
        &mut self,
        on: &DatabaseTransaction,
        all: impl Iterator<Item = &'a NewOperation>,
    ) -> Result<(), Trouble> {
        const SHAPE: Shape = Shape(&[("line", Holds::Number)]);
        const SELECT: &str =
            "SELECT q.queue, q.next_seq, q.pending, q.tenant FROM {v} JOIN guild_queues q ON q.queue = v.line";
        let queues: HashSet<i64> = all.map(|operation| operation.queue.number()).collect();
        let rows = Rows::of(queues.into_iter().map(Cell::Number));
        for row in with_rows(on, SELECT, SHAPE, rows, Vec::new()).await? {
            let tenant: String = row.try_get_by_index(3)?;
            let (next_seq, pending) = (row.try_get_by_index(1)?, row.try_get_by_index(2)?);
            let line = Line { tenant: Some(Arc::from(tenant)), next_seq, pending };
            self.lines.insert(row.try_get_by_index(0)?, line);
        }
        Ok(())
    }

    /// Accepts a batch, or leaves everything as it was.
    fn accept<'a>(&mut self, batch: Batch<'a>, most: u64) -> Result<(Vec<Submitted>, Vec<New<'a>>), SubmitError> {
        let mut submitted = Vec::with_capacity(batch.operations.len());
        let mut new: Vec<New<'a>> = Vec::new();
        let mut keys: HashMap<Key, Known> = HashMap::new();
        let mut lines: HashMap<i64, Line> = HashMap::new();
        for (index, operation) in batch.operations.iter().enumerate() {
            let key = operation.idempotency.as_ref().map(|key| (kept(&key.scope), kept(&key.key)));
            let by_key = key.as_ref().and_then(|key| keys.get(key).or_else(|| self.keys.get(key)));
            let by_id = || self.operations.get(&operation.id).map(|target| &target.known);
            if let Some(known) = by_key.or_else(by_id) {
                if known.hash != operation.payload_hash {
                    return Err(SubmitError::KeyReused { index, id: known.id });
                }
                let Known { id, state, result, .. } = known.clone();
                submitted.push(Submitted::Existing { id, state, result });
                continue;
            }
            let queue = operation.queue;
            let stored = || self.lines.get(&queue.number()).cloned();
            let line = lines.entry(queue.number()).or_insert_with(|| stored().unwrap_or_default());
            let is_theirs = |tenant: &Arc<str>| batch.of.is_none_or(|of| of == &**tenant);
            let tenant = line.tenant_for(operation).filter(is_theirs).ok_or(SubmitError::NotYours { index })?;
            for id in &operation.refers_to {
                let is_it =
                    |earlier: &New<'_>| earlier.operation.id == *id && earlier.is_seen(operation.guild, &tenant);
                if !new.iter().any(is_it)
                    && !self.operations.get(id).is_some_and(|target| target.is_seen(operation.guild, &tenant))
                {
                    return Err(SubmitError::NoSuchOperation { index, id: *id });
                }
            }
            if line.pending >= signed(most) {
                return Err(SubmitError::Full { queue, pending: line.pending.unsigned_abs(), most });
            }
            if let Some(key) = key {
                keys.insert(key, Known::of(operation));
            }
            submitted.push(Submitted::Accepted { seq: line.next_seq.unsigned_abs() });
            line.tenant.get_or_insert_with(|| Arc::clone(&tenant));
            new.push(New { operation, seq: line.next_seq, tenant, of: batch.of });
            line.next_seq += 1;
            line.pending += 1;
        }
        self.keys.extend(keys);
        self.lines.extend(lines);
        for New { operation, tenant, .. } in &new {
            let target = Target {
                tenant: Arc::clone(tenant),
                guild: operation.guild.map(u64::cast_signed),
                known: Known::of(operation),
            };
            self.operations.insert(operation.id, target);
        }
        Ok((submitted, new))
    }
}

impl Known {
    fn of(operation: &NewOperation) -> Self {
        Self { id: operation.id, hash: operation.payload_hash, state: State::Queued, result: None }
    }
}

impl Target {
    fn is_seen(&self, guild: Option<u64>, tenant: &str) -> bool {
        self.guild == guild.map(u64::cast_signed) && *self.tenant == *tenant
    }
}

impl New<'_> {
    fn is_seen(&self, guild: Option<u64>, tenant: &str) -> bool {
        self.operation.guild == guild && *self.tenant == *tenant
    }
}

impl Default for Line {
    fn default() -> Self {
        Self { tenant: None, next_seq: 1, pending: 0 }
    }
}

impl Line {
    /// Whose an operation is that is to stand here; nothing if it may not. Whoever has no tenant acts for whose the guild is;
    /// a guild that nobody has is the default tenant's, and becomes another's by a key alone. Queues of users and
    /// interactions are nobody's own.
    fn tenant_for(&self, operation: &NewOperation) -> Option<Arc<str>> {
        let asked = Some(&operation.tenant).filter(|tenant| !tenant.is_empty());
        if operation.queue.guild().is_none() {
            return Some(asked.map_or_else(default_tenant, Arc::clone));
        }
        let own = self.tenant.clone().unwrap_or_else(default_tenant);
        (asked.is_none_or(|asked| *asked == own)).then_some(own)
    }
}

/// An operation's id, hash, state and result, from this column on.
fn known(row: &QueryResult, from: usize) -> Result<Known, Trouble> {
    let id: Uuid = row.try_get_by_index(from)?;
    let state: Option<String> = row.try_get_by_index(from + 2)?;
    let state = state.ok_or_else(|| {
        Trouble::Corrupt(format!("the key of operation {id} has no state, and the operation is gone"))
    })?;
    let hash: Vec<u8> = row.try_get_by_index(from + 1)?;
    let unreadable = |_| Trouble::Corrupt(format!("operation {id} has a hash that cannot be read"));
    Ok(Known {
        id: OperationId::from_uuid(id),
        hash: hash.try_into().map_err(unreadable)?,
        state: state_named(&state)?,
        result: row.try_get_by_index(from + 3)?,
    })
}

async fn forget(on: &DatabaseTransaction, expired: &[Key]) -> Result<(), Trouble> {
    const SHAPE: Shape = Shape(&[("its_scope", Holds::Text), ("its_key", Holds::Text)]);
    const DELETE: &str = "DELETE FROM idempotency WHERE (scope, key) IN (SELECT its_scope, its_key FROM {v})";
    let mut rows = Rows::new();
    for (scope, key) in expired {
        rows.push(&[Cell::Text(scope), Cell::Text(key)]);
    }
    if !rows.is_empty() {
        with_rows(on, DELETE, SHAPE, rows, Vec::new()).await?;
    }
    Ok(())
}
