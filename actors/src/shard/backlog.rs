//! Items that a shard has read and not forwarded yet: in the order of its session, and within limits.
//!
//! ```text
//!  read ─▶ │ Began │ Passed 1 │ Event 2 │ Event 3 │ Passed 4–90 │ Event 91 │ ─▶ forwarded, events in batches
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
    Began {
        session: Arc<str>,
        resume_url: Option<String>,
    },
    /// An event, and the time at which it was read.
    Event(Arc<Event>, Instant),
    /// Sequence numbers of a session without an event to forward: dispatches of the gateway itself, and shed events.
    Passed {
        session: Arc<str>,
        first: u64,
        last: u64,
    },
}

/// Items that a shard has read and not forwarded yet.
#[derive(Debug)]
pub(crate) struct Backlog {
    shard: u32,
    most: FlowLimit,
    items: VecDeque<BacklogItem>,
    held: FlowLimit,
    /// How many of the events may be shed.
    sheddable: usize,
}

impl Backlog {
    pub(crate) fn new(shard: u32, most: FlowLimit) -> Self {
        let held = FlowLimit { events: 0, bytes: 0 };
        Self { shard, most, items: VecDeque::new(), held, sheddable: 0 }
    }

    /// Adds the start of a session.
    pub(crate) fn began(&mut self, session: Arc<str>, resume_url: Option<String>) {
        self.items.push_back(BacklogItem::Began { session, resume_url });
    }

    /// Adds a sequence number that has no event.
    pub(crate) fn passed(&mut self, session: &Arc<str>, seq: u64) {
        push_passed(&mut self.items, session, seq, seq);
    }

    /// Adds an event that was read at this time. A full backlog drops events that may be shed, and retains their
    /// numbers.
    pub(crate) fn event(&mut self, event: Arc<Event>, read_at: Instant) -> ShedCounts {
        let mut shed = ShedCounts::new();
        if self.is_full() && self.sheddable > 0 {
            self.shed(&mut shed);
        }
        if self.is_full() && event.class.may_be_shed() {
            *shed.entry(event.class).or_default() += 1;
            self.passed(&event.origin.session, event.origin.seq);
            return shed;
        }
        self.held.events += 1;
        self.held.bytes += event.text.bytes();
        self.sheddable += usize::from(event.class.may_be_shed());
        self.items.push_back(BacklogItem::Event(event, read_at));
        shed
    }

    fn shed(&mut self, shed: &mut ShedCounts) {
        let mut kept = VecDeque::with_capacity(self.items.len());
        for item in self.items.drain(..) {
            match item {
                BacklogItem::Event(event, _) if event.class.may_be_shed() => {
                    *shed.entry(event.class).or_default() += 1;
                    self.held.events -= 1;
                    self.held.bytes -= event.text.bytes();
                    push_passed(&mut kept, &event.origin.session, event.origin.seq, event.origin.seq);
                }
                BacklogItem::Passed { session, first, last } => push_passed(&mut kept, &session, first, last),
                BacklogItem::Event(..) | BacklogItem::Began { .. } => kept.push_back(item),
            }
        }
        self.items = kept;
        self.sheddable = 0;
    }

    /// Whether the limit is reached.
    ///
    /// Consecutive numbers are one item, so there are about as many other items as events, unless a peer leaves numbers
    /// out on purpose.
    pub(crate) fn is_full(&self) -> bool {
        self.held.events >= self.most.events
            || self.held.bytes >= self.most.bytes
            || self.items.len() / 2 > self.most.events
    }

    /// Whether there is no room for another event, even after shedding.
    pub(crate) fn must_pause(&self) -> bool {
        self.is_full() && self.sheddable == 0
    }

