//! The lender: it has the common count and lends parts of the limit, so that all processes behind an address stay
//! within it.
//!
//! In production it is a Redis script, which all processes can reach and which does the same steps
//! (`src/redis/ledger.lua`, compared with this by `tests/redis/state`). Here it is a state machine for tests.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Holder, LargeHolder, LenderReply, LenderRequest};
use crate::time::Timestamp;

/// Number of slots per window.
const SLOTS: u64 = 60;

/// After a loss of its state, it lends only from its reserve for this time, so that processes can report what they
/// remember.
const SETTLING_MS: u64 = 3_000;

/// The reserve is one part in this many of the limit, and is lent at no other time. So if the state is lost once while
/// lent allowances are reserved, the limit holds; each further loss can exceed it by the reserve, if new processes
/// arrive each time before those that remember.
const RESERVE: u64 = 40;

/// A process with a request within this time is a member.
const RECENT_MS: u64 = 5_000;

/// Maximum duration of a call.
const MAX_CALL_MS: u64 = 60_000;

/// Allowance of one process beyond its calls in flight: one part in this many of what is free; and of the limit, at
/// most.
const PARTS: u64 = 10;

/// Exposure of one process for one holder: one part in this many of what is free.
const EXPOSURE_PARTS: u64 = 8;

/// Maximum number of processes.
const MAX_PROCESSES: usize = 1_000;

/// A holder is large, and listed, from one part in this many of its cap.
const LARGE: u64 = 8;

/// Maximum number of large holders that one process can report from memory.
const MAX_LARGE_HOLDERS: usize = 1_000;

#[derive(Clone, Copy, Debug)]
struct Borrower {
    acknowledged: u64,
    ceiling: u64,
    in_flight: u64,
    /// What it may add for any one holder without another request.
    exposure: u64,
    number: u64,
    last_request: u64,
}

impl Borrower {
    const fn lent(&self) -> u64 {
        self.ceiling.saturating_sub(self.acknowledged)
    }
}

/// Counts for one address, and lends the rest of its limit.
#[derive(Debug)]
pub struct Lender {
    limit: u64,
    window: u64,
    /// Since when its state is complete, and on which server.
    born: Option<(u64, String)>,
    /// What it has lent from its reserve since then.
    drawn: u64,
    /// Counts by slot number.
    slots: BTreeMap<u64, u64>,
    entries: BTreeMap<String, Borrower>,
    /// What processes remember from before `born`: the count, and when it expires.
    remembered: (u64, u64),
    /// Number of processes with a lent allowance then, and how many of them have sent a request since.
    holders: u64,
    returned: u64,
    /// What all of them could add for one holder without another request, and the part of it of those that have sent a
    /// request since.
    remembered_exposure: u64,
    returned_exposure: u64,
    /// Counts of each key, tenant and guild by slot number.
    charged: BTreeMap<Holder, BTreeMap<u64, u64>>,
    /// What processes remember of them: the count, and when it expires.
    remembered_charged: BTreeMap<Holder, (u64, u64)>,
    /// What was granted from the reserve of exposure since `born`.
    drawn_exposure: u64,
}

impl Lender {
    /// Creates a lender without state.
    #[must_use]
    pub fn new(limit: u32, window: Duration) -> Self {
        Self {
            limit: limit.into(),
            window: u64::try_from(window.as_millis()).unwrap_or(u64::MAX),
            born: None,
            drawn: 0,
            slots: BTreeMap::new(),
            entries: BTreeMap::new(),
            remembered: (0, 0),
            holders: 0,
            returned: 0,
            remembered_exposure: 0,
            returned_exposure: 0,
            charged: BTreeMap::new(),
            remembered_charged: BTreeMap::new(),
            drawn_exposure: 0,
        }
    }

