//! Compares the ledger script with its model: the same requests get the same replies, over many windows. The script
//! uses the test's clock.

use std::collections::{HashMap, VecDeque};

use fastrand::Rng;
use guildhall_core::invalid::{CallOwner, Holder, InvalidLedger, Lender, LenderReply, LenderRequest, Reservation};
use guildhall_core::time::Timestamp;
use redis::Script;

use super::*;

const WINDOW: Duration = Duration::from_secs(600);

struct LedgerMember {
    name: String,
    ledger: InvalidLedger,
    calls: Vec<(CallOwner, Reservation)>,
    number: u64,
}

struct Simulation {
    rng: Rng,
    limit: u32,
    now: Timestamp,
    script: Script,
    client: MultiplexedConnection,
    lender: Lender,
    server: u8,
    members: Vec<LedgerMember>,
    member_count: u32,
    invalid: VecDeque<(Timestamp, CallOwner)>,
    delayed: Vec<(String, u64, LenderRequest)>,
    /// Times at which the lender lost its data or moved to another server.
    restarts: Vec<Timestamp>,
    /// Number of large holders in all replies.
    listed: usize,
}

fn whole(value: redis::Value) -> u64 {
    redis::from_redis_value(value).unwrap()
}

/// Reads a length, then that many pairs of an expiry and a count.
fn slots(reply: &mut impl Iterator<Item = redis::Value>) -> Vec<(Duration, u32)> {
    let count = whole(reply.next().unwrap());
    let mut next = || whole(reply.next().unwrap());
    (0..count).map(|_| (Duration::from_millis(next()), u32::try_from(next()).unwrap())).collect()
}

fn owner(number: u8) -> CallOwner {
    let key = |key: &str, tenant: &str, guild| Submitter::of(&key.into(), &tenant.into()).in_guild(Some(guild));
    match number {
        0 => key("a", "acme", 1),
        1 => key("a", "acme", 2),
        2 => key("b", "rival", 2),
        3 => CallOwner::from(Some(3)),
        _ => CallOwner::default(),
    }
}

impl Simulation {
    async fn new(seed: u64, mut client: MultiplexedConnection) -> Self {
        let () = redis::cmd("FLUSHALL").query_async(&mut client).await.unwrap();
        let mut rng = Rng::with_seed(seed);
        // Large enough in some runs that holders are listed.
        let limit = if rng.bool() { rng.u32(5..150) } else { rng.u32(150..1_500) };
        let mut world = Self {
            limit,
            now: Timestamp::from_millis(1_700_000_000_000 + rng.u64(..10_000)),
            script: Script::new(&scripts::with_clock(include_str!("../../../src/redis/ledger.lua"))),
            client,
            lender: Lender::new(limit, WINDOW),
            server: 0,
            members: Vec::new(),
            member_count: 0,
            invalid: VecDeque::new(),
            delayed: Vec::new(),
            restarts: Vec::new(),
            listed: 0,
            rng,
        };
        world.restarts.push(world.now);
        for _ in 0..world.rng.usize(1..6) {
            let member = world.new_member();
            world.members.push(member);
        }
        world
    }

    fn new_member(&mut self) -> LedgerMember {
        self.member_count += 1;
        // No lane stops because of the count: only the lent allowance limits them.
        let interactive_percent = 1_000;
        let config =
            InvalidConfig { limit: self.limit, window: WINDOW, interactive_percent, ..InvalidConfig::default() };
        let mut ledger = InvalidLedger::new(config);
        ledger.share(LedgerFallback::Stop, self.now);
        LedgerMember { name: format!("teller {}", self.member_count), ledger, calls: Vec::new(), number: 0 }
    }

    fn next_request(&mut self, index: usize) -> (String, u64, LenderRequest) {
        let member = &mut self.members[index];
        member.number += 1;
        (member.name.clone(), member.number, member.ledger.request(self.now).unwrap())
    }

