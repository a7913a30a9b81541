//! The inbox: events that wait for a handler, independent of their session.

use std::collections::{BTreeMap, HashSet};

use guildhall_actors::crash::Input;
use guildhall_actors::ports::{InboxDisposition, InboxEntry, InboxKey, NewOperation, PostponeResult};
use guildhall_core::time::UnixMs;
use sea_orm::{DatabaseTransaction, FromQueryResult};

use super::{
    BatchNeeds, EngineError, RunOrder, WriteJob, WriteTx,
    event_commit::{HandledKey, KEYS, key, read_key, rows_of},
    queues, signed,
    submit::{fallback_operations, payload_bytes, submit_fallbacks},
};
use crate::store::rows::{Columns, Rows, columns, query, row, with_rows};
use crate::store::sql;

/// An entry to append.
pub(super) struct NewInboxEntry<'a> {
    key: &'a HandledKey,
    lane: i64,
    name: &'a str,
    event: &'a str,
    attempts: i64,
    eligible_at: i64,
    dead: Option<&'a str>,
    last_error: Option<&'a str>,
    created_at: i64,
    died_at: Option<i64>,
}

impl<'a> NewInboxEntry<'a> {
    pub(super) fn of(entry: &'a InboxEntry, key: &'a HandledKey, now: UnixMs) -> Self {
        Self {
            key,
            lane: entry.lane,
            name: &entry.name,
            event: &entry.event,
            attempts: entry.attempts.into(),
            eligible_at: signed(entry.eligible_at.millis()),
            dead: entry.dead.as_deref(),
            last_error: entry.dead.as_deref(),
            created_at: signed(entry.created_at.millis()),
            died_at: entry.dead.as_ref().map(|_| signed(now.millis())),
        }
    }
}

/// Which of these are in the inbox, waiting or dead. No other process changes them until the transaction ends.
pub(super) async fn present<'a>(
    on: &DatabaseTransaction,
    keys: impl IntoIterator<Item = &'a HandledKey>,
) -> Result<HashSet<HandledKey>, EngineError> {
    let lock = if queues::is_shared(on) { " ORDER BY session, seq, handler FOR UPDATE" } else { "" };
    let select = format!("{}{lock}", sql::inbox::PRESENT);
    with_rows(on, &select, KEYS, rows_of(keys), Vec::new()).await?.iter().map(read_key).collect()
}

pub(super) async fn remove<'a>(
    on: &DatabaseTransaction,
    keys: impl IntoIterator<Item = &'a HandledKey>,
) -> Result<(), EngineError> {
    with_rows(on, sql::inbox::REMOVE, KEYS, rows_of(keys), Vec::new()).await?;
    Ok(())
}

