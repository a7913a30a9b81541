//! The whole state of a gate as text: versioned, limited in size, and validated when it is restored.

use serde::{Deserialize, Serialize};

use super::SnapshotAge;
use crate::breaker::SavedBreakers;
use crate::invalid::{SavedHolders, SavedInvalidLedger};
use crate::limit::SavedLimiter;
use crate::time::UnixMs;

/// The version that is written, and the only one that is read.
const VERSION: u32 = 1;

/// Longer text is not read: no snapshot is longer.
const MAX_BYTES: usize = 8 << 20;

/// How the gate that saved the snapshot ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShutdownKind {
    /// It was still running, and may have done more than it had saved.
    #[default]
    Sudden,
    /// It was shutting down, and the snapshot is complete.
    Clean,
}

/// State of a gate that must survive a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GateSnapshot {
    version: u32,
    /// When it was saved, by the wall clock.
    pub saved_at: UnixMs,
    /// How the gate ended.
    pub ending: ShutdownKind,
    /// Blocks, closed buckets, and what was learned about routes.
    pub limits: SavedLimiter,
    /// Breakers that are not closed.
    pub breakers: SavedBreakers,
    /// Invalid requests of the last minutes.
    pub invalid: SavedInvalidLedger,
    /// The keys, tenants and guilds that they are charged to.
    pub invalid_holders: SavedHolders,
}

/// Why a snapshot cannot be read. The gate starts without it, as strict as a new one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotDecodeError {
    /// Another version of the program wrote it.
    #[error("unsupported snapshot version {0}, expected {VERSION}; it will be replaced by a new one")]
    Version(u32),
    /// It is longer than any valid snapshot.
    #[error("the snapshot has {0} bytes, more than the maximum of {MAX_BYTES}; it will be replaced by a new one")]
    TooLong(usize),
    /// It cannot be parsed.
    #[error("the snapshot cannot be parsed and will be replaced by a new one: {0}")]
    Broken(String),
}

impl SnapshotDecodeError {
    /// The reason, as a metric label.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Version(_) => "version",
            Self::TooLong(_) => "too_long",
            Self::Broken(_) => "broken",
        }
    }
}

#[derive(Deserialize)]
struct VersionHeader {
    version: u32,
}

impl GateSnapshot {
    /// Creates a snapshot with this time.
    #[must_use]
    pub fn new(
        saved_at: UnixMs,
        ending: ShutdownKind,
        limits: SavedLimiter,
        breakers: SavedBreakers,
        (invalid, invalid_holders): (SavedInvalidLedger, SavedHolders),
    ) -> Self {
        Self { version: VERSION, saved_at, ending, limits, breakers, invalid, invalid_holders }
    }

    /// Encodes the snapshot as text.
    #[must_use]
    pub fn encode(&self) -> String {
        serde_json::to_string(self).expect("invariant: a snapshot contains only numbers, strings and lists of them")
    }

    /// Decodes the output of [`GateSnapshot::encode`].
    ///
    /// # Errors
    ///
    /// If the text is not a snapshot of this version. A decoded snapshot may contain any values: each state machine
    /// restores only valid ones.
    pub fn decode(text: &str) -> Result<Self, SnapshotDecodeError> {
        if text.len() > MAX_BYTES {
            return Err(SnapshotDecodeError::TooLong(text.len()));
        }
        let broken = |error: serde_json::Error| SnapshotDecodeError::Broken(error.to_string());
        let VersionHeader { version } = serde_json::from_str(text).map_err(broken)?;
        if version != VERSION {
            return Err(SnapshotDecodeError::Version(version));
        }
        serde_json::from_str(text).map_err(broken)
    }

    /// The age of the snapshot.
    #[must_use]
    pub const fn age(&self, now: UnixMs) -> SnapshotAge {
        SnapshotAge::of(self.saved_at, now)
    }
}
