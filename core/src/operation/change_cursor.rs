//! Position of a reader in the stream of operation changes.
//!
//! ```text
//!  changes:   1   2   3   4   5   6   7   8   9 …
//!            done done  ?  done done  ?  done│ not read yet
//!                      └───open───┘          └─next
//! ```
//!
//! Each operation stores the number of the change that last touched it. A change is a transaction of the store, and
//! every row that it touches gets its number. A transaction gets its number when it starts to write, but with several
//! concurrent writers transactions end in any order. So "everything up to here" is not one number: it is a number, plus
//! the numbers below it whose transactions were still open at the time of the read. The next read requests the open
//! changes by number, so no reader waits for them.

use std::collections::BTreeSet;

use uuid::Uuid;

/// Maximum number of open changes below a cursor. Beyond that, later changes wait until some open ones have ended.
const MAX_OPEN: usize = 512;

/// First byte of every encoded cursor.
const VERSION: u8 = 1;

/// The changes that were visible at one moment: every change below `next` except those in `open`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VisibleChanges {
    /// The first change number that was not visible.
    pub next: u64,
    /// Changes below `next` whose transactions had not ended.
    pub open: BTreeSet<u64>,
}

impl VisibleChanges {
    /// Limits the open changes to what a cursor can hold: if too many are open, `next` moves down.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        if let Some(first) = self.open.iter().nth(MAX_OPEN).copied() {
            self.open.split_off(&first);
            self.next = first;
        }
        self
    }
}

/// How far a reader has followed the changes. Every change below it was delivered or does not concern the reader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeCursor {
    next: u64,
    open: BTreeSet<u64>,
    /// A change below `next` that was delivered only up to this operation.
    partial: Option<(u64, Uuid)>,
}

impl ChangeCursor {
    /// Cursor of a reader that has received all visible changes.
    #[must_use]
    pub fn at(seen: VisibleChanges) -> Self {
        let VisibleChanges { next, open } = seen.bounded();
        Self { next, open, partial: None }
    }

    /// The first change that was not read.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// Changes below [`Self::next`] whose transactions had not ended.
    #[must_use]
    pub const fn open(&self) -> &BTreeSet<u64> {
        &self.open
    }

    /// A change below [`Self::next`] that was delivered only in part, and the last operation of it that was delivered.
    #[must_use]
    pub const fn partial(&self) -> Option<(u64, Uuid)> {
        self.partial
    }

    /// Sort key for delivery: a change that was delivered in part comes first.
    #[must_use]
    pub fn order(&self, change: u64, operation: Uuid) -> (bool, u64, Uuid) {
        (self.partial.is_none_or(|(started, _)| started != change), change, operation)
    }

    /// Records the delivery of this operation, and of all that comes before it in [`Self::order`].
    pub fn on_delivered(&mut self, seen: &VisibleChanges, change: u64, operation: Uuid) {
        // A partly delivered change comes before all open ones.
        if let Some((started, last)) = &mut self.partial
            && *started == change
        {
            *last = operation;
            return;
        }
        self.open.remove(&change);
        // Later open changes were not delivered yet, whether they have ended since or not.
        self.open.retain(|open| *open > change || seen.open.contains(open));
        if change >= self.next {
            self.open.extend(seen.open.range(self.next..change));
            self.next = change + 1;
        }
        self.partial = Some((change, operation));
    }

    /// Records the delivery of all visible changes.
    pub fn on_end(&mut self, seen: &VisibleChanges) {
        self.open.retain(|open| seen.open.contains(open));
        if seen.next > self.next {
            self.open.extend(seen.open.range(self.next..seen.next));
            self.next = seen.next;
        }
        self.partial = None;
    }

    /// Whether changes were deleted that this reader never received. `forgotten` is the highest deleted change.
    #[must_use]
    pub fn is_behind(&self, forgotten: u64) -> bool {
        let started = self.partial.map_or(self.next, |(change, _)| change);
        let lowest = self.open.first().copied().unwrap_or(self.next).min(started);
        forgotten >= lowest
    }

    /// Whether the cursor is from another store, or from a later time of this one: its position does not exist yet.
    #[must_use]
    pub fn is_ahead(&self, seen: &VisibleChanges) -> bool {
        self.next > seen.next
    }

