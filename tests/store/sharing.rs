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

use crate::events_setup::{commit, entry, handled, handled_with_operations};
use crate::setup::{
    Engine, StoreLocation, TEST_TIMEOUT, at, claim, operation, operation_update, operation_with_key, record, state_of,
    submit,
};

/// Short enough to wait for, long enough for a busy machine.
const SHORT_LEASE: LeaseSettings = LeaseSettings {
    heartbeat: Duration::from_millis(300),
    duration: Duration::from_millis(1_500),
    margin: Duration::from_millis(200),
};

async fn new_location() -> StoreLocation {
    let mut location = StoreLocation::new(Engine::Postgres).await;
    location.settings.lease = SHORT_LEASE;
    location
}

/// Opens a store, and waits until it and these have divided the queues.
async fn join(location: &StoreLocation, others: &[&Store]) -> Store {
    let store = location.open().await;
    let all: Vec<&Store> = others.iter().copied().chain([&store]).collect();
    wait_until_divided(&all).await;
    store
}

/// Waits until each of 300 queues belongs to exactly one of these. As long as one does not know of another, both claim
/// the same queues.
async fn wait_until_divided(stores: &[&Store]) {
    let mut notices = stores[0].cluster_events();
    let are_divided = || {
        let mut owned: Vec<Queue> = stores.iter().flat_map(|store| owned_queues(store)).collect();
        owned.sort_unstable();
        owned == queues()
    };
    let dividing = async {
        while !are_divided() {
            // The others may get there without a notification to this one.
            let _ = timeout(Duration::from_millis(20), notices.recv()).await;
        }
    };
    timeout(TEST_TIMEOUT, dividing).await.unwrap();
    for listener in &stores[1..] {
        wait_until_listening(stores[0], listener).await;
    }
}

/// Waits until one process receives notifications of another: it starts to listen after it has opened its store.
async fn wait_until_listening(sender: &Store, listener: &Store) {
    let mut notices = listener.cluster_events();
    let probe = async {
        loop {
            for paused in [true, false] {
                sender.pause(PauseTarget::All, paused).await.unwrap();
            }
            let received = async { while !matches!(notices.recv().await, Ok(ClusterEvent::Pauses)) {} };
            if timeout(Duration::from_millis(50), received).await.is_ok() {
                return;
            }
        }
    };
    timeout(TEST_TIMEOUT, probe).await.unwrap();
}

fn queues() -> Vec<Queue> {
    (1..=300).map(|n| Queue::Guild(1_300_000_000_000_000_000 + n)).collect()
}

/// Those of 300 queues that belong to this process.
fn owned_queues(store: &Store) -> Vec<Queue> {
    let elsewhere: HashSet<Queue> = store.assigned_elsewhere(&queues()).into_iter().collect();
    queues().into_iter().filter(|queue| !elsewhere.contains(queue)).collect()
}

async fn wait_for_notice(
    notices: &mut Receiver<ClusterEvent>,
    is_expected: impl Fn(&ClusterEvent) -> bool,
) -> ClusterEvent {
    let waiting = async {
        loop {
            match notices.recv().await {
                Ok(notice) if is_expected(&notice) => return notice,
                Ok(_) | Err(_) => {}
            }
        }
    };
    timeout(TEST_TIMEOUT, waiting).await.unwrap()
}

