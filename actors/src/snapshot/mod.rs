//! State of the gate that survives a restart: restored before the first call, saved when it changes.
//!
//! ```text
//!   store ──▶ SnapshotTask ──RestoreLimits───▶ token bucket ────DirtyFlag──▶ SnapshotTask ──▶ store
//!                         └──RestoreBreakers──▶ circuit breaker ─DirtyFlag────▲
//! ```
//!
//! The gate sends nothing before the snapshot is restored, or could not be: then it starts nevertheless, as strict as
//! one that never ran before.

mod dirty_flag;
mod snapshot_task;
#[cfg(test)]
mod tests;

pub(crate) use dirty_flag::DirtyFlag;
pub(crate) use snapshot_task::{RestoredReceiver, SnapshotHandle};

use std::sync::Arc;
use std::time::Duration;

use crate::ports::SnapshotStore;
use guildhall_core::response::Credential;

use crate::wall_clock::WallClock;

/// Configuration of snapshots.
#[derive(Clone)]
pub struct SnapshotConfig {
    /// Store for the snapshot.
    pub store: Arc<dyn SnapshotStore>,
    /// Fingerprints of the tokens, never the tokens: state about a token applies only to the same token. Other
    /// processes, if there are any, get the same fingerprints.
    pub tokens: Vec<(Credential, String)>,
    /// Minimum interval between writes. Urgent changes, such as blocks and bans, are saved at once otherwise.
    pub soon: Duration,
    /// Maximum delay until other changes, such as learned limits, are saved.
    pub later: Duration,
    /// Timeout of the store. The first call waits for it.
    pub timeout: Duration,
    /// The wall clock.
    pub wall: WallClock,
}

impl SnapshotConfig {
    /// The default intervals, and the clock of this machine.
    #[must_use]
    pub fn new(store: Arc<dyn SnapshotStore>, tokens: Vec<(Credential, String)>) -> Self {
        Self {
            store,
            tokens,
            soon: Duration::from_secs(1),
            later: Duration::from_secs(30),
            timeout: Duration::from_secs(5),
            wall: WallClock::system(),
        }
    }
}

impl std::fmt::Debug for SnapshotConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { soon, later, timeout, .. } = self;
        f.debug_struct("SnapshotConfig")
            .field("soon", soon)
            .field("later", later)
            .field("timeout", timeout)
            .finish_non_exhaustive()
    }
}
