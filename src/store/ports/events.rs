//! Implements the ports for events and shards on [`Store`].

use std::sync::Arc;

use guildhall_actors::access::AuditRecord;
use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_actors::ports::{
    CommitResult, EventStore, HandlerCommit, IdentifyDecision, IdentifyRequest, InboxDisposition, InboxEntry, InboxKey,
    NewOperation, PostponeResult, StoreFuture, StoredSession,
};
use guildhall_actors::shard::{ClaimedShards, DesiredShards, ShardClaim, ShardStore};
use guildhall_core::{interaction::ReceivedInteraction, time::UnixMs};

use crate::store::Store;
use crate::store::read::events;
use crate::store::write::{
    event_commit::CommitHandlers,
    inbox::{DiscardEvent, Postpone, Revive},
    interactions::RecordInteractions,
    sessions::{StoreSessions, SweepEvents},
    shards::ReleaseShards,
};

impl EventStore for Store {
    fn sessions(&self) -> StoreFuture<'_, Vec<StoredSession>> {
        Box::pin(self.read(events::sessions(&self.shared.reading)))
    }

    fn save_sessions(&self, sessions: Vec<StoredSession>) -> StoreFuture<'_, ()> {
        Box::pin(self.write(StoreSessions(sessions)))
    }

    fn handled_after(&self, session: &str, seq: u64) -> StoreFuture<'_, Vec<(u64, Arc<str>)>> {
        let session = session.to_owned();
        Box::pin(async move { self.read(events::handled_after(&self.shared.reading, &session, seq)).await })
    }

    fn commit(&self, commits: Vec<HandlerCommit>) -> StoreFuture<'_, Vec<CommitResult>> {
        if commits.is_empty() {
            return Box::pin(std::future::ready(Ok(Vec::new())));
        }
        Box::pin(self.write(CommitHandlers(commits)))
    }

    fn inbox(&self, after: i64, limit: usize) -> StoreFuture<'_, Vec<InboxEntry>> {
        Box::pin(self.read(events::inbox(&self.shared.reading, after, limit)))
    }

    fn postpone(
        &self,
        key: InboxKey,
        disposition: InboxDisposition,
        fallback: Option<Box<NewOperation>>,
        now: UnixMs,
    ) -> StoreFuture<'_, PostponeResult> {
        Box::pin(self.write(Postpone { key, disposition, fallback, now }))
    }

    fn dead_events(&self, before: Option<i64>, limit: usize) -> StoreFuture<'_, Vec<InboxEntry>> {
        Box::pin(self.read(events::dead(&self.shared.reading, before, limit)))
    }

    fn revive(&self, position: i64, note: AuditRecord) -> StoreFuture<'_, bool> {
        let job = Revive { position, now: note.at };
        Box::pin(self.write_with(job, Some(note)))
    }

    fn discard_event(&self, position: i64, note: AuditRecord) -> StoreFuture<'_, bool> {
        Box::pin(self.write_with(DiscardEvent(position), Some(note)))
    }

    fn sweep_events(&self, before: UnixMs) -> StoreFuture<'_, u64> {
        Box::pin(self.write(SweepEvents(before)))
    }

    fn identify(&self, request: IdentifyRequest) -> StoreFuture<'_, IdentifyDecision> {
        Box::pin(self.write(request))
    }

    fn record_interactions(&self, received: Vec<ReceivedInteraction>) -> StoreFuture<'_, ()> {
        Box::pin(self.write(RecordInteractions(received)))
    }

    fn values(&self, keys: Vec<String>, now: UnixMs) -> StoreFuture<'_, Vec<Option<String>>> {
        Box::pin(async move { self.read(events::values(&self.shared.reading, &keys, self.expiry(now))).await })
    }
}

impl ShardStore for Store {
    fn claim_shards(&self, desired: DesiredShards) -> StoreFuture<'_, ClaimedShards> {
        Box::pin(self.write(desired))
    }

    fn release_shards(&self, claims: Vec<ShardClaim>) -> StoreFuture<'_, ()> {
        Box::pin(self.write(ReleaseShards(claims)))
    }

    fn shard_lease(&self, claim: ShardClaim) -> LeaseGuard {
        self.shared.members.shard_guard(claim)
    }
}
