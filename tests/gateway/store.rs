//! A store that only counts IDENTIFYs: it outlives processes, and fails on request.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use guildhall_actors::access::AuditRecord;
use guildhall_actors::ports::{
    CommitResult, EventStore, HandlerCommit, IdentifyDecision, IdentifyRequest, InboxDisposition, InboxEntry, InboxKey,
    StoreError, StoreFuture, StoredSession,
};
use guildhall_core::interaction::ReceivedInteraction;
use guildhall_core::time::UnixMs;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Default)]
pub(crate) struct Counts {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    granted: Vec<UnixMs>,
    last: BTreeMap<u32, UnixMs>,
    asked: u64,
    fails: u64,
}

impl Counts {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Makes the next so many calls fail.
    pub(crate) fn fail(&self, times: u64) {
        self.state.lock().unwrap().fails = times;
    }

    pub(crate) fn granted(&self) -> usize {
        self.state.lock().unwrap().granted.len()
    }

    pub(crate) fn asked(&self) -> u64 {
        self.state.lock().unwrap().asked
    }
}

fn not_here<T>() -> StoreFuture<'static, T> {
    Box::pin(async { Err(StoreError::Unavailable("this store counts IDENTIFYs only".to_owned())) })
}

impl EventStore for Counts {
    fn identify(&self, ask: IdentifyRequest) -> StoreFuture<'_, IdentifyDecision> {
        let mut state = self.state.lock().unwrap();
        state.asked += 1;
        let answer = if state.fails > 0 {
            state.fails -= 1;
            Err(StoreError::Unavailable("a test made it fail".to_owned()))
        } else {
            let today: Vec<_> = state.granted.iter().filter(|at| ask.now.since(**at) < DAY).copied().collect();
            let since = state.last.get(&ask.bucket).map(|last| ask.now.since(*last));
            match (today.first(), since) {
                (Some(first), _) if today.len() >= ask.a_day as usize => {
                    Ok(IdentifyDecision::Spent(DAY.saturating_sub(ask.now.since(*first))))
                }
                (_, Some(since)) if since < ask.spacing => Ok(IdentifyDecision::Wait(ask.spacing - since)),
                (_, _) => {
                    state.granted.push(ask.now);
                    state.last.insert(ask.bucket, ask.now);
                    Ok(IdentifyDecision::Now)
                }
            }
        };
        Box::pin(async { answer })
    }

    fn sessions(&self) -> StoreFuture<'_, Vec<StoredSession>> {
        not_here()
    }

    fn keep_sessions(&self, _: Vec<StoredSession>) -> StoreFuture<'_, ()> {
        not_here()
    }

    fn handled_after(&self, _: &str, _: u64) -> StoreFuture<'_, Vec<(u64, Arc<str>)>> {
        not_here()
    }

    fn commit(&self, _: Vec<HandlerCommit>) -> StoreFuture<'_, Vec<CommitResult>> {
        not_here()
    }

    fn inbox(&self, _: i64, _: usize) -> StoreFuture<'_, Vec<InboxEntry>> {
        not_here()
    }

    fn put_off(&self, _: InboxKey, _: InboxDisposition, _: UnixMs) -> StoreFuture<'_, bool> {
        not_here()
    }

    fn dead_events(&self, _: Option<i64>, _: usize) -> StoreFuture<'_, Vec<InboxEntry>> {
        not_here()
    }

    fn revive(&self, _: i64, _: AuditRecord) -> StoreFuture<'_, bool> {
        not_here()
    }

    fn sweep_events(&self, _: UnixMs) -> StoreFuture<'_, u64> {
        not_here()
    }

    fn record_interactions(&self, _: Vec<ReceivedInteraction>) -> StoreFuture<'_, ()> {
        not_here()
    }

    fn values(&self, _: Vec<String>, _: UnixMs) -> StoreFuture<'_, Vec<Option<String>>> {
        not_here()
    }
}
