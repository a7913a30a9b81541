//! Several processes on one PostgreSQL. Each is a separate store with its own connections, lease and slots.

use std::{collections::HashSet, time::Duration};

use guildhall::settings::LeaseSettings;
use guildhall::store::{ClusterEvent, Store};
use guildhall_actors::ports::{
    Claim, ClaimFrom, CommitResult, EventStore as _, HandlerCommit, OperationStore as _, PauseTarget, SubmitResult,
    UpdateResult,
};
use guildhall_actors::supervisor::QueueSignal;
use guildhall_core::operation::{OperationState, Queue, QueueKey};
use sea_orm::{ConnectionTrait as _, Database, DatabaseConnection, DbBackend, Statement, TransactionTrait as _};
use tokio::{
    runtime::Runtime,
    sync::broadcast::Receiver,
    time::{sleep, timeout},
};

use crate::events_setup::{commit, entry, gives, handled};
use crate::setup::{Engine, Place, STUCK, at, change, claim, keyed, operation, record, state_of, submit};

/// Short enough to wait for, long enough for a busy machine.
const BRIEF: LeaseSettings = LeaseSettings {
    heartbeat: Duration::from_millis(300),
    lasts: Duration::from_millis(1_500),
    margin: Duration::from_millis(200),
};

async fn place() -> Place {
    let mut place = Place::new(Engine::Postgres).await;
    place.settings.lease = BRIEF;
    place
}

/// Opens a store, and waits until it and these have divided the queues.
async fn join(place: &Place, others: &[&Store]) -> Store {
    let store = place.open().await;
    let all: Vec<&Store> = others.iter().copied().chain([&store]).collect();
    settled(&all).await;
    store
}

/// Waits until each of 300 queues belongs to exactly one of these. As long as one does not know of another, both claim
/// the same queues.
async fn settled(stores: &[&Store]) {
    let mut notices = stores[0].notices();
    let have_parted = || {
        let mut wanted: Vec<Queue> = stores.iter().flat_map(|store| ours(store)).collect();
        wanted.sort_unstable();
        wanted == queues()
    };
    let settling = async {
        while !have_parted() {
            // The others may get there without a notification to this one.
            let _ = timeout(Duration::from_millis(20), notices.recv()).await;
        }
    };
    timeout(STUCK, settling).await.unwrap();
    for listener in &stores[1..] {
        listens(stores[0], listener).await;
    }
}

/// Waits until one process receives notifications of another: it starts to listen after it has opened its store.
async fn listens(speaker: &Store, listener: &Store) {
    let mut notices = listener.notices();
    let probe = async {
        loop {
            for paused in [true, false] {
                speaker.pause(PauseTarget::All, paused).await.unwrap();
            }
            let heard = async { while !matches!(notices.recv().await, Ok(ClusterEvent::Pauses)) {} };
            if timeout(Duration::from_millis(50), heard).await.is_ok() {
                return;
            }
        }
    };
    timeout(STUCK, probe).await.unwrap();
}

fn queues() -> Vec<Queue> {
    (1..=300).map(|n| Queue::Guild(1_300_000_000_000_000_000 + n)).collect()
}

/// Those of 300 queues that belong to this process.
fn ours(store: &Store) -> Vec<Queue> {
    let elsewhere: HashSet<Queue> = store.elsewhere(&queues()).into_iter().collect();
    queues().into_iter().filter(|queue| !elsewhere.contains(queue)).collect()
}

async fn heard(notices: &mut Receiver<ClusterEvent>, wanted: impl Fn(&ClusterEvent) -> bool) -> ClusterEvent {
    let heard = async {
        loop {
            match notices.recv().await {
                Ok(notice) if wanted(&notice) => return notice,
                Ok(_) | Err(_) => {}
            }
        }
    };
    timeout(STUCK, heard).await.unwrap()
}

