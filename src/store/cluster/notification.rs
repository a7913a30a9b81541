//! Messages that processes send each other with PostgreSQL's NOTIFY.

use guildhall_actors::supervisor::QueueSignal;
use guildhall_core::operation::{OperationId, Queue};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::ClusterEvent;

/// Maximum number of queues in one message; PostgreSQL accepts less than 8,000 bytes.
const MOST: usize = 100;

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
    hastened: Vec<(i64, Uuid)>,
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

    pub(in crate::store) fn say_changes(&mut self) {
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

    pub(in crate::store) fn hastened(&mut self, queue: i64, id: OperationId) {
        if self.has_room() {
            self.hastened.push((queue, id.uuid()));
        }
    }

    fn has_room(&mut self) -> bool {
        self.anything |= self.queues.len() + self.cancelled.len() + self.hastened.len() >= MOST;
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
    pub(super) fn tells_of_changes(payload: &str) -> bool {
        serde_json::from_str::<Self>(payload).map_or(true, |said| said.changes || said.anything)
    }

    /// Events that a message stands for. A message that cannot be read may mean anything.
    pub(super) fn heard(payload: &str) -> Vec<ClusterEvent> {
        let Ok(said) = serde_json::from_str::<Self>(payload) else { return vec![ClusterEvent::Anything] };
        let mut notices = Vec::new();
        let words = |of: Vec<(i64, Uuid)>, word: fn(OperationId) -> QueueSignal| {
            of.into_iter().map(move |(queue, id)| (queue, Some(word(OperationId::from_uuid(id)))))
        };
        let queues = said.queues.into_iter().map(|queue| (queue, None));
        let all = queues
            .chain(words(said.cancelled, QueueSignal::Cancelled))
            .chain(words(said.hastened, QueueSignal::Hastened));
        let all: Vec<_> = all.map(|(queue, word)| (Queue::from_number(queue), word)).collect();
        if !all.is_empty() {
            notices.push(ClusterEvent::Queues(all));
        }
        notices.extend(said.pauses.then_some(ClusterEvent::Pauses));
        notices.extend(said.members.then_some(ClusterEvent::Members));
        notices.extend(said.shards.then_some(ClusterEvent::Shards));
        notices.extend(said.anything.then_some(ClusterEvent::Anything));
        notices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_heard() {
        let id = OperationId::new(1, [7; 10]);
        let mut said = Notification::default();
        assert_eq!(said.payload(), None);
        said.queue(5);
        said.cancelled(-6, id);
        said.hastened(-7, id);
        said.pauses();
        let heard = Notification::heard(&said.payload().unwrap());
        let queues = vec![
            (Queue::Guild(5), None),
            (Queue::Keyed(-6), Some(QueueSignal::Cancelled(id))),
            (Queue::Keyed(-7), Some(QueueSignal::Hastened(id))),
        ];
        assert_eq!(heard, [ClusterEvent::Queues(queues), ClusterEvent::Pauses]);
        assert_eq!(Notification::heard(&Notification::members().payload().unwrap()), [ClusterEvent::Members]);
        assert!(!Notification::tells_of_changes(&said.payload().unwrap()));
        let changes = Notification::changes().payload().unwrap();
        assert!(Notification::tells_of_changes(&changes) && Notification::heard(&changes).is_empty());
    }

    #[test]
    fn too_much_to_say_is_said_to_be_so_and_fits() {
        let mut said = Notification::default();
        (0..10_000).for_each(|n| said.hastened(i64::MIN + n, OperationId::new(1, [0; 10])));
        let payload = said.payload().unwrap();
        assert!(payload.len() < 7_900, "{} bytes", payload.len());
        assert!(Notification::heard(&payload).contains(&ClusterEvent::Anything));
        assert_eq!(Notification::heard("what?"), [ClusterEvent::Anything]);
    }
}
