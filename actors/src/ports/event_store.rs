//! The port to where sessions are kept, and what was done with which event.

use std::sync::Arc;
use std::time::Duration;

use guildhall_core::event::EventOrigin;
use guildhall_core::event::handler::trace;
use guildhall_core::interaction::ReceivedInteraction;
use guildhall_core::time::UnixMs;
use guildhall_core::trace::TraceContext;

use crate::access::AuditRecord;
use crate::ports::{NewOperation, StoreFuture, SubmitError, SubmitResult};
use crate::shard::ShardClaim;

/// A gateway session, as far as it is confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSession {
    /// Which shard.
    pub shard: u32,
    /// Of how many. A session of another number of shards is of no use.
    pub shards: u32,
    /// What Discord calls it.
    pub session: Arc<str>,
    /// Where it can be resumed.
    pub resume_url: Option<String>,
    /// Every event up to this one was handled.
    pub confirmed: u64,
    /// When it was last written.
    pub at: UnixMs,
    /// The fence of the claim that it is kept under; what is kept under one that was lost changes nothing. Nothing where it
    /// is read.
    pub under: Option<u64>,
}

/// A value that a handler sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateWrite {
    /// Its key.
    pub key: String,
    /// The value, as JSON; `None` removes it.
    pub value: Option<String>,
    /// When it ends.
    pub expires_at: Option<UnixMs>,
}

/// Whom an event waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InboxKey {
    /// The session that it came with.
    pub session: Arc<str>,
    /// Its number there.
    pub seq: u64,
    /// The handler.
    pub handler: Arc<str>,
}

impl InboxKey {
    /// The trace that the event began.
    #[must_use]
    pub fn trace(&self) -> TraceContext {
        // Which shard it came by says nothing of which event it is.
        trace(&EventOrigin { session: Arc::clone(&self.session), shard: 0, seq: self.seq })
    }
}

/// An event that waits for a handler, apart from its session: the session is confirmed past it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxEntry {
    /// Which event, for whom.
    pub key: InboxKey,
    /// Its place: within its lane, those with a lower one go first. The store gives it.
    pub place: i64,
    /// The lane in which it stands: events of one lane are handled in order.
    pub lane: i64,
    /// What it is called.
    pub name: String,
    /// The event as a webhook is sent it, whole, as JSON.
    pub event: String,
    /// How often the handler was tried.
    pub attempts: u32,
    /// Not before.
    pub eligible_at: UnixMs,
    /// Why it was given up, if it was: it is a dead letter then, and waits for a person.
    pub dead: Option<String>,
    /// When it was put there.
    pub created_at: UnixMs,
}

/// What becomes of an inbox entry that could not be handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InboxDisposition {
    /// It is tried again.
    Again {
        /// Not before.
        at: UnixMs,
        /// How often it was tried.
        attempts: u32,
        /// What went wrong.
        why: String,
    },
    /// It is given up.
    Dead {
        /// How often it was tried.
        attempts: u32,
        /// Why.
        why: String,
    },
}

/// What is to be kept of one event and one handler. All of it is kept at once, or nothing; and nothing if the handler has
/// been done with the event before.
#[derive(Clone, Debug)]
pub struct HandlerCommit {
    /// Which event, and whose row.
    pub key: InboxKey,
    /// What the handler gave: accepted together with the row.
    pub operations: Vec<NewOperation>,
    /// Values that it set.
    pub set: Vec<StateWrite>,
    /// The event waits in the inbox instead: the handler is not done with it, but its session need not wait.
    pub inbox: Option<InboxEntry>,
    /// It came from the inbox, and is removed there.
    pub from_inbox: bool,
    /// When.
    pub at: UnixMs,
    /// The claim of the shard that the event came with, if it came with one.
    pub under: Option<ShardClaim>,
}

/// What became of one [`HandlerCommit`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitResult {
    /// It was kept: what became of each operation.
    Done(Vec<SubmitResult>),
    /// The handler has its row already, or the shard is another process's, who does it: nothing was changed.
    Before,
    /// The operations cannot be accepted, and nothing was kept.
    Refused(SubmitError),
}

/// How IDENTIFYs are counted: all processes of a bot count together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentifyRequest {
    /// `shard_id % max_concurrency`.
    pub bucket: u32,
    /// The least time between two of a bucket.
    pub spacing: Duration,
    /// How many within a day.
    pub a_day: u32,
    /// The present time.
    pub now: UnixMs,
}

/// Whether a shard may identify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentifyDecision {
    /// It may, now; it has been counted.
    Now,
    /// Not before then: another of its bucket has just done so.
    Wait(Duration),
    /// The day's budget is used up; in so long there is one again.
    Spent(Duration),
}

/// Where sessions are kept, and what was done with which event. What it says it has kept survives a `kill -9`.
pub trait EventStore: Send + Sync {
    /// All sessions of the bot that are known.
    fn sessions(&self) -> StoreFuture<'_, Vec<StoredSession>>;

    /// Keeps how far sessions are confirmed, and forgets the rows of what they are confirmed past. Of a session that is known,
    /// `confirmed` never goes back. Another session of the same shard takes the place of the one before; what was handled of
    /// that one is forgotten.
    fn keep_sessions(&self, sessions: Vec<StoredSession>) -> StoreFuture<'_, ()>;

    /// Which handlers are done with which events of a session, of those after a number.
    fn handled_after(&self, session: &str, seq: u64) -> StoreFuture<'_, Vec<(u64, Arc<str>)>>;

    /// Keeps what handlers have done, each for itself: one answer each.
    fn commit(&self, done: Vec<HandlerCommit>) -> StoreFuture<'_, Vec<CommitResult>>;

    /// Entries of the inbox that are not dead, in order, those after a place.
    fn inbox(&self, after: i64, limit: usize) -> StoreFuture<'_, Vec<InboxEntry>>;

    /// What becomes of an entry that could not be handled. `false` if there is no such entry.
    fn put_off(&self, key: InboxKey, later: InboxDisposition, now: UnixMs) -> StoreFuture<'_, bool>;

    /// Dead entries, the newest first, those before a place.
    fn dead_events(&self, before: Option<i64>, limit: usize) -> StoreFuture<'_, Vec<InboxEntry>>;

    /// Makes a dead entry wait again, now and at the end of its lane; `false` if there is none.
    fn revive(&self, place: i64, note: AuditRecord) -> StoreFuture<'_, bool>;

    /// Removes dead entries that died before then, and rows of sessions that nobody has any more, a small batch; how many.
    fn sweep_events(&self, before: UnixMs) -> StoreFuture<'_, u64>;

    /// Asks whether a shard may identify, and counts it if so.
    fn identify(&self, ask: IdentifyRequest) -> StoreFuture<'_, IdentifyDecision>;

    /// Records received interactions, so that operations may respond to them. Idempotent.
    fn record_interactions(&self, received: Vec<ReceivedInteraction>) -> StoreFuture<'_, ()>;

    /// Values by their keys, those that have not ended: one answer each.
    fn values(&self, keys: Vec<String>, now: UnixMs) -> StoreFuture<'_, Vec<Option<String>>>;
}
