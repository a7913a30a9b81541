//! Actors of one guild: its events, handled one at a time and in order, and its operations.

pub(crate) mod events;
pub(crate) mod operations;

pub use self::events::actor::{GuildEventActor, GuildEventsSnapshot, ObserveGuildEvents};
pub use self::events::crashed_events::unread_event;
pub use self::events::fallback::FallbackReason;
pub use self::events::interaction::HttpInteractionResponse;
pub use self::events::registry::TooManyHandlers;
pub use self::operations::journal::Journal;
pub use self::operations::{Guild, GuildSnapshot, GuildSpec};
