//! Finds the earlier operations that an operation has to stay behind, by object instead of by comparing all pairs.
//!
//! ```text
//!  writes of operation 7 ──▶ users of the same name │ a name of another sort of its kind │ all of its kind
//!  reads of operation 7 ───▶ writers of …                    └──▶ the latest of them before 7
//! ```
//!
//! Two operations conflict exactly if [`Objects::meets`] returns true. The index contains, for each check of
//! [`Object::may_be`], the operations for which it returns true. Checks of one name use a hash map; checks of a whole
//! sort of names use one set for each sort, once for each operation instead of once for each object.

use std::collections::{BTreeSet, HashMap};

use foldhash::fast::RandomState;

use crate::operation::payload::{Object, Objects};
use crate::operation::{ManagedKind, OperationId, Reference};

/// The objects that an operation reads and writes.
pub trait Conflicts: Sized {
    /// Index that finds conflicts.
    type Index: ConflictIndex<Self>;
}

/// Operations by the objects that they read and write. Operations are identified by their sequence numbers.
pub trait ConflictIndex<O>: Default + Clone + std::fmt::Debug {
    /// Adds an operation.
    fn insert(&mut self, seq: u64, objects: &O);

    /// Removes an operation that was added with these objects.
    fn remove(&mut self, seq: u64, objects: &O);

    /// The latest operation before this sequence number that conflicts with these objects.
    fn latest_before(&self, seq: u64, objects: &O) -> Option<u64>;
}

impl Conflicts for Objects {
    type Index = ObjectIndex;
}

/// A hash map with a faster hash function than the default one.
///
/// Callers choose some of the keys, so the hash function has a random seed. It protects less against chosen collisions
/// than the default one. That is sufficient here: a map contains the names of one guild's operations, at most
/// `lookahead` of them, so a caller could only slow down the queue of that guild. No decision depends on the seed,
/// because none depends on the iteration order.
pub(super) type FastMap<K, V> = HashMap<K, V, RandomState>;

/// Sequence numbers in order, at least one. Most names belong to one operation, which needs no allocation.
#[derive(Clone, Debug)]
enum SeqSet {
    One(u64),
    #[expect(clippy::box_collection, reason = "rare, and a smaller entry keeps more of a large map in the CPU cache")]
    Many(Box<BTreeSet<u64>>),
}

impl SeqSet {
    fn insert(&mut self, seq: u64) {
        match self {
            Self::One(other) if *other == seq => {}
            Self::One(other) => *self = Self::Many(Box::new(BTreeSet::from([*other, seq]))),
            Self::Many(places) => {
                places.insert(seq);
            }
        }
    }

    /// The other sequence numbers, if there are any.
    fn without(self, seq: u64) -> Option<Self> {
        match self {
            Self::One(other) => (other != seq).then_some(self),
            Self::Many(mut places) => {
                places.remove(&seq);
                (!places.is_empty()).then_some(Self::Many(places))
            }
        }
    }

    fn latest_before(&self, seq: u64) -> Option<u64> {
        match self {
            Self::One(other) => Some(*other).filter(|other| *other < seq),
            Self::Many(places) => places.range(..seq).next_back().copied(),
        }
    }
}

/// Sequence numbers by name.
#[derive(Clone, Debug)]
pub(super) struct SeqsByName<K>(FastMap<K, SeqSet>);

impl<K> Default for SeqsByName<K> {
    fn default() -> Self {
        Self(FastMap::default())
    }
}

impl<K: Eq + std::hash::Hash + Clone> SeqsByName<K> {
    pub(super) fn insert(&mut self, name: &K, seq: u64) {
        self.0.entry(name.clone()).and_modify(|places| places.insert(seq)).or_insert(SeqSet::One(seq));
    }

    pub(super) fn remove(&mut self, name: &K, seq: u64) {
        // Most names belong to one operation, so the usual case is one access to the map.
        if let Some((name, places)) = self.0.remove_entry(name)
            && let Some(rest) = places.without(seq)
        {
            self.0.insert(name, rest);
        }
    }

