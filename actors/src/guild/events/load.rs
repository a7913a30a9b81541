//! How many guilds and interactions are active in this process.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Counters that the router reports.
#[derive(Debug, Default)]
pub(crate) struct EventLoad {
    guilds: AtomicUsize,
    interactions: AtomicUsize,
}

impl EventLoad {
    /// Sets the number of guilds that had events recently.
    pub(crate) fn set_guilds(&self, guilds: usize) {
        self.guilds.store(guilds, Ordering::Relaxed);
    }

    pub(crate) fn guilds(&self) -> usize {
        self.guilds.load(Ordering::Relaxed)
    }

    /// An interaction was routed to its guild.
    pub(crate) fn on_interaction_started(&self) {
        self.interactions.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that this many interactions are finished.
    pub(crate) fn on_interactions_finished(&self, interactions: usize) {
        if interactions > 0 {
            self.interactions.fetch_sub(interactions, Ordering::Relaxed);
        }
    }

    /// How many interactions are with their guilds.
    pub(crate) fn interactions(&self) -> usize {
        self.interactions.load(Ordering::Relaxed)
    }
}
