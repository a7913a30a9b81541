//! The script that keeps the common count, put through what the ledgers' own tests put their keeper through: questions and
//! answers that are lost or late, processes that die, a Redis that forgets. Under the real clock, with a window so short that
//! it passes many times.

use std::collections::VecDeque;
use std::time::Instant;

use guildhall_core::invalid::{Ask, Ledger, Reservation, Synced};
use guildhall_core::time::Timestamp;
use redis::{Script, Value};

use super::*;

const LIMIT: u32 = 60;
const WINDOW: Duration = Duration::from_millis(150);

struct Teller {
    name: String,
    ledger: Ledger,
    calls: Vec<Reservation>,
    number: u64,
}

struct World {
    began: Instant,
    script: Script,
    client: MultiplexedConnection,
    tellers: Vec<Teller>,
    names: u32,
    invalid: VecDeque<Instant>,
    late: Vec<(String, u64, Ask)>,
    most: usize,
}

impl World {
    fn now(&self) -> Timestamp {
        Timestamp::ZERO + self.began.elapsed()
    }

    fn teller(&mut self) -> Teller {
        self.names += 1;
        let config = InvalidConfig { limit: LIMIT, window: WINDOW, ..InvalidConfig::default() };
        let mut ledger = Ledger::new(config);
        ledger.share(WhenLost::Stop, self.now());
        Teller { name: format!("teller-{}", self.names), ledger, calls: Vec::new(), number: 0 }
    }

    fn ask(&mut self, who: usize) -> (String, u64, Ask) {
        let now = self.now();
        let teller = &mut self.tellers[who];
        teller.number += 1;
        (teller.name.clone(), teller.number, teller.ledger.ask(now).unwrap())
    }

    async fn deliver(&mut self, name: &str, number: u64, ask: Ask) -> Option<Synced> {
        let mut call = self.script.key(LEDGER);
        call.arg("sync").arg(name).arg(number).arg(ask.counted).arg(ask.unacknowledged).arg(ask.in_flight);
        call.arg(ask.ceiling).arg(ask.total).arg(ask.holders).arg(LIMIT).arg(WINDOW.as_millis() as u64).arg("server");
        let answer: Value = call.invoke_async(&mut self.client).await.unwrap();
        let numbers: Vec<i64> = redis::from_redis_value(answer).unwrap();
        let [ceiling, members, holders, elsewhere, ref slots @ ..] = numbers[..] else { return None };
        let whole = |number: i64| u32::try_from(number).unwrap();
        let slots = slots.chunks(2).map(|slot| (Duration::from_millis(whole(slot[0]).into()), whole(slot[1])));
        Some(Synced {
            asked: ask.asked,
            acknowledged: ask.counted,
            ceiling: u64::try_from(ceiling).unwrap(),
            slots: slots.collect(),
            members: whole(members),
            holders: whole(holders),
            elsewhere: whole(elsewhere),
        })
    }

    async fn sync(&mut self, who: usize) {
        let (name, number, ask) = self.ask(who);
        if let Some(synced) = self.deliver(&name, number, ask).await {
            let now = self.now();
            self.tellers[who].ledger.synced(&synced, now);
        }
    }

    fn settle(&mut self, who: usize) {
        let now = self.now();
        if let Some(call) = self.tellers[who].calls.pop() {
            let was_invalid = fastrand::u8(..10) > 0;
            self.tellers[who].ledger.settle(call, was_invalid, now);
            if was_invalid {
                self.invalid.push_back(Instant::now());
            }
        }
    }

    async fn grow_old(&mut self) {
        let () = redis::cmd("HSET").arg(LEDGER).arg("born").arg(1).query_async(&mut self.client).await.unwrap();
    }

    async fn act(&mut self) {
        let who = fastrand::usize(..self.tellers.len());
        match fastrand::u32(..100) {
            0..30 => {
                let now = self.now();
                let teller = &mut self.tellers[who];
                let admitted = teller.ledger.admit(Lane::Interactive, None, &RouteKey::new(READ), now);
                teller.calls.extend(admitted);
            }
            30..65 => self.settle(who),
            65..90 => self.sync(who).await,
            90..93 => {
                // The answer is lost.
                let (name, number, ask) = self.ask(who);
                self.deliver(&name, number, ask).await;
            }
            93..95 => {
                let question = self.ask(who);
                self.late.push(question);
            }
            95..97 => {
                if let Some((name, number, ask)) = self.late.pop() {
                    self.deliver(&name, number, ask).await;
                }
            }
            97 if fastrand::u8(..20) == 0 => {
                // It dies; what was under way is answered, and nobody counts it.
                let new = self.teller();
                let dead = std::mem::replace(&mut self.tellers[who], new);
                self.invalid.extend(dead.calls.iter().map(|_| Instant::now()));
            }
            98 if fastrand::u8(..20) == 0 => {
                for who in 0..self.tellers.len() {
                    self.sync(who).await;
                }
                let () = redis::cmd("FLUSHALL").query_async(&mut self.client).await.unwrap();
                self.late.clear();
                for who in 0..self.tellers.len() {
                    self.sync(who).await;
                }
                self.grow_old().await;
            }
            _ => {}
        }
        self.check();
    }

    fn check(&mut self) {
        while self.invalid.front().is_some_and(|seen| seen.elapsed() >= WINDOW) {
            self.invalid.pop_front();
        }
        let under_way: usize = self.tellers.iter().map(|teller| teller.calls.len()).sum();
        let worst = self.invalid.len() + under_way;
        assert!(worst <= LIMIT as usize, "{worst} of {LIMIT}");
        self.most = self.most.max(worst);
    }
}

#[test]
fn the_script_never_lends_more_than_there_is_whatever_is_lost_or_late() {
    run(async {
        let server = RedisServer::start();
        let mut world = World {
            began: Instant::now(),
            script: Script::new(include_str!("../../src/redis/ledger.lua")),
            client: client(&server).await,
            tellers: Vec::new(),
            names: 0,
            invalid: VecDeque::new(),
            late: Vec::new(),
            most: 0,
        };
        for _ in 0..4 {
            let teller = world.teller();
            world.tellers.push(teller);
        }
        world.sync(0).await;
        world.grow_old().await;
        for _ in 0..20_000 {
            world.act().await;
        }
        // It also lends: a keeper that never does would be safe, too.
        assert!(world.most >= LIMIT as usize / 2, "{}", world.most);
    });
}