    pub(super) fn latest_before(&self, name: &K, seq: u64) -> Option<u64> {
        self.0.get(name).and_then(|places| places.latest_before(seq))
    }
}

/// A set of sorts of names, one bit for each sort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sorts(u32);

impl Sorts {
    // Sorts within a kind of objects; see `of_kind`.
    const ID: Self = Self(1);
    const KEY: Self = Self(1 << 1);
    const MADE: Self = Self(1 << 2);
    const NEW: Self = Self(1 << 3);
    const ALL: Self = Self(1 << 4);
    const IN_KIND: u32 = 5;

    // Sorts that belong to no kind.
    const SINGLE: Self = Self(1 << (Self::IN_KIND * KINDS as u32));
    const EVERYTHING: Self = Self(Self::SINGLE.0 << 1);
    const COUNT: usize = Self::EVERYTHING.0.trailing_zeros() as usize + 1;
    const ANY: Self = Self((1 << Self::COUNT) - 1);

    const fn of_kind(self, kind: usize) -> Self {
        Self(self.0 << (Self::IN_KIND * kind as u32))
    }

    const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn indexes(self) -> impl Iterator<Item = usize> {
        (0..Self::COUNT).filter(move |index| self.0 & (1 << index) != 0)
    }
}

/// Objects that only conflict with themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Single {
    Member(u64),
    DirectMessages(u64),
    Interaction(u64),
}

/// The name of an object, if it has one, and the index of its kind.
#[derive(Clone, Copy, Debug)]
enum Name<'a> {
    None,
    Id(usize, u64),
    /// The key of an object that exists or is yet to be created.
    Key(usize, &'a String),
    /// The operation that created the object or is yet to create it.
    Operation(usize, OperationId),
    Single(Single),
}

/// Roles, channels, messages and the holders of roles.
const KINDS: usize = 4;
const HOLDERS: usize = 3;

const fn index_of(kind: ManagedKind) -> usize {
    match kind {
        ManagedKind::Role => 0,
        ManagedKind::Channel => 1,
        ManagedKind::Message => 2,
    }
}

/// How the index stores and finds an object.
struct Lookup<'a> {
    /// It conflicts with objects of the same name.
    name: Name<'a>,
    sort: Sorts,
    /// It conflicts with all objects of these sorts.
    conflicting_sorts: Sorts,
}

impl<'a> Lookup<'a> {
    const fn in_kind(kind: usize, name: Name<'a>, sort: Sorts, meets: Sorts) -> Self {
        let meets = meets.union(Sorts::ALL).of_kind(kind).union(Sorts::EVERYTHING);
        Self { name, sort: sort.of_kind(kind), conflicting_sorts: meets }
    }

    const fn id(kind: usize, id: u64) -> Self {
        Self::in_kind(kind, Name::Id(kind, id), Sorts::ID, Sorts::KEY.union(Sorts::MADE))
    }

    const fn key(kind: usize, key: &'a String) -> Self {
        Self::in_kind(kind, Name::Key(kind, key), Sorts::KEY, Sorts::ID.union(Sorts::MADE))
    }

    const fn made(kind: usize, id: OperationId) -> Self {
        let meets = Sorts::ID.union(Sorts::KEY).union(Sorts::MADE);
        Self::in_kind(kind, Name::Operation(kind, id), Sorts::MADE, meets)
    }

    const fn new(kind: usize, name: Name<'a>) -> Self {
        Self::in_kind(kind, name, Sorts::NEW, Sorts(0))
    }

    const fn all(kind: usize) -> Self {
        let others = Sorts::ID.union(Sorts::KEY).union(Sorts::MADE).union(Sorts::NEW);
        Self::in_kind(kind, Name::None, Sorts::ALL, others)
    }

    const fn single(single: Single) -> Self {
        Self { name: Name::Single(single), sort: Sorts::SINGLE, conflicting_sorts: Sorts::EVERYTHING }
    }

