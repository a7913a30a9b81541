//! A model of processes, Redis, their connections and Discord, under a random schedule of faults. The simulated Discord
//! checks the invariant: never more calls in any window than the limit.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use proptest::prelude::*;

use super::script::{ScriptCall, ScriptReply};
use super::{LimitFallback, Member, MemberPermitId, ReferenceWindow, SharedLimitConfig, SharingMode};
use crate::limit::readiness::Readiness;
use crate::time::Timestamp;

const MS: u64 = 1_000;

/// A fault.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// A process cannot reach Redis.
    Cut(usize, u64),
    /// Redis receives the calls of a process, but the process receives no replies.
    Deafen(usize, u64),
    /// The connection between a process and Redis is slow.
    Slow(usize, u64),
    /// Redis pauses, then continues: calls during the pause are received late.
    Stop(u64),
    /// Redis replies with errors.
    Fail(u64),
    /// Redis loses all data.
    Flush,
    /// Redis dies, and restarts without data.
    Restart(u64),
    /// Redis's clock jumps by this many milliseconds.
    Jump(i64),
    /// A process pauses, then continues.
    Freeze(usize, u64),
    /// A process dies; later another one takes over its member id.
    Kill(usize, u64),
    /// A process leaves; later another one takes over its member id.
    Leave(usize, u64),
    /// A process receives a global 429.
    Limit(usize, u64),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Fault(usize),
    Heal(usize),
    /// A timer of a process is due.
    Wake(usize),
    /// A call of a process arrives at Redis.
    Received(usize, u32),
    /// The reply arrives at the process.
    Replied(usize, u32),
    /// The timeout of a call has passed.
    CallTimedOut(usize, u32),
    /// A call arrives at Discord.
    Arrived(usize),
    /// Its response arrives.
    Answered(usize, u32, u64, bool),
}

struct Process {
    member: Member,
    incarnation: u32,
    is_alive: bool,
    is_frozen: bool,
    cut: u32,
    deaf: u32,
    slow: u32,
    call: Option<(u32, ScriptCall)>,
    calls: u32,
    reply: Option<(u32, ScriptReply)>,
    /// Its next wake-up, as requested at its last activity.
    wake: u64,
    permits: Vec<(u64, MemberPermitId)>,
    grants: u32,
    granted_since_calm: u32,
    /// When, and in which incarnation, it last used its share.
    alone: Option<(u64, u32)>,
}

struct World {
    now: u64,
    config: SharedLimitConfig,
    rng_state: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    order: u64,
    faults: Vec<(u64, Fault)>,
    processes: Vec<Process>,
    window: ReferenceWindow,
    server: u32,
    clock: i64,
    stopped: u32,
    failing: u32,
    /// Calls that a paused Redis has not received yet.
    unreceived: Vec<(usize, u32)>,
    arrivals: VecDeque<u64>,
    arrived: u32,
    calls: u64,
    granted: u64,
    /// Whether new members met at an empty Redis while a process with a share could not reach it the whole time: the
    /// one case that cannot be detected.
    is_excused: bool,
    /// Whether Discord responds quickly, and every process always has waiting calls.
    is_calm: bool,
}

fn at(now: u64) -> Timestamp {
    Timestamp::from_micros(now)
}

