//! Compares the ledger script with its model: the same requests get the same replies, over many windows. The script
//! uses the test's clock.

use std::collections::{HashMap, VecDeque};

use fastrand::Rng;
use guildhall_core::invalid::{CallOwner, Holder, InvalidLedger, Lender, LenderReply, LenderRequest, Reservation};
use guildhall_core::time::Timestamp;
use redis::Script;

use super::*;

const WINDOW: Duration = Duration::from_secs(600);

struct Teller {
    name: String,
    ledger: InvalidLedger,
    calls: Vec<(CallOwner, Reservation)>,
    number: u64,
}

struct World {
    chance: Rng,
    limit: u32,
    now: Timestamp,
    script: Script,
    client: MultiplexedConnection,
    keeper: Lender,
    server: u8,
    tellers: Vec<Teller>,
    names: u32,
    invalid: VecDeque<(Timestamp, CallOwner)>,
    late: Vec<(String, u64, LenderRequest)>,
    /// Times at which the lender lost its data or moved to another server.
    births: Vec<Timestamp>,
    /// Number of large holders in all replies.
    listed: usize,
}

fn whole(value: redis::Value) -> u64 {
    redis::from_redis_value(value).unwrap()
}

/// Reads a length, then that many pairs of an expiry and a count.
fn slots(answer: &mut impl Iterator<Item = redis::Value>) -> Vec<(Duration, u32)> {
    let count = whole(answer.next().unwrap());
    let mut next = || whole(answer.next().unwrap());
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

impl World {
    async fn new(seed: u64, mut client: MultiplexedConnection) -> Self {
        let () = redis::cmd("FLUSHALL").query_async(&mut client).await.unwrap();
        let mut chance = Rng::with_seed(seed);
        // Large enough in some runs that holders are listed.
        let limit = if chance.bool() { chance.u32(5..150) } else { chance.u32(150..1_500) };
        let mut world = Self {
            limit,
            now: Timestamp::from_millis(1_700_000_000_000 + chance.u64(..10_000)),
            script: Script::new(&scripts::with_clock(include_str!("../../src/redis/ledger.lua"))),
            client,
            keeper: Lender::new(limit, WINDOW),
            server: 0,
            tellers: Vec::new(),
            names: 0,
            invalid: VecDeque::new(),
            late: Vec::new(),
            births: Vec::new(),
            listed: 0,
            chance,
        };
        world.births.push(world.now);
        for _ in 0..world.chance.usize(1..6) {
            let teller = world.teller();
            world.tellers.push(teller);
        }
        world
    }

    fn teller(&mut self) -> Teller {
        self.names += 1;
        // No lane stops because of the count: only the lent allowance limits them.
        let interactive_percent = 1_000;
        let config =
            InvalidConfig { limit: self.limit, window: WINDOW, interactive_percent, ..InvalidConfig::default() };
        let mut ledger = InvalidLedger::new(config);
        ledger.share(LedgerFallback::Stop, self.now);
        Teller { name: format!("teller {}", self.names), ledger, calls: Vec::new(), number: 0 }
    }

    fn ask(&mut self, who: usize) -> (String, u64, LenderRequest) {
        let teller = &mut self.tellers[who];
        teller.number += 1;
        (teller.name.clone(), teller.number, teller.ledger.ask(self.now).unwrap())
    }

    /// Reply of the script.
    async fn run_script(&mut self, how: &str, name: &str, number: u64, ask: &LenderRequest) -> Option<LenderReply> {
        let mut call = self.script.prepare_invoke();
        call.key(LEDGER);
        for part in [":a", ":b", ":c"] {
            call.key(format!("{LEDGER}{part}"));
        }
        call.arg(how).arg(name).arg(number).arg(ask.counted).arg(ask.unacknowledged).arg(ask.in_flight);
        call.arg(ask.ceiling).arg(ask.total).arg(ask.holders).arg(self.limit).arg(WINDOW.as_secs() * 1_000);
        call.arg(self.server).arg(ask.cap).arg(ask.exposure).arg(ask.elsewhere_exposure);
        call.arg(ask.runs.len()).arg(ask.large.len());
        for run in &ask.runs {
            let mut names: Vec<String> = run.owner.holders().map(|holder| holder.encode()).collect();
            names.resize(3, String::new());
            call.arg(run.start).arg(run.end).arg(names);
        }
        for (holder, count) in &ask.large {
            call.arg(holder.encode()).arg(*count);
        }
        call.arg(self.now.micros());
        let answer: Vec<redis::Value> = call.invoke_async(&mut self.client).await.unwrap();
        if answer.is_empty() {
            return None;
        }
        let mut answer = answer.into_iter();
        let large = (answer.by_ref().take(7).map(whole).collect::<Vec<u64>>(), slots(&mut answer));
        let ([ceiling, members, others, elsewhere, exposure, elsewhere_exposure, floor], common) =
            (<[u64; 7]>::try_from(large.0).unwrap(), large.1);
        let mut large = Vec::new();
        while let Some(name) = answer.next() {
            let name: String = redis::from_redis_value(name).unwrap();
            large.push((Holder::decode(&name).unwrap(), slots(&mut answer)));
        }
        large.sort_unstable();
        self.listed += large.len();
        let small = |number: u64| u32::try_from(number).unwrap();
        Some(LenderReply {
            asked: ask.asked,
            acknowledged: ask.counted,
            ceiling,
            slots: common,
            members: small(members),
            holders: small(others),
            elsewhere: small(elsewhere),
            exposure: small(exposure),
            elsewhere_exposure: small(elsewhere_exposure),
            floor: small(floor),
            large,
        })
    }

    async fn deliver(&mut self, name: &str, number: u64, ask: LenderRequest) -> Option<LenderReply> {
        let answer = self.run_script("sync", name, number, &ask).await;
        let expected = self.keeper.sync(name, number, &ask, &self.server.to_string(), self.now);
        assert_eq!(answer, expected, "{name} sent {ask:?}");
        answer
    }

    async fn sync(&mut self, who: usize) {
        let (name, number, ask) = self.ask(who);
        if let Some(synced) = self.deliver(&name, number, ask).await {
            self.tellers[who].ledger.synced(&synced, self.now);
        }
    }

    fn settle(&mut self, who: usize) {
        if let Some((owner, call)) = self.tellers[who].calls.pop() {
            let was_invalid = self.chance.u8(..10) > 0;
            self.tellers[who].ledger.settle(call, was_invalid, self.now);
            self.invalid.extend(was_invalid.then_some((self.now, owner)));
        }
    }

    /// The process is replaced. Its calls in flight are answered, but not counted by it.
    fn replace(&mut self, who: usize) -> Teller {
        let new = self.teller();
        let old = std::mem::replace(&mut self.tellers[who], new);
        self.invalid.extend(old.calls.iter().map(|(owner, _)| (self.now, owner.clone())));
        old
    }

    async fn act(&mut self) {
        let who = self.chance.usize(..self.tellers.len());
        match self.chance.u32(..200) {
            0..80 => {
                let (owner, times) = (owner(self.chance.u8(..6)), self.chance.u8(1..9));
                let teller = &mut self.tellers[who];
                for _ in 0..times {
                    let admitted =
                        teller.ledger.admit(Lane::Interactive, owner.clone(), &RouteKey::new(READ), self.now);
                    teller.calls.extend(admitted.ok().map(|call| (owner.clone(), call)));
                }
            }
            80..120 => (0..self.chance.u8(1..12)).for_each(|_| self.settle(who)),
            120..165 => self.sync(who).await,
            165..170 => {
                // The reply is lost.
                let (name, number, ask) = self.ask(who);
                self.deliver(&name, number, ask).await;
            }
            170..176 => {
                let question = self.ask(who);
                self.late.push(question);
            }
            176..181 if !self.late.is_empty() => {
                let (name, number, ask) = self.late.swap_remove(self.chance.usize(..self.late.len()));
                self.deliver(&name, number, ask).await;
            }
            181..192 => self.wait(4_000),
            192..194 => self.wait(60_000),
            194 => {
                // No call takes that long.
                (0..self.tellers.len()).for_each(|who| {
                    while !self.tellers[who].calls.is_empty() {
                        self.settle(who);
                    }
                });
                self.wait(700_000);
                self.late.clear();
            }
            195 => drop(self.replace(who)),
            196 => {
                let mut old = self.replace(who);
                let ask = old.ledger.leave(self.now).unwrap();
                assert_eq!(self.run_script("leave", &old.name, old.number + 1, &ask).await, None);
                self.keeper.leave(&old.name, old.number + 1, &ask, &self.server.to_string(), self.now);
            }
            197 => {
                self.server = self.server.wrapping_add(1);
                self.births.push(self.now);
            }
            198 => self.forget().await,
            _ => {}
        }
        self.check();
    }

    fn wait(&mut self, most_ms: u64) {
        self.now = self.now + Duration::from_millis(self.chance.u64(..most_ms));
    }

    /// Redis loses all data, while some processes cannot reach it.
    async fn forget(&mut self) {
        let reach: Vec<usize> = (0..self.tellers.len()).filter(|who| *who == 0 || self.chance.bool()).collect();
        // Processes sync every second, so they know everything that the others have reported.
        for who in &reach {
            self.sync(*who).await;
        }
        let () = redis::cmd("FLUSHALL").query_async(&mut self.client).await.unwrap();
        self.keeper = Lender::new(self.limit, WINDOW);
        self.births.push(self.now);
        self.late.clear();
        for who in &reach {
            self.sync(*who).await;
        }
    }

    fn check(&mut self) {
        while self.invalid.front().is_some_and(|(seen, _)| self.now.since(*seen) >= WINDOW) {
            self.invalid.pop_front();
        }
        let under_way: usize = self.tellers.iter().map(|teller| teller.calls.len()).sum();
        let worst = self.invalid.len() + under_way;
        // Each further restart while a lent allowance is held may have lent the reserve once more.
        let held = WINDOW * 2 + Duration::from_secs(60);
        self.births.retain(|born| self.now.since(*born) <= held);
        let bound = self.limit + self.births.len().saturating_sub(1) as u32 * (self.limit / 40);
        assert!(worst <= bound as usize, "{worst} of {} invalid or in flight", self.limit);
        let in_flight = self.tellers.iter().flat_map(|teller| teller.calls.iter().map(|(owner, _)| owner));
        let mut held: HashMap<Holder, u32> = HashMap::new();
        let owners = self.invalid.iter().map(|(_, owner)| owner).chain(in_flight);
        owners.flat_map(CallOwner::holders).for_each(|holder| *held.entry(holder).or_default() += 1);
        let cap = InvalidConfig { limit: self.limit, ..InvalidConfig::default() }.share_cap();
        let bound = cap + self.births.len().saturating_sub(1) as u32 * (cap / 10);
        for (holder, count) in held {
            assert!(count <= bound, "{holder} has {count} of {cap}");
        }
    }
}

#[test]
fn the_script_does_what_the_machine_says_and_the_limit_holds() {
    run(async {
        let server = RedisServer::start();
        let client = client(&server).await;
        let mut listed = 0;
        for seed in 0..25 {
            println!("seed {seed}");
            let mut world = World::new(seed, client.clone()).await;
            for _ in 0..600 {
                world.act().await;
            }
            listed += world.listed;
        }
        assert!(listed > 100, "{listed} large holders were listed");
    });
}
