//! Valid and invalid calls, in any order.

use std::time::Duration;

use guildhall_core::limit::shared::{
    JoinRequest, ScriptCall, ScriptCommand, ScriptReply, SharedLimitConfig, Slot, SlotOutcome, SlotReport, SyncRequest,
};
use proptest::{collection::vec, option, prelude::*, sample::Index};

use super::pair::{Pair, for_all};

const MEMBERS: [&str; 4] = ["a", "b", "bb", "an id with a blank"];

#[derive(Clone, Debug)]
enum Step {
    Pass(Duration),
    Back(Duration),
    Flush,
    Server(u8),
    Call { member: usize, call_spec: Box<CallSpec> },
}

/// A call, described by what its caller knows.
#[derive(Clone, Debug)]
struct CallSpec {
    kind: CommandKind,
    epoch: EpochRef,
    renew: Option<EpochRef>,
    life: IncarnationRef,
    /// Microseconds until the caller gives up, if it knows the clock.
    time_left: Option<i64>,
    /// Limit and rules, if they differ from those of the others.
    limit: Option<u32>,
    rules: Option<usize>,
    held: Option<u32>,
    wants_share: bool,
    counts: [u32; 3],
    ready_in: Duration,
    want: u32,
    urgent: bool,
    reports: Vec<(SlotRef, SlotOutcome)>,
    block: Duration,
    dead: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
enum CommandKind {
    /// The call that a process with the caller's state would make.
    Fitting,
    Probe,
    Join,
    Sync,
    Leave,
}

/// An epoch: the last one of the caller, the last one that any caller has seen, or one that never existed.
#[derive(Clone, Copy, Debug)]
enum EpochRef {
    Own,
    Newest,
    Unknown,
    None,
}

#[derive(Clone, Copy, Debug)]
enum IncarnationRef {
    Same,
    /// A new process takes over the member id.
    New,
    /// A process calls whose member id was taken over.
    Old,
}

/// A slot: one of the caller's, one of any caller's, one that was reported before, or one that was never granted.
#[derive(Clone, Copy, Debug)]
enum SlotRef {
    Own(Index),
    Any(Index),
    Reported(Index),
    Unknown(u64, u64),
}

#[derive(Clone, Debug, Default)]
struct Caller {
    life: u64,
    epoch: String,
    is_member: bool,
    share: u32,
    slots: Vec<Slot>,
    reported: Vec<Slot>,
}

fn micros(range: std::ops::Range<u64>) -> impl Strategy<Value = Duration> + Clone {
    range.prop_map(Duration::from_micros)
}

/// Times that coincide with others, and with the limits in the rules, to the microsecond.
fn tenths(range: std::ops::Range<u64>) -> impl Strategy<Value = Duration> {
    range.prop_map(|tenths| Duration::from_millis(tenths * 100))
}

fn times() -> impl Strategy<Value = Duration> {
    prop_oneof![
        2 => Just(Duration::ZERO),
        30 => tenths(0..12),
        4 => tenths(12..40),
        4 => micros(1..1_000),
        16 => micros(1_000..100_000),
        16 => micros(100_000..1_500_000),
        2 => micros(1_500_000..8_000_000),
        1 => micros(8_000_000..60_000_000),
        1 => micros(60_000_000..1_400_000_000),
    ]
}

fn slot_outcome() -> impl Strategy<Value = SlotOutcome> {
    prop_oneof![
        4 => micros(0..300_000).prop_map(SlotOutcome::Answered),
        1 => micros(0..30_000_000).prop_map(SlotOutcome::Answered),
        // Longer ago than the clock has run.
        1 => Just(SlotOutcome::Answered(Duration::from_secs(4_000_000_000))),
        3 => Just(SlotOutcome::Unused),
    ]
}

fn slot_ref() -> impl Strategy<Value = SlotRef> {
    prop_oneof![
        10 => any::<Index>().prop_map(SlotRef::Own),
        2 => any::<Index>().prop_map(SlotRef::Any),
        2 => any::<Index>().prop_map(SlotRef::Reported),
        1 => (0..200u64, 0..200u64).prop_map(|(token, booking)| SlotRef::Unknown(token, booking)),
        1 => any::<(u64, u64)>().prop_map(|(token, booking)| SlotRef::Unknown(token, booking)),
    ]
}

fn epoch_ref() -> impl Strategy<Value = EpochRef> {
    prop_oneof![
        12 => Just(EpochRef::Own),
        6 => Just(EpochRef::Newest),
        1 => Just(EpochRef::Unknown),
        1 => Just(EpochRef::None),
    ]
}

fn block() -> impl Strategy<Value = Duration> {
    prop_oneof![80 => Just(Duration::ZERO), 1 => micros(1..1_000), 2 => tenths(1..40)]
}

fn limit() -> impl Strategy<Value = u32> {
    prop_oneof![12 => 1..9u32, 2 => Just(50u32), 1 => Just(0u32)]
}

fn call_spec() -> impl Strategy<Value = CallSpec> {
    let kind = prop_oneof![
        24 => Just(CommandKind::Fitting),
        1 => Just(CommandKind::Probe),
        2 => Just(CommandKind::Join),
        4 => Just(CommandKind::Sync),
        1 => Just(CommandKind::Leave),
    ];
    let life =
        prop_oneof![20 => Just(IncarnationRef::Same), 1 => Just(IncarnationRef::New), 1 => Just(IncarnationRef::Old)];
    let time_left = prop_oneof![
        5 => Just(None),
        5 => (0..300_000i64).prop_map(Some),
        1 => (-2..2i64).prop_map(Some),
        1 => (-60_000_000..0i64).prop_map(Some),
    ];
    let renew = prop_oneof![12 => Just(None), 1 => epoch_ref().prop_map(Some)];
    let count = || prop_oneof![60 => Just(0u32), 6 => 1..4u32, 1 => 4..60u32];
    let dead = prop_oneof![8 => Just(Vec::new()), 1 => vec(0..MEMBERS.len() + 4, 1..4)];
    let common =
        (kind, epoch_ref(), renew, life, time_left, option::weighted(0.1, limit()), option::weighted(0.1, 0..RULES));
    let join = (option::weighted(0.2, 0..60u32), prop::bool::weighted(0.9), [count(), count(), count()], times());
    let want = prop_oneof![2 => Just(0u32), 5 => 1..4u32, 1 => 4..100u32];
    let sync = (want, any::<bool>(), vec((slot_ref(), slot_outcome()), 0..4), block(), dead);
    (common, join, sync).prop_map(|(common, join, sync)| {
        let (kind, epoch, renew, life, time_left, limit, rules) = common;
        let (held, wants_share, counts, ready_in) = join;
        let (want, urgent, ended, block, dead) = sync;
        CallSpec {
            kind,
            epoch,
            renew,
            life,
            time_left,
            limit,
            rules,
            held,
            wants_share,
            counts,
            ready_in,
            want,
            urgent,
            reports: ended,
            block,
            dead,
        }
    })
}

/// Steps of some of the members.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    (1..=MEMBERS.len()).prop_flat_map(steps_of)
}

