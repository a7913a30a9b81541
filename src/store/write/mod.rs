//! The writer: takes all pending jobs, runs them in one transaction, and replies after the commit.

mod access;
mod attempts;
mod batch;
mod cancel;
mod change_seq;
mod crashes;
mod dead_letters;
mod erase;
mod event_commit;
mod file_capacity;
mod finish;
mod guild_tenants;
mod identify;
mod inbox;
mod insert;
mod interactions;
mod job;
mod locations;
mod queues;
mod record;
mod schedule;
mod sessions;
mod shards;
mod spend;
mod state;
mod submit;
mod sweep;
mod usage;

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, resume_unwind},
    pin::pin,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures_util::FutureExt as _;
use guildhall_actors::failpoint::Point;
use guildhall_actors::ports::UpdateResult;
use guildhall_actors::supervision::{Part, spawn_work};
use guildhall_actors::{crash, failpoint};
use guildhall_core::time::UnixMs;
use sea_orm::{
    ConnectionTrait as _, DatabaseConnection, DatabaseTransaction, DbErr, RuntimeErr, SqliteTransactionMode,
    TransactionOptions, TransactionTrait as _,
};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, timeout},
};

use self::{batch::BatchResult, job::BatchJob, usage::UsageCounters};
pub(super) use self::{
    change_seq::{ChangeSeq, FORGOTTEN},
    file_capacity::{FileCapacity, measure as measure_file},
    job::{Job, JobRequest, JobResult},
    queues::{NEXT_DUE, PAUSED, QUEUE_NUMBERS},
    record::guild_number,
    schedule::FIRST as FIRST_SCHEDULED,
    usage::used,
};
#[cfg(test)]
pub(super) use self::{
    event_commit::{HANDLED, INSERT as INSERT_HANDLED, KEYS, REMOVE as REMOVE_HANDLED},
    identify::{FORGET as FORGET_IDENTIFIES, LAST_OF_BUCKET, LAST_OF_BUDGET},
    inbox::{POSTPONE, POSTPONE_COLUMNS, PRESENT as IN_INBOX},
    interactions::{PAST_BOUND, SWEEP_EXPIRED},
    queues::{TAKE_DUE, take_due_shared_sql},
    record::{CHANGES, UPDATE},
    schedule::DUE as SCHEDULED_DUE,
    sessions::{
        CONFIRMED, FORGET, FORGET_ON_POSTGRES, ORPHANED_SESSIONS, SELECT_SESSIONS, SHARDS, SWEEP_DEAD, SWEEP_ORPHANED,
    },
    sweep::OPERATIONS as SWEEP,
};
use super::{
    EngineError, ErrorClass, Health, close_connection,
    cluster::{ClusterMember, Notification},
    connect::{self, TransactionSetup},
    events::{
        BatchCommitted, ChangeSeqsRepaired, QueuesClaimed, StoreAttached, StoreFailed, StoreHealthChanged, WritesFenced,
    },
    file_lock::FileLock,
    row_security::{TenantRole, TenantScope},
};
use crate::{clock::Clocks, events::emit, settings::StoreSettings as Settings};

/// Approximate maximum number of rows in one transaction. A larger batch costs more waiting time than it saves.
const BATCH_ROWS: usize = 2_048;
/// Approximate maximum number of payload bytes in one transaction.
const BATCH_BYTES: usize = 8 << 20;
/// Number of attempts of a batch that conflicts with another process.
const CONFLICT_ATTEMPTS: u32 = 5;
/// Minimum interval between notifications to the other processes that operations have changed. One notification covers
/// all changes in between.
const CHANGE_NOTIFY_INTERVAL: Duration = Duration::from_millis(50);
/// Interval of reconnect attempts while the connection is lost and no job is pending.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(250);

/// Data that every job may need.
#[derive(Clone, Debug)]
pub(super) struct Context {
    /// Cluster membership of this process.
    members: Arc<ClusterMember>,
    /// Store time.
    clocks: Clocks,
    /// Notification channel of the store.
    channel: String,
    /// Maximum number of pending operations in a queue.
    max_queued: u64,
    /// Maximum number of stored audit rows of a key; 0 means no limit.
    max_audit: u64,
    /// How long idempotency keys are stored.
    keep_keys: Duration,
    /// How long a process counts as alive after a heartbeat.
    lease: Duration,
    /// Role switch for tenants.
    row_security: Option<TenantRole>,
    /// Change sequence number of the present transaction.
    change_seq: ChangeSeq,
    /// Whether this transaction notifies the other processes that operations have changed.
    notifies_changes: bool,
    /// Usage of each caller, and its limits.
    usage: Arc<UsageCounters>,
}

