//! Callers: those of one lane take turns.

use std::hash::{DefaultHasher, Hash, Hasher};

/// The caller of a call, as a hash of its name. Two callers with the same hash would share their turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallerId(u64);

impl CallerId {
    /// Calls of the daemon itself.
    pub const NONE: Self = Self(0);

    /// The caller with this name.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        Self(hasher.finish().max(1))
    }
}
