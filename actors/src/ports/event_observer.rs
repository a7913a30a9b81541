//! Port to an observer of completed events.

use guildhall_core::event::Event;

/// Observes every event that all its handlers have finished. Events of a guild come in the order in which they were
/// handled. It is called on the thread of the guilds, so it must not block.
pub trait EventObserver: Send + Sync {
    /// These events are completed.
    fn on_completed(&self, events: &mut dyn Iterator<Item = &Event>);
}
