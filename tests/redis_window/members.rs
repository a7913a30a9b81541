//! Calls of real members, which decide what to send and when, lose replies, die, leave and come back.
//!
//! What a member does with slots is up to the limiter, which this test replaces: it takes some of the granted slots
//! from a reply before the member sees it, uses them, and adds their outcomes to the next call.

use std::time::Duration;

use guildhall_core::{
    limit::shared::{Member, ScriptCall, ScriptCommand, ScriptReply, SharedLimitConfig, Slot, SlotOutcome, SlotReport},
    time::Timestamp,
};
use proptest::{collection::vec, prelude::*};

use crate::pair::{Pair, for_all};

const PROCESSES: usize = 3;

#[derive(Clone, Debug)]
struct Turn {
    who: usize,
    /// Time since the last turn.
    after: Duration,
    /// Latency of the request to Redis, and of the reply.
    ways: [Duration; 2],
    fate: Fate,
    demand: Demand,
    fault: Option<Fault>,
}

/// Outcome of a call.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Answered,
    /// The script runs, but the reply is lost.
    Unanswered,
    /// The script does not run.
    Unheard,
    /// The script runs after the caller has given up.
    Late,
}

/// How a process uses the limit.
#[derive(Clone, Debug)]
struct Demand {
    want: u32,
    urgent: bool,
    /// Whether it uses the slots that it is granted.
    uses: bool,
    /// Number of its calls that were answered, and how long ago.
    answered: usize,
    ago: Duration,
    block: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Flush,
    Restart,
    Jump(i64),
    /// The process dies. Its successor has the same member id or a new one.
    Die(Heir),
    /// The process leaves, and starts again.
    Leave,
}

#[derive(Clone, Copy, Debug)]
enum Heir {
    Same,
    Other,
}

fn ms(range: std::ops::Range<u64>) -> impl Strategy<Value = Duration> {
    (range.start * 1_000..range.end * 1_000).prop_map(Duration::from_micros)
}

fn turn() -> impl Strategy<Value = Turn> {
    let after = prop_oneof![20 => ms(0..120), 3 => ms(120..1_500), 1 => ms(1_500..5_000), 1 => ms(5_000..40_000)];
    let way = || prop_oneof![8 => ms(0..2), 1 => ms(0..150)];
    let fate = prop_oneof![
        40 => Just(Fate::Answered),
        1 => Just(Fate::Unanswered),
        1 => Just(Fate::Unheard),
        1 => Just(Fate::Late)
    ];
    let heir = prop_oneof![Just(Heir::Same), Just(Heir::Other)];
    let fault = prop_oneof![
        2 => Just(Fault::Flush),
        2 => Just(Fault::Restart),
        2 => prop_oneof![-5_000_000..5_000_000i64, -60_000..60_000i64].prop_map(Fault::Jump),
        3 => heir.prop_map(Fault::Die),
        2 => Just(Fault::Leave),
    ];
    let fault = prop_oneof![40 => Just(None), 1 => fault.prop_map(Some)];
    let block = prop_oneof![60 => Just(Duration::ZERO), 1 => ms(0..2_000)];
    let demand = (0..4u32, any::<bool>(), any::<bool>(), 0..4usize, ms(0..80), block)
        .prop_map(|(want, urgent, uses, answered, ago, block)| Demand { want, urgent, uses, answered, ago, block });
    (0..PROCESSES, after, [way(), way()], fate, demand, fault)
        .prop_map(|(who, after, ways, fate, demand, fault)| Turn { who, after, ways, fate, demand, fault })
}

fn rules() -> impl Strategy<Value = SharedLimitConfig> {
    (prop_oneof![1..9u32, Just(50u32)], any::<bool>(), 0..6u32).prop_map(|(limit, lasting, burst)| {
        let soon = SharedLimitConfig {
            silence: Duration::from_millis(700),
            forget: Duration::from_secs(6),
            share_for: Duration::from_secs(3),
            newcomer: Duration::from_millis(600),
            request_timeout: Duration::from_secs(2),
            ..SharedLimitConfig::default()
        };
        let base = if lasting { SharedLimitConfig::default() } else { soon };
        // A short heartbeat, because each one is an opportunity to call and there are only a few turns.
        SharedLimitConfig { limit, burst, heartbeat: Duration::from_millis(60), ..base }
    })
}

struct Process {
    member: Member,
    id: String,
    life: u64,
    /// Its calls in flight.
    flying: Vec<Slot>,
    /// Number of calls that were answered since it last joined.
    cooling: u32,
    /// A call that it has given up and that has not reached Redis yet.
    late: Option<ScriptCall>,
}

struct Fleet<'a, 'b> {
    pair: &'a mut Pair<'b>,
    rules: SharedLimitConfig,
    elapsed: Timestamp,
    processes: Vec<Process>,
    dead: Vec<String>,
    restarts: u32,
}