/// Appends entries, in this order.
pub(super) async fn insert(on: &DatabaseTransaction, entries: &[NewInboxEntry<'_>]) -> Result<(), EngineError> {
    const SHAPE: Columns = columns![
        n: Number, session: Text, seq: Number, handler: Text, lane: Number, name: Text, event: Text, attempts: Number,
        eligible_at: Number, dead: Text, why: Text, created_at: Number, died_at: Number,
    ];
    if entries.is_empty() {
        return Ok(());
    }
    // Positions are assigned in commit order: a reader that continues after a position misses no earlier one.
    queues::lock_exclusive(on, "inbox").await?;
    let mut rows = Rows::new();
    for (n, new) in entries.iter().enumerate() {
        let (session, seq, handler) = new.key;
        rows.push(row! {
            signed(n as u64), session, *seq, handler, new.lane, new.name, new.event, new.attempts, new.eligible_at,
            new.dead, new.last_error, new.created_at, new.died_at,
        });
    }
    with_rows(on, sql::inbox::INSERT, SHAPE, rows, Vec::new()).await?;
    Ok(())
}

pub(in crate::store) const POSTPONE_COLUMNS: Columns = columns![
    its_session: Text, its_seq: Number, its_handler: Text, tried: Number, says: Text, again_at: Number,
    ends_at: Number,
];

/// Stores the result of an entry that could not be handled. Returns whether it exists. A late retry does not revive a
/// dead entry.
pub(in crate::store) struct Postpone {
    pub(in crate::store) key: InboxKey,
    pub(in crate::store) disposition: InboxDisposition,
    /// Gives the interaction its fallback text.
    pub(in crate::store) fallback: Option<Box<NewOperation>>,
    pub(in crate::store) now: UnixMs,
}

/// Appends a dead entry again, without its attempts. Returns whether it exists.
pub(in crate::store) struct Revive {
    pub(in crate::store) position: i64,
    pub(in crate::store) now: UnixMs,
}

/// Deletes a dead entry. Returns whether it exists.
pub(in crate::store) struct DiscardEvent(pub(in crate::store) i64);

impl WriteJob for DiscardEvent {
    type Output = bool;

    async fn run(&self, tx: &mut WriteTx<'_>) -> Result<bool, EngineError> {
        Ok(!query(tx.on, sql::inbox::DISCARD, vec![self.0.into()]).await?.is_empty())
    }

    fn is_change(exists: &bool) -> bool {
        *exists
    }
}

impl WriteJob for Postpone {
    type Output = PostponeResult;

    const ORDER: RunOrder = RunOrder::Postpone;

    fn size(&self) -> (usize, usize) {
        let fallback = fallback_operations(&self.fallback);
        (1 + fallback.len(), payload_bytes(fallback))
    }

    fn prepare<'a>(&'a self, needs: &mut BatchNeeds<'a>) {
        needs.submit(fallback_operations(&self.fallback));
    }

    fn input(&self) -> Option<Input> {
        Some(Input::InboxEntry(self.key.clone()))
    }

    async fn run_all(jobs: &[&Self], tx: &mut WriteTx<'_>) -> Result<Vec<PostponeResult>, EngineError> {
        let keys: Vec<HandledKey> = jobs.iter().map(|job| key(&job.key)).collect();
        // Sorted; for each entry the last result counts.
        let last: BTreeMap<&HandledKey, &&Self> = keys.iter().zip(jobs).collect();
        let mut rows = Rows::new();
        for ((session, seq, handler), job) in last {
            let (attempts, cause, again_at) = match &job.disposition {
                InboxDisposition::Retry { at, attempts, reason } => (*attempts, reason, Some(signed(at.millis()))),
                InboxDisposition::Dead { attempts, reason } => (*attempts, reason, None),
            };
            rows.push(row! { session, *seq, handler, attempts, cause, again_at, job.now });
        }
        let changed = with_rows(tx.on, sql::inbox::POSTPONE, POSTPONE_COLUMNS, rows, Vec::new()).await?;
        let changed: HashSet<HandledKey> = changed.iter().map(read_key).collect::<Result<_, _>>()?;
        let exists: Vec<bool> = keys.iter().map(|key| changed.contains(key)).collect();
        let fallbacks = jobs.iter().zip(&exists).map(|(job, exists)| {
            let fallback = if *exists { &job.fallback } else { &None };
            fallback_operations(fallback)
        });
        let accepted = submit_fallbacks(tx, &fallbacks.collect::<Vec<_>>()).await?;
        Ok(exists.into_iter().zip(accepted).map(|(exists, fallback)| PostponeResult { exists, fallback }).collect())
    }
}

/// What a dead entry consists of, besides its key.
#[derive(FromQueryResult)]
struct DeadEntry {
    lane: i64,
    name: String,
    event: String,
    why: Option<String>,
    created_at: i64,
}

impl WriteJob for Revive {
    type Output = bool;

    async fn run(&self, WriteTx { on, .. }: &mut WriteTx<'_>) -> Result<bool, EngineError> {
        let rows = query(*on, sql::inbox::TAKE, vec![self.position.into()]).await?;
        let Some(row) = rows.first() else { return Ok(false) };
        let dead = DeadEntry::from_query_result(row, "")?;
        let again = NewInboxEntry {
            key: &read_key(row)?,
            lane: dead.lane,
            name: &dead.name,
            event: &dead.event,
            attempts: 0,
            eligible_at: signed(self.now.millis()),
            dead: None,
            last_error: dead.why.as_deref(),
            created_at: dead.created_at,
            died_at: None,
        };
        insert(on, &[again]).await?;
        Ok(true)
    }

    fn is_change(found: &bool) -> bool {
        *found
    }
}
