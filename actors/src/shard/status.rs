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
            state: AtomicU8::new(place(ShardState::Connecting)),
            sequence: AtomicU64::new(0),
            latency_us: AtomicU64::new(UNKNOWN),
            resumes: AtomicU64::new(0),
            identifies: AtomicU64::new(0),
            session: Mutex::default(),
        })
    }

    /// Sets the state, the last sequence number read, and the latency of the last heartbeat.
    pub(crate) fn tell(&self, state: ShardState, sequence: u64, latency: Option<Duration>) {
        let micros = latency.map_or(UNKNOWN, |latency| u64::try_from(latency.as_micros()).unwrap_or(UNKNOWN));
        self.state.store(place(state), Ordering::Relaxed);
        self.sequence.store(sequence, Ordering::Relaxed);
        self.latency_us.store(micros, Ordering::Relaxed);
    }

    /// Sets the session.
    pub(crate) fn has_session(&self, session: &Arc<str>) {
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(session));
    }

    /// Counts a resumed session.
    pub(crate) fn resumed(&self) {
        self.resumes.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a new session.
    pub(crate) fn identified(&self) {
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

fn place(state: ShardState) -> u8 {
    let place = ShardState::ALL.iter().position(|known| *known == state);
    place.and_then(|place| u8::try_from(place).ok()).expect("invariant: `ALL` lists every state")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_shard_tells_is_what_is_seen() {
        let vitals = ShardStatus::new();
        let view = vitals.view(3);
        assert_eq!((view.shard, view.state, view.session, view.latency), (3, ShardState::Connecting, None, None));
        for state in ShardState::ALL {
            vitals.tell(state, 7, Some(Duration::from_millis(41)));
            assert_eq!(vitals.view(0).state, state);
        }
        vitals.has_session(&"s".into());
        vitals.identified();
        vitals.resumed();
        vitals.resumed();
        let view = vitals.view(0);
        assert_eq!(
            (view.sequence, view.latency, view.resumes, view.identifies),
            (7, Some(Duration::from_millis(41)), 2, 1)
        );
        assert_eq!(view.session.as_deref(), Some("s"));
    }
}