impl World {
    fn new(config: SharedLimitConfig, processes: usize, seed: u64, faults: &[(u64, Fault)]) -> Self {
        let mut world = Self {
            now: 0,
            rng_state: seed | 1,
            events: BinaryHeap::new(),
            order: 0,
            processes: Vec::new(),
            window: ReferenceWindow::empty(),
            server: 1,
            clock: 1_000_000_000_000,
            stopped: 0,
            failing: 0,
            unreceived: Vec::new(),
            arrivals: VecDeque::new(),
            arrived: 0,
            calls: 0,
            granted: 0,
            is_calm: false,
            is_excused: false,
            faults: faults.to_vec(),
            config,
        };
        for (number, (then, _)) in faults.iter().enumerate() {
            world.schedule(*then, Event::Fault(number));
        }
        for index in 0..processes {
            let process = Process {
                member: Member::new(world.config.clone(), format!("p{index}"), 1, at(0)),
                incarnation: 1,
                is_alive: true,
                is_frozen: false,
                cut: 0,
                deaf: 0,
                slow: 0,
                call: None,
                calls: 0,
                reply: None,
                wake: u64::MAX,
                permits: Vec::new(),
                grants: 0,
                granted_since_calm: 0,
                alone: None,
            };
            world.processes.push(process);
            let start = world.roll(3_000) * MS;
            world.wake(index, start);
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

    /// Sets the wake-up of a process and replaces the previous one.
    fn wake(&mut self, index: usize, then: u64) {
        if self.processes[index].wake != then {
            self.processes[index].wake = then;
            self.schedule(then, Event::Wake(index));
        }
    }

    /// Runs until `end`; fails with the first window in which Discord received too many calls.
    fn run(&mut self, end: u64) -> Result<(), String> {
        while let Some(Reverse((then, ..))) = self.events.peek() {
            if *then > end || self.is_excused {
                break;
            }
            let Some(Reverse((then, _, event))) = self.events.pop() else { break };
            self.now = then;
            self.handle(&event)?;
        }
        self.now = end;
        Ok(())
    }

    fn handle(&mut self, event: &Event) -> Result<(), String> {
        match *event {
            Event::Fault(number) => self.fault(number),
            Event::Heal(number) => self.heal(number),
            Event::Wake(index) => {
                if self.processes[index].wake == self.now {
                    self.processes[index].wake = u64::MAX;
                    self.drive(index);
                }
            }
            Event::Received(index, call) => {
                if self.stopped > 0 {
                    self.unreceived.push((index, call));
                } else {
                    self.receive(index, call);
                }
            }
            Event::Replied(index, call) => {
                let process = &mut self.processes[index];
                if !process.is_frozen
                    && let Some((_, reply)) = process.reply.take_if(|(number, _)| *number == call)
                    && process.call.take_if(|(number, _)| *number == call).is_some()
                {
                    process.member.on_reply(reply, at(self.now));
                    self.drive(index);
                }
            }
            Event::CallTimedOut(index, call) => {
                let process = &mut self.processes[index];
                if process.call.take_if(|(number, _)| *number == call).is_some() {
                    process.reply = None;
                    process.member.on_lost(at(self.now));
                    self.drive(index);
                }
            }
            Event::Arrived(index) => return self.arrive(index),
            Event::Answered(index, life, number, is_lost) => {
                let now = at(self.now);
                let process = &mut self.processes[index];
                if process.is_alive && process.incarnation == life {
                    let position = process.permits.iter().position(|(other, _)| *other == number);
                    if let Some((_, permit)) = position.map(|position| process.permits.swap_remove(position)) {
                        if is_lost { process.member.lost(permit, now) } else { process.member.on_response(permit, now) }
                    }
                    self.drive(index);
                }
            }
        }
        Ok(())
    }

    fn fault(&mut self, number: usize) {
        let (_, fault) = self.faults[number];
        let count = self.processes.len();
        let duration_ms = match fault {
            Fault::Cut(index, duration_ms) => {
                self.processes[index % count].cut += 1;
                duration_ms
            }
            Fault::Deafen(index, duration_ms) => {
                self.processes[index % count].deaf += 1;
                duration_ms
            }
            Fault::Slow(index, duration_ms) => {
                self.processes[index % count].slow += 1;
                duration_ms
            }
            Fault::Stop(duration_ms) => {
                self.stopped += 1;
                duration_ms
            }
            Fault::Fail(duration_ms) => {
                self.failing += 1;
                duration_ms
            }
            Fault::Flush => {
                self.window = ReferenceWindow::empty();
                return;
            }
            Fault::Restart(duration_ms) => {
                self.window = ReferenceWindow::empty();
                self.server += 1;
                self.unreceived.clear();
                self.failing += 1;
                duration_ms
            }
            Fault::Jump(by) => {
                self.clock += by * 1_000;
                return;
            }
            Fault::Freeze(index, duration_ms) => {
                self.processes[index % count].is_frozen = true;
                duration_ms
            }
            Fault::Kill(index, duration_ms) => {
                self.processes[index % count].is_alive = false;
                duration_ms
            }
            Fault::Leave(index, duration_ms) => {
                let (index, now) = (index % count, at(self.now));
                let process = &mut self.processes[index];
                if process.is_alive && !process.is_frozen {
                    if let Some(call) = process.member.leave(now) {
                        process.calls += 1;
                        process.call = Some((process.calls, call));
                        let number = process.calls;
                        self.schedule(self.now + MS, Event::Received(index, number));
                    }
                    self.processes[index].is_alive = false;
                }
                duration_ms
            }
            Fault::Limit(index, duration_ms) => {
                let (index, until) = (index % count, at(self.now + duration_ms * MS));
                if self.processes[index].is_alive {
                    self.processes[index].member.close(until);
                    self.wake(index, self.now);
                }
                return;
            }
        };
        self.schedule(self.now + duration_ms * MS, Event::Heal(number));
    }

    fn heal(&mut self, number: usize) {
        let count = self.processes.len();
        match self.faults[number].1 {
            Fault::Cut(index, _) => self.processes[index % count].cut -= 1,
            Fault::Deafen(index, _) => self.processes[index % count].deaf -= 1,
            Fault::Slow(index, _) => self.processes[index % count].slow -= 1,
            Fault::Stop(_) => {
                self.stopped -= 1;
                if self.stopped == 0 {
                    let unheard = std::mem::take(&mut self.unreceived);
                    unheard.into_iter().for_each(|(index, call)| self.receive(index, call));
                }
            }
            Fault::Fail(_) | Fault::Restart(_) => self.failing -= 1,
            Fault::Flush | Fault::Jump(_) | Fault::Limit(..) => {}
            Fault::Freeze(index, _) => {
                self.processes[index % count].is_frozen = false;
                self.wake(index % count, self.now);
            }
            Fault::Kill(index, _) | Fault::Leave(index, _) => self.revive(index % count),
        }
    }

    /// Another process takes over the member id of a dead one.
    fn revive(&mut self, index: usize) {
        let now = at(self.now);
        let process = &mut self.processes[index];
        if process.is_alive {
            return;
        }
        process.incarnation += 1;
        process.member = Member::new(self.config.clone(), format!("p{index}"), u64::from(process.incarnation), now);
        process.is_alive = true;
        (process.call, process.reply) = (None, None);
        process.permits.clear();
        self.wake(index, self.now);
    }

    /// Redis executes a call.
    fn receive(&mut self, index: usize, number: u32) {
        let is_failing = self.failing > 0;
        let process = &self.processes[index];
        let Some((current, call)) = process.call.clone() else { return };
        if is_failing || process.cut > 0 || current != number {
            return;
        }
        self.calls += 1;
        let redis = u64::try_from(i64::try_from(self.now).unwrap() + self.clock).unwrap();
        let before = self.window.age();
        let reply = self.window.call(&call, &self.config, &self.server.to_string(), redis);
        if let (Some((born, false, 0)), Some((same, true, _))) = (before, self.window.age())
            && born == same
        {
            let names: Vec<String> = self.window.members();
            let is_here = |index: usize| names.contains(&format!("p{index}"));
            // Calls of a process that has just reached this Redis, or died, are still in the window.
            let duration = u64::try_from((self.config.window + self.config.guard).as_micros()).unwrap();
            self.is_excused |= self.processes.iter().enumerate().any(|(index, process)| {
                let has_share = process.is_alive && process.member.members_and_share().1 > 0;
                let was_alone = process.alone.is_some_and(|(then, life)| {
                    then + duration > self.now && !(is_here(index) && process.incarnation == life)
                });
                (has_share && !is_here(index)) || was_alone
            });
        }
        if self.processes[index].deaf > 0 {
            return;
        }
        let latency = self.latency(index);
        self.processes[index].reply = Some((number, reply));
        self.schedule(self.now + latency, Event::Replied(index, number));
    }

    fn latency(&mut self, index: usize) -> u64 {
        let slowest = if self.processes[index].slow > 0 { 300 * MS } else { 3 * MS };
        self.roll(slowest)
    }

    fn arrive(&mut self, index: usize) -> Result<(), String> {
        let window = 1_000_000;
        while self.arrivals.front().is_some_and(|first| *first + window <= self.now) {
            self.arrivals.pop_front();
        }
        self.arrivals.push_back(self.now);
        self.arrived += 1;
        if self.arrivals.len() > self.config.limit as usize {
            let seen = self.arrivals.len();
            return Err(format!("{seen} calls in a window at {} ms, the last of p{index}", self.now / MS));
        }
        Ok(())
    }

    /// Lets a process do all that it can do now.
    fn drive(&mut self, index: usize) {
        let now = at(self.now);
        let process = &self.processes[index];
        if !process.is_alive || process.is_frozen {
            return;
        }
        let is_idle = self.roll(20) == 0 && !self.is_calm;
        let waiting = if is_idle { 0 } else { 10 };
        let is_urgent = self.roll(4) == 0 && !self.is_calm;
        self.processes[index].member.demand(waiting, is_urgent, now);
        let mut wake = None;
        while wake.is_none() && waiting > 0 {
            match self.processes[index].member.readiness(now) {
                Readiness::Now => self.dispatch(index),
                Readiness::At(then) => wake = Some(then),
                Readiness::OnResponse => break,
            }
        }
        if self.processes[index].call.is_none()
            && let Some(call) = self.processes[index].member.next_call(now)
        {
            let process = &mut self.processes[index];
            process.calls += 1;
            let number = process.calls;
            process.call = Some((number, call));
            let latency = self.latency(index);
            self.schedule(self.now + latency, Event::Received(index, number));
            let timeout = u64::try_from(self.config.timeout.as_micros()).unwrap();
            self.schedule(self.now + timeout, Event::CallTimedOut(index, number));
        }
        let next = self.processes[index].member.next_wake(now).into_iter().chain(wake).min();
        let idle = now + Duration::from_millis(700);
        let next = next.unwrap_or(idle).min(idle).max(now + Duration::from_micros(100));
        self.wake(index, next.micros());
    }

    fn dispatch(&mut self, index: usize) {
        let now = at(self.now);
        let process = &mut self.processes[index];
        if process.member.mode(now) == SharingMode::Share {
            process.alone = Some((self.now, process.incarnation));
        }
        let permit = process.member.take(now);
        if self.roll(30) == 0 && !self.is_calm {
            self.processes[index].member.refund(permit, now);
            return;
        }
        self.granted += 1;
        let number = self.granted;
        // The guard is the longest transit time of calls that can no longer be reported.
        let is_odd = !self.is_calm;
        let slowest =
            if is_odd && self.roll(10) == 0 { u64::try_from(self.config.guard.as_micros()).unwrap() } else { 40 * MS };
        let there = self.roll(slowest);
        let back = if is_odd && self.roll(15) == 0 { self.roll(4_000 * MS) } else { self.roll(40 * MS) };
        let is_lost = is_odd && self.roll(40) == 0;
        let process = &mut self.processes[index];
        process.permits.push((number, permit));
        process.grants += 1;
        process.granted_since_calm += 1;
        let life = process.incarnation;
        self.schedule(self.now + there, Event::Arrived(index));
        self.schedule(self.now + there + back, Event::Answered(index, life, number, is_lost));
    }
}

fn fault() -> impl Strategy<Value = Fault> {
    let index = 0..6usize;
    let duration_ms = prop_oneof![0..1_000u64, 1_000..9_000u64];
    prop_oneof![
        (index.clone(), duration_ms.clone()).prop_map(|(index, duration_ms)| Fault::Cut(index, duration_ms)),
        (index.clone(), duration_ms.clone()).prop_map(|(index, duration_ms)| Fault::Deafen(index, duration_ms)),
        (index.clone(), duration_ms.clone()).prop_map(|(index, duration_ms)| Fault::Slow(index, duration_ms)),
        duration_ms.clone().prop_map(Fault::Stop),
        duration_ms.clone().prop_map(Fault::Fail),
        Just(Fault::Flush),
        prop_oneof![-5_000..5_000i64, -60..60i64].prop_map(Fault::Jump),
        duration_ms.clone().prop_map(Fault::Restart),
        (index.clone(), duration_ms.clone()).prop_map(|(index, duration_ms)| Fault::Freeze(index, duration_ms)),
        (index.clone(), duration_ms.clone()).prop_map(|(index, duration_ms)| Fault::Kill(index, duration_ms)),
        (index.clone(), duration_ms.clone()).prop_map(|(index, duration_ms)| Fault::Leave(index, duration_ms)),
        (index, duration_ms).prop_map(|(index, duration_ms)| Fault::Limit(index, duration_ms)),
    ]
}

fn schedule() -> impl Strategy<Value = Vec<(u64, Fault)>> {
    prop::collection::vec(((0..11_000_000u64), fault()), 0..7)
}

fn rules(limit: u32) -> SharedLimitConfig {
    SharedLimitConfig {
        limit,
        forget: Duration::from_secs(15),
        share_for: Duration::from_secs(10),
        request_timeout: Duration::from_secs(4),
        on_loss: LimitFallback::Share,
        ..SharedLimitConfig::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 4_000, ..ProptestConfig::with_cases(150) })]

