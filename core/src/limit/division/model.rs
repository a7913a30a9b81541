//! A model of processes, a store and Discord, under a random schedule of faults. The simulated Discord checks the
//! invariant: never more calls in any window than the limit.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::time::Duration;

use proptest::prelude::*;

use super::{DivisionConfig, LimitShare, MemberId, Renewal, ShareAction, ShareRow, ShareUsage};
use crate::limit::LimitConfig;
use crate::limit::local_window::LocalWindow;
use crate::limit::readiness::Readiness;
use crate::time::Timestamp;

const MS: u64 = 1_000;
/// How much earlier a lease ends for its owner than for the others.
const LEASE_MARGIN: Duration = Duration::from_millis(600);
const HEARTBEAT: u64 = 750 * MS;
/// Timeout of a query to the store.
const STORE_TIMEOUT: u64 = 500 * MS;

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// A process cannot reach the store.
    Cut(usize, u64),
    /// The store executes the queries of a process, but the process receives no responses.
    Deafen(usize, u64),
    /// The store is slow; a query may exceed its timeout.
    Slow(u64),
    /// The store does not respond.
    Outage(u64),
    /// A process pauses, then continues.
    Freeze(usize, u64),
    /// A process dies; later another starts.
    Kill(usize, u64),
    /// A process leaves; later another starts.
    Leave(usize, u64),
    /// One more process starts.
    Join,
}

#[derive(Clone, Copy, Debug)]
enum Query {
    Renew { beat: u64 },
    Read,
    Do { action: ShareAction, beat: u64 },
    Goodbye { beat: u64, in_flight: u32 },
}

#[derive(Clone, Debug)]
enum Response {
    Renewed(Renewal),
    Rows(Vec<ShareRow>),
    Done(ShareAction, bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Fault(usize),
    Heal(usize),
    /// A timer of a process is due.
    Wake(usize),
    /// Another process has changed the table.
    Notified(usize),
    /// A query of a process arrives at the store.
    Executed(usize, u64),
    /// The response arrives at the process.
    Responded(usize, u64),
    TimedOut(usize, u64),
    /// The limiter applies the allowance.
    Applied(usize),
    /// A granted call is sent.
    Sent(usize, u64),
    Arrived(usize),
    Answered(usize, u64, bool),
}

struct Process {
    member: MemberId,
    share: LimitShare,
    window: LocalWindow,
    applied: u64,
    will_apply: bool,
    /// The offset of its clock, and its drift in parts per million.
    ahead: u64,
    fast: i64,
    started: u64,
    is_alive: bool,
    is_leaving: bool,
    is_frozen: bool,
    deferred: Vec<Event>,
    cut: u32,
    deaf: u32,
    query: Option<(u64, Query, Timestamp)>,
    /// The last query that the store has executed; earlier ones are never executed.
    executed: u64,
    response: Option<(u64, Response)>,
    beat: u64,
    renewed_beat: u64,
    next_beat: u64,
    needs_rows: bool,
    granted: BTreeMap<u64, Timestamp>,
    grants: u32,
    wake: u64,
}

struct World {
    now: u64,
    config: DivisionConfig,
    /// Whether Discord responds quickly.
    is_calm: bool,
    /// Whether deaths are known immediately, as on one machine.
    deaths_are_known: bool,
    rng_state: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    order: u64,
    faults: Vec<(u64, Fault)>,
    processes: Vec<Process>,
    rows: BTreeMap<MemberId, ShareRow>,
    dead: BTreeSet<MemberId>,
    slow: u32,
    outages: u32,
    queries: Vec<Query>,
    calls: u64,
    arrivals: VecDeque<u64>,
    arrived: u32,
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap()
}

impl World {
    fn new(
        config: DivisionConfig,
        processes: usize,
        seed: u64,
        faults: &[(u64, Fault)],
        deaths_are_known: bool,
    ) -> Self {
        let mut world = Self {
            now: 0,
            config,
            is_calm: false,
            deaths_are_known,
            rng_state: seed | 1,
            events: BinaryHeap::new(),
            order: 0,
            faults: faults.to_vec(),
            processes: Vec::new(),
            rows: BTreeMap::new(),
            dead: BTreeSet::new(),
            slow: 0,
            outages: 0,
            queries: Vec::new(),
            calls: 0,
            arrivals: VecDeque::new(),
            arrived: 0,
        };
        for (number, (then, _)) in faults.iter().enumerate() {
            world.schedule(*then, Event::Fault(number));
        }
        for _ in 0..processes {
            world.start();
        }
        world
    }