impl Context {
    /// The scope of a write for a tenant, or for the engine if `None`.
    fn tenant_scope<'a>(&'a self, tenant: Option<&'a str>) -> TenantScope<'a> {
        TenantScope::of(self.row_security.as_ref(), tenant)
    }

    /// First fence of a new queue: greater than any fence of an earlier queue with the same number.
    fn first_fence(&self) -> i64 {
        self.now() << 20
    }

    /// Store time, as the engines store it.
    fn now(&self) -> i64 {
        signed(self.clocks.now().millis())
    }

    /// Time to compare expiry times with, given the caller's `now`.
    fn expiry(&self, now: UnixMs) -> UnixMs {
        now.before(self.clocks.expiry_lag())
    }
}

/// The writer.
pub(super) struct Writer {
    settings: Settings,
    context: Context,
    connection: Option<DatabaseConnection>,
    session: TransactionSetup,
    /// The lock of the file: no other process may write to it.
    file: Option<Arc<FileLock>>,
    health: watch::Sender<Health>,
    /// Whether the store may list queues of this process that no part of the process knows.
    claims_in_doubt: bool,
    /// Time of the last notification that operations have changed.
    last_change_notice: Option<Instant>,
    /// Whether operations have changed since then.
    has_unsent_changes: bool,
}

impl Writer {
    /// Starts the writer. If the store is a file, this process is its only user: all other instances have ended.
    pub(super) async fn attach(
        settings: Settings,
        file: Option<Arc<FileLock>>,
        members: Arc<ClusterMember>,
        clocks: Clocks,
        channel: String,
        row_security: Option<TenantRole>,
        health: watch::Sender<Health>,
    ) -> Result<Self, EngineError> {
        let (max_queued, keep_keys, lease) =
            (settings.max_queued, settings.idempotency_retention, settings.lease.duration);
        let change_seq = if file.is_some() { ChangeSeq::Counted(0) } else { ChangeSeq::Postgres };
        let max_audit = settings.max_audit;
        let instance = if file.is_some() { usage::MERGED_INSTANCE } else { members.id() };
        let bounds = settings.usage.for_file(settings.max_bytes);
        let usage = Arc::new(UsageCounters::new(bounds, instance, FileCapacity::new(settings.max_bytes)));
        let context = Context {
            max_audit,
            members,
            clocks,
            channel,
            max_queued,
            keep_keys,
            lease,
            row_security,
            change_seq,
            notifies_changes: false,
            usage,
        };
        let session = TransactionSetup::of(&settings);
        let mut writer = Self {
            settings,
            context,
            connection: None,
            session,
            file,
            health,
            claims_in_doubt: false,
            last_change_notice: None,
            has_unsent_changes: false,
        };
        writer.connect().await?;
        Ok(writer)
    }

    /// Writes until all senders are dropped, or until it is stopped and no job is pending.
    pub(super) async fn run(mut self, mut waiting: mpsc::Receiver<JobRequest>, mut stop: watch::Receiver<bool>) {
        loop {
            let idle = if self.connection.is_some() { self.settings.timeout } else { RECONNECT_INTERVAL };
            tokio::select! {
                biased;
                first = waiting.recv() => match first {
                    Some(first) => {
                        let batch = gather(first, &mut waiting);
                        self.write(batch).await;
                    }
                    None => break,
                },
                () = async { drop(stop.wait_for(|stop| *stop).await) } => waiting.close(),
                () = tokio::time::sleep_until(self.next_change_notice()), if self.has_unsent_changes => self.notify_changes().await,
                () = tokio::time::sleep(idle) => self.check_connection().await,
            }
            if self.claims_in_doubt && self.connection.is_some() {
                self.write(VecDeque::new()).await;
            }
        }
        if self.has_unsent_changes {
            self.notify_changes().await;
        }
        if let Some(connection) = self.connection.take() {
            close_connection(connection).await;
        }
    }

