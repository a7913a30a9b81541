//! What the actors have to say. One event, one emission: the log line and the metric come from the same fields, so they
//! cannot disagree.

pub mod breaker;
pub mod desk;
pub mod events;
pub mod limits;
pub mod memory;
pub mod operations;
pub mod shared;

/// Something worth a log line, a metric, or both.
pub trait InternalEvent {
    /// Writes the line and moves the metric.
    fn emit(self);
}

/// Says that something happened.
pub fn emit(event: impl InternalEvent) {
    event.emit();
}

/// Describes every metric of the actors to the recorder.
pub fn describe() {
    breaker::describe();
    desk::describe();
    events::describe();
    limits::describe();
    memory::describe();
    operations::describe();
    shared::describe();
}