    /// Reply of the script.
    async fn run_script(
        &mut self,
        command: &str,
        name: &str,
        number: u64,
        request: &LenderRequest,
    ) -> Option<LenderReply> {
        let mut call = self.script.prepare_invoke();
        call.key(LEDGER);
        for part in [":a", ":b", ":c"] {
            call.key(format!("{LEDGER}{part}"));
        }
        call.arg(command).arg(name).arg(number).arg(request.counted).arg(request.unacknowledged).arg(request.in_flight);
        call.arg(request.ceiling).arg(request.total).arg(request.holders).arg(self.limit).arg(WINDOW.as_secs() * 1_000);
        call.arg(self.server).arg(request.cap).arg(request.exposure).arg(request.elsewhere_exposure);
        call.arg(request.runs.len()).arg(request.large.len());
        for run in &request.runs {
            let mut names: Vec<String> = run.owner.holders().map(|holder| holder.encode()).collect();
            names.resize(3, String::new());
            call.arg(run.start).arg(run.end).arg(names);
        }
        for (holder, count) in &request.large {
            call.arg(holder.encode()).arg(*count);
        }
        call.arg(self.now.micros());
        let reply: Vec<redis::Value> = call.invoke_async(&mut self.client).await.unwrap();
        if reply.is_empty() {
            return None;
        }
        let mut reply = reply.into_iter();
        let large = (reply.by_ref().take(7).map(whole).collect::<Vec<u64>>(), slots(&mut reply));
        let ([ceiling, members, others, elsewhere, exposure, elsewhere_exposure, floor], common) =
            (<[u64; 7]>::try_from(large.0).unwrap(), large.1);
        let mut large = Vec::new();
        while let Some(name) = reply.next() {
            let name: String = redis::from_redis_value(name).unwrap();
            large.push((Holder::decode(&name).unwrap(), slots(&mut reply)));
        }
        large.sort_unstable();
        self.listed += large.len();
        let small = |number: u64| u32::try_from(number).unwrap();
        Some(LenderReply {
            requested_at: request.requested_at,
            acknowledged: request.counted,
            ceiling,
            slots: common,
            members: small(members),
            holders: small(others),
            in_flight_elsewhere: small(elsewhere),
            exposure: small(exposure),
            elsewhere_exposure: small(elsewhere_exposure),
            floor: small(floor),
            large,
        })
    }

    async fn deliver(&mut self, name: &str, number: u64, request: LenderRequest) -> Option<LenderReply> {
        let reply = self.run_script("sync", name, number, &request).await;
        let expected = self.lender.sync(name, number, &request, &self.server.to_string(), self.now);
        assert_eq!(reply, expected, "{name} sent {request:?}");
        reply
    }

    async fn sync(&mut self, index: usize) {
        let (name, number, request) = self.next_request(index);
        if let Some(synced) = self.deliver(&name, number, request).await {
            self.members[index].ledger.on_reply(&synced, self.now);
        }
    }

    fn finish_call(&mut self, index: usize) {
        if let Some((owner, call)) = self.members[index].calls.pop() {
            let was_invalid = self.rng.u8(..10) > 0;
            self.members[index].ledger.complete(call, was_invalid, self.now);
            self.invalid.extend(was_invalid.then_some((self.now, owner)));
        }
    }

    /// The process is replaced. Its calls in flight are answered, but not counted by it.
    fn replace(&mut self, index: usize) -> LedgerMember {
        let new = self.new_member();
        let old = std::mem::replace(&mut self.members[index], new);
        self.invalid.extend(old.calls.iter().map(|(owner, _)| (self.now, owner.clone())));
        old
    }