    fn roll(&mut self, below: u64) -> u64 {
        self.rng_state ^= self.rng_state << 13;
        self.rng_state ^= self.rng_state >> 7;
        self.rng_state ^= self.rng_state << 17;
        self.rng_state % below.max(1)
    }

    fn schedule(&mut self, then: u64, event: Event) {
        self.order += 1;
        self.events.push(Reverse((then, self.order, event)));
    }

    fn start(&mut self) -> usize {
        let index = self.processes.len();
        let member = MemberId(u128::from(self.roll(u64::MAX)));
        let ahead = self.roll(1_000_000 * MS);
        let fast = i64::try_from(self.roll(4_001)).unwrap() - 2_000;
        let limits = LimitConfig {
            global: self.config.limit,
            window: self.config.window,
            margin: Duration::ZERO,
            settling: self.config.settling,
            request_timeout: self.config.request_timeout,
            ..LimitConfig::default()
        };
        let mut window = LocalWindow::new(&limits, Timestamp::from_micros(ahead));
        window.set_limit(0);
        self.processes.push(Process {
            member,
            share: LimitShare::new(self.config.clone(), member),
            window,
            applied: 1,
            will_apply: false,
            ahead,
            fast,
            started: self.now,
            is_alive: true,
            is_leaving: false,
            is_frozen: false,
            deferred: Vec::new(),
            cut: 0,
            deaf: 0,
            query: None,
            executed: 0,
            response: None,
            beat: 0,
            renewed_beat: 0,
            next_beat: 0,
            needs_rows: false,
            granted: BTreeMap::new(),
            grants: 0,
            wake: u64::MAX,
        });
        let delay = self.roll(2_000) * MS;
        self.wake(index, self.now + delay);
        index
    }

    fn wake(&mut self, index: usize, then: u64) {
        if self.processes[index].wake > then {
            self.processes[index].wake = then;
            self.schedule(then, Event::Wake(index));
        }
    }

    /// The time on the clock of a process.
    fn local(&self, index: usize) -> Timestamp {
        let process = &self.processes[index];
        let passed = i64::try_from(self.now - process.started).unwrap();
        let local_elapsed = passed + passed * process.fast / 1_000_000;
        Timestamp::from_micros(process.ahead + u64::try_from(local_elapsed).unwrap())
    }

    fn run(&mut self, end: u64) -> Result<(), String> {
        while let Some(Reverse((then, ..))) = self.events.peek() {
            if *then > end {
                break;
            }
            let Some(Reverse((then, _, event))) = self.events.pop() else { break };
            self.now = then;
            self.handle(event)?;
        }
        self.now = end;
        Ok(())
    }

    fn handle(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Fault(number) => self.fault(number),
            Event::Heal(number) => self.heal(number),
            Event::Executed(index, number) => self.execute(index, number),
            Event::Arrived(index) => return self.arrive(index),
            Event::Wake(index)
            | Event::Notified(index)
            | Event::Responded(index, _)
            | Event::TimedOut(index, _)
            | Event::Applied(index)
            | Event::Sent(index, _)
            | Event::Answered(index, ..) => {
                if !self.processes[index].is_alive {
                    return Ok(());
                }
                if self.processes[index].is_frozen {
                    self.processes[index].deferred.push(event);
                    return Ok(());
                }
                self.handle_in_process(index, event);
            }
        }
        Ok(())
    }

