//! Queues: operations of one queue run one at a time, in order.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use sha2::{Digest as _, Sha256};

crate::named_enum! {
    /// What a queue is for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum QueueClass {
        /// A guild.
        Guild = "guild",
        /// A user, outside any guild.
        User = "user",
        /// The application itself.
        Application = "application",
        /// One interaction. Its operations wait for nothing else.
        Interaction = "interaction",
    }
}

impl QueueClass {
    /// Its code in a queue's number. Guild queues have none: their number is the guild's id. Must not change.
    const fn code(self) -> i64 {
        match self {
            Self::Guild | Self::User => 0,
            Self::Application => 1,
            Self::Interaction => 2,
        }
    }
}

/// Names a queue within a tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QueueKey {
    /// The queue of a guild. A guild belongs to one tenant, so its id is enough.
    Guild(u64),
    /// A queue of the operation's tenant.
    Keyed {
        /// What it is for.
        class: QueueClass,
        /// Which one of its class.
        key: Arc<str>,
    },
    /// A queue that exists already. Operations read from the store have this.
    Existing(Queue),
}

impl QueueKey {
    /// The queue of one user.
    #[must_use]
    pub fn user(id: u64) -> Self {
        Self::Keyed { class: QueueClass::User, key: id.to_string().into() }
    }

    /// The application's own queue.
    #[must_use]
    pub fn application() -> Self {
        Self::Keyed { class: QueueClass::Application, key: "".into() }
    }

    /// The queue of one interaction.
    #[must_use]
    pub fn interaction(id: u64) -> Self {
        Self::Keyed { class: QueueClass::Interaction, key: id.to_string().into() }
    }

    /// The tenant's queue with this key.
    #[must_use]
    pub fn queue(&self, tenant: &str) -> Queue {
        match self {
            Self::Guild(id) => Queue::Guild(*id),
            Self::Keyed { class, key } => Queue::keyed(tenant, *class, key),
            Self::Existing(queue) => *queue,
        }
    }

    /// The queue, if it is the same for every tenant.
    #[must_use]
    pub const fn fixed(&self) -> Option<Queue> {
        match self {
            Self::Guild(id) => Some(Queue::Guild(*id)),
            Self::Keyed { .. } => None,
            Self::Existing(queue) => Some(*queue),
        }
    }
}

impl From<Queue> for QueueKey {
    fn from(queue: Queue) -> Self {
        match queue {
            Queue::Guild(id) => Self::Guild(id),
            Queue::Keyed(_) => Self::Existing(queue),
        }
    }
}

impl fmt::Display for QueueKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (class, key): (QueueClass, Cow<'_, str>) = match self {
            Self::Guild(id) => (QueueClass::Guild, id.to_string().into()),
            Self::Keyed { class, key } => (*class, Cow::Borrowed(key)),
            Self::Existing(queue) => (queue.class(), queue.number().to_string().into()),
        };
        match (class, &*key) {
            (class, "") => write!(f, "the {} queue", class.name()),
            (class, key) => write!(f, "the queue of {} {key}", class.name()),
        }
    }
}

/// A queue, by its number in the store.
///
/// The number of a guild's queue is the guild's id. Other numbers are negative: the class, and 60 bits of the SHA-256
/// of tenant, class and key. The store has tenant, class and key beside the number and rejects a second queue with the
/// same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Queue {
    /// The queue of a guild.
    Guild(u64),
    /// A queue with a key of its own, by its number.
    Keyed(i64),
}

/// How many bits of the hash are in a number.
const HASH_BITS: u32 = 60;

impl Queue {
    /// The queue that a tenant has for this key.
    #[must_use]
    pub fn keyed(tenant: &str, class: QueueClass, key: &str) -> Self {
        let mut hash = Sha256::new();
        // Length prefixes keep the parts separate.
        for part in [tenant, class.name(), key] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let digest: [u8; 32] = hash.finalize().into();
        let first = digest.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        let hash = (first >> (u64::BITS - HASH_BITS)).cast_signed();
        Self::Keyed(i64::MIN | (class.code() << HASH_BITS) | hash)
    }

    /// Its number in the store.
    #[must_use]
    pub const fn number(self) -> i64 {
        match self {
            Self::Guild(id) => id.cast_signed(),
            Self::Keyed(number) => number,
        }
    }

    /// The queue with this number.
    #[must_use]
    pub const fn from_number(number: i64) -> Self {
        match number {
            1.. => Self::Guild(number.cast_unsigned()),
            _ => Self::Keyed(number),
        }
    }

    /// The guild whose queue it is.
    #[must_use]
    pub const fn guild(self) -> Option<u64> {
        match self {
            Self::Guild(id) => Some(id),
            Self::Keyed(_) => None,
        }
    }

    /// What it is for.
    #[must_use]
    pub const fn class(self) -> QueueClass {
        match self {
            Self::Guild(_) => QueueClass::Guild,
            Self::Keyed(number) => match (number >> HASH_BITS) & 0b111 {
                0 => QueueClass::User,
                2 => QueueClass::Interaction,
                _ => QueueClass::Application,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const ID: u64 = 1_571_715_189_416_398_849;

    #[test]
    fn number_gives_back_the_queue_and_its_class() {
        let keys = [
            (QueueKey::Guild(ID), QueueClass::Guild),
            (QueueKey::user(ID), QueueClass::User),
            (QueueKey::application(), QueueClass::Application),
            (QueueKey::interaction(ID), QueueClass::Interaction),
        ];
        for (key, class) in keys {
            let queue = key.queue("acme");
            assert_eq!(Queue::from_number(queue.number()), queue);
            assert_eq!((queue.class(), queue.number() > 0), (class, class == QueueClass::Guild), "{key}");
            assert_eq!(QueueKey::Existing(queue).queue("another"), queue);
            assert_eq!(QueueClass::from_name(class.name()), Some(class));
        }
    }

    #[test]
    fn tenants_classes_and_keys_have_queues_of_their_own() {
        let mut seen = HashSet::new();
        for tenant in ["", "acme", "rival", "acm"] {
            for key in [
                QueueKey::user(1),
                QueueKey::user(11),
                QueueKey::interaction(1),
                QueueKey::application(),
                QueueKey::Keyed { class: QueueClass::User, key: "e1".into() },
            ] {
                assert!(seen.insert(key.queue(tenant)), "{tenant} {key}");
            }
        }
        assert_eq!(QueueKey::Guild(ID).queue("acme"), QueueKey::Guild(ID).queue("rival"));
    }

    #[test]
    fn numbers_never_change() {
        // Stored rows refer to them.
        assert_eq!(Queue::keyed("default", QueueClass::User, "5").number(), EXPECTED[0]);
        assert_eq!(Queue::keyed("acme", QueueClass::Application, "").number(), EXPECTED[1]);
        assert_eq!(Queue::keyed("acme", QueueClass::Interaction, "5").number(), EXPECTED[2]);
    }

    const EXPECTED: [i64; 3] = [-9_217_175_647_913_053_008, -7_313_593_991_160_018_692, -6_556_854_201_460_191_966];
}