    /// Checks the connection, or reconnects.
    async fn check_connection(&mut self) {
        let checked = match &self.connection {
            Some(connection) => {
                let ping = connection.execute_unprepared("SELECT 1");
                let answered = timeout(self.settings.timeout, ping).await;
                answered.map_err(|_| timeout_error()).and_then(|answer| answer.map_err(EngineError::from)).map(drop)
            }
            None => self.connect().await,
        };
        match checked {
            Ok(()) => self.set_health(Health::Up),
            Err(error) => self.on_failure("connect", &error),
        }
    }

    /// Writes a batch, and replies to all its requests.
    async fn write(&mut self, mut batch: VecDeque<JobRequest>) {
        failpoint::message(Part::StoreWriter);
        if batch.len() == 1
            && let Some(request) = batch.pop_front()
        {
            return self.write_one(request).await;
        }
        let jobs: Vec<BatchJob<'_>> = batch.iter().map(BatchJob::of).collect();
        let outcome = match AssertUnwindSafe(self.attempt_with_retries(&jobs)).catch_unwind().await {
            Ok(outcome) => outcome,
            Err(panic) if batch.is_empty() => resume_unwind(panic),
            Err(_) => {
                // The batch is rolled back with its connection. The request at fault panics again when it runs alone,
                // which identifies it.
                let reason = "a batch panicked; its requests are written one by one";
                emit(StoreFailed { action: "write", class: "panic", message: reason });
                self.drop_connection(&connection_error(reason));
                return self.write_each(batch).await;
            }
        };
        match outcome {
            Ok(done) => self.reply(batch, done),
            // One request may be at fault: the others must not fail because of it.
            Err(error) if may_be_caused_by_one(error.class()) => self.write_each(batch).await,
            Err(error) => self.reject(batch, &error),
        }
    }

    async fn write_each(&mut self, batch: VecDeque<JobRequest>) {
        for request in batch {
            self.write_one(request).await;
        }
    }

    /// Writes one request in a transaction of its own. If that panics, the input of the request is the cause.
    async fn write_one(&mut self, request: JobRequest) {
        let jobs = [BatchJob::of(&request)];
        let attempted = crash::with_input(request.job.input(), pin!(self.attempt_with_retries(&jobs))).await;
        match attempted {
            Ok(done) => self.reply(VecDeque::from([request]), done),
            Err(error) => self.reject(VecDeque::from([request]), &error),
        }
    }

    fn reject(&mut self, batch: VecDeque<JobRequest>, error: &EngineError) {
        self.on_failure("write", error);
        for request in batch {
            // The caller may have stopped waiting.
            let _ = request.reply.send(Err(error.to_store_error()));
        }
    }

    fn reply(&mut self, batch: VecDeque<JobRequest>, BatchResult { results, woken, set_aside }: BatchResult) {
        self.set_health(Health::Up);
        self.context.members.wake(woken);
        if results.iter().any(JobResult::touches_operations) || !set_aside.is_empty() {
            self.on_operations_changed();
        }
        set_aside.iter().for_each(|one| emit(one.telemetry()));
        for (request, answer) in batch.into_iter().zip(results) {
            let claims = match &answer {
                JobResult::Claimed(claims) => claims.clone(),
                JobResult::Recorded(recorded) => {
                    emit(WritesFenced { writes: recorded.iter().filter(|one| **one == UpdateResult::Fenced).count() });
                    Vec::new()
                }
                JobResult::Submitted(_)
                | JobResult::Redriven(_)
                | JobResult::Released(_)
                | JobResult::Joined(_)
                | JobResult::MadeDue(_)
                | JobResult::Moved(_)
                | JobResult::Discarded(_)
                | JobResult::Swept(_)
                | JobResult::Committed(_)
                | JobResult::Identified(_)
                | JobResult::Shards(_)
                | JobResult::Found(_)
                | JobResult::SweptEvents(_)
                | JobResult::KeyAdded(_)
                | JobResult::KeyRevoked(_)
                | JobResult::KeyRotated(_)
                | JobResult::Erased(_)
                | JobResult::Stored => Vec::new(),
            };
            let lease = self.context.members.process_lease();
            if let Job::Release(queue, fence) = &request.job {
                lease.remove_queue(queue.number(), signed(fence.0));
            }
            if let Job::ReleaseShards(claims) = &request.job {
                claims.iter().for_each(|claim| lease.remove_shard(claim));
            }
            if let JobResult::Shards(claimed) = &answer {
                claimed.claims.iter().for_each(|claim| lease.add_shard(claim));
            }
            // Before the caller can act on them.
            claims.iter().for_each(|claim| lease.add_queue(claim.queue.number(), signed(claim.fence.0)));
            let unsent = request.reply.send(Ok(answer)).err();
            if let Some(Ok(JobResult::Shards(claimed))) = &unsent {
                // The caller has stopped waiting. Only the store lists these shards; they are taken at the next
                // request.
                claimed.claims.iter().for_each(|claim| lease.remove_shard(claim));
            }
            if unsent.is_none() {
                emit(QueuesClaimed { queues: claims.len() });
            } else {
                // No part of the process will handle these queues, so they are released.
                claims.iter().for_each(|claim| lease.remove_queue(claim.queue.number(), signed(claim.fence.0)));
                self.claims_in_doubt |= !claims.is_empty();
            }
        }
    }