    /// Whether half of it is free, so that reading can resume.
    pub(crate) fn has_eased(&self) -> bool {
        self.held.events <= self.most.events / 2
            && self.held.bytes <= self.most.bytes / 2
            && self.items.len() <= self.most.events.max(1)
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
            BacklogItem::Passed { session, first, last } => {
                let (session, seq) = (Arc::clone(session), *first);
                if first == last {
                    self.items.pop_front();
                } else {
                    *first += 1;
                }
                Some(ShardMessage::Passed { shard: self.shard, session, seq })
            }
            BacklogItem::Began { session, resume_url } => {
                let (session, resume_url) = (Arc::clone(session), resume_url.take());
                self.items.pop_front();
                Some(ShardMessage::Began { shard: self.shard, session, resume_url })
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
                Some(other @ (BacklogItem::Began { .. } | BacklogItem::Passed { .. })) => {
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
    pub(crate) fn put_back(&mut self, told: ShardMessage) {
        match told {
            ShardMessage::Began { session, resume_url, .. } => {
                self.items.push_front(BacklogItem::Began { session, resume_url });
            }
            // A shard never sends this message itself.
            ShardMessage::Ended { .. } => {}
            ShardMessage::Passed { session, seq, .. } => match self.items.front_mut() {
                Some(BacklogItem::Passed { session: same, first, .. }) if *same == session && *first == seq + 1 => {
                    *first = seq;
                }
                Some(_) | None => self.items.push_front(BacklogItem::Passed { session, first: seq, last: seq }),
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

fn push_passed(items: &mut VecDeque<BacklogItem>, session: &Arc<str>, from: u64, to: u64) {
    match items.back_mut() {
        Some(BacklogItem::Passed { session: same, last, .. })
            if same == session && last.checked_add(1) == Some(from) =>
        {
            *last = to;
        }
        Some(_) | None => items.push_back(BacklogItem::Passed { session: Arc::clone(session), first: from, last: to }),
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
    fn told(backlog: &mut Backlog) -> Vec<(u64, bool)> {
        let mut told = Vec::new();
        while let Some(next) = backlog.next(true) {
            match next {
                ShardMessage::Began { .. } | ShardMessage::Ended { .. } => {}
                ShardMessage::Passed { seq, .. } => told.push((seq, false)),
                ShardMessage::Events(events) => told.extend(events.iter().map(|event| (event.origin.seq, true))),
            }
        }
        told
    }

    #[test]
    fn events_are_told_in_batches_and_never_past_what_stands_between_them() {
        let mut backlog = Backlog::new(3, FlowLimit { events: 10_000, bytes: 10_000_000 });
        backlog.began(session(), Some("ws://here".to_owned()));
        backlog.passed(&session(), 1);
        for seq in 2..=300 {
            backlog.event(event(seq, EventClass::Change, 1), Instant::now());
        }
        backlog.passed(&session(), 301);
        backlog.event(event(302, EventClass::Change, BATCH_BYTES), Instant::now());
        backlog.event(event(303, EventClass::Change, 1), Instant::now());
        assert!(matches!(backlog.next(false), Some(ShardMessage::Began { shard: 3, .. })));
        assert!(matches!(backlog.next(false), Some(ShardMessage::Passed { seq: 1, .. })));
        assert!(backlog.next(false).is_none(), "events wait for room");
        let sizes: Vec<_> = std::iter::from_fn(|| backlog.next(true))
            .map(|told| match told {
                ShardMessage::Events(events) => events.len(),
                ShardMessage::Passed { .. } | ShardMessage::Began { .. } | ShardMessage::Ended { .. } => 0,
            })
            .collect();
        assert_eq!(sizes, [BATCH_EVENTS, 299 - BATCH_EVENTS, 0, 1, 1]);
        assert_eq!(backlog.held(), FlowLimit { events: 0, bytes: 0 });
    }

    #[test]
    fn a_full_backlog_drops_what_is_true_for_a_moment_only_and_keeps_every_number() {
        let mut backlog = Backlog::new(3, FlowLimit { events: 3, bytes: 1_000 });
        backlog.event(event(1, EventClass::Fleeting, 1), Instant::now());
        backlog.event(event(2, EventClass::Chatter, 1), Instant::now());
        assert_eq!(backlog.event(event(3, EventClass::Fleeting, 1), Instant::now()), ShedCounts::new());
        assert!(!backlog.must_pause());
        assert_eq!(
            backlog.event(event(4, EventClass::Interaction, 1), Instant::now()),
            ShedCounts::from([(EventClass::Fleeting, 2)])
        );
        backlog.event(event(5, EventClass::Change, 1), Instant::now());
        assert!(backlog.must_pause());
        for seq in 6..10_000 {
            assert_eq!(
                backlog.event(event(seq, EventClass::Fleeting, 1), Instant::now()),
                ShedCounts::from([(EventClass::Fleeting, 1)])
            );
        }
        assert_eq!(backlog.items.len(), 6, "{:?}", backlog.items);
        let told = told(&mut backlog);
        assert!(told.iter().map(|(seq, _)| *seq).eq(1..10_000));
        assert_eq!(told.iter().filter(|(_, kept)| *kept).map(|(seq, _)| *seq).collect::<Vec<_>>(), [2, 4, 5]);
    }

    #[test]
    fn bytes_fill_it_too_and_a_large_one_goes_into_an_empty_one() {
        let mut backlog = Backlog::new(3, FlowLimit { events: 100, bytes: 10 });
        backlog.event(event(1, EventClass::Change, 50), Instant::now());
        assert!(backlog.must_pause() && !backlog.has_eased());
        backlog.next(true);
        assert!(!backlog.must_pause() && backlog.has_eased());
    }

    proptest! {
        /// However events are read, shed, forwarded and returned: every number is forwarded once and in order, and
        /// every event that must not be shed arrives.
        #[test]
        fn every_number_is_told_once_and_in_order(
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
                        backlog.event(event(seq, class, bytes), Instant::now());
                    }
                    2 => if let Some(told) = backlog.next(true) {
                        backlog.put_back(told);
                    },
                    _ => match backlog.next(bytes % 2 == 0) {
                        Some(ShardMessage::Events(events)) => arrived.extend(events.iter().map(|e| (e.origin.seq, true))),
                        Some(ShardMessage::Passed { seq, .. }) => arrived.push((seq, false)),
                        Some(ShardMessage::Began { .. } | ShardMessage::Ended { .. }) | None => {}
                    },
                }
            }
            arrived.extend(told(&mut backlog));
            prop_assert!(arrived.iter().map(|(seq, _)| *seq).eq(1..=seq));
            for due in due {
                prop_assert!(arrived.contains(&(due, true)));
            }
            prop_assert_eq!(backlog.held(), FlowLimit { events: 0, bytes: 0 });
            prop_assert_eq!(backlog.sheddable, 0);
        }
    }
}
