//! Port to the store of gateway sessions and handled events.

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

/// A gateway session and its confirmed position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSession {
    /// Number of the shard.
    pub shard: u32,
    /// Number of shards. A session cannot be resumed with another number of shards.
    pub shards: u32,
    /// Session id.
    pub session: Arc<str>,
    /// URL to resume it.
    pub resume_url: Option<String>,
    /// Every event up to this sequence number was handled.
    pub confirmed: u64,
    /// Time of the last write.
    pub at: UnixMs,
    /// Fence of the claim for this write. A write with a stale fence changes nothing. `None` when it is read.
    pub fence: Option<u64>,
}

/// A value that a handler sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateWrite {
    /// Key of the value.
    pub key: String,
    /// The value, as JSON; `None` removes it.
    pub value: Option<String>,
    /// Time of expiry.
    pub expires_at: Option<UnixMs>,
}

/// Identifies an event for one handler.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InboxKey {
    /// Session of the event.
    pub session: Arc<str>,
    /// Sequence number of the event.
    pub seq: u64,
    /// Name of the handler.
    pub handler: Arc<str>,
}

impl InboxKey {
    /// The trace that the event started.
    #[must_use]
    pub fn trace(&self) -> TraceContext {
        // The shard is not part of the event's identity.
        trace(&EventOrigin { session: Arc::clone(&self.session), shard: 0, seq: self.seq })
    }
}

/// An event that waits for a handler. Its session is confirmed past it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxEntry {
    /// The event and its handler.
    pub key: InboxKey,
    /// Its position: within a lane, lower positions come first. The store assigns it.
    pub position: i64,
    /// Its lane. Events of one lane are handled in order.
    pub lane: i64,
    /// Name of the event.
    pub name: String,
    /// The complete body for a webhook, as JSON.
    pub event: String,
    /// Number of attempts.
    pub attempts: u32,
    /// Time of the next attempt.
    pub eligible_at: UnixMs,
    /// Why it is dead, if it is. A dead event needs manual review.
    pub dead: Option<String>,
    /// Time of creation.
    pub created_at: UnixMs,
}

/// Result of storing what becomes of an inbox entry that could not be handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostponeResult {
    /// Whether there is such an entry. Nothing was stored otherwise.
    pub exists: bool,
    /// The fallback of its interaction, if it was accepted.
    pub fallback: Option<SubmitResult>,
}

/// What becomes of an inbox entry that could not be handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InboxDisposition {
    /// It is retried.
    Retry {
        /// Time of the next attempt.
        at: UnixMs,
        /// Number of attempts.
        attempts: u32,
        /// The failure.
        reason: String,
    },
    /// It is dead.
    Dead {
        /// Number of attempts.
        attempts: u32,
        /// The failure.
        reason: String,
    },
}

/// Result of one handler for one event. It is stored completely, or not at all; and not at all if the handler has
/// finished with the event before.
#[derive(Clone, Debug)]
pub struct HandlerCommit {
    /// The event and its handler.
    pub key: InboxKey,
    /// Operations of the handler, accepted in the same transaction.
    pub operations: Vec<NewOperation>,
    /// Gives a deferred interaction its fallback text. Everything else is stored even if this is not accepted.
    pub fallback: Option<Box<NewOperation>>,
    /// Values that it set.
    pub set: Vec<StateWrite>,
    /// Puts the event into the inbox instead: the handler has not finished with it, but its session need not wait.
    pub inbox: Option<InboxEntry>,
    /// Whether the event came from the inbox, and is removed there.
    pub from_inbox: bool,
    /// Time of the commit.
    pub at: UnixMs,
    /// Claim of the shard of the event, if it came from a shard.
    pub claim: Option<ShardClaim>,
}

/// Result of one [`HandlerCommit`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitResult {
    /// It is stored, with the result of each operation, and of the fallback if that was accepted.
    Done(Vec<SubmitResult>),
    /// Nothing was changed: the handler has finished before, or another process owns the shard.
    Skipped,
    /// The operations were not accepted, and nothing was stored.
    Refused(SubmitError),
}

/// A request to identify. All processes of a bot count together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentifyRequest {
    /// `shard_id % max_concurrency`.
    pub bucket: u32,
    /// Minimum time between two requests of a bucket.
    pub spacing: Duration,
    /// Maximum number in a day.
    pub daily_limit: u32,
    /// The current time.
    pub now: UnixMs,
}

/// Whether a shard may identify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentifyDecision {
    /// It may identify now. It is counted.
    Allowed,
    /// It must wait: another shard of its bucket has just identified.
    Wait(Duration),
    /// The daily limit is used up; how long until it is reset.
    Exhausted(Duration),
}

/// Stores sessions and handled events. What it has stored survives a `kill -9`.
pub trait EventStore: Send + Sync {
    /// All stored sessions of the bot.
    fn sessions(&self) -> StoreFuture<'_, Vec<StoredSession>>;

    /// Stores confirmed positions, and deletes handled events up to them. `confirmed` of a stored session never
    /// decreases. Another session of the same shard replaces the previous one, whose handled events are deleted.
    fn save_sessions(&self, sessions: Vec<StoredSession>) -> StoreFuture<'_, ()>;

    /// Handlers that have finished with events of a session after `seq`.
    fn handled_after(&self, session: &str, seq: u64) -> StoreFuture<'_, Vec<(u64, Arc<str>)>>;

    /// Stores results of handlers, each separately. Returns one result each.
    fn commit(&self, commits: Vec<HandlerCommit>) -> StoreFuture<'_, Vec<CommitResult>>;

    /// Inbox entries that are not dead, in order, after a position.
    fn inbox(&self, after: i64, limit: usize) -> StoreFuture<'_, Vec<InboxEntry>>;

    /// Stores what becomes of an entry that could not be handled, and the fallback of its interaction. The former is
    /// stored even if the latter is not accepted.
    fn postpone(
        &self,
        key: InboxKey,
        disposition: InboxDisposition,
        fallback: Option<Box<NewOperation>>,
        now: UnixMs,
    ) -> StoreFuture<'_, PostponeResult>;

    /// Dead entries before a position, the newest first.
    fn dead_events(&self, before: Option<i64>, limit: usize) -> StoreFuture<'_, Vec<InboxEntry>>;

    /// Makes a dead entry wait again, at the end of its lane. `false` if there is none.
    fn revive(&self, position: i64, record: AuditRecord) -> StoreFuture<'_, bool>;

    /// Deletes a dead entry. `false` if there is none.
    fn discard_event(&self, position: i64, record: AuditRecord) -> StoreFuture<'_, bool>;

    /// Deletes a small batch of dead entries that died before this time, and of rows of sessions that no shard has.
    /// Returns their number.
    fn sweep_events(&self, before: UnixMs) -> StoreFuture<'_, u64>;

    /// Decides whether a shard may identify, and counts it if so.
    fn identify(&self, request: IdentifyRequest) -> StoreFuture<'_, IdentifyDecision>;

    /// Records received interactions, so that operations may respond to them. Idempotent.
    fn record_interactions(&self, received: Vec<ReceivedInteraction>) -> StoreFuture<'_, ()>;

    /// Values of these keys that have not expired. Returns one result each.
    fn values(&self, keys: Vec<String>, now: UnixMs) -> StoreFuture<'_, Vec<Option<String>>>;
}