    async fn step(&mut self) {
        let index = self.rng.usize(..self.members.len());
        match self.rng.u32(..200) {
            0..80 => {
                let (owner, times) = (owner(self.rng.u8(..6)), self.rng.u8(1..9));
                let member = &mut self.members[index];
                for _ in 0..times {
                    let admitted =
                        member.ledger.admit(Lane::Interactive, owner.clone(), &RouteKey::new(READ), self.now);
                    member.calls.extend(admitted.ok().map(|call| (owner.clone(), call)));
                }
            }
            80..120 => (0..self.rng.u8(1..12)).for_each(|_| self.finish_call(index)),
            120..165 => self.sync(index).await,
            165..170 => {
                // The reply is lost.
                let (name, number, request) = self.next_request(index);
                self.deliver(&name, number, request).await;
            }
            170..176 => {
                let request = self.next_request(index);
                self.delayed.push(request);
            }
            176..181 if !self.delayed.is_empty() => {
                let (name, number, request) = self.delayed.swap_remove(self.rng.usize(..self.delayed.len()));
                self.deliver(&name, number, request).await;
            }
            181..192 => self.wait(4_000),
            192..194 => self.wait(60_000),
            194 => {
                // No call takes that long.
                (0..self.members.len()).for_each(|index| {
                    while !self.members[index].calls.is_empty() {
                        self.finish_call(index);
                    }
                });
                self.wait(700_000);
                self.delayed.clear();
            }
            195 => drop(self.replace(index)),
            196 => {
                let mut old = self.replace(index);
                let request = old.ledger.leave(self.now).unwrap();
                assert_eq!(self.run_script("leave", &old.name, old.number + 1, &request).await, None);
                self.lender.leave(&old.name, old.number + 1, &request, &self.server.to_string(), self.now);
            }
            197 => {
                self.server = self.server.wrapping_add(1);
                self.restarts.push(self.now);
            }
            198 => self.lose_data().await,
            _ => {}
        }
        self.check();
    }

    fn wait(&mut self, max_ms: u64) {
        self.now = self.now + Duration::from_millis(self.rng.u64(..max_ms));
    }

    /// Redis loses all data, while some processes cannot reach it.
    async fn lose_data(&mut self) {
        let reachable: Vec<usize> = (0..self.members.len()).filter(|index| *index == 0 || self.rng.bool()).collect();
        // Processes sync every second, so they know everything that the others have reported.
        for index in &reachable {
            self.sync(*index).await;
        }
        let () = redis::cmd("FLUSHALL").query_async(&mut self.client).await.unwrap();
        self.lender = Lender::new(self.limit, WINDOW);
        self.restarts.push(self.now);
        self.delayed.clear();
        for index in &reachable {
            self.sync(*index).await;
        }
    }

    fn check(&mut self) {
        while self.invalid.front().is_some_and(|(seen, _)| self.now.since(*seen) >= WINDOW) {
            self.invalid.pop_front();
        }
        let calls_in_flight: usize = self.members.iter().map(|member| member.calls.len()).sum();
        let worst = self.invalid.len() + calls_in_flight;
        // Each further restart while a lent allowance is held may have lent the reserve once more.
        let held = WINDOW * 2 + Duration::from_secs(60);
        self.restarts.retain(|restart| self.now.since(*restart) <= held);
        let bound = self.limit + self.restarts.len().saturating_sub(1) as u32 * (self.limit / 40);
        assert!(worst <= bound as usize, "{worst} of {} invalid or in flight", self.limit);
        let in_flight = self.members.iter().flat_map(|member| member.calls.iter().map(|(owner, _)| owner));
        let mut held: HashMap<Holder, u32> = HashMap::new();
        let owners = self.invalid.iter().map(|(_, owner)| owner).chain(in_flight);
        owners.flat_map(CallOwner::holders).for_each(|holder| *held.entry(holder).or_default() += 1);
        let cap = InvalidConfig { limit: self.limit, ..InvalidConfig::default() }.share_cap();
        let bound = cap + self.restarts.len().saturating_sub(1) as u32 * (cap / 10);
        for (holder, count) in held {
            assert!(count <= bound, "{holder} has {count} of {cap}");
        }
    }
}

#[test]
fn script_equals_model_and_the_limit_holds() {
    run(async {
        let server = RedisServer::start();
        let client = client(&server).await;
        let mut listed = 0;
        for seed in 0..25 {
            println!("seed {seed}");
            let mut simulation = Simulation::new(seed, client.clone()).await;
            for _ in 0..600 {
                simulation.step().await;
            }
            listed += simulation.listed;
        }
        assert!(listed > 100, "{listed} large holders were listed");
    });
}