    const fn of(object: &'a Object) -> Self {
        match object {
            Object::Id(kind, id) => Self::id(index_of(*kind), *id),
            Object::Key(kind, key) => Self::key(index_of(*kind), key),
            Object::OfOperation(kind, id) => Self::made(index_of(*kind), *id),
            Object::New(kind, id) => Self::new(index_of(*kind), Name::Operation(index_of(*kind), *id)),
            Object::NewKey(kind, key) => Self::new(index_of(*kind), Name::Key(index_of(*kind), key)),
            Object::All(kind, _) => Self::all(index_of(*kind)),
            Object::Holders(Reference::Id(id)) => Self::id(HOLDERS, *id),
            Object::Holders(Reference::Key(key)) => Self::key(HOLDERS, key),
            Object::Holders(Reference::Operation(id)) => Self::made(HOLDERS, *id),
            Object::Member(user) => Self::single(Single::Member(*user)),
            Object::DirectMessages(user) => Self::single(Single::DirectMessages(*user)),
            Object::Interaction(interaction) => Self::single(Single::Interaction(*interaction)),
            Object::Everything => Self { name: Name::None, sort: Sorts::EVERYTHING, conflicting_sorts: Sorts::ANY },
        }
    }
}

/// The objects that operations read, or those that they write.
#[derive(Clone, Debug, Default)]
struct AccessIndex {
    ids: [SeqsByName<u64>; KINDS],
    keys: [SeqsByName<String>; KINDS],
    operations: [SeqsByName<OperationId>; KINDS],
    singles: SeqsByName<Single>,
    /// Operations by the sorts of names that they use, one set for each sort.
    sorts: [BTreeSet<u64>; Sorts::COUNT],
}

impl AccessIndex {
    fn insert(&mut self, seq: u64, objects: &[Object]) {
        let mut sorts = Sorts::default();
        for lookup in objects.iter().map(Lookup::of) {
            sorts = sorts.union(lookup.sort);
            match lookup.name {
                Name::None => {}
                Name::Id(kind, id) => self.ids[kind].insert(&id, seq),
                Name::Key(kind, key) => self.keys[kind].insert(key, seq),
                Name::Operation(kind, id) => self.operations[kind].insert(&id, seq),
                Name::Single(single) => self.singles.insert(&single, seq),
            }
        }
        for index in sorts.indexes() {
            self.sorts[index].insert(seq);
        }
    }

    fn remove(&mut self, seq: u64, objects: &[Object]) {
        let mut sorts = Sorts::default();
        for lookup in objects.iter().map(Lookup::of) {
            sorts = sorts.union(lookup.sort);
            match lookup.name {
                Name::None => {}
                Name::Id(kind, id) => self.ids[kind].remove(&id, seq),
                Name::Key(kind, key) => self.keys[kind].remove(key, seq),
                Name::Operation(kind, id) => self.operations[kind].remove(&id, seq),
                Name::Single(single) => self.singles.remove(&single, seq),
            }
        }
        for index in sorts.indexes() {
            self.sorts[index].remove(&seq);
        }
    }

    fn latest_before(&self, seq: u64, objects: &[Object]) -> Option<u64> {
        let (mut latest, mut meets) = (None, Sorts::default());
        for lookup in objects.iter().map(Lookup::of) {
            meets = meets.union(lookup.conflicting_sorts);
            latest = latest.max(match lookup.name {
                Name::None => None,
                Name::Id(kind, id) => self.ids[kind].latest_before(&id, seq),
                Name::Key(kind, key) => self.keys[kind].latest_before(key, seq),
                Name::Operation(kind, id) => self.operations[kind].latest_before(&id, seq),
                Name::Single(single) => self.singles.latest_before(&single, seq),
            });
        }
        let of_sorts = meets.indexes().filter_map(|index| self.sorts[index].range(..seq).next_back().copied());
        latest.max(of_sorts.max())
    }
}

/// Operations by the objects that they read and write.
#[derive(Clone, Debug, Default)]
pub struct ObjectIndex {
    reads: AccessIndex,
    writes: AccessIndex,
}

