//! Valid and invalid calls, in any order.

use std::time::Duration;

use guildhall_core::limit::shared::{
    JoinRequest, ScriptCall, ScriptCommand, ScriptReply, SharedLimitConfig, Slot, SlotOutcome, SlotReport, SyncRequest,
};
use proptest::{collection::vec, option, prelude::*, sample::Index};

use crate::pair::{Pair, for_all};

const MEMBERS: [&str; 4] = ["a", "b", "bb", "an id with a blank"];

#[derive(Clone, Debug)]
enum Step {
    Pass(Duration),
    Back(Duration),
    Flush,
    Server(u8),
    Call { who: usize, says: Box<Says> },
}

/// A call, described by what its caller knows.
#[derive(Clone, Debug)]
struct Says {
    doing: Kind,
    epoch: Whence,
    renew: Option<Whence>,
    life: Life,
    /// Microseconds until the caller gives up, if it knows the clock.
    left: Option<i64>,
    /// Limit and rules, if they differ from those of the others.
    limit: Option<u32>,
    rules: Option<usize>,
    held: Option<u32>,
    wants_share: bool,
    counts: [u32; 3],
    ready_in: Duration,
    want: u32,
    urgent: bool,
    ended: Vec<(Which, SlotOutcome)>,
    block: Duration,
    dead: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// The call that a process with the caller's state would make.
    Fitting,
    Look,
    Join,
    Sync,
    Leave,
}

/// An epoch: the last one of the caller, the last one that any caller has seen, or one that never existed.
#[derive(Clone, Copy, Debug)]
enum Whence {
    Own,
    Newest,
    Nowhere,
    None,
}

#[derive(Clone, Copy, Debug)]
enum Life {
    Same,
    /// A new process takes over the member id.
    New,
    /// A process calls whose member id was taken over.
    Old,
}

/// A slot: one of the caller's, one of any caller's, one that was reported before, or one that was never granted.
#[derive(Clone, Copy, Debug)]
enum Which {
    Own(Index),
    Any(Index),
    Told(Index),
    Never(u64, u64),
}