    /// Runs jobs; repeats them after a conflict with another process.
    async fn attempt_with_retries(&mut self, jobs: &[BatchJob<'_>]) -> Result<BatchResult, EngineError> {
        let mut attempts = 1;
        loop {
            match self.attempt(jobs).await {
                Err(error) if error.class() == ErrorClass::Raced && attempts < CONFLICT_ATTEMPTS => {
                    attempts += 1;
                    emit(StoreFailed { action: "write", class: error.class().name(), message: &error.message() });
                }
                outcome => return outcome,
            }
        }
    }

    /// Runs jobs in one transaction. Afterwards it is committed, rolled back, or its outcome is unknown.
    async fn attempt(&mut self, jobs: &[BatchJob<'_>]) -> Result<BatchResult, EngineError> {
        let deadline = Instant::now() + self.settings.timeout;
        if self.connection.is_none() {
            tokio::time::timeout_at(deadline, self.connect()).await.map_err(|_| timeout_error())??;
        }
        let started = Instant::now();
        let may_claim = jobs.iter().any(|request| matches!(request.job, Job::Claim(_)));
        let outcome = match tokio::time::timeout_at(deadline, self.transact(jobs)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(timeout_error()),
        };
        match &outcome {
            Ok(_) => emit(BatchCommitted { requests: jobs.len(), elapsed: started.elapsed() }),
            Err(error) => {
                self.claims_in_doubt |= may_claim;
                if error.class() == ErrorClass::Lost {
                    self.drop_connection(error);
                }
            }
        }
        outcome
    }

    async fn transact(&mut self, jobs: &[BatchJob<'_>]) -> Result<BatchResult, EngineError> {
        let members = Arc::clone(&self.context.members);
        let _writes = members.write_guard().await.ok_or_else(|| connection_error("the process is ending"))?;
        self.context.change_seq = self.context.change_seq.next(now_in_micros());
        self.context.notifies_changes = self.next_change_notice() <= Instant::now();
        if self.claims_in_doubt {
            let transaction = self.begin().await?;
            let freed = queues::free_unknown(&transaction, &self.context).await;
            self.end(transaction, freed).await?;
            self.claims_in_doubt = false;
        }
        self.context.usage.clear();
        let transaction = self.begin().await?;
        let done = batch::run_jobs(&transaction, &self.context, jobs).await;
        if done.is_ok() {
            failpoint::pass(Point::BeforeCommit);
        }
        let done = self.end(transaction, done).await?;
        self.context.usage.on_commit();
        failpoint::pass(Point::AfterCommit);
        Ok(done)
    }

    /// Starts a transaction.
    async fn begin(&self) -> Result<DatabaseTransaction, EngineError> {
        let connection = self.connection.as_ref().ok_or_else(|| connection_error("not connected"))?;
        let options = TransactionOptions {
            sqlite_transaction_mode: Some(SqliteTransactionMode::Immediate),
            ..Default::default()
        };
        let transaction = connection.begin_with_options(options).await?;
        self.session.prepare(&transaction).await?;
        Ok(transaction)
    }

    /// Commits, or rolls back on an error.
    async fn end<T>(
        &mut self,
        transaction: DatabaseTransaction,
        done: Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        match done {
            Ok(done) => {
                transaction.commit().await?;
                Ok(done)
            }
            Err(error) => {
                // Before the next transaction starts: a pending rollback would block it. If the rollback fails, the
                // state of the connection is unknown.
                if transaction.rollback().await.is_err()
                    && let Some(connection) = self.connection.take()
                {
                    spawn_work(close_connection(connection));
                }
                Err(error)
            }
        }
    }

    /// Connects. The outcome of the last transaction of the previous connection is unknown.
    async fn connect(&mut self) -> Result<(), EngineError> {
        self.connection = Some(connect::open_writer(&self.settings).await?);
        self.claims_in_doubt = true;
        if self.file.is_some() {
            let transaction = self.begin().await?;
            let taken = queues::take_over(&transaction, self.context.members.id(), self.context.now()).await;
            let freed = self.end(transaction, taken).await?;
            emit(StoreAttached { url: &self.settings.url.to_string(), freed });
            let connection = self.connection.as_ref().ok_or_else(|| connection_error("not connected"))?;
            self.context.change_seq = ChangeSeq::of_file(connection).await?;
        } else {
            let transaction = self.begin().await?;
            let repaired = change_seq::repair(&transaction).await;
            emit(ChangeSeqsRepaired { operations: self.end(transaction, repaired).await? });
            emit(StoreAttached { url: &self.settings.url.to_string(), freed: 0 });
        }
        self.set_health(Health::Up);
        Ok(())
    }

    /// Operations have changed, and the change is committed: notifies the change feeds of this process at once, and the
    /// other processes soon.
    fn on_operations_changed(&mut self) {
        self.context.members.tick();
        if self.context.members.has_others() {
            self.has_unsent_changes = !self.context.notifies_changes;
            if self.context.notifies_changes {
                self.last_change_notice = Some(Instant::now());
            }
        }
    }

    /// Earliest time of the next notification that operations have changed.
    fn next_change_notice(&self) -> Instant {
        self.last_change_notice.map_or_else(Instant::now, |last| last + CHANGE_NOTIFY_INTERVAL)
    }

    /// Notifies the other processes that operations have changed.
    async fn notify_changes(&mut self) {
        self.has_unsent_changes = false;
        self.last_change_notice = Some(Instant::now());
        let notify = async {
            let transaction = self.begin().await?;
            batch::send_notification(&transaction, &self.context, &Notification::changes()).await?;
            transaction.commit().await.map_err(EngineError::from)
        };
        // If this fails, they find out by polling, and the next write reports the connection error.
        let _ = timeout(self.settings.timeout, notify).await;
    }

    fn drop_connection(&mut self, error: &EngineError) {
        if let Some(connection) = self.connection.take() {
            spawn_work(close_connection(connection));
        }
        self.claims_in_doubt = true;
        self.set_health(Health::Down(error.to_store_error().to_string()));
    }

    fn on_failure(&mut self, action: &'static str, error: &EngineError) {
        let message = error.to_store_error().to_string();
        emit(StoreFailed { action, class: error.class().name(), message: &message });
        match error.class() {
            ErrorClass::Lost => self.drop_connection(error),
            ErrorClass::Busy | ErrorClass::Full => self.set_health(Health::Down(message)),
            ErrorClass::Refused | ErrorClass::Raced | ErrorClass::Corrupt => {}
        }
    }

    fn set_health(&self, health: Health) {
        emit(StoreHealthChanged { up: health == Health::Up });
        self.health.send_if_modified(|current| {
            let changed = *current != health;
            *current = health;
            changed
        });
    }
}

/// Takes all pending requests after the first, up to the batch limits.
fn gather(first: JobRequest, waiting: &mut mpsc::Receiver<JobRequest>) -> VecDeque<JobRequest> {
    let mut size = first.job.size();
    let mut batch = VecDeque::from([first]);
    while size.0 < BATCH_ROWS && size.1 < BATCH_BYTES {
        let Ok(next) = waiting.try_recv() else { break };
        let more = next.job.size();
        size = (size.0 + more.0, size.1 + more.1);
        batch.push_back(next);
    }
    batch
}

/// Whether a single request of a batch may be the cause.
fn may_be_caused_by_one(class: ErrorClass) -> bool {
    match class {
        ErrorClass::Refused | ErrorClass::Raced | ErrorClass::Corrupt => true,
        ErrorClass::Lost | ErrorClass::Busy | ErrorClass::Full => false,
    }
}

fn connection_error(reason: &str) -> EngineError {
    EngineError::Engine(DbErr::Conn(RuntimeErr::Internal(reason.to_owned())))
}

pub(super) fn timeout_error() -> EngineError {
    connection_error("no response within store.timeout_ms")
}

/// Present time of the wall clock, in microseconds.
fn now_in_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// A count or a time, as the engines store it.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
