//! Several ledgers with one lender, compared with an address that counts by itself.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const WINDOW: Duration = Duration::from_secs(600);
/// Longer than a lender without state waits for processes that remember it.
const SETTLING: Duration = Duration::from_secs(3);
const SERVER: &str = "server";

/// A process: its ledger, its calls in flight, and its number of requests.
struct Process {
    name: String,
    ledger: InvalidLedger,
    calls: Vec<Reservation>,
    request_count: u64,
}

struct World {
    config: InvalidConfig,
    now: Timestamp,
    keeper: Lender,
    processes: Vec<Process>,
    names: u64,
    /// Every invalid response of Discord.
    invalid: Vec<(Timestamp, CallOwner)>,
    /// When the lender had lost its state.
    births: Vec<Timestamp>,
    /// Requests that are delayed; their senders do not wait for them any more.
    late: Vec<(String, u64, LenderRequest)>,
}

fn route() -> RouteKey {
    RouteKey::new("GET /guilds/{id}/roles")
}

impl World {
    fn new(limit: u32, processes: usize) -> Self {
        Self::with(InvalidConfig { limit, window: WINDOW, ..InvalidConfig::default() }, processes)
    }

    /// No lane stops because of the count: only the lent allowance limits them.
    fn lending_only(limit: u32, processes: usize) -> Self {
        let interactive_percent = 1_000;
        Self::with(InvalidConfig { limit, window: WINDOW, interactive_percent, ..InvalidConfig::default() }, processes)
    }

    fn with(config: InvalidConfig, processes: usize) -> Self {
        let limit = config.limit;
        let mut world = Self {
            config,
            now: Timestamp::from_millis(1_000),
            keeper: Lender::new(limit, WINDOW),
            processes: Vec::new(),
            names: 0,
            invalid: Vec::new(),
            births: vec![Timestamp::from_millis(1_000)],
            late: Vec::new(),
        };
        for _ in 0..processes {
            let process = world.process();
            world.processes.push(process);
        }
        // The lender has no state yet.
        for _ in 0..3 {
            world.sync_all();
            world.now = world.now + SETTLING;
        }
        world.sync_all();
        world
    }

    fn process(&mut self) -> Process {
        self.names += 1;
        let mut ledger = InvalidLedger::new(self.config);
        ledger.share(LedgerFallback::Stop, self.now);
        Process { name: self.names.to_string(), ledger, calls: Vec::new(), request_count: 0 }
    }

    fn send_query(&mut self, index: usize) -> (String, u64, LenderRequest) {
        let process = &mut self.processes[index];
        process.request_count += 1;
        (process.name.clone(), process.request_count, process.ledger.request(self.now).unwrap())
    }

    fn sync(&mut self, index: usize) {
        let (name, number, request) = self.send_query(index);
        if let Some(reply) = self.keeper.sync(&name, number, &request, SERVER, self.now) {
            self.processes[index].ledger.on_reply(&reply, self.now);
        }
    }

    fn sync_all(&mut self) {
        for index in 0..self.processes.len() {
            self.sync(index);
        }
    }

    fn admit(&mut self, index: usize, lane: Lane) -> Result<(), InvalidBudgetExceeded> {
        self.admit_for(index, lane, CallOwner::default())
    }

    fn admit_for(&mut self, index: usize, lane: Lane, owner: CallOwner) -> Result<(), InvalidBudgetExceeded> {
        let process = &mut self.processes[index];
        let reservation = process.ledger.admit(lane, owner, &route(), self.now)?;
        process.calls.push(reservation);
        Ok(())
    }

    fn settle(&mut self, index: usize, which: usize, was_invalid: bool) {
        let process = &mut self.processes[index];
        if !process.calls.is_empty() {
            let reservation = process.calls.swap_remove(which % process.calls.len());
            let owner = reservation.owner.clone();
            process.ledger.complete(reservation, was_invalid, self.now);
            self.invalid.extend(was_invalid.then_some((self.now, owner)));
        }
    }

