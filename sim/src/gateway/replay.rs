//! The events of a session in order: those that wait to be sent, and those that were sent and may be replayed.
//!
//! ```text
//!   front                    cursor                back
//!   │ sent, stored for RESUME │ waiting to be sent │
//! ```

use std::collections::VecDeque;

use super::frame::Event;

/// Upper bound for skipped numbers. Clients that store numbers as doubles count exactly up to twice that.
const MAX_SKIPPED: u64 = 1 << 52;

/// The bounded buffer of a session.
#[derive(Debug)]
pub(crate) struct Replay {
    events: VecDeque<(u64, Event)>,
    /// Index of the first event that was not passed to the current connection.
    cursor: usize,
    bound: usize,
    /// The last sequence number assigned.
    last: u64,
    /// The highest sequence number passed to any connection.
    sent: u64,
    /// Number of events that were never passed to a connection. Only they count against the bound: a RESUME from far
    /// back must not end the session that it resumes, so while it catches up the buffer may contain twice the bound.
    unsent: usize,
    /// The highest sequence number that is no longer stored.
    last_dropped: u64,
    /// Events passed to a connection more than once.
    repeated: u64,
    /// Events that got a sequence number.
    numbered: u64,
}

/// More events are unsent than the session can store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overrun;

/// Why a RESUME is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResumeError {
    /// The sequence number was never sent.
    Ahead,
    /// Events after it are no longer stored.
    Expired,
}

impl Replay {
    pub(crate) fn new(bound: usize) -> Self {
        Self {
            events: VecDeque::new(),
            cursor: 0,
            bound: bound.max(1),
            last: 0,
            sent: 0,
            unsent: 0,
            last_dropped: 0,
            repeated: 0,
            numbered: 0,
        }
    }

    /// Assigns a sequence number to an event and queues it; returns whether it is the only one waiting.
    pub(crate) fn push(&mut self, event: Event) -> Result<bool, Overrun> {
        if self.unsent >= self.bound {
            return Err(Overrun);
        }
        while self.events.len() >= self.bound && self.cursor > 0 {
            if let Some((sequence, _)) = self.events.pop_front() {
                self.last_dropped = sequence;
            }
            self.cursor -= 1;
        }
        self.last += 1;
        self.unsent += 1;
        self.numbered += 1;
        self.events.push_back((self.last, event));
        Ok(self.waiting() == 1)
    }

    /// Passes at most `max` waiting events to the current connection.
    pub(crate) fn take(&mut self, max: usize, into: &mut Vec<(u64, Event)>) {
        let end = self.cursor + max.min(self.waiting());
        for (sequence, event) in self.events.range(self.cursor..end) {
            if *sequence <= self.sent {
                self.repeated += 1;
            } else {
                self.sent = *sequence;
                self.unsent -= 1;
            }
            into.push((*sequence, event.clone()));
        }
        self.cursor = end;
    }

    /// Restarts after `sequence`, the last event that the client has seen. It may be any number that was ever sent,
    /// also one below that of the last heartbeat.
    pub(crate) fn resume(&mut self, sequence: u64) -> Result<(), ResumeError> {
        if sequence > self.sent {
            return Err(ResumeError::Ahead);
        }
        if sequence < self.last_dropped {
            return Err(ResumeError::Expired);
        }
        self.cursor = self.events.partition_point(|(stored, _)| *stored <= sequence);
        Ok(())
    }

    /// Skips `count` sequence numbers, as if their events had been lost.
    pub(crate) fn skip(&mut self, count: u64) {
        self.last = self.last.max(self.last.saturating_add(count).min(MAX_SKIPPED));
    }

    /// Number of events that wait to be sent.
    pub(crate) fn waiting(&self) -> usize {
        self.events.len() - self.cursor
    }

    /// How many more events can be queued before the session is overrun.
    pub(crate) fn free_capacity(&self) -> usize {
        self.bound - self.unsent
    }

    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    pub(crate) fn repeated(&self) -> u64 {
        self.repeated
    }