impl<'a, 'b> Fleet<'a, 'b> {
    fn new(rules: SharedLimitConfig, pair: &'a mut Pair<'b>) -> Self {
        let elapsed = Timestamp::ZERO;
        let processes = (0..PROCESSES).map(|who| Process::start(&rules, format!("p{who}"), 1, elapsed)).collect();
        Self { pair, rules, elapsed, processes, dead: Vec::new(), restarts: 0 }
    }

    fn pass(&mut self, time: Duration) {
        self.elapsed = self.elapsed + time;
        self.pair.pass(time);
    }

    fn turn(&mut self, turn: &Turn) -> Result<(), TestCaseError> {
        let Turn { who, after, ways: [there, back], fate, demand, fault } = turn;
        self.pass(*after);
        if let Some(late) = self.processes[*who].late.take() {
            self.pair.call(&late, &self.rules)?;
        }
        if let Some(fault) = fault {
            self.suffer(*who, *fault)?;
        }
        let now = self.elapsed;
        let Some(call) = self.processes[*who].member.next_call(now) else { return Ok(()) };
        let call = self.processes[*who].say(call, demand, &mut self.dead);
        self.pass(*there);
        match fate {
            Fate::Answered => {
                let reply = self.pair.call(&call, &self.rules)?;
                self.pass(*back);
                self.processes[*who].hear(&call, reply, demand, self.elapsed);
                return Ok(());
            }
            Fate::Unanswered => {
                self.pair.call(&call, &self.rules)?;
            }
            Fate::Unheard => {}
            Fate::Late => self.processes[*who].late = Some(call),
        }
        self.pass(self.rules.timeout);
        self.processes[*who].member.on_lost(self.elapsed);
        Ok(())
    }

    fn suffer(&mut self, who: usize, fault: Fault) -> Result<(), TestCaseError> {
        match fault {
            Fault::Flush => self.pair.flush(),
            Fault::Restart => {
                self.restarts += 1;
                self.pair.server = format!("restarted {}", self.restarts);
                self.pair.flush();
            }
            Fault::Jump(by) => self.pair.now = self.pair.now.saturating_add_signed(by),
            Fault::Die(heir) => {
                let Process { id, life, .. } = &self.processes[who];
                let (id, life) = match heir {
                    Heir::Same => (id.clone(), life + 1),
                    Heir::Other => {
                        self.dead.push(id.clone());
                        (format!("{id}'"), life + 1)
                    }
                };
                self.processes[who] = Process::start(&self.rules, id, life, self.elapsed);
            }
            Fault::Leave => {
                if let Some(call) = self.processes[who].member.leave(self.elapsed) {
                    self.pair.call(&call, &self.rules)?;
                }
                let Process { id, life, .. } = &self.processes[who];
                self.processes[who] = Process::start(&self.rules, id.clone(), life + 1, self.elapsed);
            }
        }
        Ok(())
    }
}

impl Process {
    fn start(rules: &SharedLimitConfig, id: String, life: u64, now: Timestamp) -> Self {
        let member = Member::new(rules.clone(), id.clone(), life, now);
        Self { member, id, life, flying: Vec::new(), cooling: 0, late: None }
    }

    /// Adds the reports of a busy process to the call of its member.
    fn say(&mut self, mut call: ScriptCall, demand: &Demand, dead: &mut Vec<String>) -> ScriptCall {
        match &mut call.doing {
            ScriptCommand::Look | ScriptCommand::Leave(_) => {}
            ScriptCommand::Join(join) => {
                join.flying = u32::try_from(self.flying.len()).unwrap();
                join.cooling = self.cooling;
                join.untold = self.cooling / 2;
            }
            ScriptCommand::Sync(sync) => {
                let answered = self.flying.drain(..demand.answered.min(self.flying.len()));
                self.cooling += u32::try_from(answered.len()).unwrap();
                let how = SlotOutcome::Answered(demand.ago);
                sync.ended.extend(answered.map(|Slot { token, booking, .. }| SlotReport { token, booking, how }));
                sync.want = demand.want;
                sync.urgent = demand.urgent;
                sync.block = demand.block;
                sync.dead.append(dead);
            }
        }
        call
    }

    fn hear(&mut self, call: &ScriptCall, mut reply: ScriptReply, demand: &Demand, now: Timestamp) {
        if let ScriptReply::Done(standing) = &mut reply {
            if matches!(call.doing, ScriptCommand::Join(_)) {
                self.flying = std::mem::take(&mut standing.slots);
                self.cooling = 0;
            } else if demand.uses {
                self.flying.append(&mut standing.slots);
            }
        }
        self.member.on_reply(reply, now);
    }
}

#[test]
fn whatever_processes_go_through_the_script_answers_and_keeps_what_the_model_does() {
    for_all(&(rules(), vec(turn(), 1..200)), |(rules, turns), pair| {
        let mut fleet = Fleet::new(rules, pair);
        turns.iter().try_for_each(|turn| fleet.turn(turn))
    });
}
