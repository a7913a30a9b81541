//! Counts what each caller and tenant has in the store, and refuses submissions that would exceed a limit.
//!
//! ```text
//!  submit, record, cancel, discard, sweep … ──▶ changes of this transaction ──▶ one statement before the commit ──▶ usage
//!  submit ──▶ sum of all processes + changes of this transaction + new operations ──▶ limits
//! ```
//!
//! Each process writes rows of its own, so that processes that share a PostgreSQL store never wait for each other here.
//! Two that accept operations at the same moment do not see each other's rows: each other process can exceed a limit by
//! one transaction.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

use guildhall_actors::ports::{IdempotencyKey, NewOperation, SubmitError};
use guildhall_core::usage::{
    KEY_BYTES, OPERATION_BYTES, REFERENCE_BYTES, Usage, UsageBoundExceeded, UsageLimit, UsageLimits, UsageScope,
};
use sea_orm::{
    ColumnTrait as _, ConnectionTrait, DatabaseTransaction, EntityTrait as _, QueryFilter as _,
    sea_query::ExprTrait as _,
};
use uuid::Uuid;

use super::{
    Context, EngineError, file_capacity::FileCapacity, insert::OperationInsert, queues, signed, submit::SubmitBatch,
};
use crate::store::sql;
use crate::{
    events::emit,
    store::{
        entities::usage,
        events::SubmissionOverLimit,
        rows::{Columns, Rows, columns, query, row, with_rows},
    },
};

/// Instance of rows that belong to no live process. An SQLite file has only these rows.
pub(in crate::store) const MERGED_INSTANCE: Uuid = Uuid::nil();

const SCOPES: Columns = columns![its_scope: Text];

/// The counters of one writer.
#[derive(Debug)]
pub(in crate::store) struct UsageCounters {
    limits: UsageLimits,
    /// Instance of its own rows.
    instance: Uuid,
    file: Option<FileCapacity>,
    /// Changes of the present transaction.
    changes: Mutex<UsageChanges>,
    /// Committed counters, if no other process writes to the store.
    cache: Option<Mutex<UsageCache>>,
}

/// Changes of one transaction.
#[derive(Debug, Default)]
struct UsageChanges {
    by_scope: BTreeMap<UsageScope, Usage>,
    /// The last caller and tenant, and changes that are not in `by_scope` yet: most changes of a transaction have the
    /// same caller and tenant.
    run: Option<(String, String, Usage)>,
}

impl UsageChanges {
    fn add(&mut self, caller: &str, tenant: &str, change: Usage) {
        match &mut self.run {
            Some((its_caller, its_tenant, sum)) if its_caller == caller && its_tenant == tenant => *sum += change,
            Some(_) | None => {
                self.scopes();
                self.run = Some((caller.to_owned(), tenant.to_owned(), change));
            }
        }
    }

    /// All changes, by scope.
    fn scopes(&mut self) -> &mut BTreeMap<UsageScope, Usage> {
        if let Some((caller, tenant, sum)) = self.run.take() {
            for scope in UsageScope::of(&caller, &tenant) {
                *self.by_scope.entry(scope).or_default() += sum;
            }
        }
        &mut self.by_scope
    }
}

/// Maximum number of cached scopes.
const MAX_CACHED_SCOPES: usize = 10_000;

/// Committed counters that were read before, so that they need not be read for each transaction.
#[derive(Debug, Default)]
struct UsageCache {
    committed: HashMap<UsageScope, Usage>,
    /// Changes that the present transaction has written.
    written: Option<BTreeMap<UsageScope, Usage>>,
}

impl UsageCache {
    /// Starts a transaction. If the last one has written changes and was not confirmed as committed, the cache is
    /// invalid.
    fn begin(&mut self) {
        if self.written.take().is_some() || self.committed.len() > MAX_CACHED_SCOPES {
            self.committed.clear();
        }
    }

    fn commit(&mut self) {
        for (scope, change) in self.written.take().into_iter().flatten() {
            if let Some(committed) = self.committed.get_mut(&scope) {
                *committed += change;
            }
        }
    }
}

impl UsageCounters {
    pub(in crate::store) fn new(limits: UsageLimits, instance: Uuid, file: Option<FileCapacity>) -> Self {
        // A file has one writer.
        let cache = file.is_some().then(Mutex::default);
        Self { limits, instance, file, changes: Mutex::default(), cache }
    }

    /// Starts a new transaction.
    pub(super) fn clear(&self) {
        *self.lock() = UsageChanges::default();
        if let Some(mut cache) = self.cache() {
            cache.begin();
        }
    }

