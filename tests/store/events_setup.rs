//! Commits of handlers, for tests.

use std::sync::Arc;

use guildhall::store::Store;
use guildhall_actors::ports::{
    CommitResult, EventStore as _, HandlerCommit, InboxEntry, InboxKey, NewOperation, StateWrite, StoredSession,
};

use crate::setup::at;

pub(crate) fn key(session: &str, seq: u64, handler: &str) -> InboxKey {
    InboxKey { session: Arc::from(session), seq, handler: Arc::from(handler) }
}

/// A handler that had no effect.
pub(crate) fn handled(session: &str, seq: u64, handler: &str) -> HandlerCommit {
    HandlerCommit {
        key: key(session, seq, handler),
        operations: Vec::new(),
        fallback: None,
        set: Vec::new(),
        inbox: None,
        from_inbox: false,
        at: at(0),
        claim: None,
    }
}

/// A commit of the handler `h` with these operations.
pub(crate) fn handled_with_operations(session: &str, seq: u64, operations: Vec<NewOperation>) -> HandlerCommit {
    HandlerCommit { operations, ..handled(session, seq, "h") }
}

/// An inbox entry for the handler `h`.
pub(crate) fn entry(session: &str, seq: u64, lane: i64) -> InboxEntry {
    InboxEntry {
        key: key(session, seq, "h"),
        position: 0,
        lane,
        name: "member.join".to_owned(),
        event: format!("{{\"seq\":{seq}}}"),
        attempts: 1,
        eligible_at: at(7),
        dead: None,
        created_at: at(3),
    }
}

pub(crate) fn state_write(key: &str, value: Option<&str>) -> StateWrite {
    StateWrite { key: key.to_owned(), value: value.map(str::to_owned), expires_at: None }
}

/// A session of one of two shards.
pub(crate) fn session(shard: u32, name: &str, confirmed: u64) -> StoredSession {
    let resume_url = Some(format!("wss://{name}.example"));
    StoredSession { shard, shards: 2, session: Arc::from(name), resume_url, confirmed, at: at(0), fence: None }
}

pub(crate) fn done() -> CommitResult {
    CommitResult::Done(Vec::new())
}

pub(crate) async fn commit(store: &Store, item: HandlerCommit) -> CommitResult {
    store.commit(vec![item]).await.unwrap().remove(0)
}

/// Sequence numbers of the handled rows of a session.
pub(crate) async fn handled_seqs(store: &Store, session: &str, after: u64) -> Vec<u64> {
    store.handled_after(session, after).await.unwrap().into_iter().map(|(seq, _)| seq).collect()
}
