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

use super::pair::{Pair, for_all};

const PROCESSES: usize = 3;

#[derive(Clone, Debug)]
struct Step {
    process: usize,
    /// Time since the last step.
    after: Duration,
    /// Latency of the request to Redis, and of the reply.
    latencies: [Duration; 2],
    outcome: CallOutcome,
    demand: Demand,
    fault: Option<Fault>,
}

/// Outcome of a call.
#[derive(Clone, Copy, Debug)]
enum CallOutcome {
    Answered,
    /// The script runs, but the reply is lost.
    ReplyLost,
    /// The script does not run.
    RequestLost,
    /// The script runs after the caller has given up.
    Late,
}

/// How a process uses the limit.
#[derive(Clone, Debug)]
struct Demand {
    desired_slots: u32,
    urgent: bool,
    /// Whether it uses the slots that it is granted.
    uses_slots: bool,
    /// Number of its calls that were answered, and how long ago.
    answered: usize,
    answered_ago: Duration,
    block: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Flush,
    Restart,
    Jump(i64),
    /// The process dies. Its successor has the same member id or a new one.
    Die(Successor),
    /// The process leaves, and starts again.
    Leave,
}

#[derive(Clone, Copy, Debug)]
enum Successor {
    Same,
    Other,
}

fn ms(range: std::ops::Range<u64>) -> impl Strategy<Value = Duration> {
    (range.start * 1_000..range.end * 1_000).prop_map(Duration::from_micros)
}

fn step() -> impl Strategy<Value = Step> {
    let after = prop_oneof![20 => ms(0..120), 3 => ms(120..1_500), 1 => ms(1_500..5_000), 1 => ms(5_000..40_000)];
    let latency = || prop_oneof![8 => ms(0..2), 1 => ms(0..150)];
    let outcome = prop_oneof![
        40 => Just(CallOutcome::Answered),
        1 => Just(CallOutcome::ReplyLost),
        1 => Just(CallOutcome::RequestLost),
        1 => Just(CallOutcome::Late)
    ];
    let heir = prop_oneof![Just(Successor::Same), Just(Successor::Other)];
    let fault = prop_oneof![
        2 => Just(Fault::Flush),
        2 => Just(Fault::Restart),
        2 => prop_oneof![-5_000_000..5_000_000i64, -60_000..60_000i64].prop_map(Fault::Jump),
        3 => heir.prop_map(Fault::Die),
        2 => Just(Fault::Leave),
    ];
    let fault = prop_oneof![40 => Just(None), 1 => fault.prop_map(Some)];
    let block = prop_oneof![60 => Just(Duration::ZERO), 1 => ms(0..2_000)];
    let demand = (0..4u32, any::<bool>(), any::<bool>(), 0..4usize, ms(0..80), block).prop_map(
        |(want, urgent, uses, answered, ago, block)| Demand {
            desired_slots: want,
            urgent,
            uses_slots: uses,
            answered,
            answered_ago: ago,
            block,
        },
    );
    (0..PROCESSES, after, [latency(), latency()], outcome, demand, fault).prop_map(
        |(index, after, latencies, outcome, demand, fault)| Step {
            process: index,
            after,
            latencies,
            outcome,
            demand,
            fault,
        },
    )
}

fn limit_config() -> impl Strategy<Value = SharedLimitConfig> {
    (prop_oneof![1..9u32, Just(50u32)], any::<bool>(), 0..6u32).prop_map(|(limit, is_default, burst)| {
        let short = SharedLimitConfig {
            silence: Duration::from_millis(700),
            forget: Duration::from_secs(6),
            share_for: Duration::from_secs(3),
            newcomer: Duration::from_millis(600),
            request_timeout: Duration::from_secs(2),
            ..SharedLimitConfig::default()
        };
        let base = if is_default { SharedLimitConfig::default() } else { short };
        // A short heartbeat, because each one is an opportunity to call and there are only a few steps.
        SharedLimitConfig { limit, burst, heartbeat: Duration::from_millis(60), ..base }
    })
}

struct Process {
    member: Member,
    id: String,
    process: u64,
    /// Its calls in flight.
    in_flight: Vec<Slot>,
    /// Number of calls that were answered since it last joined.
    cooling: u32,
    /// A call that it has given up and that has not reached Redis yet.
    late: Option<ScriptCall>,
}

struct Fleet<'a, 'b> {
    pair: &'a mut Pair<'b>,
    limit_config: SharedLimitConfig,
    elapsed: Timestamp,
    processes: Vec<Process>,
    dead: Vec<String>,
    restarts: u32,
}

impl<'a, 'b> Fleet<'a, 'b> {
    fn new(rules: SharedLimitConfig, pair: &'a mut Pair<'b>) -> Self {
        let elapsed = Timestamp::ZERO;
        let processes = (0..PROCESSES).map(|index| Process::start(&rules, format!("p{index}"), 1, elapsed)).collect();
        Self { pair, limit_config: rules, elapsed, processes, dead: Vec::new(), restarts: 0 }
    }

