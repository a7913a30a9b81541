//! Messages that processes send each other with PostgreSQL's NOTIFY.

use guildhall_actors::supervisor::QueueSignal;
use guildhall_core::operation::{OperationId, Queue};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::ClusterEvent;

/// Maximum number of queues in one message; PostgreSQL accepts less than 8,000 bytes.
const MAX_QUEUES: usize = 100;

/// Changes of a process that are relevant to other processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::store) struct Notification {
    /// Queues that have changed.
    #[serde(default, rename = "q", skip_serializing_if = "Vec::is_empty")]
    queues: Vec<i64>,
    /// Operations that were cancelled, with their queues.
    #[serde(default, rename = "c", skip_serializing_if = "Vec::is_empty")]
    cancelled: Vec<(i64, Uuid)>,
    /// Operations that were expedited, with their queues.
    #[serde(default, rename = "h", skip_serializing_if = "Vec::is_empty")]
    expedited: Vec<(i64, Uuid)>,
    #[serde(default, rename = "p", skip_serializing_if = "is_false")]
    pauses: bool,
    #[serde(default, rename = "m", skip_serializing_if = "is_false")]
    members: bool,
    #[serde(default, rename = "s", skip_serializing_if = "is_false")]
    shards: bool,
    /// Operations have changed.
    #[serde(default, rename = "x", skip_serializing_if = "is_false")]
    changes: bool,
    /// More changes than fit in one message.
    #[serde(default, rename = "a", skip_serializing_if = "is_false")]
    anything: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "signature that serde requires")]
fn is_false(value: &bool) -> bool {
    !value
}

impl Notification {
    pub(in crate::store) fn members() -> Self {
        Self { members: true, ..Self::default() }
    }

    pub(in crate::store) fn shards() -> Self {
        Self { shards: true, ..Self::default() }
    }

    pub(in crate::store) fn changes() -> Self {
        Self { changes: true, ..Self::default() }
    }

    pub(in crate::store) fn set_changes(&mut self) {
        self.changes = true;
    }

    pub(in crate::store) fn pauses(&mut self) {
        self.pauses = true;
    }

    pub(in crate::store) fn queue(&mut self, queue: i64) {
        if self.has_room() {
            self.queues.push(queue);
        }
    }

    pub(in crate::store) fn cancelled(&mut self, queue: i64, id: OperationId) {
        if self.has_room() {
            self.cancelled.push((queue, id.uuid()));
        }
    }

    pub(in crate::store) fn expedited(&mut self, queue: i64, id: OperationId) {
        if self.has_room() {
            self.expedited.push((queue, id.uuid()));
        }
    }

    fn has_room(&mut self) -> bool {
        self.anything |= self.queues.len() + self.cancelled.len() + self.expedited.len() >= MAX_QUEUES;
        !self.anything
    }

    /// The serialized message. `None` if it is empty.
    pub(in crate::store) fn payload(&self) -> Option<String> {
        if *self == Self::default() {
            return None;
        }
        Some(serde_json::to_string(self).expect("invariant: numbers and UUIDs serialize to JSON"))
    }

    /// Whether operations have changed, for change feeds. A message that cannot be read may mean anything.
    pub(super) fn has_changes(payload: &str) -> bool {
        serde_json::from_str::<Self>(payload).map_or(true, |notification| notification.changes || notification.anything)
    }

    /// Events that a message stands for. A message that cannot be read may mean anything.
    pub(super) fn events(payload: &str) -> Vec<ClusterEvent> {
        let Ok(notification) = serde_json::from_str::<Self>(payload) else { return vec![ClusterEvent::Anything] };
        let mut events = Vec::new();
        let signals = |of: Vec<(i64, Uuid)>, signal: fn(OperationId) -> QueueSignal| {
            of.into_iter().map(move |(queue, id)| (queue, Some(signal(OperationId::from_uuid(id)))))
        };
        let queues = notification.queues.into_iter().map(|queue| (queue, None));
        let all = queues
            .chain(signals(notification.cancelled, QueueSignal::Cancelled))
            .chain(signals(notification.expedited, QueueSignal::Expedited));
        let all: Vec<_> = all.map(|(queue, signal)| (Queue::from_number(queue), signal)).collect();
        if !all.is_empty() {
            events.push(ClusterEvent::Queues(all));
        }
        events.extend(notification.pauses.then_some(ClusterEvent::Pauses));
        events.extend(notification.members.then_some(ClusterEvent::Members));
        events.extend(notification.shards.then_some(ClusterEvent::Shards));
        events.extend(notification.anything.then_some(ClusterEvent::Anything));
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notification_round_trips() {
        let id = OperationId::new(1, [7; 10]);
        let mut notification = Notification::default();
        assert_eq!(notification.payload(), None);
        notification.queue(5);
        notification.cancelled(-6, id);
        notification.expedited(-7, id);
        notification.pauses();
        let events = Notification::events(&notification.payload().unwrap());
        let queues = vec![
            (Queue::Guild(5), None),
            (Queue::Keyed(-6), Some(QueueSignal::Cancelled(id))),
            (Queue::Keyed(-7), Some(QueueSignal::Expedited(id))),
        ];
        assert_eq!(events, [ClusterEvent::Queues(queues), ClusterEvent::Pauses]);
        assert_eq!(Notification::events(&Notification::members().payload().unwrap()), [ClusterEvent::Members]);
        assert!(!Notification::has_changes(&notification.payload().unwrap()));
        let changes = Notification::changes().payload().unwrap();
        assert!(Notification::has_changes(&changes) && Notification::events(&changes).is_empty());
    }

    #[test]
    fn oversized_notification_is_marked_and_fits() {
        let mut notification = Notification::default();
        (0..10_000).for_each(|n| notification.expedited(i64::MIN + n, OperationId::new(1, [0; 10])));
        let payload = notification.payload().unwrap();
        assert!(payload.len() < 7_900, "{} bytes", payload.len());
        assert!(Notification::events(&payload).contains(&ClusterEvent::Anything));
        assert_eq!(Notification::events("what?"), [ClusterEvent::Anything]);
    }
}