    /// The present transaction was committed.
    pub(super) fn on_commit(&self) {
        if let Some(mut cache) = self.cache() {
            cache.commit();
        }
    }

    fn cache(&self) -> Option<MutexGuard<'_, UsageCache>> {
        self.cache.as_ref().map(|cache| cache.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts a change for all scopes of an operation.
    pub(super) fn add(&self, caller: &str, tenant: &str, change: Usage) {
        if change.is_zero() {
            return;
        }
        self.lock().add(caller, tenant, change);
    }

    /// Counts audit rows of a key that were written or removed.
    pub(super) fn count_audit(&self, key: &str, rows: i64) {
        let change = Usage { operations: rows, bytes: 0 };
        *self.lock().scopes().entry(UsageScope::Audit(key.to_owned())).or_default() += change;
    }

    /// Counts a finished operation. Its row stays until it is swept, and has grown by this many bytes.
    pub(super) fn count_finished(&self, caller: &str, tenant: &str, grown: i64) {
        self.add(caller, tenant, Usage { operations: -1, bytes: grown });
    }

    /// Writes the changes of the transaction, before its commit.
    pub(super) async fn flush(&self, on: &DatabaseTransaction) -> Result<(), EngineError> {
        const CHANGES: Columns = columns![its_scope: Text, operations: Number, bytes: Number];
        let changes = std::mem::take(self.lock().scopes());
        let mut rows = Rows::new();
        for (scope, change) in changes.iter().filter(|(_, change)| !change.is_zero()) {
            let scope = scope.to_string();
            rows.push(row! { &scope, change.operations, change.bytes });
        }
        with_rows(on, sql::usage::ADD, CHANGES, rows, vec![self.instance.into()]).await?;
        if let Some(mut cache) = self.cache() {
            cache.written = Some(changes);
        }
        Ok(())
    }

    /// Reads the data to decide whether these batches fit.
    pub(super) async fn acceptance<'a>(
        &'a self,
        on: &DatabaseTransaction,
        batches: &[SubmitBatch<'_>],
    ) -> Result<Acceptance<'a>, EngineError> {
        let mut callers = BTreeSet::new();
        for operation in batches.iter().flat_map(|batch| batch.operations) {
            callers.insert((&*operation.caller, &*operation.tenant));
            if let Some(IdempotencyKey { scope, .. }) = &operation.idempotency {
                callers.insert((scope, &*operation.tenant));
            }
        }
        let scopes = callers.into_iter().flat_map(|(caller, tenant)| UsageScope::of(caller, tenant));
        let bounded: BTreeSet<_> = scopes.filter(|scope| self.limits.of(scope) != UsageLimit::default()).collect();
        let used = self.used(on, bounded).await?;
        let file = match &self.file {
            Some(file) => Some((file, file.used(on).await?)),
            None => None,
        };
        Ok(Acceptance { counters: self, used, file })
    }

    /// Committed usage of scopes.
    async fn used(
        &self,
        on: &DatabaseTransaction,
        scopes: BTreeSet<UsageScope>,
    ) -> Result<HashMap<UsageScope, Usage>, EngineError> {
        let (mut found, mut missing) = (HashMap::new(), Vec::new());
        {
            let cache = self.cache();
            for scope in scopes {
                match cache.as_ref().and_then(|cache| cache.committed.get(&scope)) {
                    Some(usage) => drop(found.insert(scope, *usage)),
                    None => missing.push(scope),
                }
            }
        }
        if missing.is_empty() {
            return Ok(found);
        }
        let names: Vec<String> = missing.iter().map(ToString::to_string).collect();
        let mut read = used(on, names.iter().map(String::as_str)).await?;
        let mut cache = self.cache();
        for scope in missing {
            let usage = read.remove(&scope).unwrap_or_default();
            if let Some(cache) = &mut cache {
                cache.committed.insert(scope.clone(), usage);
            }
            found.insert(scope, usage);
        }
        Ok(found)
    }