    #[test]
    fn faults_never_cause_more_calls_than_the_limit_in_a_window(
        limit in 1..12u32,
        processes in 1..6usize,
        seed in any::<u64>(),
        faults in schedule(),
    ) {
        let mut world = World::new(rules(limit), processes, seed, &faults);
        prop_assert_eq!(world.run(20_000 * MS), Ok(()));
        // All faults have ended; after enough time, every process is granted calls.
        world.processes.iter_mut().for_each(|process| process.granted_since_calm = 0);
        prop_assert_eq!(world.run(40_000 * MS), Ok(()));
        let turns: Vec<u32> = world.processes.iter().map(|process| process.granted_since_calm).collect();
        // If calls are few because many are slow or lost, there may not have been one for each.
        let are_enough = turns.iter().sum::<u32>() as usize >= processes * 8;
        let least = if are_enough { turns.iter().min() } else { turns.iter().max() };
        prop_assert!(world.is_excused || least > Some(&0), "{:?}: a process was granted no call", turns);
    }
}

#[test]
fn fleet_without_faults_uses_and_shares_nearly_the_whole_limit() {
    let mut world = World::new(SharedLimitConfig::default(), 3, 7, &[]);
    world.is_calm = true;
    world.run(10_000 * MS).unwrap();
    let (before, calls) = (world.arrived, world.calls);
    world.processes.iter_mut().for_each(|process| process.granted_since_calm = 0);
    world.run(40_000 * MS).unwrap();
    let arrived = world.arrived - before;
    assert!(arrived >= 30 * 45, "{arrived} in 30 s");
    for process in &world.processes {
        let share = f64::from(process.granted_since_calm) / f64::from(arrived);
        assert!((0.26..0.4).contains(&share), "{share}");
    }
    println!("{arrived} in 30 s, {} calls", world.calls - calls);
}

