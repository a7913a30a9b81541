//! `order`: cost of an ordering decision by the number of operations that wait in a queue.
//!
//! Every operation gives a member 250 distinct roles, the maximum of one operation. It references 251 objects, and
//! another operation could have to wait for any of them.

use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args;
use guildhall_core::guild::{DelayScope, OperationOrder, OrderConfig, OrderStep, QueueEntry, WaitPhase};
use guildhall_core::operation::payload::{Objects, SetMemberRoles};
use guildhall_core::operation::{OperationId, Payload, Reference};
use guildhall_core::time::UnixMs;
use serde_json::{Map, Value, json};

/// Numbers of waiting operations, in increasing order.
const WAITING: [u64; 3] = [10, 100, 1_000];

/// Decisions between two clock reads.
const BATCH: u64 = 64;

const START: UnixMs = UnixMs::new(1_700_000_000_000);

/// Size of the operations.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Number of roles that each operation references.
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u64).range(1..=250))]
    roles: u64,
}

pub(crate) fn run(arguments: &Arguments, seconds: u64, quiet: bool) -> anyhow::Result<Value> {
    let time = Duration::from_secs(seconds);
    let mut figures = Map::new();
    let phases = [("pass", pass as fn(u64, u64, Duration) -> anyhow::Result<f64>), ("wake", wake), ("park", park)];
    for (name, measure) in phases {
        let mut costs = Vec::new();
        for waiting in WAITING {
            let nanoseconds = measure(waiting, arguments.roles, time)?;
            if !quiet {
                println!("{name}: {nanoseconds:.0} ns per decision with {waiting} waiting");
            }
            figures.insert(format!("{name}_ns_{waiting}"), json!(nanoseconds));
            costs.push(nanoseconds);
        }
        figures.insert(format!("{name}_ratio"), json!(costs[WAITING.len() - 1] / costs[0]));
    }
    figures.insert("name".to_owned(), json!("order"));
    figures.insert("seconds".to_owned(), json!(seconds));
    figures.insert("objects".to_owned(), json!(arguments.roles + 1));
    Ok(Value::Object(figures))
}

/// An operation that shares no objects with others.
fn entry(seq: u64, roles: u64, phase: WaitPhase, eligible_at: UnixMs) -> QueueEntry<Objects> {
    let id = OperationId::new(seq, [0; 10]);
    let roles = (0..roles).map(|nth| Reference::Id(seq * 1_000 + nth)).collect();
    let payload = Payload::SetMemberRoles(SetMemberRoles { user: seq, roles });
    QueueEntry { id, seq, phase, eligible_at, deadline: None, deployment: None, objects: payload.objects(id, Some(1)) }
}

/// A queue with this number of parked operations. Each is due a millisecond after the one before it, starting at
/// `first`.
fn parked(waiting: u64, roles: u64, first: UnixMs) -> OperationOrder<Objects> {
    // A delayed operation is parked at once, and the lookahead covers all of them.
    let config = OrderConfig { park_after: Duration::ZERO, lookahead: 2_000 };
    let mut order = OperationOrder::new(config);
    let due = |seq| first + Duration::from_millis(seq);
    let entries = (1..=waiting).map(|seq| entry(seq, roles, WaitPhase::Delayed { parked: true }, due(seq)));
    order.on_loaded(entries, false);
    order
}

/// Operations arrive one at a time, pass all parked ones, and finish.
fn pass(waiting: u64, roles: u64, time: Duration) -> anyhow::Result<f64> {
    let mut order = parked(waiting, roles, START + Duration::from_secs(86_400));
    let mut next = waiting;
    let mut decide = |count: u64| {
        // Created in advance, so that only the ordering is measured.
        let arrivals: Vec<_> = (1..=count).map(|nth| entry(next + nth, roles, WaitPhase::Queued, START)).collect();
        next += count;
        let started = Instant::now();
        for arrival in arrivals {
            let seq = arrival.seq;
            order.on_loaded([arrival], false);
            ensure!(order.next(START) == OrderStep::Run(seq), "the operation was not the next one");
            order.on_started(seq);
            order.on_finished(seq);
        }
        Ok(started.elapsed())
    };
    per_decision(time, &mut decide)
}

/// Parked operations become due one at a time, run, and are delayed again.
fn wake(waiting: u64, roles: u64, time: Duration) -> anyhow::Result<f64> {
    let mut order = parked(waiting, roles, START);
    let mut now = START;
    let mut decide = |count: u64| {
        let started = Instant::now();
        for _ in 0..count {
            now = now + Duration::from_millis(1);
            let OrderStep::Run(seq) = order.next(now) else { anyhow::bail!("no operation was due") };
            order.on_started(seq);
            order.on_delayed(seq, now + Duration::from_millis(waiting), DelayScope::Alone, now);
        }
        Ok(started.elapsed())
    };
    per_decision(time, &mut decide)
}

/// Operations arrive one at a time and are parked, and the oldest one is cancelled. Each step changes the index.
fn park(waiting: u64, roles: u64, time: Duration) -> anyhow::Result<f64> {
    let later = START + Duration::from_secs(86_400);
    let mut order = parked(waiting, roles, later);
    let mut next = waiting;
    let mut decide = |count: u64| {
        let parked = WaitPhase::Delayed { parked: true };
        let arrivals: Vec<_> = (1..=count).map(|nth| entry(next + nth, roles, parked, later)).collect();
        next += count;
        let started = Instant::now();
        for arrival in arrivals {
            let oldest = arrival.seq - waiting;
            order.on_loaded([arrival], false);
            ensure!(matches!(order.next(START), OrderStep::WaitUntil(_)), "the operation was not parked");
            order.on_cancelled(oldest);
        }
        Ok(started.elapsed())
    };
    per_decision(time, &mut decide)
}

/// Nanoseconds per decision.
fn per_decision(time: Duration, decide: &mut dyn FnMut(u64) -> anyhow::Result<Duration>) -> anyhow::Result<f64> {
    decide(BATCH)?;
    let (mut spent, mut decisions, started) = (Duration::ZERO, 0, Instant::now());
    while started.elapsed() < time {
        spent += decide(BATCH)?;
        decisions += BATCH;
    }
    #[expect(clippy::cast_precision_loss, reason = "a figure needs no more digits than a double has")]
    let nanoseconds = spent.as_nanos() as f64 / decisions as f64;
    Ok(nanoseconds)
}