    /// Merges the rows of processes that have ended, and removes rows with zero counts.
    pub(super) async fn merge(&self, on: &DatabaseTransaction) -> Result<(), EngineError> {
        if queues::is_shared(on) {
            query(on, sql::usage::MERGE, vec![MERGED_INSTANCE.into()]).await?;
        }
        let own: BTreeSet<_> = [MERGED_INSTANCE, self.instance].into_iter().collect();
        let is_zero = usage::Column::Operations.eq(0).and(usage::Column::Bytes.eq(0));
        let unused = usage::Column::Instance.is_in(own).and(is_zero);
        usage::Entity::delete_many().filter(unused).exec(on).await?;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, UsageChanges> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Committed usage of scopes. Scopes without usage may be missing.
pub(in crate::store) async fn used(
    on: &impl ConnectionTrait,
    scopes: impl IntoIterator<Item = &str>,
) -> Result<HashMap<UsageScope, Usage>, EngineError> {
    let mut used = HashMap::new();
    let rows = Rows::of(scopes);
    for row in with_rows(on, sql::usage::USED, SCOPES, rows, Vec::new()).await? {
        let scope: String = row.try_get("", "scope")?;
        let usage = Usage { operations: row.try_get("", "operations")?, bytes: row.try_get("", "bytes")? };
        used.extend(UsageScope::read(&scope).map(|scope| (scope, usage)));
    }
    Ok(used)
}

/// Decides whether batches fit, one after the other.
#[derive(Debug)]
pub(super) struct Acceptance<'a> {
    counters: &'a UsageCounters,
    /// Usage at the start of the transaction.
    used: HashMap<UsageScope, Usage>,
    /// Space in the file, and its usage at the start of the transaction.
    file: Option<(&'a FileCapacity, u64)>,
}

impl Acceptance<'_> {
    /// Counts the new operations of a batch, or refuses all of them.
    pub(super) fn charge(&mut self, new: &[OperationInsert<'_>]) -> Result<(), SubmitError> {
        if new.is_empty() {
            return Ok(());
        }
        self.try_charge(new).map_err(|exceeded| {
            emit(SubmissionOverLimit { exceeded: &exceeded, caller: &new[0].operation.caller, tenant: &new[0].tenant });
            SubmitError::from(exceeded)
        })
    }

    fn try_charge(&mut self, new: &[OperationInsert<'_>]) -> Result<(), UsageBoundExceeded> {
        let more = sums(new);
        if let Some((file, used)) = &self.file {
            let total = more.iter().map(|(_, _, usage)| usage.bytes.unsigned_abs()).sum();
            file.reserve(*used, total)?;
        }
        let mut by_scope: BTreeMap<UsageScope, Usage> = BTreeMap::new();
        for (caller, tenant, usage) in more {
            for scope in UsageScope::of(caller, tenant) {
                *by_scope.entry(scope).or_default() += usage;
            }
        }
        let mut changes = self.counters.lock();
        let changes = changes.scopes();
        for (scope, more) in &by_scope {
            let mut used = self.used.get(scope).copied().unwrap_or_default();
            used += changes.get(scope).copied().unwrap_or_default();
            self.counters.limits.check(scope, used, *more)?;
        }
        for (scope, more) in by_scope {
            *changes.entry(scope).or_default() += more;
        }
        Ok(())
    }
}

/// Sums of what operations add, by caller and tenant. Nearly always all of them have the same.
fn sums<'a>(new: &'a [OperationInsert<'_>]) -> Vec<(&'a str, &'a str, Usage)> {
    let mut sums: Vec<(&str, &str, Usage)> = Vec::new();
    let mut add = |caller: &'a str, tenant: &'a str, more: Usage| match sums
        .iter_mut()
        .find(|(its_caller, its_tenant, _)| *its_caller == caller && *its_tenant == tenant)
    {
        Some((_, _, sum)) => *sum += more,
        None => sums.push((caller, tenant, more)),
    };
    for OperationInsert { operation, tenant, .. } in new {
        add(&operation.caller, tenant, Usage { operations: 1, bytes: signed(operation_bytes(operation)) });
        if let Some(key) = &operation.idempotency {
            add(&key.scope, tenant, Usage { operations: 0, bytes: signed(key_bytes(key)) });
        }
    }
    sums
}

/// Size that the row of an operation counts for when it is accepted.
pub(super) fn operation_bytes(operation: &NewOperation) -> u64 {
    let texts = operation.payload.len() + operation.reason.as_ref().map_or(0, String::len);
    OPERATION_BYTES + texts as u64 + REFERENCE_BYTES * operation.refers_to.len() as u64
}

/// Size that the row of an idempotency key counts for when it is accepted.
pub(super) fn key_bytes(key: &IdempotencyKey) -> u64 {
    KEY_BYTES + key.key.len() as u64
}

impl Context {
    /// Counts removed rows, which have the columns `caller`, `tenant` and `bytes`.
    pub(super) fn count_removed(&self, rows: &[sea_orm::QueryResult]) -> Result<(), EngineError> {
        for row in rows {
            let (caller, tenant): (String, String) = (row.try_get("", "caller")?, row.try_get("", "tenant")?);
            self.usage.add(&caller, &tenant, Usage { operations: 0, bytes: -row.try_get::<i64>("", "bytes")? });
        }
        Ok(())
    }
}