    pub(crate) fn numbered(&self) -> u64 {
        self.numbered
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    fn event(n: u64) -> Event {
        Event { name: "MESSAGE_CREATE", data: Bytes::from(n.to_string()) }
    }

    fn take(replay: &mut Replay, max: usize) -> Vec<u64> {
        let mut taken = Vec::new();
        replay.take(max, &mut taken);
        taken.iter().map(|(sequence, _)| *sequence).collect()
    }

    #[test]
    fn resume_replays_after_the_last_event_seen() {
        let mut replay = Replay::new(10);
        for n in 1..=5 {
            replay.push(event(n)).unwrap();
        }
        assert_eq!(take(&mut replay, 4), [1, 2, 3, 4]);
        assert_eq!(replay.resume(2), Ok(()));
        assert_eq!(take(&mut replay, 10), [3, 4, 5]);
        assert_eq!(replay.repeated(), 2);
        assert_eq!(replay.resume(1), Ok(()), "a number below that of the last resume is valid too");
        assert_eq!(take(&mut replay, 10), [2, 3, 4, 5]);
    }

    #[test]
    fn resume_from_an_unsent_number_is_refused() {
        let mut replay = Replay::new(10);
        replay.push(event(1)).unwrap();
        assert_eq!(replay.resume(1), Err(ResumeError::Ahead));
        take(&mut replay, 1);
        assert_eq!(replay.resume(1), Ok(()));
        assert_eq!(replay.resume(2), Err(ResumeError::Ahead));
    }

    #[test]
    fn sent_events_are_dropped_for_new_ones_and_waiting_ones_are_not() {
        let mut replay = Replay::new(2);
        replay.push(event(1)).unwrap();
        replay.push(event(2)).unwrap();
        assert_eq!(replay.push(event(3)), Err(Overrun));
        take(&mut replay, 1);
        assert_eq!(replay.push(event(3)), Ok(false));
        assert_eq!(replay.resume(0), Err(ResumeError::Expired));
        assert_eq!(replay.resume(1), Ok(()));
    }

    #[test]
    fn resume_from_far_back_leaves_room_for_new_events() {
        let mut replay = Replay::new(3);
        for n in 1..=3 {
            replay.push(event(n)).unwrap();
        }
        take(&mut replay, 3);
        replay.resume(0).unwrap();
        for n in 4..=6 {
            replay.push(event(n)).unwrap();
        }
        assert_eq!(replay.push(event(7)), Err(Overrun));
        assert_eq!(take(&mut replay, 10), [1, 2, 3, 4, 5, 6]);
        replay.push(event(7)).unwrap();
        assert_eq!(replay.resume(3), Err(ResumeError::Expired), "the bound applies again");
    }

    #[test]
    fn skipped_numbers_are_missing_from_the_sequence() {
        let mut replay = Replay::new(10);
        replay.push(event(1)).unwrap();
        replay.skip(3);
        replay.push(event(2)).unwrap();
        assert_eq!(take(&mut replay, 10), [1, 5]);
        assert_eq!(replay.resume(3), Ok(()));
        assert_eq!(take(&mut replay, 10), [5]);
    }

    #[test]
    fn skipped_numbers_are_bounded_and_never_go_back() {
        let mut replay = Replay::new(10);
        for _ in 0..3 {
            replay.skip(u64::MAX);
            replay.push(event(1)).unwrap();
        }
        assert_eq!(take(&mut replay, 10), [MAX_SKIPPED + 1, MAX_SKIPPED + 2, MAX_SKIPPED + 3]);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Dispatch,
        /// The connection takes `given` events, and the client reads `read` of them.
        Send {
            given: usize,
            read: usize,
        },
        /// A new connection resumes `back` events before the last one that the client has read.
        Resume {
            back: u64,
        },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => Just(Step::Dispatch),
            2 => (0..8_usize, 0..8_usize).prop_map(|(given, read)| Step::Send { given, read }),
            1 => (0..6_u64).prop_map(|back| Step::Resume { back }),
        ]
    }

    proptest! {
        /// After any sequence of dispatches, cuts and resumes, a client reads every event once and in order from where
        /// it resumed, unless the resume is refused.
        #[test]
        fn client_reads_every_event_once_in_order_or_is_refused(
            bound in 1..12_usize,
            steps in proptest::collection::vec(step(), 0..200),
        ) {
            let mut replay = Replay::new(bound);
            let mut dispatched = 0_u64;
            // The client has read everything up to here, in order.
            let mut read_up_to = 0_u64;
            // A client whose connection was cut reads nothing until it resumes.
            let mut cut = false;
            for step in steps {
                match step {
                    Step::Dispatch => match replay.push(event(dispatched + 1)) {
                        Ok(_) => dispatched += 1,
                        // The session ends here, and the client gets op 9.
                        Err(Overrun) => {
                            prop_assert_eq!(replay.free_capacity(), 0);
                            return Ok(());
                        }
                    },
                    Step::Send { given, read } => {
                        let mut batch = Vec::new();
                        replay.take(given, &mut batch);
                        let arrives = if cut { 0 } else { read.min(batch.len()) };
                        for (sequence, event) in &batch[..arrives] {
                            prop_assert_eq!(*sequence, read_up_to + 1);
                            prop_assert_eq!(&event.data, &Bytes::from(sequence.to_string()));
                            read_up_to = *sequence;
                        }
                        // Events that were taken and not read are lost with the connection.
                        cut |= arrives < batch.len();
                    }
                    Step::Resume { back } => {
                        let from = read_up_to.saturating_sub(back);
                        match replay.resume(from) {
                            Ok(()) => {
                                read_up_to = from;
                                cut = false;
                            }
                            Err(ResumeError::Expired) => prop_assert!(dispatched - from > bound as u64),
                            Err(ResumeError::Ahead) => prop_assert!(false, "the client has read only what was sent"),
                        }
                    }
                }
            }
            // Without further faults, the client reads the rest.
            if replay.resume(read_up_to).is_ok() {
                let rest: Vec<u64> = (read_up_to + 1..=dispatched).collect();
                prop_assert_eq!(take(&mut replay, usize::MAX), rest);
            }
        }
    }
}