async fn due(store: &Store, limit: usize) -> Vec<Claim> {
    store.claim(ClaimFrom::Due { now: at(100), limit }).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_queue_has_one_place_and_is_claimed_there() {
    let place = place().await;
    let first = join(&place, &[]).await;
    assert_eq!(ours(&first).len(), 300, "a single process owns everything");
    let second = join(&place, &[&first]).await;
    let third = join(&place, &[&first, &second]).await;
    let stores = [&first, &second, &third];
    let batch = queues().into_iter().map(operation).collect();
    second.submit(batch).await.unwrap();
    let mut all = HashSet::new();
    for store in stores {
        let own: HashSet<Queue> = ours(store).into_iter().collect();
        // A request for all queues claims only its own.
        let named = store.claim(ClaimFrom::Queues(queues())).await.unwrap();
        assert_eq!(named.iter().map(|claim| claim.queue).collect::<HashSet<_>>(), own);
        assert!((60..=140).contains(&own.len()), "{} of 300", own.len());
        all.extend(own);
    }
    assert_eq!(all.len(), 300);
    let instances = third.instances().await.unwrap();
    assert_eq!(instances.iter().filter(|instance| instance.is_self).count(), 1);
    assert_eq!(instances.iter().map(|instance| instance.queues).sum::<u64>(), 300);
    for store in stores {
        store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_too_long_for_its_own_process_is_taken_by_another() {
    let place = place().await;
    let first = join(&place, &[]).await;
    let second = join(&place, &[&first]).await;
    let queue = ours(&first)[0];
    submit(&second, &operation(queue)).await;
    assert!(due(&second, 10).await.is_empty(), "it belongs to the other");
    let late = second.claim(ClaimFrom::Due { now: at(10_000), limit: 10 }).await.unwrap();
    assert_eq!(late.len(), 1);
    assert!(due(&first, 10).await.is_empty(), "it is claimed already");
    first.close().await;
    second.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_hear_at_once_of_what_concerns_them_and_of_nothing_else() {
    let place = place().await;
    let first = join(&place, &[]).await;
    let second = join(&place, &[&first]).await;
    let (here, free, there) = (ours(&first)[0], ours(&first)[1], ours(&second)[0]);
    let mut notices = second.notices();
    let (own, other) = (operation(here), operation(there));
    claim(&first, here).await;
    submit(&first, &own).await;
    submit(&first, &other).await;
    let notice = heard(&mut notices, |notice| matches!(notice, ClusterEvent::Queues(_))).await;
    assert_eq!(notice, ClusterEvent::Queues(vec![(there, None)]));
    // A queue without an owner may have been assigned to another process a moment ago.
    submit(&first, &operation(free)).await;
    let notice = heard(&mut notices, |notice| matches!(notice, ClusterEvent::Queues(_))).await;
    assert_eq!(notice, ClusterEvent::Queues(vec![(free, None)]));
    // A claimed queue concerns only its owner, whatever its assignment.
    let claimed = claim(&second, there).await;
    first.cancel(other.id, at(1)).await.unwrap();
    let notice = heard(&mut notices, |notice| matches!(notice, ClusterEvent::Queues(_))).await;
    assert_eq!(notice, ClusterEvent::Queues(vec![(there, Some(QueueSignal::Cancelled(other.id)))]));
    first.pause(PauseTarget::All, true).await.unwrap();
    heard(&mut notices, |notice| *notice == ClusterEvent::Pauses).await;
    assert!(second.release(there, claimed.fence).await.unwrap());
    first.close().await;
    second.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_at_one_moment_in_two_processes_is_one_operation() {
    let place = place().await;
    let first = join(&place, &[]).await;
    let second = join(&place, &[&first]).await;
    let mut asking = tokio::task::JoinSet::new();
    for caller in 0..50 {
        let store = if caller % 2 == 0 { first.clone() } else { second.clone() };
        asking.spawn(async move {
            let new = keyed("once");
            (new.id, store.submit(vec![new]).await.unwrap().remove(0))
        });
    }
    let (mut accepted, mut existing) = (Vec::new(), HashSet::new());
    while let Some(answer) = asking.join_next().await {
        match answer.unwrap() {
            (id, SubmitResult::Accepted { .. }) => accepted.push(id),
            (_, SubmitResult::Existing { id, .. }) => {
                existing.insert(id);
            }
        }
    }
    assert_eq!(accepted.len(), 1);
    assert_eq!(existing, HashSet::from([accepted[0]]));
    first.close().await;
    second.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_submit_to_the_same_guilds_at_once_lose_nothing_and_number_it_through() {
    const EACH: usize = 40;
    let place = place().await;
    let first = join(&place, &[]).await;
    let second = join(&place, &[&first]).await;
    let mut asking = tokio::task::JoinSet::new();
    for store in [first.clone(), second.clone()] {
        for _ in 0..EACH {
            let store = store.clone();
            // In any order, and always two queues that the other process uses too.
            let mut guilds = [5_u64, 6, 7, 8];
            fastrand::shuffle(&mut guilds);
            let batch = vec![operation(QueueKey::Guild(guilds[0])), operation(QueueKey::Guild(guilds[1]))];
            asking.spawn(async move { store.submit(batch).await.unwrap() });
        }
    }
    while let Some(answer) = asking.join_next().await {
        assert_eq!(answer.unwrap().len(), 2);
    }
    let mut count = 0;
    for guild in 5..=8 {
        let stored = first.load(Queue::Guild(guild), 0, 1_000).await.unwrap().operations;
        let seqs: Vec<u64> = stored.iter().map(|stored| stored.seq).collect();
        assert_eq!(seqs, (1..=stored.len() as u64).collect::<Vec<_>>());
        count += stored.len();
    }
    assert_eq!(count, 2 * 2 * EACH);
    first.close().await;
    second.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_hears_that_something_was_taken_back_or_made_due_which_was_not() {
    let place = place().await;
    let first = join(&place, &[]).await;
    let second = join(&place, &[&first]).await;
    let queue = ours(&second)[0];
    let (sent, waits) = (operation(queue), operation(queue));
    second.submit(vec![sent.clone(), waits.clone()]).await.unwrap();
    let claimed = claim(&second, queue).await;
    assert_eq!(record(&second, change(&sent, claimed.fence, OperationState::Reconciling)).await, UpdateResult::Done);
    let mut notices = second.notices();
    assert_eq!(first.cancel(sent.id, at(20)).await.unwrap(), Some((OperationState::Reconciling, queue)));
    assert_eq!(first.hasten(sent.id, at(20)).await.unwrap(), Some((OperationState::Reconciling, queue)));
    // Notifications arrive in order, so none was sent for the other operation before this one.
    assert_eq!(first.cancel(waits.id, at(20)).await.unwrap(), Some((OperationState::Cancelled, queue)));
    let notice = heard(&mut notices, |notice| matches!(notice, ClusterEvent::Queues(_))).await;
    assert_eq!(notice, ClusterEvent::Queues(vec![(queue, Some(QueueSignal::Cancelled(waits.id)))]));
    first.close().await;
    second.close().await;
}

/// A process that can be killed: its tasks run on their own runtime.
struct Mortal {
    store: Store,
    runtime: Option<Runtime>,
}

impl Mortal {
    async fn open(place: &Place) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let settings = place.settings.clone();
        let store = runtime.spawn(async move { Store::open(&settings).await.unwrap() }).await.unwrap();
        Self { store, runtime: Some(runtime) }
    }

    /// Stops all its tasks without a shutdown.
    fn kill(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_dies_is_taken_over_and_what_it_still_writes_changes_nothing() {
    let place = place().await;
    let survivor = join(&place, &[]).await;
    let mut mortal = Mortal::open(&place).await;
    settled(&[&survivor, &mortal.store]).await;
    let queue = ours(&mortal.store)[0];
    let work = operation(queue);
    submit(&survivor, &work).await;
    let before = claim(&mortal.store, queue).await;
    let right = mortal.store.right(queue, before.fence);
    assert!(right.holds());
    let running = change(&work, before.fence, OperationState::Running);
    assert_eq!(record(&mortal.store, running).await, UpdateResult::Done);
    mortal.kill();
    settled(&[&survivor]).await;
    assert!(!right.holds(), "by its own clock, before others take over");
    let after = claim(&survivor, queue).await;
    assert!(after.fence > before.fence);
    // A write with the old fence, over a working connection.
    let late = change(&work, before.fence, OperationState::Succeeded);
    assert_eq!(record(&survivor, late).await, UpdateResult::Fenced);
    assert_eq!(state_of(&survivor, work.id).await, OperationState::Running);
    assert_eq!(record(&survivor, change(&work, after.fence, OperationState::Succeeded)).await, UpdateResult::Done);
    survivor.close().await;
}

/// Waits until so many sessions of this database wait for a lock.
async fn so_many_wait(on: &DatabaseConnection, wanted: i64) {
    let count = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let waiting = async {
        loop {
            let row = on.query_one_raw(Statement::from_string(DbBackend::Postgres, count)).await.unwrap().unwrap();
            if row.try_get_by_index::<i64>(0).unwrap() >= wanted {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(STUCK, waiting).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_submitted_at_the_moment_of_a_take_over_is_due() {
    let mut place = place().await;
    // A take-over waits for at most half of it, and must not give up before the test has seen it wait.
    place.settings.lease.lasts = Duration::from_secs(3);
    let survivor = join(&place, &[]).await;
    let mut mortal = Mortal::open(&place).await;
    settled(&[&survivor, &mortal.store]).await;
    let queue = ours(&mortal.store)[0];
    claim(&mortal.store, queue).await;
    mortal.kill();
    // The queue is locked. The submission is next in line, the take-over after it.
    let raw = Database::connect(place.raw_url()).await.unwrap();
    let holder = raw.begin().await.unwrap();
    let lock = format!("SELECT 1 FROM guild_queues WHERE queue = {} FOR UPDATE", queue.number());
    holder.execute_unprepared(&lock).await.unwrap();
    let submitting = tokio::spawn({
        let survivor = survivor.clone();
        async move { submit(&survivor, &operation(queue)).await }
    });
    so_many_wait(&raw, 1).await;
    so_many_wait(&raw, 2).await;
    holder.commit().await.unwrap();
    assert!(matches!(submitting.await.unwrap(), SubmitResult::Accepted { .. }));
    settled(&[&survivor]).await;
    let due = due(&survivor, 10).await;
    assert_eq!(due.iter().map(|claim| claim.queue).collect::<Vec<_>>(), [queue]);
    raw.close().await.unwrap();
    survivor.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_was_taken_for_dead_hears_of_it_and_begins_anew() {
    let place = place().await;
    let store = join(&place, &[]).await;
    let queue = queues()[0];
    let claimed = claim(&store, queue).await;
    let right = store.right(queue, claimed.fence);
    let mut notices = store.notices();
    // As another process would, if this one had been frozen for long.
    let other = Database::connect(place.raw_url()).await.unwrap();
    let bury = "WITH dead AS (DELETE FROM instances RETURNING id)
        UPDATE guild_queues SET owner = NULL, fence = fence + 1 WHERE owner IN (SELECT id FROM dead)";
    other.execute_unprepared(bury).await.unwrap();
    heard(&mut notices, |notice| *notice == ClusterEvent::Disowned).await;
    assert!(!right.holds());
    let work = operation(queue);
    submit(&store, &work).await;
    assert_eq!(record(&store, change(&work, claimed.fence, OperationState::Running)).await, UpdateResult::Fenced);
    let again = claim(&store, queue).await;
    assert_eq!(record(&store, change(&work, again.fence, OperationState::Running)).await, UpdateResult::Done);
    other.close().await.unwrap();
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_leaves_hands_everything_over_before_it_has_gone() {
    let place = place().await;
    let first = join(&place, &[]).await;
    let second = join(&place, &[&first]).await;
    let queue = ours(&first)[0];
    let claimed = claim(&first, queue).await;
    submit(&second, &operation(queue)).await;
    first.leave().await;
    settled(&[&second]).await;
    assert_eq!(first.elsewhere(&[queue]), [queue]);
    assert!(first.claim(ClaimFrom::Queues(queues())).await.unwrap().is_empty());
    let mut notices = second.notices();
    assert!(first.release(queue, claimed.fence).await.unwrap());
    let notice = heard(&mut notices, |notice| matches!(notice, ClusterEvent::Queues(_))).await;
    assert_eq!(notice, ClusterEvent::Queues(vec![(queue, None)]));
    assert_eq!(due(&second, 10).await.len(), 1);
    first.close().await;
    second.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_handlers_give_is_told_to_the_process_whose_queue_it_is() {
    let place = place().await;
    let first = join(&place, &[]).await;
    let second = join(&place, &[&first]).await;
    let (mut heard_by_first, queue) = (first.notices(), ours(&first)[0]);
    let item = gives("s", 1, vec![operation(queue)]);
    let new = SubmitResult::Accepted { seq: 1, queue, state: OperationState::Queued };
    let accepted = CommitResult::Done(vec![new]);
    assert_eq!(commit(&second, item).await, accepted);
    let notice = heard(&mut heard_by_first, |notice| matches!(notice, ClusterEvent::Queues(_))).await;
    assert_eq!(notice, ClusterEvent::Queues(vec![(queue, None)]));
    first.close().await;
    second.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_that_handle_the_same_events_do_each_once_and_give_places_in_order() {
    let place = place().await;
    let first = join(&place, &[]).await;
    let second = join(&place, &[&first]).await;
    let handle = |store: Store, backwards: bool| async move {
        let mut kept = 0;
        for round in 0..20 {
            let batch = round * 10..round * 10 + 10;
            let seqs: Vec<u64> = if backwards { batch.rev().collect() } else { batch.collect() };
            // Commits with operations wait for the queue, the others only for rows.
            let gives_one = round % 5 == 0;
            let both = |seq| {
                let operations = if gives_one { vec![operation(queues()[0])] } else { Vec::new() };
                let waits = HandlerCommit { inbox: Some(entry("s", seq, 1)), ..handled("s", seq, "h") };
                [waits, HandlerCommit { operations, ..handled("s", seq, "other") }]
            };
            let answers = store.commit(seqs.into_iter().flat_map(both).collect()).await.unwrap();
            kept += answers.iter().filter(|answer| matches!(answer, CommitResult::Done(_))).count();
        }
        kept
    };
    let reader = first.clone();
    let reading = async {
        // Reads while they write: no entry may appear before a position that was read.
        let (mut after, mut read) = (0, 0);
        while read < 200 {
            let page = reader.inbox(after, 7).await.unwrap();
            read += page.len();
            after = page.last().map_or(after, |entry| entry.place);
            tokio::task::yield_now().await;
        }
        assert!(reader.inbox(after, 7).await.unwrap().is_empty());
    };
    let both = async { tokio::join!(handle(first.clone(), false), handle(second.clone(), true), reading) };
    let (one, other, ()) = timeout(STUCK, both).await.unwrap();
    assert_eq!(one + other, 400);
    assert_eq!(first.load(queues()[0], 0, 999).await.unwrap().operations.len(), 40);
    first.close().await;
    second.close().await;
}