    /// Handles a request of a process. `number` counts its requests: a delayed request may arrive after the next one,
    /// and gets no reply. `server` is where the lender runs: another server may not have the complete state.
    pub fn sync(
        &mut self,
        process: &str,
        number: u64,
        request: &LenderRequest,
        server: &str,
        now: Timestamp,
    ) -> Option<LenderReply> {
        let now = now.micros() / 1_000;
        let born = self.accept(process, number, request, server, now)?;
        self.count(self.new_count(process, request), now);
        self.charge(process, request, now);
        if !self.entries.contains_key(process) {
            self.merge_remembered(request, now);
        }
        let in_flight = u64::from(request.in_flight);
        let max_allowance = (self.limit / PARTS).max(1);
        let reserve = self.limit / RESERVE;
        let missing = if now - born < self.hold() { self.holders.saturating_sub(self.returned) } else { 0 };
        let others = || self.entries.iter().filter(|(name, _)| *name != process).map(|(_, entry)| entry);
        let lent: u64 = others().map(Borrower::lent).sum();
        let free = self.limit.saturating_sub(reserve + self.total() + lent + missing * max_allowance);
        let room = free.saturating_sub(in_flight);
        let more = if room == 0 { 0 } else { (room / PARTS).max(1) };
        let mut granted = request.counted + (in_flight + more).min(max_allowance);
        let mut drawn = self.drawn;
        if now - born < SETTLING_MS {
            let desired = request.counted + (in_flight + (reserve / PARTS).max(1)).min(max_allowance);
            granted = granted.min(request.ceiling.max(desired.min(request.ceiling + reserve.saturating_sub(drawn))));
            drawn += granted.saturating_sub(request.ceiling);
        }
        let (exposure, elsewhere_exposure) = self.grant_exposure(process, request, missing, born, now);
        let (floor, large) = self.large(u64::from(request.cap), born, now);
        let recent = || others().filter(|entry| now - entry.last_request < RECENT_MS);
        let reply = LenderReply {
            requested_at: request.requested_at,
            acknowledged: request.counted,
            ceiling: granted,
            slots: self.expiring_counts(now),
            members: narrow(recent().count() as u64 + 1),
            holders: narrow(others().count() as u64 + 1 + missing),
            in_flight_elsewhere: narrow(recent().map(|entry| entry.in_flight).sum()),
            exposure: narrow(exposure),
            elsewhere_exposure: narrow(elsewhere_exposure),
            floor,
            large,
        };
        self.drawn = drawn;
        if now - born < SETTLING_MS {
            self.drawn_exposure += exposure.saturating_sub(request.exposure.into());
        }
        // A lower ceiling is only a request: until the process confirms it, the old one is in use.
        let ceiling = granted.max(request.ceiling);
        let exposure = exposure.max(request.exposure.into());
        let entry = Borrower { acknowledged: request.counted, ceiling, in_flight, exposure, number, last_request: now };
        self.entries.insert(process.to_owned(), entry);
        Some(reply)
    }

    /// Removes a process. Its calls in flight count, because no process will count them later.
    pub fn leave(&mut self, process: &str, number: u64, request: &LenderRequest, server: &str, now: Timestamp) {
        let now = now.micros() / 1_000;
        if self.accept(process, number, request, server, now).is_some() {
            self.count(self.new_count(process, request) + u64::from(request.in_flight), now);
            self.charge(process, request, now);
            if self.entries.remove(process).is_none() {
                self.merge_remembered(request, now);
            }
        }
    }

