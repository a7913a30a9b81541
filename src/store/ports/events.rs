//! Implements the ports for events and shards on [`Store`].

use std::sync::Arc;

use guildhall_actors::access::AuditRecord;
use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_actors::ports::{
    CommitResult, EventStore, HandlerCommit, IdentifyDecision, IdentifyRequest, InboxDisposition, InboxEntry, InboxKey,
    StoreFuture, StoredSession,
};
use guildhall_actors::shard::{ClaimedShards, DesiredShards, ShardClaim, ShardStore};
use guildhall_core::{interaction::ReceivedInteraction, time::UnixMs};

use crate::store::Store;
use crate::store::ports::operations::answer;
use crate::store::read::events;
use crate::store::write::{Job, JobResult};

impl EventStore for Store {
    fn sessions(&self) -> StoreFuture<'_, Vec<StoredSession>> {
        Box::pin(self.read(events::sessions(&self.shared.reading)))
    }

    fn save_sessions(&self, sessions: Vec<StoredSession>) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.write(Job::StoreSessions(sessions)).await.map(drop) })
    }

    fn handled_after(&self, session: &str, seq: u64) -> StoreFuture<'_, Vec<(u64, Arc<str>)>> {
        let session = session.to_owned();
        Box::pin(async move { self.read(events::handled_after(&self.shared.reading, &session, seq)).await })
    }

    fn commit(&self, commits: Vec<HandlerCommit>) -> StoreFuture<'_, Vec<CommitResult>> {
        if commits.is_empty() {
            return Box::pin(std::future::ready(Ok(Vec::new())));
        }
        Box::pin(async move { Ok(answer!(self, Job::Commit(commits), Committed)) })
    }

    fn inbox(&self, after: i64, limit: usize) -> StoreFuture<'_, Vec<InboxEntry>> {
        Box::pin(self.read(events::inbox(&self.shared.reading, after, limit)))
    }

    fn postpone(&self, key: InboxKey, later: InboxDisposition, now: UnixMs) -> StoreFuture<'_, bool> {
        Box::pin(async move { Ok(answer!(self, Job::Postpone(key, later, now), Found)) })
    }

    fn dead_events(&self, before: Option<i64>, limit: usize) -> StoreFuture<'_, Vec<InboxEntry>> {
        Box::pin(self.read(events::dead(&self.shared.reading, before, limit)))
    }

    fn revive(&self, position: i64, note: AuditRecord) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let job = Job::Revive(position, note.at);
            Ok(answer!(self.with_audit_record(note), job, Found))
        })
    }

    fn sweep_events(&self, before: UnixMs) -> StoreFuture<'_, u64> {
        Box::pin(async move { Ok(answer!(self, Job::SweepEvents(before), SweptEvents)) })
    }

    fn identify(&self, request: IdentifyRequest) -> StoreFuture<'_, IdentifyDecision> {
        Box::pin(async move { Ok(answer!(self, Job::Identify(request), Identified)) })
    }

    fn record_interactions(&self, received: Vec<ReceivedInteraction>) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.write(Job::RecordInteractions(received)).await.map(drop) })
    }

    fn values(&self, keys: Vec<String>, now: UnixMs) -> StoreFuture<'_, Vec<Option<String>>> {
        Box::pin(async move { self.read(events::values(&self.shared.reading, &keys, self.expiry(now))).await })
    }
}

impl ShardStore for Store {
    fn claim_shards(&self, desired: DesiredShards) -> StoreFuture<'_, ClaimedShards> {
        Box::pin(async move { Ok(answer!(self, Job::ClaimShards(desired), Shards)) })
    }

    fn release_shards(&self, claims: Vec<ShardClaim>) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.write(Job::ReleaseShards(claims)).await.map(drop) })
    }

    fn shard_lease(&self, claim: ShardClaim) -> LeaseGuard {
        self.shared.members.shard_guard(claim)
    }
}
