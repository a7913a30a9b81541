//! The script that keeps the common count beside the machine that says what it should do: the same questions, the same
//! answers, over many windows. The script's clock is the test's.

use std::collections::VecDeque;

use fastrand::Rng;
use guildhall_core::invalid::{Ask, Keeper, Ledger, Reservation, Synced};
use guildhall_core::time::Timestamp;
use redis::Script;

use super::*;

const WINDOW: Duration = Duration::from_secs(600);

struct Teller {
    name: String,
    ledger: Ledger,
    calls: Vec<Reservation>,
    number: u64,
}

struct World {
    chance: Rng,
    limit: u32,
    now: Timestamp,
    script: Script,
    client: MultiplexedConnection,
    keeper: Keeper,
    server: u8,
    tellers: Vec<Teller>,
    names: u32,
    invalid: VecDeque<Timestamp>,
    late: Vec<(String, u64, Ask)>,
    /// When the keeper knew nothing, or was somewhere else.
    births: Vec<Timestamp>,
}

impl World {
    async fn new(seed: u64, mut client: MultiplexedConnection) -> Self {
        let () = redis::cmd("FLUSHALL").query_async(&mut client).await.unwrap();
        let mut chance = Rng::with_seed(seed);
        let limit = chance.u32(5..150);
        let mut world = Self {
            limit,
            now: Timestamp::from_millis(1_700_000_000_000 + chance.u64(..10_000)),
            script: Script::new(&scripts::with_clock(include_str!("../../src/redis/ledger.lua"))),
            client,
            keeper: Keeper::new(limit, WINDOW),
            server: 0,
            tellers: Vec::new(),
            names: 0,
            invalid: VecDeque::new(),
            late: Vec::new(),
            births: Vec::new(),
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
        // No lane stops by what is counted: only what is lent holds them back.
        let interactive_percent = 1_000;
        let config =
            InvalidConfig { limit: self.limit, window: WINDOW, interactive_percent, ..InvalidConfig::default() };
        let mut ledger = Ledger::new(config);
        ledger.share(WhenLost::Stop, self.now);
        Teller { name: format!("teller {}", self.names), ledger, calls: Vec::new(), number: 0 }
    }

    fn ask(&mut self, who: usize) -> (String, u64, Ask) {
        let teller = &mut self.tellers[who];
        teller.number += 1;
        (teller.name.clone(), teller.number, teller.ledger.ask(self.now).unwrap())
    }

    /// What the script answers.
    async fn run_script(&mut self, how: &str, name: &str, number: u64, ask: Ask) -> Option<Synced> {
        let mut call = self.script.key(LEDGER);
        call.arg(how).arg(name).arg(number).arg(ask.counted).arg(ask.unacknowledged).arg(ask.in_flight);
        call.arg(ask.ceiling).arg(ask.total).arg(ask.holders).arg(self.limit).arg(WINDOW.as_secs() * 1_000);
        call.arg(self.server).arg(self.now.micros());
        let numbers: Vec<u64> = call.invoke_async(&mut self.client).await.unwrap();
        let [ceiling, members, holders, elsewhere, ref slots @ ..] = numbers[..] else { return None };
        let whole = |number: u64| u32::try_from(number).unwrap();
        let slots = slots.chunks(2).map(|slot| (Duration::from_millis(slot[0]), whole(slot[1])));
        Some(Synced {
            asked: ask.asked,
            acknowledged: ask.counted,
            ceiling,
            slots: slots.collect(),
            members: whole(members),
            holders: whole(holders),
            elsewhere: whole(elsewhere),
        })
    }

    async fn deliver(&mut self, name: &str, number: u64, ask: Ask) -> Option<Synced> {
        let answer = self.run_script("sync", name, number, ask).await;
        let expected = self.keeper.sync(name, number, &ask, &self.server.to_string(), self.now);
        assert_eq!(answer, expected, "{name} asked {ask:?}");
        answer
    }

    async fn sync(&mut self, who: usize) {
        let (name, number, ask) = self.ask(who);
        if let Some(synced) = self.deliver(&name, number, ask).await {
            self.tellers[who].ledger.synced(&synced, self.now);
        }
    }

    fn settle(&mut self, who: usize) {
        if let Some(call) = self.tellers[who].calls.pop() {
            let was_invalid = self.chance.u8(..10) > 0;
            self.tellers[who].ledger.settle(call, was_invalid, self.now);
            self.invalid.extend(was_invalid.then_some(self.now));
        }
    }

    /// It ends; what was under way is answered, and nobody is there to count it.
    fn replace(&mut self, who: usize) -> Teller {
        let new = self.teller();
        let old = std::mem::replace(&mut self.tellers[who], new);
        self.invalid.extend(old.calls.iter().map(|_| self.now));
        old
    }

    async fn act(&mut self) {
        let who = self.chance.usize(..self.tellers.len());
        match self.chance.u32(..200) {
            0..80 => {
                let teller = &mut self.tellers[who];
                let admitted = teller.ledger.admit(Lane::Interactive, None, &RouteKey::new(READ), self.now);
                teller.calls.extend(admitted);
            }
            80..120 => self.settle(who),
            120..165 => self.sync(who).await,
            165..170 => {
                // The answer is lost.
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
                assert_eq!(self.run_script("leave", &old.name, old.number + 1, ask).await, None);
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

    /// Redis loses everything, while some processes cannot reach it.
    async fn forget(&mut self) {
        let reach: Vec<usize> = (0..self.tellers.len()).filter(|who| *who == 0 || self.chance.bool()).collect();
        // They ask every second, so they know of all that was heard from the others.
        for who in &reach {
            self.sync(*who).await;
        }
        let () = redis::cmd("FLUSHALL").query_async(&mut self.client).await.unwrap();
        self.keeper = Keeper::new(self.limit, WINDOW);
        self.births.push(self.now);
        self.late.clear();
        for who in &reach {
            self.sync(*who).await;
        }
    }

    fn check(&mut self) {
        while self.invalid.front().is_some_and(|seen| self.now.since(*seen) >= WINDOW) {
            self.invalid.pop_front();
        }
        let under_way: usize = self.tellers.iter().map(|teller| teller.calls.len()).sum();
        let worst = self.invalid.len() + under_way;
        // Each further time that it began anew while what it lent is held, it may have lent its reserve once more.
        let held = WINDOW * 2 + Duration::from_secs(60);
        self.births.retain(|born| self.now.since(*born) <= held);
        let bound = self.limit + self.births.len().saturating_sub(1) as u32 * (self.limit / 40);
        assert!(worst <= bound as usize, "{worst} of {}", self.limit);
    }
}

#[test]
fn the_script_does_what_the_machine_says_and_the_limit_holds() {
    run(async {
        let server = RedisServer::start();
        let client = client(&server).await;
        for seed in 0..25 {
            println!("seed {seed}");
            let mut world = World::new(seed, client.clone()).await;
            for _ in 0..600 {
                world.act().await;
            }
        }
    });
}