    /// Handles an event in a running process.
    fn handle_in_process(&mut self, index: usize, event: Event) {
        let now = self.local(index);
        let process = &mut self.processes[index];
        match event {
            Event::Wake(_) => process.wake = u64::MAX,
            Event::Notified(_) => process.needs_rows = true,
            Event::Responded(_, number) => {
                let response = process.response.take_if(|(other, _)| *other == number);
                let query = process.query.take_if(|(other, ..)| *other == number);
                if let (Some((_, response)), Some((_, query, sent_at))) = (response, query) {
                    self.take_response(index, query, response, sent_at);
                }
            }
            Event::TimedOut(_, number) => {
                if let Some((_, query, _)) = process.query.take_if(|(other, ..)| *other == number) {
                    match query {
                        Query::Do { action, .. } => process.share.on_failed(action, now),
                        Query::Goodbye { .. } => process.is_alive = false,
                        Query::Renew { .. } | Query::Read => {}
                    }
                    process.next_beat = 0;
                }
            }
            Event::Applied(_) => {
                let allowance = process.share.allowance();
                process.window.set_limit(allowance.share);
                process.applied = allowance.version;
                process.will_apply = false;
            }
            Event::Sent(_, number) => self.send(index, number),
            Event::Answered(_, number, is_lost) => {
                if let Some(dispatched) = process.granted.remove(&number) {
                    if is_lost {
                        process.window.mark_lost(dispatched, now);
                    } else {
                        process.window.on_response(dispatched, now);
                    }
                }
            }
            Event::Fault(_) | Event::Heal(_) | Event::Executed(..) | Event::Arrived(_) => {}
        }
        self.drive(index);
    }

    fn take_response(&mut self, index: usize, query: Query, response: Response, sent_at: Timestamp) {
        let now = self.local(index);
        let lease = self.config.lease - LEASE_MARGIN;
        let process = &mut self.processes[index];
        match (query, response) {
            (Query::Renew { beat }, Response::Renewed(renewal)) => {
                process.renewed_beat = beat;
                process.share.on_renewed(renewal, sent_at + lease, now);
                process.needs_rows = true;
            }
            (_, Response::Rows(rows)) => process.share.on_rows(rows, now),
            (_, Response::Done(action, true)) => process.share.on_done(action, now),
            (_, Response::Done(action, false)) => {
                process.share.on_refused(action, now);
                process.needs_rows = true;
                if matches!(action, ShareAction::Lower { .. }) {
                    process.next_beat = 0;
                }
            }
            (_, Response::Renewed(_)) => {}
        }
    }

    /// Sends a granted call, if it is still permitted.
    fn send(&mut self, index: usize, number: u64) {
        let now = self.local(index);
        let process = &mut self.processes[index];
        if process.is_leaving || process.share.sends_until().is_none_or(|until| now >= until) {
            process.granted.remove(&number);
            process.window.refund();
            return;
        }
        process.grants += 1;
        let slowest = if self.deaths_are_known { self.config.settling } else { self.config.request_timeout };
        let is_odd = !self.is_calm;
        let slowest = if is_odd && self.roll(10) == 0 { micros(slowest) * 9 / 10 } else { 40 * MS };
        let there = self.roll(slowest);
        let back = if is_odd && self.roll(15) == 0 { self.roll(1_000 * MS) } else { self.roll(40 * MS) };
        let is_lost = is_odd && self.roll(40) == 0;
        self.schedule(self.now + there, Event::Arrived(index));
        self.schedule(self.now + there + back, Event::Answered(index, number, is_lost));
    }

    fn arrive(&mut self, index: usize) -> Result<(), String> {
        while self.arrivals.front().is_some_and(|first| *first + 1_000_000 <= self.now) {
            self.arrivals.pop_front();
        }
        self.arrivals.push_back(self.now);
        self.arrived += 1;
        let (seen, rows) = (self.arrivals.len(), &self.rows);
        if seen > self.config.limit as usize {
            return Err(format!("{seen} in a window at {} ms, the last of {index}; {rows:?}", self.now / MS));
        }
        Ok(())
    }

