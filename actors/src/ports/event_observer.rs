//! The port to whoever wants to see every event done.

use guildhall_core::event::Event;

/// Sees every event that its handlers are done with, those of a guild in the order in which they were handled. It is called
/// where guilds run, so it must not block: all of them wait for it.
pub trait EventObserver: Send + Sync {
    /// These are done.
    fn done(&self, events: &mut dyn Iterator<Item = &Event>);
}
