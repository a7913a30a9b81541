//! What handlers have done with events: their rows, with all that they gave, each as a whole or not at all.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use guildhall_actors::{
    crash,
    events::{Committed, Handled, InboxKey, SetState},
    operations::{SubmitError, Submitted},
};
use sea_orm::{DatabaseTransaction, QueryResult};

use super::{
    Context, Trouble,
    homes::Homes,
    inbox,
    job::input_of,
    shards, signed, state,
    submit::{self, Batch},
};
use crate::store::rows::{Cell, Holds, Rows, Shape, kept, with_rows};

/// Which event and which handler, as the engines keep it.
pub(super) type Key = (String, i64, String);

/// The columns of such keys. No table has columns of these names.
pub(in crate::store) const KEYS: Shape =
    Shape(&[("its_session", Holds::Text), ("its_seq", Holds::Number), ("its_handler", Holds::Text)]);

pub(in crate::store) const HANDLED: Shape = Shape(&[
    ("its_session", Holds::Text),
    ("its_seq", Holds::Number),
    ("its_handler", Holds::Text),
    ("its_time", Holds::Number),
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
type Answers = (Vec<Result<Vec<Submitted>, SubmitError>>, Vec<Committed>);

/// Accepts operations for whoever asks for it and for handlers, in one go.
pub(super) async fn all(
    on: &DatabaseTransaction,
    context: &Context,
    homes: &Homes,
    requests: &[Batch<'_>],
    done: &[&Handled],
    woken: &mut BTreeSet<i64>,
) -> Result<Answers, Trouble> {
    let mut answers: BTreeMap<usize, Committed> = BTreeMap::new();
    let in_force = shards::in_force(on, context, done.iter().filter_map(|done| done.under)).await?;
    let mut left: Vec<Item<'_>> = Vec::with_capacity(done.len());
    for (place, done) in done.iter().enumerate() {
        if done.under.is_none_or(|claim| in_force.contains(&claim)) {
            let _entered = crash::enter(Some(input_of(done)));
            left.push(Item::new(place, done));
        } else {
            answers.insert(place, Committed::Before);
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
struct Item<'a> {
    place: usize,
    key: Key,
    done: &'a Handled,
}

impl<'a> Item<'a> {
    fn new(place: usize, done: &'a Handled) -> Self {
        Self { place, key: key(&done.key), done }
    }
}

/// Keeps what no two of have one key.
async fn at_once<'a>(
    on: &DatabaseTransaction,
    context: &Context,
    homes: &Homes,
    requests: &[Batch<'a>],
    items: Vec<Item<'a>>,
    woken: &mut BTreeSet<i64>,
) -> Result<(Vec<Result<Vec<Submitted>, SubmitError>>, Vec<(usize, Committed)>), Trouble> {
    let (from_inbox, fresh): (Vec<_>, Vec<_>) = items.iter().partition(|item| item.done.from_inbox);
    let mut wanted = insert(on, &fresh).await?;
    wanted.extend(inbox::present(on, from_inbox.iter().map(|item| &item.key)).await?);
    let gives = |item: &&Item<'_>| wanted.contains(&item.key) && !item.done.operations.is_empty();
    // Handlers are the operator's.
    let given = items.iter().filter(gives).map(|item| Batch { operations: &item.done.operations, of: None });
    let batches: Vec<Batch<'_>> = requests.iter().copied().chain(given).collect();
    let mut submitted = submit::all(on, context, homes, &batches, woken).await?;
    let mut accepted = submitted.split_off(requests.len()).into_iter();

    let mut committed = Vec::with_capacity(items.len());
    let (mut refused, mut settled, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
    let mut set: Vec<&SetState> = Vec::new();
    for item in &items {
        let answer = if !wanted.contains(&item.key) {
            Committed::Before
        } else if item.done.operations.is_empty() {
            Committed::Done(Vec::new())
        } else {
            let accepted = accepted.next().expect("invariant: every batch has its answer");
            accepted.map_or_else(Committed::Refused, Committed::Done)
        };
        match &answer {
            Committed::Done(_) => {
                set.extend(&item.done.set);
                waiting.extend(item.done.inbox.as_ref().map(|entry| inbox::New::of(entry, &item.key, item.done.at)));
                if item.done.from_inbox {
                    settled.push(&item.key);
                }
            }
            Committed::Refused(_) if !item.done.from_inbox => refused.push(&item.key),
            Committed::Refused(_) | Committed::Before => {}
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
async fn insert(on: &DatabaseTransaction, items: &[&Item<'_>]) -> Result<HashSet<Key>, Trouble> {
    // In order, so that no two processes wait for each other's rows.
    let in_order: BTreeMap<&Key, i64> = items.iter().map(|item| (&item.key, signed(item.done.at.millis()))).collect();
    let mut rows = Rows::new();
    for ((session, seq, handler), at) in in_order {
        rows.push(&[Cell::Text(session), Cell::Number(*seq), Cell::Text(handler), Cell::Number(at)]);
    }
    with_rows(on, INSERT, HANDLED, rows, Vec::new()).await?.iter().map(key_in).collect()
}

pub(super) fn key(key: &InboxKey) -> Key {
    (kept(&key.session), signed(key.seq), kept(&key.handler))
}

/// Reads session, seq and handler.
pub(super) fn key_in(row: &QueryResult) -> Result<Key, Trouble> {
    Ok((row.try_get_by_index(0)?, row.try_get_by_index(1)?, row.try_get_by_index(2)?))
}

pub(super) fn rows_of<'a>(keys: impl IntoIterator<Item = &'a Key>) -> Rows {
    let in_order: BTreeSet<&Key> = keys.into_iter().collect();
    let mut rows = Rows::new();
    for (session, seq, handler) in in_order {
        rows.push(&[Cell::Text(session), Cell::Number(*seq), Cell::Text(handler)]);
    }
    rows
}
