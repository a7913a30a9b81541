//! Operations on their way: accepted once, in order, never lost, never doubled.
//!
//! ```text
//!  API ──▶ desk ──submit──▶ OperationStore ◀──claim, load, record── guild ──perform──▶ Discord
//!           └──────Wake──▶ supervisor ──────────────starts, wakes────▲
//! ```
//!
//! Nothing is told to have been accepted that the store has not kept, and nothing is sent whose intent it has not kept.

mod cache;
pub mod desk;
mod perform;
mod store;

pub use cache::{CacheFuture, IdempotencyCache, Remembered};
pub use desk::Desk;
pub use perform::{Done, Hold, Perform, PerformFuture, Performed, Reconciled, Work};
pub use store::{
    Attempt, Binding, Change, Claim, ClaimFrom, DeadLetter, Fence, IdempotencyKey, Intent, LetterFilter, ListFilter,
    NewOperation, OperationStore, Pausable, Recorded, Resolved, Retention, Shown, StoreError, StoreFuture, Stored,
    SubmitError, Submitted, Swept, Wanted,
};