    /// Encodes the cursor for the client, which sends it back.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        write(&mut bytes, self.next);
        write(&mut bytes, self.open.len() as u64);
        let mut above = self.next;
        for open in self.open.iter().rev() {
            write(&mut bytes, above - open);
            above = *open;
        }
        if let Some((change, operation)) = self.partial {
            write(&mut bytes, self.next - change);
            bytes.extend_from_slice(operation.as_bytes());
        }
        bytes
    }

    /// Decodes the output of [`Self::to_bytes`]; `None` for anything else.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&VERSION, mut rest) = bytes.split_first()? else { return None };
        let next = read(&mut rest)?;
        let count = usize::try_from(read(&mut rest)?).ok().filter(|count| *count <= MAX_OPEN)?;
        let (mut open, mut above) = (BTreeSet::new(), next);
        for _ in 0..count {
            above = above.checked_sub(read(&mut rest)?.max(1))?;
            open.insert(above);
        }
        if rest.is_empty() {
            return Some(Self { next, open, partial: None });
        }
        let change = next.checked_sub(read(&mut rest)?.max(1))?;
        let partial = (!open.contains(&change)).then_some((change, Uuid::from_slice(rest).ok()?))?;
        Some(Self { next, open, partial: Some(partial) })
    }
}

/// LEB128: seven bits per byte, lowest first.
fn write(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

fn read(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        number |= bits.checked_shl(shift).filter(|shifted| shifted >> shift == bits)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// A store with concurrent writers, and the changes that a reader of it received.
    #[derive(Debug, Default)]
    struct World {
        /// The next change number.
        next: u64,
        /// Open transactions, with their writes.
        open: BTreeMap<u64, Vec<u8>>,
        /// Operations, each with its last change.
        rows: BTreeMap<u8, u64>,
        /// How often each change of each operation was delivered.
        delivered: BTreeMap<(u64, u8), u32>,
        reader: ChangeCursor,
        /// Earlier cursors of the reader.
        saved_cursors: Vec<ChangeCursor>,
    }

    impl World {
        fn begin(&mut self, writes: Vec<u8>) {
            // The first writer of a row locks it.
            let taken: BTreeSet<u8> = self.open.values().flatten().copied().collect();
            let writes = writes.into_iter().filter(|row| !taken.contains(row)).collect();
            self.open.insert(self.next, writes);
            self.next += 1;
        }

        fn end(&mut self, nth: usize, commits: bool) {
            let Some(change) = self.open.keys().nth(nth % self.open.len().max(1)).copied() else { return };
            for row in self.open.remove(&change).unwrap_or_default().into_iter().filter(|_| commits) {
                self.rows.insert(row, change);
            }
        }

        /// Reads one page, as the store does, and stops after `cut` rows of it.
        fn read(&mut self, page: usize, cut: usize) {
            let seen = VisibleChanges { next: self.next, open: self.open.keys().copied().collect() };
            let reader = &self.reader;
            let concerns = |change: u64, row: u8| match reader.partial() {
                Some((started, last)) if started == change => operation_id(row) > last,
                _ => change >= reader.next() || reader.open().contains(&change),
            };
            let mut rows: Vec<_> = self.rows.iter().map(|(row, change)| (*change, *row)).collect();
            rows.retain(|(change, row)| concerns(*change, *row));
            rows.sort_by_key(|(change, row)| reader.order(*change, operation_id(*row)));
            let full = rows.len() > page;
            rows.truncate(page);
            let count = rows.len();
            for (change, row) in rows.into_iter().take(cut) {
                *self.delivered.entry((change, row)).or_default() += 1;
                self.reader.on_delivered(&seen, change, operation_id(row));
            }
            if !full && cut >= count {
                self.reader.on_end(&seen);
            }
            let written = self.reader.to_bytes();
            assert_eq!(ChangeCursor::from_bytes(&written).as_ref(), Some(&self.reader));
            self.saved_cursors.push(self.reader.clone());
        }

        fn read_to_the_end(&mut self) {
            for _ in 0..30 {
                self.read(3, usize::MAX);
            }
        }
    }

    fn operation_id(row: u8) -> Uuid {
        Uuid::from_u128(u128::from(row) + 1)
    }

    #[derive(Clone, Debug)]
    enum Step {
        Begin(Vec<u8>),
        End(usize, bool),
        Read(usize, usize),
        /// The reader loses its position and continues from an earlier one.
        Rewind(usize),
    }

    fn steps(falls: bool) -> impl Strategy<Value = Vec<Step>> {
        let begin = proptest::collection::vec(0..20_u8, 0..8).prop_map(Step::Begin);
        let end = (any::<usize>(), prop::bool::weighted(0.8)).prop_map(|(nth, commits)| Step::End(nth, commits));
        let read = (1..6_usize, 0..8_usize).prop_map(|(page, cut)| Step::Read(page, cut));
        let fall = any::<usize>().prop_map(Step::Rewind);
        let weight = u32::from(falls);
        proptest::collection::vec(prop_oneof![4 => begin, 4 => end, 4 => read, weight => fall], 0..120)
    }

    fn run(steps: Vec<Step>) -> World {
        let mut world = World { next: 1, ..World::default() };
        for step in steps {
            match step {
                Step::Begin(writes) => world.begin(writes),
                Step::End(nth, commits) => world.end(nth, commits),
                Step::Read(page, cut) => world.read(page, cut),
                Step::Rewind(_) if world.saved_cursors.is_empty() => {}
                Step::Rewind(nth) => world.reader = world.saved_cursors[nth % world.saved_cursors.len()].clone(),
            }
        }
        world.read_to_the_end();
        world
    }

    proptest! {
        #[test]
        fn reader_receives_every_last_change_exactly_once(steps in steps(false)) {
            let world = run(steps);
            for (row, change) in &world.rows {
                prop_assert!(world.delivered.contains_key(&(*change, *row)), "{row} changed in {change}: {world:?}");
            }
            prop_assert!(world.delivered.values().all(|times| *times == 1), "{world:?}");
        }

        #[test]
        fn reader_resumed_from_any_cursor_misses_nothing(steps in steps(true)) {
            let world = run(steps);
            for (row, change) in &world.rows {
                prop_assert!(world.delivered.contains_key(&(*change, *row)), "{row} changed in {change}: {world:?}");
            }
        }

        #[test]
        fn arbitrary_bytes_decode_to_none_or_a_consistent_cursor(bytes in any::<Vec<u8>>()) {
            if let Some(read) = ChangeCursor::from_bytes(&bytes) {
                prop_assert!(read.open.iter().all(|open| *open < read.next));
                prop_assert!(read.partial.is_none_or(|(change, _)| change < read.next && !read.open.contains(&change)));
            }
        }
    }

    #[test]
    fn deletion_before_delivery_is_detected() {
        let seen = VisibleChanges { next: 10, open: BTreeSet::from([6]) };
        let mut cursor = ChangeCursor::at(seen);
        assert!(cursor.is_behind(10) && cursor.is_behind(6) && !cursor.is_behind(5));
        cursor.on_end(&VisibleChanges { next: 12, open: BTreeSet::new() });
        assert!(cursor.is_behind(12) && !cursor.is_behind(11));
        cursor.on_delivered(&VisibleChanges { next: 20, open: BTreeSet::new() }, 15, operation_id(1));
        assert!(cursor.is_behind(15) && !cursor.is_behind(14), "the rest of 15 was not delivered yet");
        assert!(cursor.is_ahead(&VisibleChanges { next: 15, open: BTreeSet::new() }));
        assert!(!cursor.is_ahead(&VisibleChanges { next: 16, open: BTreeSet::new() }));
    }

    #[test]
    fn too_many_open_changes_hold_back_later_ones() {
        let open: BTreeSet<u64> = (0..2_000).map(|n| 1_000 + 2 * n).collect();
        let cursor = ChangeCursor::at(VisibleChanges { next: 10_000, open });
        assert_eq!((cursor.open.len(), cursor.next), (MAX_OPEN, 1_000 + 2 * MAX_OPEN as u64));
        assert_eq!(ChangeCursor::from_bytes(&cursor.to_bytes()), Some(cursor));
    }
}
