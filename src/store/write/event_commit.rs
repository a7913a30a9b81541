//! Commits of event handlers: the row of each handled event, with everything that its handler produced. Each commit is
//! stored completely or not at all.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use guildhall_actors::crash::{self, Input};
use guildhall_actors::ports::{CommitResult, HandlerCommit, InboxKey, StateWrite};
use sea_orm::{DatabaseTransaction, QueryResult};

use super::{
    BatchNeeds, EngineError, RunOrder, WriteJob, WriteTx, inbox, job, shards, signed, state,
    submit::{self, SubmitBatch, fallback_operations, payload_bytes, submit_fallbacks},
};
use crate::store::rows::{Columns, Rows, columns, row, with_rows, without_nul};
use crate::store::sql;

/// Session, sequence number and handler, as the engines store them.
pub(super) type HandledKey = (String, i64, String);

/// Columns of such keys. No table has columns with these names.
pub(in crate::store) const KEYS: Columns = columns![its_session: Text, its_seq: Number, its_handler: Text];

pub(in crate::store) const HANDLED: Columns = columns![
    its_session: Text, its_seq: Number, its_handler: Text, its_time: Number,
];

/// Stores what handlers produced, with one result for each of them.
pub(in crate::store) struct CommitHandlers(pub(in crate::store) Vec<HandlerCommit>);

impl WriteJob for CommitHandlers {
    type Output = Vec<CommitResult>;

    const ORDER: RunOrder = RunOrder::Commit;

    fn size(&self) -> (usize, usize) {
        self.0.iter().map(commit_size).fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    }

    fn input(&self) -> Option<Input> {
        match self.0.as_slice() {
            [done] => Some(input_of(done)),
            _ => None,
        }
    }

    fn prepare<'a>(&'a self, needs: &mut BatchNeeds<'a>) {
        for done in &self.0 {
            needs.submit(&done.operations);
            needs.submit(fallback_operations(&done.fallback));
        }
    }

    async fn run_all(jobs: &[&Self], tx: &mut WriteTx<'_>) -> Result<Vec<Vec<CommitResult>>, EngineError> {
        let done: Vec<&HandlerCommit> = jobs.iter().flat_map(|job| &job.0).collect();
        let committed = commit_batch(tx, &done).await?;
        for (done, committed) in done.iter().zip(&committed) {
            if matches!(committed, CommitResult::Done(_)) {
                tx.operations_changed = true;
                tx.notify_added(&done.operations);
            }
        }
        Ok(job::split(committed, jobs.iter().map(|job| job.0.len())))
    }
}

fn commit_size(done: &HandlerCommit) -> (usize, usize) {
    let values: usize = done.set.iter().map(|set| set.value.as_ref().map_or(0, String::len)).sum();
    let event = done.inbox.as_ref().map_or(0, |entry| entry.event.len());
    let fallback = fallback_operations(&done.fallback);
    let rows = 1 + done.operations.len() + fallback.len() + done.set.len();
    (rows, payload_bytes(&done.operations) + payload_bytes(fallback) + values + event)
}

/// The event that a handler has finished with, as the next process would receive it.
fn input_of(done: &HandlerCommit) -> Input {
    if done.from_inbox {
        Input::InboxEntry(done.key.clone())
    } else {
        Input::Event { session: Arc::clone(&done.key.session), seq: done.key.seq }
    }
}

async fn commit_batch(tx: &mut WriteTx<'_>, done: &[&HandlerCommit]) -> Result<Vec<CommitResult>, EngineError> {
    let mut results: BTreeMap<usize, CommitResult> = BTreeMap::new();
    let claims = done.iter().filter_map(|done| done.claim);
    let valid_claims = shards::valid_claims(tx.on, tx.context, claims).await?;
    let mut remaining: Vec<CommitItem<'_>> = Vec::with_capacity(done.len());
    for (index, done) in done.iter().enumerate() {
        if done.claim.is_none_or(|claim| valid_claims.contains(&claim)) {
            let _entered = crash::enter(Some(input_of(done)));
            remaining.push(CommitItem::new(index, done));
        } else {
            results.insert(index, CommitResult::Skipped);
        }
    }
    while !remaining.is_empty() {
        // Of several commits with one key, each must see the result of the one before.
        let mut seen = HashSet::new();
        let (first, later) = remaining.into_iter().partition(|item| seen.insert(item.key.clone()));
        remaining = later;
        results.extend(commit_distinct(tx, first).await?);
    }
    Ok(results.into_values().collect())
}

