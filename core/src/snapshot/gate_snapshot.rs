//! The whole memory of a gate as text: versioned, bounded, and never trusted blindly.

use serde::{Deserialize, Serialize};

use super::SnapshotAge;
use crate::breaker::SavedBreakers;
use crate::invalid::{SavedHolders, SavedInvalidLedger};
use crate::limit::SavedLimiter;
use crate::time::UnixMs;

/// The version that is written, and the only one that is read.
const VERSION: u32 = 1;

/// Longer text is not read: nothing that was written here is.
const MOST_BYTES: usize = 8 << 20;

/// How the gate ended that remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShutdownKind {
    /// It was still running, and may have done more than it had kept.
    #[default]
    Sudden,
    /// It was ending, and this is all.
    Clean,
}

/// What a gate must not forget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GateSnapshot {
    version: u32,
    /// When it was remembered, by the wall clock.
    pub saved_at: UnixMs,
    /// How the gate ended.
    pub ending: ShutdownKind,
    /// Blocks, closed buckets, and what was learned of routes.
    pub limits: SavedLimiter,
    /// Breakers that are not closed.
    pub breakers: SavedBreakers,
    /// Invalid requests of the last minutes.
    pub invalid: SavedInvalidLedger,
    /// The keys, tenants and guilds that they are charged to.
    pub invalid_holders: SavedHolders,
}

/// Why a memory cannot be read. The gate starts without it, as strict as one that never ran.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotDecodeError {
    /// Another version of the program wrote it.
    #[error("it has version {0}, and this program reads version {VERSION}; it will be written anew")]
    Version(u32),
    /// It is longer than anything that was written here.
    #[error("it is {0} bytes long, and at most {MOST_BYTES} were written; it will be written anew")]
    TooLong(usize),
    /// It is broken.
    #[error("it is broken, and will be written anew: {0}")]
    Broken(String),
}

impl SnapshotDecodeError {
    /// The reason, for metrics: a short word.
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
    /// What was remembered at this time.
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

    /// Its text.
    #[must_use]
    pub fn encode(&self) -> String {
        serde_json::to_string(self).expect("invariant: it holds nothing but numbers, texts and lists of them")
    }

    /// Reads what [`GateSnapshot::encode`] wrote, or anything else.
    ///
    /// # Errors
    ///
    /// When it is no memory of this version. What can be read may still say anything: machines take of it only what is
    /// possible.
    pub fn decode(text: &str) -> Result<Self, SnapshotDecodeError> {
        if text.len() > MOST_BYTES {
            return Err(SnapshotDecodeError::TooLong(text.len()));
        }
        let broken = |error: serde_json::Error| SnapshotDecodeError::Broken(error.to_string());
        let VersionHeader { version } = serde_json::from_str(text).map_err(broken)?;
        if version != VERSION {
            return Err(SnapshotDecodeError::Version(version));
        }
        serde_json::from_str(text).map_err(broken)
    }

    /// How old it is at this time.
    #[must_use]
    pub const fn age(&self, now: UnixMs) -> SnapshotAge {
        SnapshotAge::of(self.saved_at, now)
    }
}