async fn claim_due(store: &Store, limit: usize) -> Vec<Claim> {
    store.claim(ClaimFrom::Due { now: at(100), limit }).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_queue_has_one_owner_and_is_claimed_by_it() {
    let location = new_location().await;
    let first = join(&location, &[]).await;
    assert_eq!(owned_queues(&first).len(), 300, "a single process owns everything");
    let second = join(&location, &[&first]).await;
    let third = join(&location, &[&first, &second]).await;
    let stores = [&first, &second, &third];
    let batch = queues().into_iter().map(operation).collect();
    second.submit(batch).await.unwrap();
    let mut all = HashSet::new();
    for store in stores {
        let own: HashSet<Queue> = owned_queues(store).into_iter().collect();
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
async fn overdue_queue_is_claimed_by_another_process() {
    let location = new_location().await;
    let first = join(&location, &[]).await;
    let second = join(&location, &[&first]).await;
    let queue = owned_queues(&first)[0];
    submit(&second, &operation(queue)).await;
    assert!(claim_due(&second, 10).await.is_empty(), "it belongs to the other");
    let late = second.claim(ClaimFrom::Due { now: at(10_000), limit: 10 }).await.unwrap();
    assert_eq!(late.len(), 1);
    assert!(claim_due(&first, 10).await.is_empty(), "it is claimed already");
    first.close().await;
    second.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_are_notified_only_of_their_own_queues() {
    let location = new_location().await;
    let first = join(&location, &[]).await;
    let second = join(&location, &[&first]).await;
    let (here, free, there) = (owned_queues(&first)[0], owned_queues(&first)[1], owned_queues(&second)[0]);
    let mut notices = second.cluster_events();
    let (own, other) = (operation(here), operation(there));
    claim(&first, here).await;
    submit(&first, &own).await;
    submit(&first, &other).await;
    let notice = wait_for_notice(&mut notices, |notice| matches!(notice, ClusterEvent::Queues(_))).await;
    assert_eq!(notice, ClusterEvent::Queues(vec![(there, None)]));
    // A queue without an owner may have been assigned to another process a moment ago.
    submit(&first, &operation(free)).await;
    let notice = wait_for_notice(&mut notices, |notice| matches!(notice, ClusterEvent::Queues(_))).await;
    assert_eq!(notice, ClusterEvent::Queues(vec![(free, None)]));
    // A claimed queue concerns only its owner, whatever its assignment.
    let claimed = claim(&second, there).await;
    first.cancel(other.id, at(1)).await.unwrap();
    let notice = wait_for_notice(&mut notices, |notice| matches!(notice, ClusterEvent::Queues(_))).await;
    assert_eq!(notice, ClusterEvent::Queues(vec![(there, Some(QueueSignal::Cancelled(other.id)))]));
    first.pause(PauseTarget::All, true).await.unwrap();
    wait_for_notice(&mut notices, |notice| *notice == ClusterEvent::Pauses).await;
    assert!(second.release(there, claimed.fence).await.unwrap());
    first.close().await;
    second.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_use_of_a_key_in_two_processes_is_one_operation() {
    let location = new_location().await;
    let first = join(&location, &[]).await;
    let second = join(&location, &[&first]).await;
    let mut submissions = tokio::task::JoinSet::new();
    for caller in 0..50 {
        let store = if caller % 2 == 0 { first.clone() } else { second.clone() };
        submissions.spawn(async move {
            let new = operation_with_key("once");
            (new.id, store.submit(vec![new]).await.unwrap().remove(0))
        });
    }
    let (mut accepted, mut existing) = (Vec::new(), HashSet::new());
    while let Some(result) = submissions.join_next().await {
        match result.unwrap() {
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
async fn concurrent_submissions_of_two_processes_are_numbered_without_gaps() {
    const EACH: usize = 40;
    let location = new_location().await;
    let first = join(&location, &[]).await;
    let second = join(&location, &[&first]).await;
    let mut submissions = tokio::task::JoinSet::new();
    for store in [first.clone(), second.clone()] {
        for _ in 0..EACH {
            let store = store.clone();
            // In any order, and always two queues that the other process uses too.
            let mut guilds = [5_u64, 6, 7, 8];
            fastrand::shuffle(&mut guilds);
            let batch = vec![operation(QueueKey::Guild(guilds[0])), operation(QueueKey::Guild(guilds[1]))];
            submissions.spawn(async move { store.submit(batch).await.unwrap() });
        }
    }
    while let Some(result) = submissions.join_next().await {
        assert_eq!(result.unwrap().len(), 2);
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
async fn ineffective_cancel_and_expedite_send_no_notice() {
    let location = new_location().await;
    let first = join(&location, &[]).await;
    let second = join(&location, &[&first]).await;
    let queue = owned_queues(&second)[0];
    let (sent, pending) = (operation(queue), operation(queue));
    second.submit(vec![sent.clone(), pending.clone()]).await.unwrap();
    let claimed = claim(&second, queue).await;
    assert_eq!(
        record(&second, operation_update(&sent, claimed.fence, OperationState::Reconciling)).await,
        UpdateResult::Done
    );
    let mut notices = second.cluster_events();
    assert_eq!(first.cancel(sent.id, at(20)).await.unwrap(), Some((OperationState::Reconciling, queue)));
    assert_eq!(first.expedite(sent.id, at(20)).await.unwrap(), Some((OperationState::Reconciling, queue)));
    // Notifications arrive in order, so none was sent for the other operation before this one.
    assert_eq!(first.cancel(pending.id, at(20)).await.unwrap(), Some((OperationState::Cancelled, queue)));
    let notice = wait_for_notice(&mut notices, |notice| matches!(notice, ClusterEvent::Queues(_))).await;
    assert_eq!(notice, ClusterEvent::Queues(vec![(queue, Some(QueueSignal::Cancelled(pending.id)))]));
    first.close().await;
    second.close().await;
}

/// A process that can be killed: its tasks run on their own runtime.
struct KillableProcess {
    store: Store,
    runtime: Option<Runtime>,
}

impl KillableProcess {
    async fn open(location: &StoreLocation) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let settings = location.settings.clone();
        let store = runtime.spawn(async move { Store::open(&settings).await.unwrap() }).await.unwrap();
        Self { store, runtime: Some(runtime) }
    }

    /// Stops all its tasks without a shutdown.
    fn kill(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_process_is_taken_over_and_its_late_writes_are_fenced() {
    let location = new_location().await;
    let survivor = join(&location, &[]).await;
    let mut killed = KillableProcess::open(&location).await;
    wait_until_divided(&[&survivor, &killed.store]).await;
    let queue = owned_queues(&killed.store)[0];
    let work = operation(queue);
    submit(&survivor, &work).await;
    let before = claim(&killed.store, queue).await;
    let lease_check = killed.store.queue_lease(queue, before.fence);
    assert!(lease_check.holds());
    let running = operation_update(&work, before.fence, OperationState::Running);
    assert_eq!(record(&killed.store, running).await, UpdateResult::Done);
    killed.kill();
    wait_until_divided(&[&survivor]).await;
    assert!(!lease_check.holds(), "by its own clock, before others take over");
    let after = claim(&survivor, queue).await;
    assert!(after.fence > before.fence);
    // A write with the old fence, over a working connection.
    let late = operation_update(&work, before.fence, OperationState::Succeeded);
    assert_eq!(record(&survivor, late).await, UpdateResult::Fenced);
    assert_eq!(state_of(&survivor, work.id).await, OperationState::Running);
    assert_eq!(
        record(&survivor, operation_update(&work, after.fence, OperationState::Succeeded)).await,
        UpdateResult::Done
    );
    survivor.close().await;
}

/// Waits until so many sessions of this database wait for a lock.
async fn wait_for_lock_waiters(connection: &DatabaseConnection, count_wanted: i64) {
    let count = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let waiting = async {
        loop {
            let row =
                connection.query_one_raw(Statement::from_string(DbBackend::Postgres, count)).await.unwrap().unwrap();
            if row.try_get_by_index::<i64>(0).unwrap() >= count_wanted {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TEST_TIMEOUT, waiting).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operation_submitted_during_a_take_over_is_due() {
    let mut location = new_location().await;
    // A take-over waits for at most half of it, and must not give up before the test has seen it wait.
    location.settings.lease.duration = Duration::from_secs(3);
    let survivor = join(&location, &[]).await;
    let mut killed = KillableProcess::open(&location).await;
    wait_until_divided(&[&survivor, &killed.store]).await;
    let queue = owned_queues(&killed.store)[0];
    claim(&killed.store, queue).await;
    killed.kill();
    // The queue is locked. The submission is next in line, the take-over after it.
    let raw = Database::connect(location.raw_url()).await.unwrap();
    let holder = raw.begin().await.unwrap();
    let lock = format!("SELECT 1 FROM guild_queues WHERE queue = {} FOR UPDATE", queue.number());
    holder.execute_unprepared(&lock).await.unwrap();
    let submitting = tokio::spawn({
        let survivor = survivor.clone();
        async move { submit(&survivor, &operation(queue)).await }
    });
    wait_for_lock_waiters(&raw, 1).await;
    wait_for_lock_waiters(&raw, 2).await;
    holder.commit().await.unwrap();
    assert!(matches!(submitting.await.unwrap(), SubmitResult::Accepted { .. }));
    wait_until_divided(&[&survivor]).await;
    let due = claim_due(&survivor, 10).await;
    assert_eq!(due.iter().map(|claim| claim.queue).collect::<Vec<_>>(), [queue]);
    raw.close().await.unwrap();
    survivor.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disowned_process_is_notified_and_claims_again() {
    let location = new_location().await;
    let store = join(&location, &[]).await;
    let queue = queues()[0];
    let claimed = claim(&store, queue).await;
    let lease_check = store.queue_lease(queue, claimed.fence);
    let mut notices = store.cluster_events();
    // As another process would, if this one had been frozen for long.
    let other = Database::connect(location.raw_url()).await.unwrap();
    let remove_instances = "WITH dead AS (DELETE FROM instances RETURNING id)
        UPDATE guild_queues SET owner = NULL, fence = fence + 1 WHERE owner IN (SELECT id FROM dead)";
    other.execute_unprepared(remove_instances).await.unwrap();
    wait_for_notice(&mut notices, |notice| *notice == ClusterEvent::LeaseLost).await;
    assert!(!lease_check.holds());
    let work = operation(queue);
    submit(&store, &work).await;
    assert_eq!(
        record(&store, operation_update(&work, claimed.fence, OperationState::Running)).await,
        UpdateResult::Fenced
    );
    let reclaimed = claim(&store, queue).await;
    assert_eq!(
        record(&store, operation_update(&work, reclaimed.fence, OperationState::Running)).await,
        UpdateResult::Done
    );
    other.close().await.unwrap();
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaving_process_hands_over_its_queues_before_it_ends() {
    let location = new_location().await;
    let first = join(&location, &[]).await;
    let second = join(&location, &[&first]).await;
    let queue = owned_queues(&first)[0];
    let claimed = claim(&first, queue).await;
    submit(&second, &operation(queue)).await;
    first.leave().await;
    wait_until_divided(&[&second]).await;
    assert_eq!(first.assigned_elsewhere(&[queue]), [queue]);
    assert!(first.claim(ClaimFrom::Queues(queues())).await.unwrap().is_empty());
    let mut notices = second.cluster_events();
    assert!(first.release(queue, claimed.fence).await.unwrap());
    let notice = wait_for_notice(&mut notices, |notice| matches!(notice, ClusterEvent::Queues(_))).await;
    assert_eq!(notice, ClusterEvent::Queues(vec![(queue, None)]));
    assert_eq!(claim_due(&second, 10).await.len(), 1);
    first.close().await;
    second.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_of_handlers_notify_the_owner_of_their_queue() {
    let location = new_location().await;
    let first = join(&location, &[]).await;
    let second = join(&location, &[&first]).await;
    let (mut notices, queue) = (first.cluster_events(), owned_queues(&first)[0]);
    let item = handled_with_operations("s", 1, vec![operation(queue)]);
    let new = SubmitResult::Accepted { seq: 1, queue, state: OperationState::Queued };
    let accepted = CommitResult::Done(vec![new]);
    assert_eq!(commit(&second, item).await, accepted);
    let notice = wait_for_notice(&mut notices, |notice| matches!(notice, ClusterEvent::Queues(_))).await;
    assert_eq!(notice, ClusterEvent::Queues(vec![(queue, None)]));
    first.close().await;
    second.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_commit_each_event_once_and_in_order() {
    let location = new_location().await;
    let first = join(&location, &[]).await;
    let second = join(&location, &[&first]).await;
    let handle = |store: Store, backwards: bool| async move {
        let mut committed = 0;
        for round in 0..20 {
            let batch = round * 10..round * 10 + 10;
            let seqs: Vec<u64> = if backwards { batch.rev().collect() } else { batch.collect() };
            // Commits with operations wait for the queue, the others only for rows.
            let with_operation = round % 5 == 0;
            let both = |seq| {
                let operations = if with_operation { vec![operation(queues()[0])] } else { Vec::new() };
                let in_inbox = HandlerCommit { inbox: Some(entry("s", seq, 1)), ..handled("s", seq, "h") };
                [in_inbox, HandlerCommit { operations, ..handled("s", seq, "other") }]
            };
            let results = store.commit(seqs.into_iter().flat_map(both).collect()).await.unwrap();
            committed += results.iter().filter(|result| matches!(result, CommitResult::Done(_))).count();
        }
        committed
    };
    let reader = first.clone();
    let reading = async {
        // Reads while they write: no entry may appear before a position that was read.
        let (mut after, mut read) = (0, 0);
        while read < 200 {
            let page = reader.inbox(after, 7).await.unwrap();
            read += page.len();
            after = page.last().map_or(after, |entry| entry.position);
            tokio::task::yield_now().await;
        }
        assert!(reader.inbox(after, 7).await.unwrap().is_empty());
    };
    let both = async { tokio::join!(handle(first.clone(), false), handle(second.clone(), true), reading) };
    let (one, other, ()) = timeout(TEST_TIMEOUT, both).await.unwrap();
    assert_eq!(one + other, 400);
    assert_eq!(first.load(queues()[0], 0, 999).await.unwrap().operations.len(), 40);
    first.close().await;
    second.close().await;
}
