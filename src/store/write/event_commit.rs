//! What handlers have done with events: their rows, with all that they gave, each as a whole or not at all.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use guildhall_actors::crash;
use guildhall_actors::ports::{CommitResult, HandlerCommit, InboxKey, StateWrite, SubmitError, SubmitResult};
use sea_orm::{DatabaseTransaction, QueryResult};

use super::{
    Context, EngineError,
    guild_tenants::GuildTenants,
    inbox,
    job::input_of,
    shards, signed, state,
    submit::{self, SubmitBatch},
};
use crate::store::rows::{ColumnType, Columns, RowValue, Rows, kept, with_rows};

/// Which event and which handler, as the engines keep it.
pub(super) type HandledKey = (String, i64, String);

/// The columns of such keys. No table has columns of these names.
pub(in crate::store) const KEYS: Columns =
    Columns(&[("its_session", ColumnType::Text), ("its_seq", ColumnType::Number), ("its_handler", ColumnType::Text)]);

pub(in crate::store) const HANDLED: Columns = Columns(&[
    ("its_session", ColumnType::Text),
    ("its_seq", ColumnType::Number),
    ("its_handler", ColumnType::Text),
    ("its_time", ColumnType::Number),
]);

/// Gives handlers their rows; those that it gives back had none. A session that is confirmed past an event has forgotten its
/// rows, and an event in the inbox may have outlived its own.
pub(in crate::store) const INSERT: &str = "INSERT INTO handled (session, seq, handler, at)
    SELECT its_session, its_seq, its_handler, its_time FROM {v}
    WHERE NOT EXISTS (SELECT 1 FROM sessions s WHERE s.session = its_session AND s.confirmed >= its_seq)
    AND NOT EXISTS (SELECT 1 FROM inbox i WHERE i.session = its_session AND i.seq = its_seq AND i.handler = its_handler)
    ON CONFLICT DO NOTHING RETURNING session, seq, handler";

pub(in crate::store) const REMOVE: &str =
    "DELETE FROM handled WHERE (session, seq, handler) IN (SELECT its_session, its_seq, its_handler FROM {v})";

/// What came of the requests to accept operations, and of what handlers have done.
type BatchCommitResults = (Vec<Result<Vec<SubmitResult>, SubmitError>>, Vec<CommitResult>);

/// Accepts operations for whoever asks for it and for handlers, in one go.
pub(super) async fn all(
    on: &DatabaseTransaction,
    context: &Context,
    homes: &GuildTenants,
    requests: &[SubmitBatch<'_>],
    done: &[&HandlerCommit],
    woken: &mut BTreeSet<i64>,
) -> Result<BatchCommitResults, EngineError> {
    let mut answers: BTreeMap<usize, CommitResult> = BTreeMap::new();
    let in_force = shards::in_force(on, context, done.iter().filter_map(|done| done.under)).await?;
    let mut left: Vec<CommitItem<'_>> = Vec::with_capacity(done.len());
    for (place, done) in done.iter().enumerate() {
        if done.under.is_none_or(|claim| in_force.contains(&claim)) {
            let _entered = crash::enter(Some(input_of(done)));
            left.push(CommitItem::new(place, done));
        } else {
            answers.insert(place, CommitResult::Before);
        }
    }
    let mut submitted = None;
    while submitted.is_none() || !left.is_empty() {
        // Of those with one key, each has to see what became of the one before.
        let mut seen = HashSet::new();
        let (first, later) = left.into_iter().partition(|item| seen.insert(item.key.clone()));
        left = later;
        let requests = if submitted.is_none() { requests } else { &[] };
        let (accepted, committed) = at_once(on, context, homes, requests, first, woken).await?;
        submitted.get_or_insert(accepted);
        answers.extend(committed);
    }
    Ok((submitted.unwrap_or_default(), answers.into_values().collect()))
}

/// What a handler has done, and its place among all answers.
struct CommitItem<'a> {
    place: usize,
    key: HandledKey,
    done: &'a HandlerCommit,
}

impl<'a> CommitItem<'a> {
    fn new(place: usize, done: &'a HandlerCommit) -> Self {
        Self { place, key: key(&done.key), done }
    }
}