fn steps_of(members: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        20 => times().prop_map(Step::Pass),
        1 => prop_oneof![micros(1..60_000), micros(49_990..50_010), micros(60_000..20_000_000)].prop_map(Step::Back),
        1 => prop_oneof![3 => (0..3u8).prop_map(Step::Server), 1 => Just(Step::Flush)],
        60 => (0..members, call_spec()).prop_map(|(member, spec)| Step::Call { member, call_spec: Box::new(spec) }),
    ];
    vec(step, 1..120)
}

const RULES: usize = 6;

/// Rules: usual ones, ones with occasional effects, and unreasonable ones.
fn rules(number: usize, limit: u32) -> SharedLimitConfig {
    let ms = Duration::from_millis;
    let base = SharedLimitConfig { limit, forget: ms(60_000), timeout: ms(200), ..SharedLimitConfig::default() };
    match number {
        0 => SharedLimitConfig { burst: 1, newcomer: ms(200), window: ms(1_000), request_timeout: ms(1_500), ..base },
        1 => SharedLimitConfig { burst: 1, window: ms(1_000), horizon: ms(2_000), newcomer: ms(0), ..base },
        2 => SharedLimitConfig {
            burst: 0,
            window: Duration::from_micros(1_234_567),
            guard: ms(7),
            retry: ms(50),
            ..base
        },
        3 => SharedLimitConfig { silence: ms(300), forget: ms(2_000), heartbeat: ms(100), timeout: ms(50), ..base },
        _ => base,
    }
}

struct Driver {
    rules: usize,
    limit: u32,
    callers: Vec<Caller>,
    newest: String,
    last_incarnation: u64,
}

impl Driver {
    fn new(rules: usize, limit: u32) -> Self {
        let caller = |life| Caller { life, ..Caller::default() };
        // As large as an incarnation can be, so that no conversion may lose precision.
        let first = u64::MAX - 100;
        let lives = first + MEMBERS.len() as u64;
        Self {
            rules,
            limit,
            callers: (first..lives).map(caller).collect(),
            newest: String::new(),
            last_incarnation: lives,
        }
    }

    fn step(&mut self, step: Step, pair: &mut Pair<'_>) -> Result<(), TestCaseError> {
        match step {
            Step::Pass(time) => pair.pass(time),
            Step::Back(time) => pair.now -= u64::try_from(time.as_micros()).unwrap(),
            Step::Flush => pair.flush(),
            Step::Server(number) => pair.server = format!("server {number}"),
            Step::Call { member: index, call_spec: spec } => {
                let call = self.build_call(index, &spec, pair.now);
                let reply =
                    pair.call(&call, &rules(spec.rules.unwrap_or(self.rules), spec.limit.unwrap_or(self.limit)))?;
                self.apply_reply(index, reply);
            }
        }
        Ok(())
    }