#[test]
fn members_get_even_parts_when_there_are_as_many_as_calls() {
    for (members, seconds) in [(50, 5), (80, 8)] {
        let mut world = World::new(SharedLimitConfig::default(), members, 7, &[]);
        world.is_calm = true;
        world.run(15_000 * MS).unwrap();
        for stretch in 1..=4 {
            let before = world.arrived;
            world.processes.iter_mut().for_each(|process| process.granted_since_calm = 0);
            world.run((15 + stretch * seconds) * 1_000 * MS).unwrap();
            let turns: Vec<u32> = world.processes.iter().map(|process| process.granted_since_calm).collect();
            let arrived = world.arrived - before;
            assert!(u64::from(arrived) >= seconds * 45, "{arrived} calls of {members} members in {seconds} s");
            let even = arrived / u32::try_from(members).unwrap();
            assert!(turns.iter().all(|turns| turns.abs_diff(even) <= 2), "{members} members: {turns:?}");
        }
    }
}

#[test]
fn absent_member_does_not_block_the_queue() {
    let config = SharedLimitConfig { limit: 2, ..SharedLimitConfig::default() };
    let faults = [(8_000 * MS, Fault::Kill(0, 60_000)), (8_000 * MS, Fault::Freeze(1, 60_000))];
    let mut world = World::new(config, 4, 7, &faults);
    world.is_calm = true;
    world.run(20_000 * MS).unwrap();
    world.processes.iter_mut().for_each(|process| process.granted_since_calm = 0);
    world.run(40_000 * MS).unwrap();
    let turns: Vec<u32> = world.processes.iter().map(|process| process.granted_since_calm).collect();
    assert!(turns[2] > 0 && turns[3] > 0 && turns[2].abs_diff(turns[3]) <= 2, "{turns:?}");
}