    /// All that is counted, and all that may be added without another request.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.total() + self.entries.values().map(Borrower::lent).sum::<u64>()
    }

    /// Accepts a request, unless it is late or there are too many processes; returns since when the state is complete.
    fn accept(&mut self, process: &str, number: u64, request: &LenderRequest, server: &str, now: u64) -> Option<u64> {
        self.forget(now);
        match self.entries.get(process) {
            Some(entry) if entry.number >= number => return None,
            None if self.entries.len() >= MAX_PROCESSES => return None,
            Some(_) | None => {}
        }
        debug_assert!(
            request.ceiling >= request.counted + u64::from(request.in_flight),
            "more calls in flight than the ceiling allows"
        );
        match &self.born {
            Some((born, on)) if on == server => Some(*born),
            Some(_) | None => {
                self.born = Some((now, server.to_owned()));
                self.drawn = 0;
                self.drawn_exposure = 0;
                Some(now)
            }
        }
    }

    /// What a process may add for any one holder without another request, and what the others may. All together may add
    /// half of a holder's cap. A process gets a part of what is free: the grant of a process that died is reserved for
    /// a long time, and its successor needs some as well.
    fn grant_exposure(&self, process: &str, request: &LenderRequest, missing: u64, born: u64, now: u64) -> (u64, u64) {
        let others = self.entries.iter().filter(|(name, _)| *name != process).map(|(_, entry)| entry);
        let (count, granted) = others.fold((0, 0), |(count, sum), entry| (count + 1, sum + entry.exposure));
        let (cap, requested) = (u64::from(request.cap), u64::from(request.exposure));
        let half = (cap / 2).max(1);
        let unknown = if missing > 0 { self.remembered_exposure.saturating_sub(self.returned_exposure) } else { 0 };
        let fair = (half / (count + 1 + missing)).max(1);
        let free = half.saturating_sub(granted + unknown);
        let exposure = fair.min((free / EXPOSURE_PARTS).max(1)).min(free);
        if now - born >= SETTLING_MS {
            return (exposure, granted + unknown);
        }
        // Processes with an earlier grant send a request and report it; meanwhile new processes get a little.
        let reserve = cap / PARTS;
        let little = (reserve / 4).max(1).min(requested + reserve.saturating_sub(self.drawn_exposure));
        (exposure.min(requested.max(little)), half + reserve)
    }

    /// Maximum count of a holder that is not listed, and the holders with more. What was lost at `born` was below this
    /// for every holder that no process remembers.
    fn large(&self, cap: u64, born: u64, now: u64) -> (u32, Vec<LargeHolder>) {
        let large = (cap / LARGE).max(1);
        let floor = large - 1;
        let forgotten = (now - born < self.window && floor > 0).then(|| (born + self.window, floor));
        let mut listed = Vec::new();
        let remembered = self.remembered_charged.keys().filter(|holder| !self.charged.contains_key(holder));
        for holder in self.charged.keys().chain(remembered) {
            let slots = self.charged.get(holder).into_iter().flatten();
            let slots = slots.map(|(slot, count)| (self.slot_expiry(*slot), *count));
            let mut all: Vec<(u64, u64)> =
                slots.chain(self.remembered_charged.get(holder).map(|(count, until)| (*until, *count))).collect();
            if all.iter().map(|(_, count)| count).sum::<u64>() >= large {
                all.extend(forgotten);
                all.sort_unstable();
                let leaving =
                    all.into_iter().map(|(leaves, count)| (Duration::from_millis(leaves - now), narrow(count)));
                listed.push((holder.clone(), leaving.collect()));
            }
        }
        listed.sort_unstable();
        (narrow(floor + forgotten.map_or(0, |(_, floor)| floor)), listed)
    }

    /// Counts new responses for holders.
    fn charge(&mut self, process: &str, request: &LenderRequest, now: u64) {
        let acknowledged = self.entries.get(process).map(|entry| entry.acknowledged);
        let from = acknowledged.unwrap_or(request.counted - request.unacknowledged);
        let slot = now / self.width();
        for run in &request.runs {
            let new = run.after(from);
            if new > 0 {
                for holder in run.owner.holders() {
                    *self.charged.entry(holder).or_default().entry(slot).or_default() += new;
                }
            }
        }
    }

    fn new_count(&self, process: &str, request: &LenderRequest) -> u64 {
        let existing = self.entries.get(process);
        existing.map_or(request.unacknowledged, |entry| request.counted.saturating_sub(entry.acknowledged))
    }

    fn merge_remembered(&mut self, request: &LenderRequest, now: u64) {
        if u64::from(request.total) > self.remembered.0 {
            self.remembered = (request.total.into(), now + self.window);
        }
        for (holder, count) in request.large.iter().take(MAX_LARGE_HOLDERS) {
            let remembered = self.remembered_charged.entry(holder.clone()).or_default();
            if u64::from(*count) > remembered.0 {
                *remembered = ((*count).into(), now + self.window);
            }
        }
        if request.holders > 0 {
            let exposure = u64::from(request.exposure);
            self.holders = self.holders.max(request.holders.into());
            self.returned += 1;
            self.remembered_exposure = self.remembered_exposure.max(exposure + u64::from(request.elsewhere_exposure));
            self.returned_exposure += exposure;
        }
    }

    fn count(&mut self, new: u64, now: u64) {
        if new > 0 {
            *self.slots.entry(now / self.width()).or_default() += new;
        }
    }

    fn total(&self) -> u64 {
        self.slots.values().sum::<u64>() + self.remembered.0
    }

    /// The count by expiry.
    fn expiring_counts(&self, now: u64) -> Vec<(Duration, u32)> {
        let remembered = Some((self.remembered.1, self.remembered.0)).filter(|(_, count)| *count > 0);
        let slots = self.slots.iter().map(|(slot, count)| (self.slot_expiry(*slot), *count));
        let mut all: Vec<(u64, u64)> = slots.chain(remembered).collect();
        all.sort_unstable();
        all.into_iter().map(|(leaves, count)| (Duration::from_millis(leaves - now), narrow(count))).collect()
    }

    fn forget(&mut self, now: u64) {
        let (width, window, hold) = (self.width(), self.window, self.hold());
        self.slots.retain(|slot, _| (slot + 1) * width + window > now);
        self.entries.retain(|_, entry| now - entry.last_request <= hold);
        self.charged.retain(|_, slots| {
            slots.retain(|slot, _| (slot + 1) * width + window > now);
            !slots.is_empty()
        });
        self.remembered_charged.retain(|_, (_, until)| *until > now);
        if self.remembered.1 <= now {
            self.remembered = (0, 0);
        }
    }

    /// Uses the end of the slot, so that nothing expires early.
    fn slot_expiry(&self, slot: u64) -> u64 {
        (slot + 1) * self.width() + self.window
    }

    fn width(&self) -> u64 {
        (self.window / SLOTS).max(1)
    }

    /// How long the allowance of a silent process is reserved: its lease, the window after that, and the longest call.
    const fn hold(&self) -> u64 {
        2 * self.window + MAX_CALL_MS
    }
}

fn narrow(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
