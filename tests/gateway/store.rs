//! A store that only counts IDENTIFYs: it outlives processes, and fails on request.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use guildhall_actors::access::AuditRecord;
use guildhall_actors::ports::{
    CommitResult, EventStore, HandlerCommit, IdentifyDecision, IdentifyRequest, InboxDisposition, InboxEntry, InboxKey,
    NewOperation, PostponeResult, StoreError, StoreFuture, StoredSession,
};
use guildhall_core::interaction::ReceivedInteraction;
use guildhall_core::time::UnixMs;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Default)]
pub(crate) struct IdentifyCountStore {
    state: Mutex<CountState>,
}

#[derive(Default)]
struct CountState {
    granted: Vec<UnixMs>,
    last: BTreeMap<u32, UnixMs>,
    requests: u64,
    remaining_failures: u64,
}

impl IdentifyCountStore {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Makes the next so many calls fail.
    pub(crate) fn fail(&self, times: u64) {
        self.state.lock().unwrap().remaining_failures = times;
    }

    pub(crate) fn granted(&self) -> usize {
        self.state.lock().unwrap().granted.len()
    }

    pub(crate) fn requests(&self) -> u64 {
        self.state.lock().unwrap().requests
    }
}

fn unsupported<T>() -> StoreFuture<'static, T> {
    Box::pin(async { Err(StoreError::Unavailable("this store counts IDENTIFYs only".to_owned())) })
}

impl EventStore for IdentifyCountStore {
    fn identify(&self, request: IdentifyRequest) -> StoreFuture<'_, IdentifyDecision> {
        let mut state = self.state.lock().unwrap();
        state.requests += 1;
        let decision = if state.remaining_failures > 0 {
            state.remaining_failures -= 1;
            Err(StoreError::Unavailable("a test made it fail".to_owned()))
        } else {
            let today: Vec<_> = state.granted.iter().filter(|at| request.now.since(**at) < DAY).copied().collect();
            let since = state.last.get(&request.bucket).map(|last| request.now.since(*last));
            match (today.first(), since) {
                (Some(first), _) if today.len() >= request.daily_limit as usize => {
                    Ok(IdentifyDecision::Exhausted(DAY.saturating_sub(request.now.since(*first))))
                }
                (_, Some(since)) if since < request.spacing => Ok(IdentifyDecision::Wait(request.spacing - since)),
                (_, _) => {
                    state.granted.push(request.now);
                    state.last.insert(request.bucket, request.now);
                    Ok(IdentifyDecision::Allowed)
                }
            }
        };
        Box::pin(async { decision })
    }

    fn sessions(&self) -> StoreFuture<'_, Vec<StoredSession>> {
        unsupported()
    }

    fn save_sessions(&self, _: Vec<StoredSession>) -> StoreFuture<'_, ()> {
        unsupported()
    }

    fn handled_after(&self, _: &str, _: u64) -> StoreFuture<'_, Vec<(u64, Arc<str>)>> {
        unsupported()
    }

    fn commit(&self, _: Vec<HandlerCommit>) -> StoreFuture<'_, Vec<CommitResult>> {
        unsupported()
    }

    fn inbox(&self, _: i64, _: usize) -> StoreFuture<'_, Vec<InboxEntry>> {
        unsupported()
    }

    fn postpone(
        &self,
        _: InboxKey,
        _: InboxDisposition,
        _: Option<Box<NewOperation>>,
        _: UnixMs,
    ) -> StoreFuture<'_, PostponeResult> {
        unsupported()
    }

    fn dead_events(&self, _: Option<i64>, _: usize) -> StoreFuture<'_, Vec<InboxEntry>> {
        unsupported()
    }

    fn revive(&self, _: i64, _: AuditRecord) -> StoreFuture<'_, bool> {
        unsupported()
    }

    fn discard_event(&self, _: i64, _: AuditRecord) -> StoreFuture<'_, bool> {
        unsupported()
    }

    fn sweep_events(&self, _: UnixMs) -> StoreFuture<'_, u64> {
        unsupported()
    }

    fn record_interactions(&self, _: Vec<ReceivedInteraction>) -> StoreFuture<'_, ()> {
        unsupported()
    }

    fn values(&self, _: Vec<String>, _: UnixMs) -> StoreFuture<'_, Vec<Option<String>>> {
        unsupported()
    }
}
