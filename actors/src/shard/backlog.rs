//! Items that a shard has read and not forwarded yet: in the order of its session, and within limits.
//!
//! ```text
//!  read ─▶ │ SessionStarted │ Skipped 1 │ Event 2 │ Event 3 │ Skipped 4–90 │ Event 91 │ ─▶ forwarded, events in batches
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::shard::{EventBatch, FlowLimit, ShardMessage};
use guildhall_core::event::{Event, EventClass};
use tokio::time::Instant;

/// Maximum number of events in a batch.
pub(crate) const BATCH_EVENTS: usize = 256;
/// A batch of this size takes no more events.
pub(crate) const BATCH_BYTES: usize = 1024 * 1024;

/// Number of dropped events by class.
pub(crate) type ShedCounts = BTreeMap<EventClass, u64>;

#[derive(Debug)]
enum BacklogItem {
    SessionStarted {
        session: Arc<str>,
        resume_url: Option<String>,
    },
    /// An event, and the time at which it was read.
    Event(Arc<Event>, Instant),
    /// Sequence numbers of a session without an event to forward: dispatches of the gateway itself, and shed events.
    Skipped {
        session: Arc<str>,
        first: u64,
        last: u64,
    },
}

/// Items that a shard has read and not forwarded yet.
#[derive(Debug)]
pub(crate) struct Backlog {
    shard: u32,
    max: FlowLimit,
    items: VecDeque<BacklogItem>,
    held: FlowLimit,
    /// How many of the events may be shed.
    sheddable: usize,
}

impl Backlog {
    pub(crate) fn new(shard: u32, max: FlowLimit) -> Self {
        let held = FlowLimit { events: 0, bytes: 0 };
        Self { shard, max, items: VecDeque::new(), held, sheddable: 0 }
    }

    /// Adds the start of a session.
    pub(crate) fn push_session_start(&mut self, session: Arc<str>, resume_url: Option<String>) {
        self.items.push_back(BacklogItem::SessionStarted { session, resume_url });
    }

    /// Adds a sequence number that has no event.
    pub(crate) fn push_skipped(&mut self, session: &Arc<str>, seq: u64) {
        append_skipped(&mut self.items, session, seq, seq);
    }

    /// Adds an event that was read at this time. A full backlog drops events that may be shed, and retains their
    /// numbers.
    pub(crate) fn push_event(&mut self, event: Arc<Event>, read_at: Instant) -> ShedCounts {
        let mut shed = ShedCounts::new();
        if self.is_full() && self.sheddable > 0 {
            self.shed(&mut shed);
        }
        if self.is_full() && event.class.may_be_shed() {
            *shed.entry(event.class).or_default() += 1;
            self.push_skipped(&event.origin.session, event.origin.seq);
            return shed;
        }
        self.held.events += 1;
        self.held.bytes += event.text.bytes();
        self.sheddable += usize::from(event.class.may_be_shed());
        self.items.push_back(BacklogItem::Event(event, read_at));
        shed
    }

    fn shed(&mut self, shed: &mut ShedCounts) {
        let mut remaining = VecDeque::with_capacity(self.items.len());
        for item in self.items.drain(..) {
            match item {
                BacklogItem::Event(event, _) if event.class.may_be_shed() => {
                    *shed.entry(event.class).or_default() += 1;
                    self.held.events -= 1;
                    self.held.bytes -= event.text.bytes();
                    append_skipped(&mut remaining, &event.origin.session, event.origin.seq, event.origin.seq);
                }
                BacklogItem::Skipped { session, first, last } => append_skipped(&mut remaining, &session, first, last),
                BacklogItem::Event(..) | BacklogItem::SessionStarted { .. } => remaining.push_back(item),
            }
        }
        self.items = remaining;
        self.sheddable = 0;
    }

    /// Whether the limit is reached.
    ///
    /// Consecutive numbers are one item, so there are about as many other items as events, unless a peer leaves numbers
    /// out on purpose.
    pub(crate) fn is_full(&self) -> bool {
        self.held.events >= self.max.events
            || self.held.bytes >= self.max.bytes
            || self.items.len() / 2 > self.max.events
    }

    /// Whether there is no room for another event, even after shedding.
    pub(crate) fn must_pause(&self) -> bool {
        self.is_full() && self.sheddable == 0
    }

    /// Whether half of it is free, so that reading can resume.
    pub(crate) fn has_eased(&self) -> bool {
        self.held.events <= self.max.events / 2
            && self.held.bytes <= self.max.bytes / 2
            && self.items.len() <= self.max.events.max(1)
    }

    /// Whether everything is forwarded.
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Events and bytes in the backlog.
    pub(crate) fn held(&self) -> FlowLimit {
        self.held
    }