    /// Lets a process do all that it can do now.
    fn drive(&mut self, index: usize) {
        let now = self.local(index);
        let process = &mut self.processes[index];
        if !process.is_alive || process.is_frozen {
            return;
        }
        let limit = process.share.allowance().share;
        if process.applied == process.share.allowance().version {
            let is_within = process.window.in_use(now) <= limit;
            process.share.on_usage(ShareUsage { version: process.applied, is_within });
        } else if !std::mem::replace(&mut process.will_apply, true) {
            let delay = self.roll(30 * MS);
            self.schedule(self.now + delay, Event::Applied(index));
        }
        let mut next = self.now + 700 * MS;
        if !self.processes[index].is_leaving {
            loop {
                match self.processes[index].window.readiness(now) {
                    Readiness::Now => self.grant(index, now),
                    Readiness::At(then) => {
                        next = next.min(self.now + micros(then.since(now)) * 101 / 100 + 1);
                        break;
                    }
                    Readiness::OnResponse => break,
                }
            }
        }
        if let Some(then) = self.processes[index].window.next_excess() {
            next = next.min(self.now + micros(then.since(now)) * 101 / 100 + 1);
        }
        self.send_query(index, now);
        let process = &self.processes[index];
        if let Some(then) = process.share.next_wake(now) {
            next = next.min(self.now + micros(then.since(now)) * 101 / 100 + 1);
        }
        if process.query.is_none() {
            next = next.min(process.next_beat.max(self.now + MS));
        }
        self.wake(index, next.max(self.now + 100));
    }

    fn grant(&mut self, index: usize, now: Timestamp) {
        self.calls += 1;
        let number = self.calls;
        let process = &mut self.processes[index];
        process.window.take();
        process.granted.insert(number, now);
        let delay = if self.roll(10) == 0 { self.roll(30 * MS) } else { 0 };
        self.schedule(self.now + delay, Event::Sent(index, number));
    }

    /// Sends the next query to the store, one at a time.
    fn send_query(&mut self, index: usize, now: Timestamp) {
        let process = &mut self.processes[index];
        if process.query.is_some() {
            return;
        }
        let query = if process.is_leaving {
            process.beat += 1;
            let in_flight = u32::try_from(process.granted.len()).unwrap();
            Query::Goodbye { beat: process.beat, in_flight }
        } else if self.now >= process.next_beat {
            process.next_beat = self.now + HEARTBEAT;
            process.beat += 1;
            Query::Renew { beat: process.beat }
        } else if std::mem::take(&mut process.needs_rows) {
            Query::Read
        } else if let Some(action) = process.share.next_action(now) {
            Query::Do { action, beat: process.renewed_beat }
        } else {
            return;
        };
        self.queries.push(query);
        let number = self.queries.len() as u64;
        self.processes[index].query = Some((number, query, now));
        let slowest = if self.slow > 0 { 900 * MS } else { 5 * MS };
        let latency = self.roll(slowest);
        self.schedule(self.now + latency, Event::Executed(index, number));
        self.schedule(self.now + STORE_TIMEOUT, Event::TimedOut(index, number));
    }

    /// The store executes a query, even if the process has given up or died meanwhile.
    fn execute(&mut self, index: usize, number: u64) {
        let process = &mut self.processes[index];
        if number <= process.executed || self.outages > 0 || process.cut > 0 {
            return;
        }
        process.executed = number;
        let (member, query) = (process.member, self.queries[usize::try_from(number - 1).unwrap()]);
        let (response, is_news) = match query {
            Query::Renew { beat } => {
                let last = self.rows.values().map(|row| row.turn).max().unwrap_or(0);
                let hold = self.config.hold();
                match self.rows.get_mut(&member) {
                    Some(row) => {
                        row.heartbeat = beat;
                        (Response::Renewed(Renewal::Extended { share: row.share, turn: row.turn }), false)
                    }
                    None => {
                        let (turn, share) = (last + 1, 0);
                        let row =
                            ShareRow { member, heartbeat: beat, turn, share, hold, has_left: false, is_dead: false };
                        self.rows.insert(member, row);
                        (Response::Renewed(Renewal::Joined { turn }), true)
                    }
                }
            }
            Query::Read => {
                let mark = |row: &ShareRow| ShareRow { is_dead: self.dead.contains(&row.member), ..row.clone() };
                (Response::Rows(self.rows.values().map(mark).collect()), false)
            }
            Query::Do { action, beat } => {
                let is_done = self.change(member, action, beat);
                (Response::Done(action, is_done), is_done)
            }
            Query::Goodbye { beat, in_flight } => {
                if let Some(row) = self.rows.get_mut(&member) {
                    (row.heartbeat, row.has_left) = (beat, true);
                    row.hold = self.config.hold_after_leave(in_flight);
                }
                self.processes[index].is_alive = false;
                (Response::Rows(Vec::new()), true)
            }
        };
        if is_news {
            for other in 0..self.processes.len() {
                if other != index && self.roll(5) > 0 {
                    let latency = self.roll(5 * MS);
                    self.schedule(self.now + latency, Event::Notified(other));
                }
            }
        }
        if self.processes[index].deaf > 0 {
            return;
        }
        self.processes[index].response = Some((number, response));
        let latency = self.roll(5 * MS);
        self.schedule(self.now + latency, Event::Responded(index, number));
    }

