//! The keeper of the common count: what lends, so that all processes behind an address stay within its limit.
//!
//! In use it lives where all processes reach it, as a script inside Redis that does the same step by step
//! (`src/redis/ledger.lua`, held to this by `tests/redis_state/`). Here it is a machine, to be put through anything.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Holder, LargeHolder, LenderReply, LenderRequest};
use crate::time::Timestamp;

/// Into how many slots the window is cut.
const SLOTS: u64 = 60;

/// One that knows nothing lends only out of its reserve for so long: those who know come and tell.
const SETTLING_MS: u64 = 3_000;

/// One part in so many of the limit is that reserve, and lent at no other time. So if everything is forgotten once while
/// what was lent is held, the limit holds; each further time it may be passed by as much, if there are newcomers each time
/// before those who know come back.
const RESERVE: u64 = 40;

/// Heard within this, a process is a member.
const RECENT_MS: u64 = 5_000;

/// The longest that a call is under way.
const LONGEST_CALL_MS: u64 = 60_000;

/// What one process is lent beyond its calls under way: one part in so many of what is free; and of the limit, at most.
const PARTS: u64 = 10;

/// What one process may add for one holder unasked: one part in so many of what is free.
const EXPOSURE_PARTS: u64 = 8;

/// More processes than that cannot be heard.
const MOST: usize = 1_000;

/// A holder is large, and listed, from one part in so many of what it may have.
const LARGE: u64 = 8;

/// How many large holders one process can remember.
const MOST_LARGE: usize = 1_000;

#[derive(Clone, Copy, Debug)]
struct Borrower {
    acknowledged: u64,
    ceiling: u64,
    in_flight: u64,
    /// What it may add for any one holder unasked.
    exposure: u64,
    number: u64,
    heard: u64,
}

impl Borrower {
    const fn lent(&self) -> u64 {
        self.ceiling.saturating_sub(self.acknowledged)
    }
}

/// Keeps the count of one address, and lends what is left of its limit.
#[derive(Debug)]
pub struct Lender {
    limit: u64,
    window: u64,
    /// Since when it knows of everything, and on which server.
    born: Option<(u64, String)>,
    /// What it has lent out of its reserve since then.
    drawn: u64,
    /// What was counted, by the number of its slot.
    slots: BTreeMap<u64, u64>,
    entries: BTreeMap<String, Borrower>,
    /// What processes remember of before it was born: how many, and until when they count.
    remembered: (u64, u64),
    /// How many processes had places lent then, and how many of them were heard since.
    holders: u64,
    returned: u64,
    /// What all of them might add for one holder unasked, and how much of it those have that were heard since.
    remembered_exposure: u64,
    returned_exposure: u64,
    /// What was counted for each key, tenant and guild, by the number of its slot.
    charged: BTreeMap<Holder, BTreeMap<u64, u64>>,
    /// What processes remember of them: how many, and until when they count.
    remembered_charged: BTreeMap<Holder, (u64, u64)>,
    /// What was granted out of the reserve of exposure since it was born.
    drawn_exposure: u64,
}

impl Lender {
    /// One that knows nothing.
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