    /// Removes the next message to forward, if any; events only if the receiver has `room`.
    pub(crate) fn next(&mut self, room: bool) -> Option<ShardMessage> {
        match self.items.front_mut()? {
            BacklogItem::Event(_, read_at) => {
                let read_at = *read_at;
                room.then(|| self.batch(read_at))
            }
            BacklogItem::Skipped { session, first, last } => {
                let (session, seq) = (Arc::clone(session), *first);
                if first == last {
                    self.items.pop_front();
                } else {
                    *first += 1;
                }
                Some(ShardMessage::Skipped { shard: self.shard, session, seq })
            }
            BacklogItem::SessionStarted { session, resume_url } => {
                let (session, resume_url) = (Arc::clone(session), resume_url.take());
                self.items.pop_front();
                Some(ShardMessage::SessionStarted { shard: self.shard, session, resume_url })
            }
        }
    }

    fn batch(&mut self, read_at: Instant) -> ShardMessage {
        let mut batch = Vec::with_capacity(self.items.len().min(BATCH_EVENTS));
        let mut bytes = 0;
        while batch.len() < BATCH_EVENTS && bytes < BATCH_BYTES {
            match self.items.pop_front() {
                Some(BacklogItem::Event(event, _)) => {
                    bytes += event.text.bytes();
                    self.sheddable -= usize::from(event.class.may_be_shed());
                    batch.push(event);
                }
                Some(other @ (BacklogItem::SessionStarted { .. } | BacklogItem::Skipped { .. })) => {
                    self.items.push_front(other);
                    break;
                }
                None => break,
            }
        }
        self.held.events -= batch.len();
        self.held.bytes -= bytes;
        ShardMessage::Events(EventBatch { events: batch, read_at })
    }

    /// Returns a message that was not accepted to the front.
    pub(crate) fn put_back(&mut self, message: ShardMessage) {
        match message {
            ShardMessage::SessionStarted { session, resume_url, .. } => {
                self.items.push_front(BacklogItem::SessionStarted { session, resume_url });
            }
            // A shard never sends this message itself.
            ShardMessage::Ended { .. } => {}
            ShardMessage::Skipped { session, seq, .. } => match self.items.front_mut() {
                Some(BacklogItem::Skipped { session: same, first, .. }) if *same == session && *first == seq + 1 => {
                    *first = seq;
                }
                Some(_) | None => self.items.push_front(BacklogItem::Skipped { session, first: seq, last: seq }),
            },
            ShardMessage::Events(EventBatch { events, read_at }) => {
                for event in events.into_iter().rev() {
                    self.held.events += 1;
                    self.held.bytes += event.text.bytes();
                    self.sheddable += usize::from(event.class.may_be_shed());
                    self.items.push_front(BacklogItem::Event(event, read_at));
                }
            }
        }
    }
}

fn append_skipped(items: &mut VecDeque<BacklogItem>, session: &Arc<str>, from: u64, to: u64) {
    match items.back_mut() {
        Some(BacklogItem::Skipped { session: same, last, .. })
            if same == session && last.checked_add(1) == Some(from) =>
        {
            *last = to;
        }
        Some(_) | None => items.push_back(BacklogItem::Skipped { session: Arc::clone(session), first: from, last: to }),
    }
}

#[cfg(test)]
mod tests {
    use guildhall_core::{
        event::{EventName, EventOrigin, EventText},
        time::UnixMs,
    };
    use proptest::prelude::*;

    use super::*;

    fn session() -> Arc<str> {
        "a-session".into()
    }

    fn event(seq: u64, class: EventClass, bytes: usize) -> Arc<Event> {
        Arc::new(Event {
            origin: EventOrigin { session: session(), shard: 3, seq },
            name: EventName::Known("a.name"),
            class,
            guild: None,
            channel: None,
            user: None,
            interaction: None,
            received_at: UnixMs::new(0),
            text: EventText::new("x".repeat(bytes), 0..bytes),
        })
    }

    /// Drains the backlog. Returns the sequence numbers, and whether each has an event.
    fn drain_numbers(backlog: &mut Backlog) -> Vec<(u64, bool)> {
        let mut numbers = Vec::new();
        while let Some(next) = backlog.next(true) {
            match next {
                ShardMessage::SessionStarted { .. } | ShardMessage::Ended { .. } => {}
                ShardMessage::Skipped { seq, .. } => numbers.push((seq, false)),
                ShardMessage::Events(events) => numbers.extend(events.iter().map(|event| (event.origin.seq, true))),
            }
        }
        numbers
    }