    fn change(&mut self, own_id: MemberId, action: ShareAction, beat: u64) -> bool {
        let is_own = |row: &ShareRow| row.heartbeat == beat;
        match action {
            ShareAction::Reserve { share } => {
                let others = self.rows.values().filter(|row| row.member != own_id).map(|row| row.share).sum::<u32>();
                let fits = others + share <= self.config.limit;
                match self.rows.get_mut(&own_id).filter(|row| fits && is_own(row)) {
                    Some(row) => row.share = share,
                    None => return false,
                }
            }
            ShareAction::Lower { share, turn } => match self.rows.get_mut(&own_id).filter(|row| is_own(row)) {
                Some(row) => (row.share, row.turn) = (share, turn.unwrap_or(row.turn)),
                None => return false,
            },
            ShareAction::Remove { member, heartbeat: beat } => {
                let is_same = self.rows.get(&member).is_some_and(|row| row.heartbeat == beat);
                if !is_same {
                    return false;
                }
                self.rows.remove(&member);
            }
        }
        true
    }

    fn fault(&mut self, number: usize) {
        let alive: Vec<usize> = (0..self.processes.len()).filter(|index| self.processes[*index].is_alive).collect();
        let one = |index: usize| alive.get(index % alive.len().max(1)).copied().unwrap_or(0);
        let fault = match self.faults[number].1 {
            Fault::Cut(index, duration_ms) => Fault::Cut(one(index), duration_ms),
            Fault::Deafen(index, duration_ms) => Fault::Deafen(one(index), duration_ms),
            Fault::Freeze(index, duration_ms) => Fault::Freeze(one(index), duration_ms),
            Fault::Kill(index, duration_ms) => Fault::Kill(one(index), duration_ms),
            Fault::Leave(index, duration_ms) => Fault::Leave(one(index), duration_ms),
            other @ (Fault::Slow(_) | Fault::Outage(_) | Fault::Join) => other,
        };
        self.faults[number].1 = fault;
        let duration_ms = match fault {
            Fault::Cut(index, duration_ms) => {
                self.processes[index].cut += 1;
                duration_ms
            }
            Fault::Deafen(index, duration_ms) => {
                self.processes[index].deaf += 1;
                duration_ms
            }
            Fault::Slow(duration_ms) => {
                self.slow += 1;
                duration_ms
            }
            Fault::Outage(duration_ms) => {
                self.outages += 1;
                duration_ms
            }
            Fault::Freeze(index, duration_ms) => {
                self.processes[index].is_frozen = true;
                duration_ms
            }
            Fault::Kill(index, duration_ms) => {
                let process = &mut self.processes[index];
                process.is_alive = false;
                let member = process.member;
                if self.deaths_are_known {
                    self.dead.insert(member);
                }
                duration_ms
            }
            Fault::Leave(index, duration_ms) => {
                let process = &mut self.processes[index];
                process.is_leaving = true;
                self.wake(index, self.now);
                duration_ms
            }
            Fault::Join => {
                self.start();
                return;
            }
        };
        self.schedule(self.now + duration_ms * MS, Event::Heal(number));
    }

