//! Operations on their way: accepted once, in order, never lost, never doubled.
//!
//! ```text
//!  API ──▶ desk ──submit──▶ OperationStore ◀──claim, load, record── guild ──perform──▶ Discord
//!           └──────Wake──▶ supervisor ──────────────starts, wakes────▲
//! ```
//!
//! Nothing is told to have been accepted that the store has not kept, and nothing is sent whose intent it has not kept.

mod bell;
mod cache;
mod changes;
mod config;
pub mod desk;
mod guild;
mod handle;
mod journal;
mod perform;
mod store;
mod supervisor;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod throttle;
mod waits;
mod wall;

pub use bell::Word;
pub use cache::{CacheFuture, IdempotencyCache, Remembered};
pub use changes::{Changed, Changes, Followed};
pub use config::OperationsConfig;
pub use desk::Desk;
pub use guild::{Guild, GuildSnapshot, Seat};
pub use handle::Operations;
pub use journal::Journal;
pub use perform::{Done, Hold, Perform, PerformFuture, Performed, Reconciled, Work};
pub use store::{
    Attempt, Binding, Change, Claim, ClaimFrom, DeadLetter, DelayedBy, Fence, FileUsage, IdempotencyKey, Instance,
    Intent, LetterFilter, ListFilter, NewOperation, OperationStore, Page, Pausable, ProgressChange, Recorded, Resolved,
    Retention, ScopeUsage, Shown, StoreError, StoreFuture, StoreUsage, Stored, SubmitError, Submitted, Swept,
    UnknownOutcome, Unreadable, WaitsFor, Wanted,
};
pub use supervisor::{OperationsSnapshot, Spawn, Supervisor};
pub use waits::{Seat as WaitSeat, Waits, WaitsConfig};
pub use wall::WallClock;