    #[test]
    fn events_are_batched_and_never_cross_other_items() {
        let mut backlog = Backlog::new(3, FlowLimit { events: 10_000, bytes: 10_000_000 });
        backlog.push_session_start(session(), Some("ws://here".to_owned()));
        backlog.push_skipped(&session(), 1);
        for seq in 2..=300 {
            backlog.push_event(event(seq, EventClass::Change, 1), Instant::now());
        }
        backlog.push_skipped(&session(), 301);
        backlog.push_event(event(302, EventClass::Change, BATCH_BYTES), Instant::now());
        backlog.push_event(event(303, EventClass::Change, 1), Instant::now());
        assert!(matches!(backlog.next(false), Some(ShardMessage::SessionStarted { shard: 3, .. })));
        assert!(matches!(backlog.next(false), Some(ShardMessage::Skipped { seq: 1, .. })));
        assert!(backlog.next(false).is_none(), "events wait for room");
        let sizes: Vec<_> = std::iter::from_fn(|| backlog.next(true))
            .map(|message| match message {
                ShardMessage::Events(events) => events.len(),
                ShardMessage::Skipped { .. } | ShardMessage::SessionStarted { .. } | ShardMessage::Ended { .. } => 0,
            })
            .collect();
        assert_eq!(sizes, [BATCH_EVENTS, 299 - BATCH_EVENTS, 0, 1, 1]);
        assert_eq!(backlog.held(), FlowLimit { events: 0, bytes: 0 });
    }

    #[test]
    fn full_backlog_sheds_fleeting_events_and_keeps_every_number() {
        let mut backlog = Backlog::new(3, FlowLimit { events: 3, bytes: 1_000 });
        backlog.push_event(event(1, EventClass::Fleeting, 1), Instant::now());
        backlog.push_event(event(2, EventClass::Chatter, 1), Instant::now());
        assert_eq!(backlog.push_event(event(3, EventClass::Fleeting, 1), Instant::now()), ShedCounts::new());
        assert!(!backlog.must_pause());
        assert_eq!(
            backlog.push_event(event(4, EventClass::Interaction, 1), Instant::now()),
            ShedCounts::from([(EventClass::Fleeting, 2)])
        );
        backlog.push_event(event(5, EventClass::Change, 1), Instant::now());
        assert!(backlog.must_pause());
        for seq in 6..10_000 {
            assert_eq!(
                backlog.push_event(event(seq, EventClass::Fleeting, 1), Instant::now()),
                ShedCounts::from([(EventClass::Fleeting, 1)])
            );
        }
        assert_eq!(backlog.items.len(), 6, "{:?}", backlog.items);
        let numbers = drain_numbers(&mut backlog);
        assert!(numbers.iter().map(|(seq, _)| *seq).eq(1..10_000));
        assert_eq!(
            numbers.iter().filter(|(_, has_event)| *has_event).map(|(seq, _)| *seq).collect::<Vec<_>>(),
            [2, 4, 5]
        );
    }

    #[test]
    fn bytes_count_and_an_empty_backlog_takes_a_large_event() {
        let mut backlog = Backlog::new(3, FlowLimit { events: 100, bytes: 10 });
        backlog.push_event(event(1, EventClass::Change, 50), Instant::now());
        assert!(backlog.must_pause() && !backlog.has_eased());
        backlog.next(true);
        assert!(!backlog.must_pause() && backlog.has_eased());
    }

    proptest! {
        /// However events are read, shed, forwarded and returned: every number is forwarded once and in order, and
        /// every event that must not be shed arrives.
        #[test]
        fn every_number_is_forwarded_once_and_in_order(
            steps in prop::collection::vec((0..4u8, 0..5usize, 1..40usize), 1..200),
        ) {
            let mut backlog = Backlog::new(3, FlowLimit { events: 8, bytes: 100 });
            let (mut seq, mut arrived, mut due) = (0, Vec::new(), Vec::new());
            for (step, class, bytes) in steps {
                match step {
                    0 | 1 => {
                        seq += 1;
                        let class = EventClass::ALL[class];
                        if !class.may_be_shed() {
                            due.push(seq);
                        }
                        backlog.push_event(event(seq, class, bytes), Instant::now());
                    }
                    2 => if let Some(event) = backlog.next(true) {
                        backlog.put_back(event);
                    },
                    _ => match backlog.next(bytes % 2 == 0) {
                        Some(ShardMessage::Events(events)) => arrived.extend(events.iter().map(|e| (e.origin.seq, true))),
                        Some(ShardMessage::Skipped { seq, .. }) => arrived.push((seq, false)),
                        Some(ShardMessage::SessionStarted { .. } | ShardMessage::Ended { .. }) | None => {}
                    },
                }
            }
            arrived.extend(drain_numbers(&mut backlog));
            prop_assert!(arrived.iter().map(|(seq, _)| *seq).eq(1..=seq));
            for due in due {
                prop_assert!(arrived.contains(&(due, true)));
            }
            prop_assert_eq!(backlog.held(), FlowLimit { events: 0, bytes: 0 });
            prop_assert_eq!(backlog.sheddable, 0);
        }
    }
}