    fn heal(&mut self, number: usize) {
        match self.faults[number].1 {
            Fault::Cut(index, _) => self.processes[index].cut -= 1,
            Fault::Deafen(index, _) => self.processes[index].deaf -= 1,
            Fault::Slow(_) => self.slow -= 1,
            Fault::Outage(_) => self.outages -= 1,
            Fault::Freeze(index, _) => {
                self.processes[index].is_frozen = false;
                let deferred = std::mem::take(&mut self.processes[index].deferred);
                for event in deferred {
                    if self.processes[index].is_alive {
                        self.handle_in_process(index, event);
                    }
                }
                self.wake(index, self.now);
            }
            Fault::Kill(..) | Fault::Leave(..) | Fault::Join => {
                self.start();
            }
        }
    }

    fn reserved(&self) -> u32 {
        self.rows.values().map(|row| row.share).sum()
    }
}

fn fault() -> impl Strategy<Value = Fault> {
    let index = 0..6usize;
    let duration_ms = prop_oneof![0..1_000u64, 1_000..9_000u64];
    prop_oneof![
        (index.clone(), duration_ms.clone()).prop_map(|(index, duration_ms)| Fault::Cut(index, duration_ms)),
        (index.clone(), duration_ms.clone()).prop_map(|(index, duration_ms)| Fault::Deafen(index, duration_ms)),
        duration_ms.clone().prop_map(Fault::Slow),
        duration_ms.clone().prop_map(Fault::Outage),
        (index.clone(), duration_ms.clone()).prop_map(|(index, duration_ms)| Fault::Freeze(index, duration_ms)),
        (index.clone(), duration_ms.clone()).prop_map(|(index, duration_ms)| Fault::Kill(index, duration_ms)),
        (index, duration_ms).prop_map(|(index, duration_ms)| Fault::Leave(index, duration_ms)),
        Just(Fault::Join),
    ]
}

fn rules(limit: u32) -> DivisionConfig {
    DivisionConfig {
        limit,
        settling: Duration::from_millis(300),
        request_timeout: Duration::from_millis(1_500),
        lease: Duration::from_secs(3),
        rotate_after: Duration::from_secs(2),
        ..DivisionConfig::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 4_000, ..ProptestConfig::with_cases(60) })]

    #[test]
    fn processes_never_exceed_the_limit_together_and_then_use_all_of_it(
        limit in 1..12u32,
        processes in 1..6usize,
        seed in any::<u64>(),
        faults in prop::collection::vec((0..10_000_000u64, fault()), 0..9),
        deaths_are_known in any::<bool>(),
    ) {
        let mut world = World::new(rules(limit), processes, seed, &faults, deaths_are_known);
        // Until all faults have ended, and the rows of processes that are gone may be removed.
        prop_assert_eq!(world.run(27_000 * MS), Ok(()));
        world.processes.iter_mut().for_each(|process| process.grants = 0);
        prop_assert_eq!(world.run(45_000 * MS), Ok(()));
        let alive: Vec<&Process> = world.processes.iter().filter(|process| process.is_alive).collect();
        let grants: Vec<u32> = alive.iter().map(|process| process.grants).collect();
        prop_assert!(grants.iter().all(|grants| *grants > 0), "a process was never granted a call: {:?}", grants);
        if alive.len() <= limit as usize {
            prop_assert_eq!(world.reserved(), limit, "{:?}", world.rows);
        }
    }
}

#[test]
fn a_calm_division_uses_nearly_all_of_the_limit() {
    let mut world = World::new(DivisionConfig::default(), 3, 7, &[], false);
    world.is_calm = true;
    world.run(6_000 * MS).unwrap();
    let before = world.arrived;
    world.run(16_000 * MS).unwrap();
    let arrived = world.arrived - before;
    // Each token is in use for a window and a response.
    assert!(arrived >= 10 * 45, "{arrived} in 10 s");
    let mut shares: Vec<u32> = world.rows.values().map(|row| row.share).collect();
    shares.sort_unstable();
    assert_eq!(shares, [16, 17, 17]);
}

#[test]
fn processes_take_turns_when_there_are_more_than_tokens() {
    let mut world = World::new(rules(5), 8, 7, &[], false);
    world.is_calm = true;
    world.run(30_000 * MS).unwrap();
    let grants: Vec<u32> = world.processes.iter().map(|process| process.grants).collect();
    assert!(grants.iter().all(|grants| *grants > 5), "{grants:?}");
}