#[derive(Clone, Debug, Default)]
struct Caller {
    life: u64,
    epoch: String,
    is_member: bool,
    share: u32,
    slots: Vec<Slot>,
    told: Vec<Slot>,
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

fn how() -> impl Strategy<Value = SlotOutcome> {
    prop_oneof![
        4 => micros(0..300_000).prop_map(SlotOutcome::Answered),
        1 => micros(0..30_000_000).prop_map(SlotOutcome::Answered),
        // Longer ago than the clock has run.
        1 => Just(SlotOutcome::Answered(Duration::from_secs(4_000_000_000))),
        3 => Just(SlotOutcome::Unused),
    ]
}

fn which() -> impl Strategy<Value = Which> {
    prop_oneof![
        10 => any::<Index>().prop_map(Which::Own),
        2 => any::<Index>().prop_map(Which::Any),
        2 => any::<Index>().prop_map(Which::Told),
        1 => (0..200u64, 0..200u64).prop_map(|(token, booking)| Which::Never(token, booking)),
        1 => any::<(u64, u64)>().prop_map(|(token, booking)| Which::Never(token, booking)),
    ]
}

fn whence() -> impl Strategy<Value = Whence> {
    prop_oneof![
        12 => Just(Whence::Own),
        6 => Just(Whence::Newest),
        1 => Just(Whence::Nowhere),
        1 => Just(Whence::None),
    ]
}

fn block() -> impl Strategy<Value = Duration> {
    prop_oneof![80 => Just(Duration::ZERO), 1 => micros(1..1_000), 2 => tenths(1..40)]
}

fn limit() -> impl Strategy<Value = u32> {
    prop_oneof![12 => 1..9u32, 2 => Just(50u32), 1 => Just(0u32)]
}

fn says() -> impl Strategy<Value = Says> {
    let kind = prop_oneof![
        24 => Just(Kind::Fitting),
        1 => Just(Kind::Look),
        2 => Just(Kind::Join),
        4 => Just(Kind::Sync),
        1 => Just(Kind::Leave),
    ];
    let life = prop_oneof![20 => Just(Life::Same), 1 => Just(Life::New), 1 => Just(Life::Old)];
    let left = prop_oneof![
        5 => Just(None),
        5 => (0..300_000i64).prop_map(Some),
        1 => (-2..2i64).prop_map(Some),
        1 => (-60_000_000..0i64).prop_map(Some),
    ];
    let renew = prop_oneof![12 => Just(None), 1 => whence().prop_map(Some)];
    let count = || prop_oneof![60 => Just(0u32), 6 => 1..4u32, 1 => 4..60u32];
    let dead = prop_oneof![8 => Just(Vec::new()), 1 => vec(0..MEMBERS.len() + 4, 1..4)];
    let words = (kind, whence(), renew, life, left, option::weighted(0.1, limit()), option::weighted(0.1, 0..RULES));
    let join = (option::weighted(0.2, 0..60u32), prop::bool::weighted(0.9), [count(), count(), count()], times());
    let want = prop_oneof![2 => Just(0u32), 5 => 1..4u32, 1 => 4..100u32];
    let sync = (want, any::<bool>(), vec((which(), how()), 0..4), block(), dead);
    (words, join, sync).prop_map(|(words, join, sync)| {
        let (doing, epoch, renew, life, left, limit, rules) = words;
        let (held, wants_share, counts, ready_in) = join;
        let (want, urgent, ended, block, dead) = sync;
        Says {
            doing,
            epoch,
            renew,
            life,
            left,
            limit,
            rules,
            held,
            wants_share,
            counts,
            ready_in,
            want,
            urgent,
            ended,
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
        60 => (0..members, says()).prop_map(|(who, says)| Step::Call { who, says: Box::new(says) }),
    ];
    vec(step, 1..120)
}

const RULES: usize = 6;

/// Rules: usual ones, ones with occasional effects, and unreasonable ones.
fn rules(which: usize, limit: u32) -> SharedLimitConfig {
    let ms = Duration::from_millis;
    let base = SharedLimitConfig { limit, forget: ms(60_000), timeout: ms(200), ..SharedLimitConfig::default() };
    match which {
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
    lives: u64,
}

impl Driver {
    fn new(rules: usize, limit: u32) -> Self {
        let caller = |life| Caller { life, ..Caller::default() };
        // As large as an incarnation can be, so that no conversion may lose precision.
        let first = u64::MAX - 100;
        let lives = first + MEMBERS.len() as u64;
        Self { rules, limit, callers: (first..lives).map(caller).collect(), newest: String::new(), lives }
    }

    fn step(&mut self, step: Step, pair: &mut Pair<'_>) -> Result<(), TestCaseError> {
        match step {
            Step::Pass(time) => pair.pass(time),
            Step::Back(time) => pair.now -= u64::try_from(time.as_micros()).unwrap(),
            Step::Flush => pair.flush(),
            Step::Server(number) => pair.server = format!("server {number}"),
            Step::Call { who, says } => {
                let call = self.word(who, &says, pair.now);
                let reply =
                    pair.call(&call, &rules(says.rules.unwrap_or(self.rules), says.limit.unwrap_or(self.limit)))?;
                self.hear(who, reply);
            }
        }
        Ok(())
    }

    /// Builds the call.
    fn word(&mut self, who: usize, says: &Says, now: u64) -> ScriptCall {
        let life = match says.life {
            Life::Same => self.callers[who].life,
            Life::New => {
                self.lives += 1;
                self.callers[who] = Caller { life: self.lives, ..Caller::default() };
                self.lives
            }
            Life::Old => self.callers[who].life - 1,
        };
        let not_after = says.left.map_or(0, |left| now.saturating_add_signed(left));
        let doing = match says.doing {
            Kind::Look => ScriptCommand::Look,
            Kind::Fitting if self.callers[who].is_member => ScriptCommand::Sync(self.sync(who, says)),
            Kind::Join | Kind::Fitting => ScriptCommand::Join(self.join(who, says)),
            Kind::Sync => ScriptCommand::Sync(self.sync(who, says)),
            Kind::Leave => ScriptCommand::Leave(self.sync(who, says)),
        };
        ScriptCall { member: MEMBERS[who].to_owned(), life, not_after, doing }
    }

    fn join(&self, who: usize, says: &Says) -> JoinRequest {
        let caller = &self.callers[who];
        let [flying, cooling, untold] = says.counts;
        JoinRequest {
            epoch: self.epoch(who, says.epoch),
            renew: says.renew.map_or_else(String::new, |whence| self.epoch(who, whence)),
            held: says.held.unwrap_or(caller.share),
            wants_share: says.wants_share,
            flying,
            cooling,
            untold,
            ready_in: says.ready_in,
            block: says.block,
            global_block: if says.urgent { says.block } else { Duration::ZERO },
        }
    }

    fn sync(&mut self, who: usize, says: &Says) -> SyncRequest {
        SyncRequest {
            epoch: self.epoch(who, says.epoch),
            held: says.held.unwrap_or(self.callers[who].share),
            wants_share: says.wants_share,
            want: says.want,
            urgent: says.urgent,
            ended: says.ended.iter().filter_map(|(which, how)| self.end(who, *which, *how)).collect(),
            block: says.block,
            dead: says.dead.iter().map(|dead| name(*dead)).collect(),
        }
    }

    fn epoch(&self, who: usize, whence: Whence) -> String {
        match whence {
            Whence::Own => self.callers[who].epoch.clone(),
            Whence::Newest => self.newest.clone(),
            Whence::Nowhere => "1-2".to_owned(),
            Whence::None => String::new(),
        }
    }

    fn end(&mut self, who: usize, which: Which, how: SlotOutcome) -> Option<SlotReport> {
        let pick = |slots: &[Slot], index: Index| (!slots.is_empty()).then(|| *index.get(slots));
        let slot = match which {
            Which::Own(index) => {
                let slot = pick(&self.callers[who].slots, index)?;
                self.callers[who].slots.retain(|other| *other != slot);
                self.callers[who].told.push(slot);
                slot
            }
            Which::Any(index) => {
                let all: Vec<Slot> = self.callers.iter().flat_map(|caller| caller.slots.clone()).collect();
                pick(&all, index)?
            }
            Which::Told(index) => pick(&self.callers[who].told, index)?,
            Which::Never(token, booking) => Slot { token, booking, wait: Duration::ZERO },
        };
        Some(SlotReport { token: slot.token, booking: slot.booking, how })
    }

    fn hear(&mut self, who: usize, reply: ScriptReply) {
        let caller = &mut self.callers[who];
        match reply {
            ScriptReply::Done(standing) => {
                caller.is_member = true;
                if caller.epoch != standing.epoch {
                    caller.slots.clear();
                }
                caller.share = standing.share;
                caller.slots.extend(standing.slots);
                caller.epoch.clone_from(&standing.epoch);
                self.newest = standing.epoch;
            }
            ScriptReply::Rejoin { .. } => caller.is_member = false,
            ScriptReply::Stale { .. } | ScriptReply::Seen { .. } => {}
        }
    }
}

/// Id of a member, or an unknown one.
fn name(number: usize) -> String {
    MEMBERS.get(number).map_or_else(|| format!("dead {number}"), ToString::to_string)
}

#[test]
fn whatever_is_said_the_script_answers_and_keeps_what_the_model_does() {
    for_all(&(0..RULES, limit(), steps()), |(rules, limit, steps), pair| {
        let mut driver = Driver::new(rules, limit);
        steps.into_iter().try_for_each(|step| driver.step(step, pair))
    });
}