/// Keeps what no two of have one key.
async fn at_once<'a>(
    on: &DatabaseTransaction,
    context: &Context,
    homes: &GuildTenants,
    requests: &[SubmitBatch<'a>],
    items: Vec<CommitItem<'a>>,
    woken: &mut BTreeSet<i64>,
) -> Result<(Vec<Result<Vec<SubmitResult>, SubmitError>>, Vec<(usize, CommitResult)>), EngineError> {
    let (from_inbox, fresh): (Vec<_>, Vec<_>) = items.iter().partition(|item| item.done.from_inbox);
    let mut wanted = insert(on, &fresh).await?;
    wanted.extend(inbox::present(on, from_inbox.iter().map(|item| &item.key)).await?);
    let gives = |item: &&CommitItem<'_>| wanted.contains(&item.key) && !item.done.operations.is_empty();
    // Handlers are the operator's.
    let given = items.iter().filter(gives).map(|item| SubmitBatch { operations: &item.done.operations, of: None });
    let batches: Vec<SubmitBatch<'_>> = requests.iter().copied().chain(given).collect();
    let mut submitted = submit::all(on, context, homes, &batches, woken).await?;
    let mut accepted = submitted.split_off(requests.len()).into_iter();

    let mut committed = Vec::with_capacity(items.len());
    let (mut refused, mut settled, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
    let mut set: Vec<&StateWrite> = Vec::new();
    for item in &items {
        let answer = if !wanted.contains(&item.key) {
            CommitResult::Before
        } else if item.done.operations.is_empty() {
            CommitResult::Done(Vec::new())
        } else {
            let accepted = accepted.next().expect("invariant: every batch has its answer");
            accepted.map_or_else(CommitResult::Refused, CommitResult::Done)
        };
        match &answer {
            CommitResult::Done(_) => {
                set.extend(&item.done.set);
                waiting.extend(
                    item.done.inbox.as_ref().map(|entry| inbox::NewInboxEntry::of(entry, &item.key, item.done.at)),
                );
                if item.done.from_inbox {
                    settled.push(&item.key);
                }
            }
            CommitResult::Refused(_) if !item.done.from_inbox => refused.push(&item.key),
            CommitResult::Refused(_) | CommitResult::Before => {}
        }
        committed.push((item.place, answer));
    }
    with_rows(on, REMOVE, KEYS, rows_of(refused), Vec::new()).await?;
    state::set(on, set).await?;
    inbox::remove(on, settled).await?;
    inbox::insert(on, &waiting).await?;
    Ok((submitted, committed))
}

/// Gives handlers their rows, and tells which had none.
async fn insert(on: &DatabaseTransaction, items: &[&CommitItem<'_>]) -> Result<HashSet<HandledKey>, EngineError> {
    // In order, so that no two processes wait for each other's rows.
    let in_order: BTreeMap<&HandledKey, i64> =
        items.iter().map(|item| (&item.key, signed(item.done.at.millis()))).collect();
    let mut rows = Rows::new();
    for ((session, seq, handler), at) in in_order {
        rows.push(&[RowValue::Text(session), RowValue::Number(*seq), RowValue::Text(handler), RowValue::Number(at)]);
    }
    with_rows(on, INSERT, HANDLED, rows, Vec::new()).await?.iter().map(key_in).collect()
}

pub(super) fn key(key: &InboxKey) -> HandledKey {
    (kept(&key.session), signed(key.seq), kept(&key.handler))
}

/// Reads session, seq and handler.
pub(super) fn key_in(row: &QueryResult) -> Result<HandledKey, EngineError> {
    Ok((row.try_get_by_index(0)?, row.try_get_by_index(1)?, row.try_get_by_index(2)?))
}

pub(super) fn rows_of<'a>(keys: impl IntoIterator<Item = &'a HandledKey>) -> Rows {
    let in_order: BTreeSet<&HandledKey> = keys.into_iter().collect();
    let mut rows = Rows::new();
    for (session, seq, handler) in in_order {
        rows.push(&[RowValue::Text(session), RowValue::Number(*seq), RowValue::Text(handler)]);
    }
    rows
}