/// A commit of a handler, and its position in the results.
struct CommitItem<'a> {
    index: usize,
    key: HandledKey,
    done: &'a HandlerCommit,
}

impl<'a> CommitItem<'a> {
    fn new(index: usize, done: &'a HandlerCommit) -> Self {
        Self { index, key: key(&done.key), done }
    }
}

/// Stores commits with distinct keys.
async fn commit_distinct(
    tx: &mut WriteTx<'_>,
    items: Vec<CommitItem<'_>>,
) -> Result<Vec<(usize, CommitResult)>, EngineError> {
    let on = tx.on;
    let (from_inbox, fresh): (Vec<_>, Vec<_>) = items.iter().partition(|item| item.done.from_inbox);
    let mut new_keys = insert(on, &fresh).await?;
    new_keys.extend(inbox::present(on, from_inbox.iter().map(|item| &item.key)).await?);
    let has_operations = |item: &&CommitItem<'_>| new_keys.contains(&item.key) && !item.done.operations.is_empty();
    // Handlers belong to the operator.
    let given =
        items.iter().filter(has_operations).map(|item| SubmitBatch { operations: &item.done.operations, tenant: None });
    let batches: Vec<SubmitBatch<'_>> = given.collect();
    let mut accepted = submit::submit_batches(tx, &batches).await?.into_iter();

    let mut committed = Vec::with_capacity(items.len());
    let (mut refused, mut finished, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
    let mut set: Vec<&StateWrite> = Vec::new();
    for item in &items {
        let result = if !new_keys.contains(&item.key) {
            CommitResult::Skipped
        } else if item.done.operations.is_empty() {
            CommitResult::Done(Vec::new())
        } else {
            let accepted = accepted.next().expect("invariant: every batch has a result");
            accepted.map_or_else(CommitResult::Refused, CommitResult::Done)
        };
        match &result {
            CommitResult::Done(_) => {
                set.extend(&item.done.set);
                waiting.extend(
                    item.done.inbox.as_ref().map(|entry| inbox::NewInboxEntry::of(entry, &item.key, item.done.at)),
                );
                if item.done.from_inbox {
                    finished.push(&item.key);
                }
            }
            CommitResult::Refused(_) if !item.done.from_inbox => refused.push(&item.key),
            CommitResult::Refused(_) | CommitResult::Skipped => {}
        }
        committed.push((item.index, result));
    }
    with_rows(on, sql::event_commit::REMOVE, KEYS, rows_of(refused), Vec::new()).await?;
    let fallbacks = items.iter().zip(&committed).map(|(item, (_, result))| match result {
        CommitResult::Done(_) => fallback_operations(&item.done.fallback),
        CommitResult::Refused(_) | CommitResult::Skipped => &[],
    });
    let accepted = submit_fallbacks(tx, &fallbacks.collect::<Vec<_>>()).await?;
    for ((_, result), accepted) in committed.iter_mut().zip(accepted) {
        if let CommitResult::Done(submitted) = result {
            submitted.extend(accepted);
        }
    }
    state::set(on, set).await?;
    inbox::remove(on, finished).await?;
    inbox::insert(on, &waiting).await?;
    Ok(committed)
}

/// Inserts the rows of handlers. Returns the keys that did not exist.
async fn insert(on: &DatabaseTransaction, items: &[&CommitItem<'_>]) -> Result<HashSet<HandledKey>, EngineError> {
    // Sorted, so that no two processes wait for each other's rows.
    let in_order: BTreeMap<&HandledKey, i64> =
        items.iter().map(|item| (&item.key, signed(item.done.at.millis()))).collect();
    let mut rows = Rows::new();
    for ((session, seq, handler), at) in in_order {
        rows.push(row! { session, *seq, handler, at });
    }
    with_rows(on, sql::event_commit::INSERT, HANDLED, rows, Vec::new()).await?.iter().map(read_key).collect()
}

pub(super) fn key(key: &InboxKey) -> HandledKey {
    (without_nul(&key.session), signed(key.seq), without_nul(&key.handler))
}

/// Reads session, seq and handler.
pub(super) fn read_key(row: &QueryResult) -> Result<HandledKey, EngineError> {
    Ok((row.try_get("", "session")?, row.try_get("", "seq")?, row.try_get("", "handler")?))
}

pub(super) fn rows_of<'a>(keys: impl IntoIterator<Item = &'a HandledKey>) -> Rows {
    let in_order: BTreeSet<&HandledKey> = keys.into_iter().collect();
    let mut rows = Rows::new();
    for (session, seq, handler) in in_order {
        rows.push(row! { session, *seq, handler });
    }
    rows
}