    /// Answers a process. `number` counts its questions: one that was given up for lost may still arrive after the next, and
    /// is not answered. `server` is where the keeper runs: another one may not have all that the last one knew.
    pub fn sync(
        &mut self,
        process: &str,
        number: u64,
        ask: &LenderRequest,
        server: &str,
        now: Timestamp,
    ) -> Option<LenderReply> {
        let now = now.micros() / 1_000;
        let born = self.hear(process, number, ask, server, now)?;
        self.count(self.new_of(process, ask), now);
        self.charge(process, ask, now);
        if !self.entries.contains_key(process) {
            self.remember(ask, now);
        }
        let in_flight = u64::from(ask.in_flight);
        let most = (self.limit / PARTS).max(1);
        let reserve = self.limit / RESERVE;
        let missing = if now - born < self.hold() { self.holders.saturating_sub(self.returned) } else { 0 };
        let others = || self.entries.iter().filter(|(name, _)| *name != process).map(|(_, entry)| entry);
        let lent: u64 = others().map(Borrower::lent).sum();
        let free = self.limit.saturating_sub(reserve + self.total() + lent + missing * most);
        let room = free.saturating_sub(in_flight);
        let more = if room == 0 { 0 } else { (room / PARTS).max(1) };
        let mut granted = ask.counted + (in_flight + more).min(most);
        let mut drawn = self.drawn;
        if now - born < SETTLING_MS {
            let wanted = ask.counted + (in_flight + (reserve / PARTS).max(1)).min(most);
            granted = granted.min(ask.ceiling.max(wanted.min(ask.ceiling + reserve.saturating_sub(drawn))));
            drawn += granted.saturating_sub(ask.ceiling);
        }
        let (exposure, elsewhere_exposure) = self.grant_exposure(process, ask, missing, born, now);
        let (floor, large) = self.large(u64::from(ask.cap), born, now);
        let recent = || others().filter(|entry| now - entry.heard < RECENT_MS);
        let synced = LenderReply {
            asked: ask.asked,
            acknowledged: ask.counted,
            ceiling: granted,
            slots: self.leaving(now),
            members: narrow(recent().count() as u64 + 1),
            holders: narrow(others().count() as u64 + 1 + missing),
            elsewhere: narrow(recent().map(|entry| entry.in_flight).sum()),
            exposure: narrow(exposure),
            elsewhere_exposure: narrow(elsewhere_exposure),
            floor,
            large,
        };
        self.drawn = drawn;
        if now - born < SETTLING_MS {
            self.drawn_exposure += exposure.saturating_sub(ask.exposure.into());
        }
        // A lower ceiling is only asked for: until the process says that it keeps to it, it may not.
        let ceiling = granted.max(ask.ceiling);
        let exposure = exposure.max(ask.exposure.into());
        let entry = Borrower { acknowledged: ask.counted, ceiling, in_flight, exposure, number, heard: now };
        self.entries.insert(process.to_owned(), entry);
        Some(synced)
    }

    /// A process leaves. Nobody will be there to count what it still has under way.
    pub fn leave(&mut self, process: &str, number: u64, ask: &LenderRequest, server: &str, now: Timestamp) {
        let now = now.micros() / 1_000;
        if self.hear(process, number, ask, server, now).is_some() {
            self.count(self.new_of(process, ask) + u64::from(ask.in_flight), now);
            self.charge(process, ask, now);
            if self.entries.remove(process).is_none() {
                self.remember(ask, now);
            }
        }
    }