    fn observe_for(&mut self, time: Duration) {
        self.elapsed = self.elapsed + time;
        self.pair.pass(time);
    }

    fn run_step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let Step { process: index, after, latencies: [there, back], outcome, demand, fault } = step;
        self.observe_for(*after);
        if let Some(late) = self.processes[*index].late.take() {
            self.pair.call(&late, &self.limit_config)?;
        }
        if let Some(fault) = fault {
            self.inject_fault(*index, *fault)?;
        }
        let now = self.elapsed;
        let Some(call) = self.processes[*index].member.next_call(now) else { return Ok(()) };
        let call = self.processes[*index].add_reports(call, demand, &mut self.dead);
        self.observe_for(*there);
        match outcome {
            CallOutcome::Answered => {
                let reply = self.pair.call(&call, &self.limit_config)?;
                self.observe_for(*back);
                self.processes[*index].handle_reply(&call, reply, demand, self.elapsed);
                return Ok(());
            }
            CallOutcome::ReplyLost => {
                self.pair.call(&call, &self.limit_config)?;
            }
            CallOutcome::RequestLost => {}
            CallOutcome::Late => self.processes[*index].late = Some(call),
        }
        self.observe_for(self.limit_config.timeout);
        self.processes[*index].member.on_lost(self.elapsed);
        Ok(())
    }

    fn inject_fault(&mut self, index: usize, fault: Fault) -> Result<(), TestCaseError> {
        match fault {
            Fault::Flush => self.pair.flush(),
            Fault::Restart => {
                self.restarts += 1;
                self.pair.server = format!("restarted {}", self.restarts);
                self.pair.flush();
            }
            Fault::Jump(by) => self.pair.now = self.pair.now.saturating_add_signed(by),
            Fault::Die(successor) => {
                let Process { id, process: life, .. } = &self.processes[index];
                let (id, life) = match successor {
                    Successor::Same => (id.clone(), life + 1),
                    Successor::Other => {
                        self.dead.push(id.clone());
                        (format!("{id}'"), life + 1)
                    }
                };
                self.processes[index] = Process::start(&self.limit_config, id, life, self.elapsed);
            }
            Fault::Leave => {
                if let Some(call) = self.processes[index].member.leave(self.elapsed) {
                    self.pair.call(&call, &self.limit_config)?;
                }
                let Process { id, process: life, .. } = &self.processes[index];
                self.processes[index] = Process::start(&self.limit_config, id.clone(), life + 1, self.elapsed);
            }
        }
        Ok(())
    }
}

impl Process {
    fn start(rules: &SharedLimitConfig, id: String, life: u64, now: Timestamp) -> Self {
        let member = Member::new(rules.clone(), id.clone(), life, now);
        Self { member, id, process: life, in_flight: Vec::new(), cooling: 0, late: None }
    }

    /// Adds the reports of a busy process to the call of its member.
    fn add_reports(&mut self, mut call: ScriptCall, demand: &Demand, dead: &mut Vec<String>) -> ScriptCall {
        match &mut call.command {
            ScriptCommand::Probe | ScriptCommand::Leave(_) => {}
            ScriptCommand::Join(join) => {
                join.in_flight = u32::try_from(self.in_flight.len()).unwrap();
                join.cooling = self.cooling;
                join.unreported = self.cooling / 2;
            }
            ScriptCommand::Sync(sync) => {
                let answered = self.in_flight.drain(..demand.answered.min(self.in_flight.len()));
                self.cooling += u32::try_from(answered.len()).unwrap();
                let outcome = SlotOutcome::Answered(demand.answered_ago);
                sync.reports.extend(answered.map(|Slot { token, booking, .. }| SlotReport { token, booking, outcome }));
                sync.requested_slots = demand.desired_slots;
                sync.urgent = demand.urgent;
                sync.block = demand.block;
                sync.dead.append(dead);
            }
        }
        call
    }

    fn handle_reply(&mut self, call: &ScriptCall, mut reply: ScriptReply, demand: &Demand, now: Timestamp) {
        if let ScriptReply::Done(state) = &mut reply {
            if matches!(call.command, ScriptCommand::Join(_)) {
                self.in_flight = std::mem::take(&mut state.slots);
                self.cooling = 0;
            } else if demand.uses_slots {
                self.in_flight.append(&mut state.slots);
            }
        }
        self.member.on_reply(reply, now);
    }
}

#[test]
fn script_equals_model_for_real_members() {
    for_all(&(limit_config(), vec(step(), 1..200)), |(rules, steps), pair| {
        let mut fleet = Fleet::new(rules, pair);
        steps.iter().try_for_each(|step| fleet.run_step(step))
    });
}
