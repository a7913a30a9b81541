//! The input that a thread is processing. Entering one costs a few nanoseconds, the next event of a batch less.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

use super::Input;

/// No event has this sequence number.
const NO_EVENT: u64 = 0;

thread_local! {
    static CURRENT: RefCell<Option<Input>> = const { RefCell::new(None) };
    /// Sequence number of the current input if it is an event: it changes more often than the rest.
    static SEQ: Cell<u64> = const { Cell::new(NO_EVENT) };
}

/// The input that this thread is processing: the one that was entered last and not left.
#[must_use]
pub fn current() -> Option<Input> {
    // A thread that is ending processes nothing.
    let input = CURRENT.try_with(|current| current.try_borrow().ok()?.clone()).ok().flatten()?;
    match input {
        Input::Event { session, .. } => {
            let seq = SEQ.get();
            (seq != NO_EVENT && !session.is_empty()).then_some(Input::Event { session, seq })
        }
        Input::InboxEntry(_) | Input::Operation(_) => Some(input),
    }
}

/// Sets the input of this thread until the returned guard is dropped. Only for synchronous code: across an `await`, use
/// [`with_input`].
pub fn enter(input: Option<Input>) -> InputGuard {
    let seq = match &input {
        Some(Input::Event { seq, .. }) => *seq,
        Some(Input::InboxEntry(_) | Input::Operation(_)) | None => NO_EVENT,
    };
    let before = CURRENT.with(|current| current.replace(input));
    InputGuard { before, seq_before: SEQ.replace(seq), on_one_thread: PhantomData }
}

/// Starts the processing of events of a session, without a current event.
pub fn enter_events(session: &Arc<str>) -> EventScope {
    EventScope { _entered: enter(Some(Input::Event { session: Arc::clone(session), seq: NO_EVENT })) }
}

/// Polls a future with this input as the current one, on whichever thread it is polled. The caller pins it, so that a
/// large one is not moved.
pub async fn with_input<F: Future + Unpin>(input: Option<Input>, mut future: F) -> F::Output {
    poll_fn(|cx| {
        let _entered = enter(input.clone());
        Pin::new(&mut future).poll(cx)
    })
    .await
}

/// Guard of a current input. A drop restores the previous one.
#[derive(Debug)]
#[must_use]
pub struct InputGuard {
    before: Option<Input>,
    seq_before: u64,
    on_one_thread: PhantomData<*const ()>,
}

impl Drop for InputGuard {
    fn drop(&mut self) {
        let before = self.before.take();
        // A thread that is ending processes nothing.
        let _ = CURRENT.try_with(|current| current.replace(before));
        SEQ.set(self.seq_before);
    }
}

/// Processes events of one session, one after the other.
#[derive(Debug)]
#[must_use]
pub struct EventScope {
    _entered: InputGuard,
}

impl EventScope {
    /// Switches to another session, without a current event.
    pub fn set_session(&self, session: &Arc<str>) {
        let input = Input::Event { session: Arc::clone(session), seq: NO_EVENT };
        drop(CURRENT.with(|current| current.replace(Some(input))));
        self.clear_event();
    }

    /// Sets the current event.
    #[inline]
    pub fn set_event(&self, seq: u64) {
        SEQ.set(seq);
    }

    /// Clears the current event.
    #[inline]
    pub fn clear_event(&self) {
        SEQ.set(NO_EVENT);
    }
}

#[cfg(test)]
mod tests {
    use guildhall_core::operation::OperationId;

    use super::*;

    fn operation(number: u128) -> Input {
        Input::Operation(OperationId::from_uuid(uuid::Uuid::from_u128(number)))
    }

    #[test]
    fn innermost_input_is_the_current_one() {
        assert_eq!(current(), None);
        let outer = enter(Some(operation(1)));
        {
            let events = enter_events(&"s".into());
            assert_eq!(current(), None, "no current event yet");
            events.set_event(7);
            assert_eq!(current(), Some(Input::Event { session: "s".into(), seq: 7 }));
            let inner = enter(Some(operation(2)));
            assert_eq!(current(), Some(operation(2)));
            drop(inner);
            assert_eq!(current(), Some(Input::Event { session: "s".into(), seq: 7 }));
            events.set_session(&"t".into());
            assert_eq!(current(), None);
            events.set_event(8);
            assert_eq!(current(), Some(Input::Event { session: "t".into(), seq: 8 }));
            events.clear_event();
            assert_eq!(current(), None);
        }
        assert_eq!(current(), Some(operation(1)));
        drop(outer);
        assert_eq!(current(), None);
    }

    #[test]
    fn events_without_a_session_id_are_no_input() {
        let events = enter_events(&"".into());
        events.set_event(1);
        assert_eq!(current(), None);
    }

    #[tokio::test]
    async fn future_is_polled_within_its_input_and_leaves_it_while_it_waits() {
        let (resume, resumed) = tokio::sync::oneshot::channel::<()>();
        let work = with_input(
            Some(operation(1)),
            Box::pin(async {
                let before = current();
                resumed.await.unwrap();
                (before, current())
            }),
        );
        let others = async {
            let meanwhile = current();
            resume.send(()).unwrap();
            meanwhile
        };
        let ((before, after), meanwhile) = tokio::join!(work, others);
        assert_eq!((before, after), (Some(operation(1)), Some(operation(1))));
        assert_eq!(meanwhile, None);
    }
}
