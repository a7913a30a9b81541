//! Supervision of guilds: which guild handles an event or an operation, and what happens when one ends.
//!
//! ```text
//!  shard ──batches──▶ events: router ─▶ event supervisor ─▶ guild (events)
//!  API, handlers ──wake-ups──▶ operations: supervisor ─────▶ guild (operations)
//! ```

pub(crate) mod events;
pub(crate) mod exit_notifier;
pub(crate) mod operations;
pub(crate) mod restart_policy;
pub(crate) mod store_retry;

pub use self::events::config::{EventsConfig, FallbackConfig};
pub use self::events::handle::{AttachedShard, EventPorts, EventsHandle, PreparedEvents};
pub use self::events::router::sessions::SessionView;
pub use self::events::router::{EventRouter, EventsSnapshot};
pub use self::operations::config::OperationsConfig;
pub use self::operations::handle::OperationsHandle;
pub use self::operations::wakeups::QueueSignal;
pub use self::operations::{OperationsSnapshot, SpawnGuild, Supervisor};
