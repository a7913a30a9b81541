//! What the gate must not forget over a restart: recalled before the first call, kept whenever it changes.
//!
//! ```text
//!   store ──recall──▶ keeper ──RecallLimits──▶ token bucket ──bell──▶ keeper ──keep──▶ store
//!                            └─RecallBreakers─▶ circuit breaker ─bell──▲
//! ```
//!
//! The gate lets nothing out before it has recalled, or has found that it cannot: then it starts all the same, as strict as
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

/// How a gate remembers.
#[derive(Clone)]
pub struct SnapshotConfig {
    /// Where.
    pub memory: Arc<dyn SnapshotStore>,
    /// The fingerprints of the tokens that it has, never the tokens: what is wrong with one concerns only the same. The
    /// same fingerprints as other processes are told, if there are any.
    pub tokens: Vec<(Credential, String)>,
    /// Blocks, bans and the like are kept at once, and no more often than this.
    pub soon: Duration,
    /// What was learned is kept within this.
    pub later: Duration,
    /// How long the memory may take to answer. The first call waits for it.
    pub timeout: Duration,
    /// The wall clock.
    pub wall: WallClock,
}

impl SnapshotConfig {
    /// The usual times, and the clock of this machine.
    #[must_use]
    pub fn new(memory: Arc<dyn SnapshotStore>, tokens: Vec<(Credential, String)>) -> Self {
        Self {
            memory,
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