    /// A call that comes back invalid at once.
    fn spend(&mut self, index: usize, lane: Lane) -> Result<(), InvalidBudgetExceeded> {
        self.admit(index, lane)?;
        self.settle(index, 0, true);
        Ok(())
    }

    /// Ends a process without notice; its calls in flight get responses that no process counts.
    fn kill(&mut self, index: usize) {
        let successor = self.process();
        let dead = std::mem::replace(&mut self.processes[index], successor);
        self.invalid.extend(dead.calls.iter().map(|call| (self.now, call.owner.clone())));
    }

    /// The bound that must hold: the limit; and if the lender lost its state more than once while lent allowances are
    /// reserved, plus the reserve for each further time.
    fn bound(&self) -> usize {
        let held = WINDOW * 2 + Duration::from_secs(60);
        let births = self.births.iter().filter(|born| self.now.since(**born) <= held).count();
        let limit = self.config.limit as usize;
        limit + births.saturating_sub(1) * (limit / 40)
    }

    fn counted(&self) -> usize {
        self.invalid.iter().filter(|(seen, _)| self.now.since(*seen) < WINDOW).count()
    }

    /// The count of each holder if all calls in flight come back invalid.
    fn worst_of_holders(&self) -> HashMap<Holder, usize> {
        let in_window = self.invalid.iter().filter(|(seen, _)| self.now.since(*seen) < WINDOW).map(|(_, owner)| owner);
        let in_flight = self.processes.iter().flat_map(|process| process.calls.iter().map(|call| &call.owner));
        let mut worst = HashMap::new();
        in_window
            .chain(in_flight)
            .flat_map(CallOwner::holders)
            .for_each(|holder| *worst.entry(holder).or_default() += 1);
        worst
    }

    /// The bound of a holder: its cap; and if the lender lost its state while granted exposures are reserved, plus the
    /// reserve of exposure for each time.
    fn bound_of_holder(&self) -> usize {
        let held = WINDOW * 2 + Duration::from_secs(60);
        let births = self.births.iter().filter(|born| self.now.since(**born) <= held).count();
        let cap = self.config.share_cap() as usize;
        cap + births.saturating_sub(1) * (cap / 10)
    }

    /// Discord's count if all calls in flight come back invalid.
    fn worst(&self) -> usize {
        self.counted() + self.processes.iter().map(|process| process.calls.len()).sum::<usize>()
    }
}

#[derive(Clone, Copy, Debug)]
enum Outcome {
    Answered,
    AnswerLost,
    QuestionLost,
    QuestionLate,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Admit {
        process: usize,
        lane: Lane,
        owner: u64,
        times: usize,
    },
    Settle {
        process: usize,
        which: usize,
        was_invalid: bool,
    },
    Sync {
        process: usize,
        outcome: Outcome,
    },
    Deliver {
        which: usize,
    },
    Wait {
        millis: u64,
    },
    Kill {
        process: usize,
    },
    /// The lender loses its state while some processes cannot reach it.
    Forget {
        cut_off: u8,
    },
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let lane = prop_oneof![6 => Just(Lane::Interactive), 2 => Just(Lane::Operation), 1 => Just(Lane::Background)];
    let outcome = prop_oneof![
        12 => Just(Outcome::Answered),
        2 => Just(Outcome::AnswerLost),
        2 => Just(Outcome::QuestionLost),
        2 => Just(Outcome::QuestionLate),
    ];
    let process = || 0..16_usize;
    let millis = prop_oneof![20 => 0..2_000_u64, 2 => 0..60_000_u64, 1 => 0..700_000_u64];
    let action = prop_oneof![
        20 => (process(), lane, 0..6_u64, 1..5_usize)
            .prop_map(|(process, lane, owner, times)| Action::Admit { process, lane, owner, times }),
        30 => (process(), any::<usize>(), prop::bool::weighted(0.9))
            .prop_map(|(process, which, was_invalid)| Action::Settle { process, which, was_invalid }),
        25 => (process(), outcome).prop_map(|(process, outcome)| Action::Sync { process, outcome }),
        4 => any::<usize>().prop_map(|which| Action::Deliver { which }),
        4 => millis.prop_map(|millis| Action::Wait { millis }),
        1 => process().prop_map(|process| Action::Kill { process }),
        1 => any::<u8>().prop_map(|cut_off| Action::Forget { cut_off }),
    ];
    prop::collection::vec(action, 1..600)
}

