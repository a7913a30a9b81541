//! Status of a shard: written by its thread and read by any other, without waiting.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::ports::{ShardState, ShardView};

/// Represents an unknown latency.
const UNKNOWN: u64 = u64::MAX;

/// Status of a shard.
#[derive(Debug)]
pub(crate) struct ShardStatus {
    state: AtomicU8,
    sequence: AtomicU64,
    latency_us: AtomicU64,
    resumes: AtomicU64,
    identifies: AtomicU64,
    session: Mutex<Option<Arc<str>>>,
}

impl ShardStatus {
    /// Creates the status of a shard that is about to connect.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: AtomicU8::new(state_index(ShardState::Connecting)),
            sequence: AtomicU64::new(0),
            latency_us: AtomicU64::new(UNKNOWN),
            resumes: AtomicU64::new(0),
            identifies: AtomicU64::new(0),
            session: Mutex::default(),
        })
    }

    /// Sets the state, the last sequence number read, and the latency of the last heartbeat.
    pub(crate) fn update(&self, state: ShardState, sequence: u64, latency: Option<Duration>) {
        let micros = latency.map_or(UNKNOWN, |latency| u64::try_from(latency.as_micros()).unwrap_or(UNKNOWN));
        self.state.store(state_index(state), Ordering::Relaxed);
        self.sequence.store(sequence, Ordering::Relaxed);
        self.latency_us.store(micros, Ordering::Relaxed);
    }

    /// Sets the session.
    pub(crate) fn set_session(&self, session: &Arc<str>) {
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(session));
    }

    /// Counts a resumed session.
    pub(crate) fn count_resume(&self) {
        self.resumes.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a new session.
    pub(crate) fn count_identify(&self) {
        self.identifies.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the status of this shard. The confirmed sequence number is not known here.
    pub(crate) fn view(&self, shard: u32) -> ShardView {
        let latency = self.latency_us.load(Ordering::Relaxed);
        let state = usize::from(self.state.load(Ordering::Relaxed));
        ShardView {
            shard,
            state: ShardState::ALL.get(state).copied().unwrap_or(ShardState::Connecting),
            session: self.session.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            sequence: self.sequence.load(Ordering::Relaxed),
            confirmed: None,
            latency: (latency != UNKNOWN).then(|| Duration::from_micros(latency)),
            resumes: self.resumes.load(Ordering::Relaxed),
            identifies: self.identifies.load(Ordering::Relaxed),
        }
    }
}

fn state_index(state: ShardState) -> u8 {
    let index = ShardState::ALL.iter().position(|other| *other == state);
    index.and_then(|index| u8::try_from(index).ok()).expect("invariant: `ALL` lists every state")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn view_returns_what_was_set() {
        let status = ShardStatus::new();
        let view = status.view(3);
        assert_eq!((view.shard, view.state, view.session, view.latency), (3, ShardState::Connecting, None, None));
        for state in ShardState::ALL {
            status.update(state, 7, Some(Duration::from_millis(41)));
            assert_eq!(status.view(0).state, state);
        }
        status.set_session(&"s".into());
        status.count_identify();
        status.count_resume();
        status.count_resume();
        let view = status.view(0);
        assert_eq!(
            (view.sequence, view.latency, view.resumes, view.identifies),
            (7, Some(Duration::from_millis(41)), 2, 1)
        );
        assert_eq!(view.session.as_deref(), Some("s"));
    }
}