impl ConflictIndex<Objects> for ObjectIndex {
    fn insert(&mut self, seq: u64, objects: &Objects) {
        self.reads.insert(seq, &objects.reads);
        self.writes.insert(seq, &objects.writes);
    }

    fn remove(&mut self, seq: u64, objects: &Objects) {
        self.reads.remove(seq, &objects.reads);
        self.writes.remove(seq, &objects.writes);
    }

    fn latest_before(&self, seq: u64, objects: &Objects) -> Option<u64> {
        let of_writes =
            self.writes.latest_before(seq, &objects.writes).max(self.reads.latest_before(seq, &objects.writes));
        of_writes.max(self.writes.latest_before(seq, &objects.reads))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn objects() -> impl Strategy<Value = Object> {
        let kind = || prop_oneof![Just(ManagedKind::Role), Just(ManagedKind::Channel)];
        let id = || (1_u64..3).prop_map(|n| OperationId::new(n, [0; 10]));
        let key = || prop_oneof![Just("a".to_owned()), Just("b".to_owned())];
        let reference = prop_oneof![
            (1_u64..3).prop_map(Reference::Id),
            key().prop_map(Reference::Key),
            id().prop_map(Reference::Operation),
        ];
        prop_oneof![
            4 => (kind(), 1_u64..4).prop_map(|(kind, id)| Object::Id(kind, id)),
            2 => (kind(), key()).prop_map(|(kind, key)| Object::Key(kind, key)),
            2 => (kind(), id()).prop_map(|(kind, id)| Object::OfOperation(kind, id)),
            4 => (kind(), id()).prop_map(|(kind, id)| Object::New(kind, id)),
            4 => (kind(), key()).prop_map(|(kind, key)| Object::NewKey(kind, key)),
            1 => (kind(), 1_u64..3).prop_map(|(kind, guild)| Object::All(kind, guild)),
            4 => (1_u64..4).prop_map(Object::Member),
            3 => reference.prop_map(Object::Holders),
            2 => (1_u64..4).prop_map(Object::DirectMessages),
            2 => (1_u64..4).prop_map(Object::Interaction),
            1 => Just(Object::Everything),
        ]
    }

    pub(in super::super) fn sets() -> impl Strategy<Value = Objects> {
        let some = || prop::collection::vec(objects(), 0..3);
        (some(), some()).prop_map(|(reads, writes)| Objects { reads, writes })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

        #[test]
        fn index_finds_what_comparing_all_pairs_finds(
            sets in prop::collection::vec(sets(), 1..12),
            ends in prop::collection::vec(0_usize..12, 0..12),
        ) {
            let mut index = ObjectIndex::default();
            let mut left: Vec<(u64, Objects)> = (1..).zip(sets).collect();
            left.iter().for_each(|(seq, objects)| index.insert(*seq, objects));
            for end in ends.into_iter().map(Some).chain([None]) {
                for (seq, objects) in &left {
                    let met = left.iter().filter(|(other, of)| other < seq && objects.meets(of));
                    let expected = met.map(|(other, _)| *other).max();
                    prop_assert_eq!(index.latest_before(*seq, objects), expected, "{}: {:?}", seq, left);
                }
                if let Some(end) = end.filter(|end| *end < left.len()) {
                    let (seq, objects) = left.remove(end);
                    index.remove(seq, &objects);
                }
            }
            for (seq, objects) in left {
                index.remove(seq, &objects);
            }
            let sides = [&index.reads, &index.writes];
            let is_empty = |side: &AccessIndex| {
                side.singles.0.is_empty() && side.sorts.iter().all(BTreeSet::is_empty)
                    && side.ids.iter().all(|names| names.0.is_empty())
                    && side.keys.iter().all(|names| names.0.is_empty())
                    && side.operations.iter().all(|names| names.0.is_empty())
            };
            prop_assert!(sides.into_iter().all(is_empty), "a finished operation leaves nothing behind");
        }
    }
}