/// One of few owners, so that some get close to their share; the last one is empty.
fn owner_of(number: u64) -> CallOwner {
    let key = |key: &str, tenant: &str, guild| Submitter::of(&key.into(), &tenant.into()).in_guild(Some(guild));
    match number {
        0 => key("a", "acme", 1),
        1 => key("a", "acme", 2),
        2 => key("b", "acme", 2),
        3 => key("c", "rival", 3),
        4 => CallOwner::from(Some(3)),
        _ => CallOwner::default(),
    }
}

impl World {
    fn act(&mut self, action: Action) {
        let count = self.processes.len();
        match action {
            Action::Admit { process: target, lane, owner, times } => {
                for _ in 0..times {
                    let _ = self.admit_for(target % count, lane, owner_of(owner));
                }
            }
            Action::Settle { process: target, which, was_invalid } => self.settle(target % count, which, was_invalid),
            Action::Sync { process: target, outcome } => match outcome {
                Outcome::Answered => self.sync(target % count),
                Outcome::AnswerLost => {
                    let (name, number, lender_request) = self.send_query(target % count);
                    self.keeper.sync(&name, number, &lender_request, SERVER, self.now);
                }
                Outcome::QuestionLost => drop(self.send_query(target % count)),
                Outcome::QuestionLate => {
                    let question = self.send_query(target % count);
                    self.late.push(question);
                }
            },
            Action::Deliver { which } => {
                if !self.late.is_empty() {
                    let (name, number, lender_request) = self.late.swap_remove(which % self.late.len());
                    self.keeper.sync(&name, number, &lender_request, SERVER, self.now);
                }
            }
            Action::Wait { millis } => {
                self.now = self.now + Duration::from_millis(millis);
                // No request takes minutes.
                let give_up_after = Duration::from_secs(60);
                self.late.retain(|(_, _, lender_request)| self.now.since(lender_request.requested_at) < give_up_after);
                // Nor does a call.
                if millis > 30_000 {
                    for target in 0..count {
                        while !self.processes[target].calls.is_empty() {
                            self.settle(target, 0, true);
                        }
                    }
                }
            }
            Action::Kill { process: target } => self.kill(target % count),
            Action::Forget { cut_off } => {
                let reach: Vec<usize> = (0..count).filter(|target| cut_off & (1 << target) == 0).collect();
                // Without a process that remembers it, the state is lost.
                if reach.is_empty() {
                    return;
                }
                // They send a request every second, so they know all that the lender received from the others.
                reach.iter().for_each(|target| self.sync(*target));
                self.keeper = Lender::new(self.config.limit, WINDOW);
                self.births.push(self.now);
                self.late.clear();
                // A new process is the first to reach it.
                if let [first, _, ..] = reach[..] {
                    self.kill(first);
                    self.sync(first);
                    while self.admit_for(first, Lane::Interactive, owner_of(1)).is_ok() {}
                    while self.admit(first, Lane::Interactive).is_ok() {}
                }
                reach.iter().for_each(|target| self.sync(*target));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn all_processes_together_stay_within_the_limit(
        actions in actions(), processes in 1..7_usize, limit in 5..240_u32, lending_only: bool,
    ) {
        let mut world =
            if lending_only { World::lending_only(limit, processes) } else { World::new(limit, processes) };
        for action in actions {
            world.act(action);
            prop_assert!(world.worst() <= world.bound(), "{} after {action:?}", world.worst());
            for (holder, worst) in world.worst_of_holders() {
                prop_assert!(worst <= world.bound_of_holder(), "{holder} has {worst} after {action:?}");
            }
            for process in &world.processes {
                prop_assert!(process.ledger.next_wake().is_none_or(|wake| wake > Timestamp::ZERO));
            }
        }
    }

    #[test]
    fn lender_never_exceeds_the_limit(actions in actions(), limit in 5..120_u32) {
        let mut world = World::new(limit, 4);
        for action in actions.into_iter().filter(|action| !matches!(action, Action::Forget { .. })) {
            world.act(action);
            prop_assert!(world.keeper.committed() <= u64::from(limit));
        }
    }
}

/// Spends as much as possible, at a fixed rate for each busy process, and returns the amount. Busy processes send a
/// request every 100 ms, the others every second.
fn spend_all(processes: usize, busy: usize, lane: Lane) -> usize {
    let mut world = World::new(10_000, processes);
    let each = (50 / busy).max(1);
    for tenth in 0..3_000_u32 {
        let step = Duration::from_millis(100) / each as u32;
        for _ in 0..each.div_ceil(10) {
            for index in 0..busy {
                // Some stay in flight for a while.
                let _ = world.admit(index, lane);
                if world.processes[index].calls.len() > 15 {
                    world.settle(index, 0, true);
                }
            }
        }
        world.now = world.now + step * each as u32;
        for index in 0..processes {
            if index < busy || tenth % 10 == 0 {
                world.sync(index);
            }
        }
    }
    assert!(world.now.since(Timestamp::ZERO) < WINDOW);
    world.worst()
}

#[test]
fn healthy_fleet_can_spend_the_whole_budget() {
    for (processes, busy) in [(1, 1), (2, 1), (2, 2), (10, 1), (10, 10), (30, 1), (30, 15)] {
        let spent = spend_all(processes, busy, Lane::Interactive);
        assert!((9_300..=9_550).contains(&spent), "{spent} by {busy} of {processes}");
        let spent = spend_all(processes, busy, Lane::Operation);
        assert!((7_800..=8_050).contains(&spent), "{spent} by {busy} of {processes}");
    }
}

#[test]
fn lender_without_state_lends_little_at_first() {
    let mut lender = Lender::new(10_000, WINDOW);
    let config = InvalidConfig { window: WINDOW, ..InvalidConfig::default() };
    let mut now = Timestamp::from_millis(1_000);
    let mut lent = Vec::new();
    for number in 0..12 {
        let mut ledger = InvalidLedger::new(config);
        ledger.share(LedgerFallback::Stop, now);
        let request = ledger.request(now).unwrap();
        lent.push(lender.sync(&number.to_string(), 1, &request, SERVER, now).unwrap().ceiling);
    }
    // All together get at most a fortieth of the limit.
    assert_eq!(lent, [25, 25, 25, 25, 25, 25, 25, 25, 25, 25, 0, 0]);
    now = now + SETTLING;
    let mut ledger = InvalidLedger::new(config);
    ledger.share(LedgerFallback::Stop, now);
    let request = ledger.request(now).unwrap();
    assert_eq!(lender.sync("late", 1, &request, SERVER, now).unwrap().ceiling, (10_000 - 250 - 250) / 10);
}

#[test]
fn process_without_lender_sends_nothing() {
    let mut ledger = InvalidLedger::new(InvalidConfig::default());
    ledger.share(LedgerFallback::Stop, Timestamp::ZERO);
    let spent = ledger.admit(Lane::Interactive, None, &route(), Timestamp::ZERO).unwrap_err();
    assert_eq!(spent.reason, "invalid_requests_unheard");
    assert!(!ledger.has_lease());
}

#[test]
fn processes_without_lender_use_their_allowance_for_a_window() {
    let mut world = World::new(1_000, 4);
    let mut spent = [0; 4];
    for (index, spent) in spent.iter_mut().enumerate() {
        while world.spend(index, Lane::Background).is_ok() {
            *spent += 1;
        }
        let all = *spent;
        while world.spend(index, Lane::Interactive).is_ok() {
            *spent += 1;
        }
        assert!(all >= 30 && *spent > all, "{spent:?}");
        assert_eq!(world.admit(index, Lane::Interactive).unwrap_err().reason, "invalid_requests_lent");
        assert!(world.processes[index].ledger.is_short());
    }
    assert!(world.counted() <= 1_000);
    world.now = world.now + WINDOW;
    for index in 0..4 {
        assert_eq!(world.admit(index, Lane::Interactive).unwrap_err().reason, "invalid_requests_unheard");
    }
    // The lender is back: all spent requests have left the window, but it cannot know that for processes that were
    // silent.
    world.sync_all();
    world.sync_all();
    assert!(world.admit(0, Lane::Interactive).is_ok());
}

#[test]
fn fallback_share_counts_for_all_members() {
    let mut world = World::new(1_000, 4);
    let mut ledger = InvalidLedger::new(world.config);
    ledger.share(LedgerFallback::Share, world.now);
    // No reply yet: it counts as the only process.
    let call = ledger.admit(Lane::Interactive, None, &route(), world.now).unwrap();
    ledger.complete(call, true, world.now);
    assert_eq!(ledger.used(world.now), 1);
    let request = ledger.request(world.now).unwrap();
    let synced = world.keeper.sync("sharing", 1, &request, SERVER, world.now).unwrap();
    ledger.on_reply(&synced, world.now);
    world.now = world.now + WINDOW * 2;
    let mut spent = 0;
    while let Ok(call) = ledger.admit(Lane::Interactive, None, &route(), world.now) {
        ledger.complete(call, true, world.now);
        spent += 1;
    }
    assert_eq!(spent, 950 / 5);
}

#[test]
fn remote_spending_stops_local_lanes() {
    let mut world = World::new(1_000, 2);
    while world.spend(0, Lane::Operation).is_ok() {
        world.sync(0);
    }
    world.sync(1);
    let spent = world.admit(1, Lane::Background).unwrap_err();
    assert_eq!(spent.reason, "invalid_requests");
    assert!(spent.until.since(world.now) > WINDOW - Duration::from_secs(10));
    assert_eq!(world.processes[1].ledger.stopped_lane(world.now), Some(Lane::Operation));
    let snapshot = world.processes[1].ledger.snapshot(world.now);
    assert_eq!((snapshot.own, snapshot.used), (0, world.counted() as u32));
    let shared = snapshot.shared.unwrap();
    assert_eq!((shared.total, shared.members), (world.counted() as u32, 2));
    // By expiry alone, without another sync.
    world.now = spent.until;
    assert_eq!(world.processes[1].ledger.stopped_lane(world.now), None);
}

#[test]
fn leaving_process_returns_its_allowance() {
    let mut world = World::new(1_000, 2);
    let lent = world.processes[0].ledger.snapshot(world.now).shared.unwrap().lent;
    assert!(lent > 50, "{lent}");
    world.admit(0, Lane::Interactive).unwrap();
    let request = world.processes[0].ledger.leave(world.now).unwrap();
    assert_eq!((request.in_flight, request.ceiling - request.counted), (1, 1));
    let taken = world.keeper.committed();
    world.keeper.leave("1", 99, &request, SERVER, world.now);
    // The call that it leaves in flight counts.
    assert_eq!(world.keeper.committed(), taken - lent + 1);
    assert_eq!(world.admit(0, Lane::Interactive).unwrap_err().reason, "invalid_requests_unheard");
}

#[test]
fn invalid_reply_changes_nothing() {
    let mut world = World::new(1_000, 1);
    world.spend(0, Lane::Interactive).unwrap();
    let before = world.processes[0].ledger.snapshot(world.now);
    let request = world.processes[0].ledger.request(world.now).unwrap();
    let absurd = LenderReply {
        requested_at: request.requested_at,
        acknowledged: 7,
        ceiling: 9,
        slots: vec![],
        members: 0,
        holders: 0,
        in_flight_elsewhere: 0,
        exposure: 0,
        elsewhere_exposure: 0,
        floor: 0,
        large: vec![],
    };
    world.processes[0].ledger.on_reply(&absurd, world.now);
    assert_eq!(world.processes[0].ledger.snapshot(world.now), before);
}
