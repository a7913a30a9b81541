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
    own: LocalWindow,
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
    wants_rows: bool,
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
    chance: u64,
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
    fn new(config: DivisionConfig, processes: usize, seed: u64, faults: &[(u64, Fault)], known: bool) -> Self {
        let mut world = Self {
            now: 0,
            config,
            is_calm: false,
            deaths_are_known: known,
            chance: seed | 1,
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
            world.later(*then, Event::Fault(number));
        }
        for _ in 0..processes {
            world.start();
        }
        world
    }

    fn roll(&mut self, below: u64) -> u64 {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        self.chance % below.max(1)
    }

    fn later(&mut self, then: u64, event: Event) {
        self.order += 1;
        self.events.push(Reverse((then, self.order, event)));
    }

    fn start(&mut self) -> usize {
        let who = self.processes.len();
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
        let mut own = LocalWindow::new(&limits, Timestamp::from_micros(ahead));
        own.set_limit(0);
        self.processes.push(Process {
            member,
            share: LimitShare::new(self.config.clone(), member),
            own,
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
            wants_rows: false,
            granted: BTreeMap::new(),
            grants: 0,
            wake: u64::MAX,
        });
        let delay = self.roll(2_000) * MS;
        self.wake(who, self.now + delay);
        who
    }

    fn wake(&mut self, who: usize, then: u64) {
        if self.processes[who].wake > then {
            self.processes[who].wake = then;
            self.later(then, Event::Wake(who));
        }
    }

    /// The time on the clock of a process.
    fn local(&self, who: usize) -> Timestamp {
        let process = &self.processes[who];
        let passed = i64::try_from(self.now - process.started).unwrap();
        let shown = passed + passed * process.fast / 1_000_000;
        Timestamp::from_micros(process.ahead + u64::try_from(shown).unwrap())
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
            Event::Executed(who, number) => self.execute(who, number),
            Event::Arrived(who) => return self.arrive(who),
            Event::Wake(who)
            | Event::Notified(who)
            | Event::Responded(who, _)
            | Event::TimedOut(who, _)
            | Event::Applied(who)
            | Event::Sent(who, _)
            | Event::Answered(who, ..) => {
                if !self.processes[who].is_alive {
                    return Ok(());
                }
                if self.processes[who].is_frozen {
                    self.processes[who].deferred.push(event);
                    return Ok(());
                }
                self.happen(who, event);
            }
        }
        Ok(())
    }

    /// Handles an event in a running process.
    fn happen(&mut self, who: usize, event: Event) {
        let now = self.local(who);
        let process = &mut self.processes[who];
        match event {
            Event::Wake(_) => process.wake = u64::MAX,
            Event::Notified(_) => process.wants_rows = true,
            Event::Responded(_, number) => {
                let response = process.response.take_if(|(other, _)| *other == number);
                let query = process.query.take_if(|(other, ..)| *other == number);
                if let (Some((_, response)), Some((_, query, asked))) = (response, query) {
                    self.take_response(who, query, response, asked);
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
                process.own.set_limit(allowance.share);
                process.applied = allowance.version;
                process.will_apply = false;
            }
            Event::Sent(_, number) => self.send(who, number),
            Event::Answered(_, number, is_lost) => {
                if let Some(dispatched) = process.granted.remove(&number) {
                    if is_lost { process.own.lost(dispatched, now) } else { process.own.answered(dispatched, now) }
                }
            }
            Event::Fault(_) | Event::Heal(_) | Event::Executed(..) | Event::Arrived(_) => {}
        }
        self.drive(who);
    }

    fn take_response(&mut self, who: usize, query: Query, response: Response, asked: Timestamp) {
        let now = self.local(who);
        let lease = self.config.lease - LEASE_MARGIN;
        let process = &mut self.processes[who];
        match (query, response) {
            (Query::Renew { beat }, Response::Renewed(renewal)) => {
                process.renewed_beat = beat;
                process.share.on_renewed(renewal, asked + lease, now);
                process.wants_rows = true;
            }
            (_, Response::Rows(rows)) => process.share.on_rows(rows, now),
            (_, Response::Done(action, true)) => process.share.on_done(action, now),
            (_, Response::Done(action, false)) => {
                process.share.on_refused(action, now);
                process.wants_rows = true;
                if matches!(action, ShareAction::Lower { .. }) {
                    process.next_beat = 0;
                }
            }
            (_, Response::Renewed(_)) => {}
        }
    }

    /// Sends a granted call, if it is still permitted.
    fn send(&mut self, who: usize, number: u64) {
        let now = self.local(who);
        let process = &mut self.processes[who];
        if process.is_leaving || process.share.sends_until().is_none_or(|until| now >= until) {
            process.granted.remove(&number);
            process.own.given_back();
            return;
        }
        process.grants += 1;
        let slowest = if self.deaths_are_known { self.config.settling } else { self.config.request_timeout };
        let is_odd = !self.is_calm;
        let slowest = if is_odd && self.roll(10) == 0 { micros(slowest) * 9 / 10 } else { 40 * MS };
        let there = self.roll(slowest);
        let back = if is_odd && self.roll(15) == 0 { self.roll(1_000 * MS) } else { self.roll(40 * MS) };
        let is_lost = is_odd && self.roll(40) == 0;
        self.later(self.now + there, Event::Arrived(who));
        self.later(self.now + there + back, Event::Answered(who, number, is_lost));
    }

    fn arrive(&mut self, who: usize) -> Result<(), String> {
        while self.arrivals.front().is_some_and(|first| *first + 1_000_000 <= self.now) {
            self.arrivals.pop_front();
        }
        self.arrivals.push_back(self.now);
        self.arrived += 1;
        let (seen, rows) = (self.arrivals.len(), &self.rows);
        if seen > self.config.limit as usize {
            return Err(format!("{seen} in a window at {} ms, the last of {who}; {rows:?}", self.now / MS));
        }
        Ok(())
    }

    /// Lets a process do all that it can do now.
    fn drive(&mut self, who: usize) {
        let now = self.local(who);
        let process = &mut self.processes[who];
        if !process.is_alive || process.is_frozen {
            return;
        }
        let limit = process.share.allowance().share;
        if process.applied == process.share.allowance().version {
            let is_within = process.own.in_use(now) <= limit;
            process.share.on_usage(ShareUsage { version: process.applied, is_within });
        } else if !std::mem::replace(&mut process.will_apply, true) {
            let delay = self.roll(30 * MS);
            self.later(self.now + delay, Event::Applied(who));
        }
        let mut next = self.now + 700 * MS;
        if !self.processes[who].is_leaving {
            loop {
                match self.processes[who].own.turn(now) {
                    Readiness::Now => self.grant(who, now),
                    Readiness::At(then) => {
                        next = next.min(self.now + micros(then.since(now)) * 101 / 100 + 1);
                        break;
                    }
                    Readiness::OnAnswer => break,
                }
            }
        }
        if let Some(then) = self.processes[who].own.next_excess() {
            next = next.min(self.now + micros(then.since(now)) * 101 / 100 + 1);
        }
        self.ask(who, now);
        let process = &self.processes[who];
        if let Some(then) = process.share.next_wake(now) {
            next = next.min(self.now + micros(then.since(now)) * 101 / 100 + 1);
        }
        if process.query.is_none() {
            next = next.min(process.next_beat.max(self.now + MS));
        }
        self.wake(who, next.max(self.now + 100));
    }

    fn grant(&mut self, who: usize, now: Timestamp) {
        self.calls += 1;
        let number = self.calls;
        let process = &mut self.processes[who];
        process.own.take();
        process.granted.insert(number, now);
        let delay = if self.roll(10) == 0 { self.roll(30 * MS) } else { 0 };
        self.later(self.now + delay, Event::Sent(who, number));
    }

    /// Sends the next query to the store, one at a time.
    fn ask(&mut self, who: usize, now: Timestamp) {
        let process = &mut self.processes[who];
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
        } else if std::mem::take(&mut process.wants_rows) {
            Query::Read
        } else if let Some(action) = process.share.next_action(now) {
            Query::Do { action, beat: process.renewed_beat }
        } else {
            return;
        };
        self.queries.push(query);
        let number = self.queries.len() as u64;
        self.processes[who].query = Some((number, query, now));
        let slowest = if self.slow > 0 { 900 * MS } else { 5 * MS };
        let way = self.roll(slowest);
        self.later(self.now + way, Event::Executed(who, number));
        self.later(self.now + STORE_TIMEOUT, Event::TimedOut(who, number));
    }

    /// The store executes a query, even if the process has given up or died meanwhile.
    fn execute(&mut self, who: usize, number: u64) {
        let process = &mut self.processes[who];
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
                        row.beat = beat;
                        (Response::Renewed(Renewal::Extended { share: row.share, turn: row.turn }), false)
                    }
                    None => {
                        let (turn, share) = (last + 1, 0);
                        let row = ShareRow { member, beat, turn, share, hold, has_left: false, is_dead: false };
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
                    (row.beat, row.has_left) = (beat, true);
                    row.hold = self.config.hold_after_goodbye(in_flight);
                }
                self.processes[who].is_alive = false;
                (Response::Rows(Vec::new()), true)
            }
        };
        if is_news {
            for other in 0..self.processes.len() {
                if other != who && self.roll(5) > 0 {
                    let way = self.roll(5 * MS);
                    self.later(self.now + way, Event::Notified(other));
                }
            }
        }
        if self.processes[who].deaf > 0 {
            return;
        }
        self.processes[who].response = Some((number, response));
        let way = self.roll(5 * MS);
        self.later(self.now + way, Event::Responded(who, number));
    }

    fn change(&mut self, me: MemberId, action: ShareAction, beat: u64) -> bool {
        let is_own = |row: &ShareRow| row.beat == beat;
        match action {
            ShareAction::Reserve { share } => {
                let others = self.rows.values().filter(|row| row.member != me).map(|row| row.share).sum::<u32>();
                let fits = others + share <= self.config.limit;
                match self.rows.get_mut(&me).filter(|row| fits && is_own(row)) {
                    Some(row) => row.share = share,
                    None => return false,
                }
            }
            ShareAction::Lower { share, turn } => match self.rows.get_mut(&me).filter(|row| is_own(row)) {
                Some(row) => (row.share, row.turn) = (share, turn.unwrap_or(row.turn)),
                None => return false,
            },
            ShareAction::Remove { member, beat } => {
                let is_same = self.rows.get(&member).is_some_and(|row| row.beat == beat);
                if !is_same {
                    return false;
                }
                self.rows.remove(&member);
            }
        }
        true
    }

    fn fault(&mut self, number: usize) {
        let alive: Vec<usize> = (0..self.processes.len()).filter(|who| self.processes[*who].is_alive).collect();
        let one = |who: usize| alive.get(who % alive.len().max(1)).copied().unwrap_or(0);
        let fault = match self.faults[number].1 {
            Fault::Cut(who, lasts) => Fault::Cut(one(who), lasts),
            Fault::Deafen(who, lasts) => Fault::Deafen(one(who), lasts),
            Fault::Freeze(who, lasts) => Fault::Freeze(one(who), lasts),
            Fault::Kill(who, lasts) => Fault::Kill(one(who), lasts),
            Fault::Leave(who, lasts) => Fault::Leave(one(who), lasts),
            other @ (Fault::Slow(_) | Fault::Outage(_) | Fault::Join) => other,
        };
        self.faults[number].1 = fault;
        let lasts = match fault {
            Fault::Cut(who, lasts) => {
                self.processes[who].cut += 1;
                lasts
            }
            Fault::Deafen(who, lasts) => {
                self.processes[who].deaf += 1;
                lasts
            }
            Fault::Slow(lasts) => {
                self.slow += 1;
                lasts
            }
            Fault::Outage(lasts) => {
                self.outages += 1;
                lasts
            }
            Fault::Freeze(who, lasts) => {
                self.processes[who].is_frozen = true;
                lasts
            }
            Fault::Kill(who, lasts) => {
                let process = &mut self.processes[who];
                process.is_alive = false;
                let member = process.member;
                if self.deaths_are_known {
                    self.dead.insert(member);
                }
                lasts
            }
            Fault::Leave(who, lasts) => {
                let process = &mut self.processes[who];
                process.is_leaving = true;
                self.wake(who, self.now);
                lasts
            }
            Fault::Join => {
                self.start();
                return;
            }
        };
        self.later(self.now + lasts * MS, Event::Heal(number));
    }

    fn heal(&mut self, number: usize) {
        match self.faults[number].1 {
            Fault::Cut(who, _) => self.processes[who].cut -= 1,
            Fault::Deafen(who, _) => self.processes[who].deaf -= 1,
            Fault::Slow(_) => self.slow -= 1,
            Fault::Outage(_) => self.outages -= 1,
            Fault::Freeze(who, _) => {
                self.processes[who].is_frozen = false;
                let deferred = std::mem::take(&mut self.processes[who].deferred);
                for event in deferred {
                    if self.processes[who].is_alive {
                        self.happen(who, event);
                    }
                }
                self.wake(who, self.now);
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
    let who = 0..6usize;
    let lasts = prop_oneof![0..1_000u64, 1_000..9_000u64];
    prop_oneof![
        (who.clone(), lasts.clone()).prop_map(|(who, lasts)| Fault::Cut(who, lasts)),
        (who.clone(), lasts.clone()).prop_map(|(who, lasts)| Fault::Deafen(who, lasts)),
        lasts.clone().prop_map(Fault::Slow),
        lasts.clone().prop_map(Fault::Outage),
        (who.clone(), lasts.clone()).prop_map(|(who, lasts)| Fault::Freeze(who, lasts)),
        (who.clone(), lasts.clone()).prop_map(|(who, lasts)| Fault::Kill(who, lasts)),
        (who, lasts).prop_map(|(who, lasts)| Fault::Leave(who, lasts)),
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