    /// All that is counted, and all that may be without anybody asking.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.total() + self.entries.values().map(Borrower::lent).sum::<u64>()
    }

    /// Takes a question, unless it is too late or too many ask; gives since when everything is known.
    fn hear(&mut self, process: &str, number: u64, ask: &LenderRequest, server: &str, now: u64) -> Option<u64> {
        self.forget(now);
        match self.entries.get(process) {
            Some(entry) if entry.number >= number => return None,
            None if self.entries.len() >= MOST => return None,
            Some(_) | None => {}
        }
        debug_assert!(ask.ceiling >= ask.counted + u64::from(ask.in_flight), "it has more under way than it may");
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

    /// What a process may add for any one holder unasked, and what the others may. All together may add half of what a holder
    /// may have. A process gets a part of what is free: what was granted to one that died is held for a long time, and the one
    /// that takes its place needs some as well.
    fn grant_exposure(&self, process: &str, ask: &LenderRequest, missing: u64, born: u64, now: u64) -> (u64, u64) {
        let others = self.entries.iter().filter(|(name, _)| *name != process).map(|(_, entry)| entry);
        let (count, granted) = others.fold((0, 0), |(count, sum), entry| (count + 1, sum + entry.exposure));
        let (cap, asked) = (u64::from(ask.cap), u64::from(ask.exposure));
        let half = (cap / 2).max(1);
        let unknown = if missing > 0 { self.remembered_exposure.saturating_sub(self.returned_exposure) } else { 0 };
        let fair = (half / (count + 1 + missing)).max(1);
        let free = half.saturating_sub(granted + unknown);
        let exposure = fair.min((free / EXPOSURE_PARTS).max(1)).min(free);
        if now - born >= SETTLING_MS {
            return (exposure, granted + unknown);
        }
        // Those who were granted something before it was born come and tell; meanwhile newcomers get a little.
        let reserve = cap / PARTS;
        let little = (reserve / 4).max(1).min(asked + reserve.saturating_sub(self.drawn_exposure));
        (exposure.min(asked.max(little)), half + reserve)
    }

    /// What a holder that is not listed may have at most, and those with more. What was forgotten when this was born was less
    /// than that for everyone who is not remembered.
    fn large(&self, cap: u64, born: u64, now: u64) -> (u32, Vec<LargeHolder>) {
        let large = (cap / LARGE).max(1);
        let floor = large - 1;
        let forgotten = (now - born < self.window && floor > 0).then(|| (born + self.window, floor));
        let mut listed = Vec::new();
        let remembered = self.remembered_charged.keys().filter(|holder| !self.charged.contains_key(holder));
        for holder in self.charged.keys().chain(remembered) {
            let slots = self.charged.get(holder).into_iter().flatten();
            let slots = slots.map(|(slot, count)| (self.leaves(*slot), *count));
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

    /// Counts for holders what is new.
    fn charge(&mut self, process: &str, ask: &LenderRequest, now: u64) {
        let known = self.entries.get(process).map(|entry| entry.acknowledged);
        let from = known.unwrap_or(ask.counted - ask.unacknowledged);
        let slot = now / self.width();
        for run in &ask.runs {
            let new = run.after(from);
            if new > 0 {
                for holder in run.owner.holders() {
                    *self.charged.entry(holder).or_default().entry(slot).or_default() += new;
                }
            }
        }
    }

    fn new_of(&self, process: &str, ask: &LenderRequest) -> u64 {
        let known = self.entries.get(process);
        known.map_or(ask.unacknowledged, |entry| ask.counted.saturating_sub(entry.acknowledged))
    }

    fn remember(&mut self, ask: &LenderRequest, now: u64) {
        if u64::from(ask.total) > self.remembered.0 {
            self.remembered = (ask.total.into(), now + self.window);
        }
        for (holder, count) in ask.large.iter().take(MOST_LARGE) {
            let remembered = self.remembered_charged.entry(holder.clone()).or_default();
            if u64::from(*count) > remembered.0 {
                *remembered = ((*count).into(), now + self.window);
            }
        }
        if ask.holders > 0 {
            let exposure = u64::from(ask.exposure);
            self.holders = self.holders.max(ask.holders.into());
            self.returned += 1;
            self.remembered_exposure = self.remembered_exposure.max(exposure + u64::from(ask.elsewhere_exposure));
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

    /// What is counted, by when it leaves.
    fn leaving(&self, now: u64) -> Vec<(Duration, u32)> {
        let remembered = Some((self.remembered.1, self.remembered.0)).filter(|(_, count)| *count > 0);
        let slots = self.slots.iter().map(|(slot, count)| (self.leaves(*slot), *count));
        let mut all: Vec<(u64, u64)> = slots.chain(remembered).collect();
        all.sort_unstable();
        all.into_iter().map(|(leaves, count)| (Duration::from_millis(leaves - now), narrow(count))).collect()
    }

    fn forget(&mut self, now: u64) {
        let (width, window, hold) = (self.width(), self.window, self.hold());
        self.slots.retain(|slot, _| (slot + 1) * width + window > now);
        self.entries.retain(|_, entry| now - entry.heard <= hold);
        self.charged.retain(|_, slots| {
            slots.retain(|slot, _| (slot + 1) * width + window > now);
            !slots.is_empty()
        });
        self.remembered_charged.retain(|_, (_, until)| *until > now);
        if self.remembered.1 <= now {
            self.remembered = (0, 0);
        }
    }

    /// Counted by the end of its slot, so that nothing leaves early.
    fn leaves(&self, slot: u64) -> u64 {
        (slot + 1) * self.width() + self.window
    }

    fn width(&self) -> u64 {
        (self.window / SLOTS).max(1)
    }

    /// How long the places of a silent process are held: its lease, the window after that, and the longest call.
    const fn hold(&self) -> u64 {
        2 * self.window + LONGEST_CALL_MS
    }
}

fn narrow(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