    /// Builds the call.
    fn build_call(&mut self, index: usize, spec: &CallSpec, now: u64) -> ScriptCall {
        let life = match spec.life {
            IncarnationRef::Same => self.callers[index].life,
            IncarnationRef::New => {
                self.last_incarnation += 1;
                self.callers[index] = Caller { life: self.last_incarnation, ..Caller::default() };
                self.last_incarnation
            }
            IncarnationRef::Old => self.callers[index].life - 1,
        };
        let not_after = spec.time_left.map_or(0, |time_left| now.saturating_add_signed(time_left));
        let command = match spec.kind {
            CommandKind::Probe => ScriptCommand::Probe,
            CommandKind::Fitting if self.callers[index].is_member => ScriptCommand::Sync(self.sync(index, spec)),
            CommandKind::Join | CommandKind::Fitting => ScriptCommand::Join(self.join(index, spec)),
            CommandKind::Sync => ScriptCommand::Sync(self.sync(index, spec)),
            CommandKind::Leave => ScriptCommand::Leave(self.sync(index, spec)),
        };
        ScriptCall { member: MEMBERS[index].to_owned(), incarnation: life, not_after, command }
    }

    fn join(&self, index: usize, spec: &CallSpec) -> JoinRequest {
        let caller = &self.callers[index];
        let [in_flight, cooling, unreported] = spec.counts;
        JoinRequest {
            epoch: self.epoch(index, spec.epoch),
            renew: spec.renew.map_or_else(String::new, |reference| self.epoch(index, reference)),
            held: spec.held.unwrap_or(caller.share),
            uses_share: spec.wants_share,
            in_flight,
            cooling,
            unreported,
            ready_in: spec.ready_in,
            block: spec.block,
            global_block: if spec.urgent { spec.block } else { Duration::ZERO },
        }
    }

    fn sync(&mut self, index: usize, spec: &CallSpec) -> SyncRequest {
        SyncRequest {
            epoch: self.epoch(index, spec.epoch),
            held: spec.held.unwrap_or(self.callers[index].share),
            uses_share: spec.wants_share,
            requested_slots: spec.want,
            urgent: spec.urgent,
            reports: spec.reports.iter().filter_map(|(which, outcome)| self.report(index, *which, *outcome)).collect(),
            block: spec.block,
            dead: spec.dead.iter().map(|dead| member_id(*dead)).collect(),
        }
    }

    fn epoch(&self, index: usize, reference: EpochRef) -> String {
        match reference {
            EpochRef::Own => self.callers[index].epoch.clone(),
            EpochRef::Newest => self.newest.clone(),
            EpochRef::Unknown => "1-2".to_owned(),
            EpochRef::None => String::new(),
        }
    }

    fn report(&mut self, caller_index: usize, which: SlotRef, outcome: SlotOutcome) -> Option<SlotReport> {
        let pick = |slots: &[Slot], index: Index| (!slots.is_empty()).then(|| *index.get(slots));
        let slot = match which {
            SlotRef::Own(index) => {
                let slot = pick(&self.callers[caller_index].slots, index)?;
                self.callers[caller_index].slots.retain(|other| *other != slot);
                self.callers[caller_index].reported.push(slot);
                slot
            }
            SlotRef::Any(index) => {
                let all: Vec<Slot> = self.callers.iter().flat_map(|caller| caller.slots.clone()).collect();
                pick(&all, index)?
            }
            SlotRef::Reported(index) => pick(&self.callers[caller_index].reported, index)?,
            SlotRef::Unknown(token, booking) => Slot { token, booking, wait: Duration::ZERO },
        };
        Some(SlotReport { token: slot.token, booking: slot.booking, outcome })
    }

    fn apply_reply(&mut self, index: usize, reply: ScriptReply) {
        let caller = &mut self.callers[index];
        match reply {
            ScriptReply::Done(state) => {
                caller.is_member = true;
                if caller.epoch != state.epoch {
                    caller.slots.clear();
                }
                caller.share = state.share;
                caller.slots.extend(state.slots);
                caller.epoch.clone_from(&state.epoch);
                self.newest = state.epoch;
            }
            ScriptReply::Rejoin { .. } => caller.is_member = false,
            ScriptReply::Stale { .. } | ScriptReply::Status { .. } => {}
        }
    }
}

/// Id of a member, or an unknown one.
fn member_id(number: usize) -> String {
    MEMBERS.get(number).map_or_else(|| format!("dead {number}"), ToString::to_string)
}

#[test]
fn script_equals_model_for_random_calls() {
    for_all(&(0..RULES, limit(), steps()), |(rules, limit, steps), pair| {
        let mut driver = Driver::new(rules, limit);
        steps.into_iter().try_for_each(|step| driver.step(step, pair))
    });
}
