//! Operations: durable requests to Discord, and their states.
//!
//! ```text
//!  queued ─▶ running ─▶ succeeded                         (running: a call with an effect may be in flight)
//!     ▲         ├─▶ delayed ─────┐ (nothing was sent: no attempt is used)
//!     │         ├─▶ retrying ────┤ (an attempt was used)
//!     ├─────────┼────────────────┘ when due
//!     │         ├─▶ reconciling ─▶ succeeded │ queued │ needs_review │ dead
//!     │         └─▶ dead (no attempt can have taken effect)
//!     ├─ scheduled (joins its queue when due; blocks nothing before)
//!     └─ cancelled
//! ```

mod change_cursor;
mod failure;
mod gate_condition;
mod id;
mod kind;
mod marker;
pub mod payload;
mod progress;
mod queue;
mod reference;
mod state;

pub use change_cursor::{ChangeCursor, VisibleChanges};
pub use failure::{Failure, FailureClass};
pub use gate_condition::{GateCondition, UnknownCondition};
pub use id::{OperationId, ParseOperationIdError};
pub use kind::{OperationKind, Repeatability};
pub use marker::Marker;
pub use payload::Payload;
pub use progress::{Progress, ProgressStep};
pub use queue::{Queue, QueueClass, QueueKey};
pub use reference::{ManagedKind, Reference};
pub use state::{IllegalTransition, OperationState};
