//! The writer: takes all pending jobs, runs them in one transaction, and replies after the commit.

pub(super) mod access;
mod attempts;
mod batch;
pub(super) mod cancel;
mod change_seq;
pub(super) mod crashes;
pub(super) mod dead_letters;
pub(super) mod erase;
pub(super) mod event_commit;
mod file_capacity;
mod finish;
mod guild_tenants;
pub(super) mod guilds;
mod identify;
pub(super) mod inbox;
mod insert;
pub(super) mod interactions;
mod job;
pub(super) mod locations;
pub(super) mod outcome;
pub(super) mod queues;
pub(super) mod schedule;
pub(super) mod sessions;
pub(super) mod shards;
pub(super) mod spend;
mod state;
pub(super) mod submit;
pub(super) mod sweep;
mod usage;

use std::{
    panic::{AssertUnwindSafe, resume_unwind},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures_util::FutureExt as _;
use guildhall_actors::failpoint::Point;
use guildhall_actors::ports::ClaimFrom;
use guildhall_actors::supervision::{Part, spawn_work};
use guildhall_actors::{crash, failpoint, wall_clock::unix_now};
use guildhall_core::time::UnixMs;
use sea_orm::{
    ConnectionTrait as _, DatabaseConnection, DatabaseTransaction, DbErr, RuntimeErr, SqliteTransactionMode,
    TransactionOptions, TransactionTrait as _,
};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, timeout},
};

use self::{
    batch::{BatchNeeds, BatchResult, WriteTx},
    job::{Reply, ResultDelivery, RunOrder},
    usage::UsageCounters,
};
pub(super) use self::{
    change_seq::{ChangeSeq, FORGOTTEN},
    file_capacity::{FileCapacity, measure as measure_file},
    job::{JobRequest, Request, WriteJob},
    outcome::guild_number,
    queues::{PAUSED, QUEUE_NUMBERS},
    usage::used,
};
#[cfg(test)]
pub(super) use self::{
    event_commit::{HANDLED, KEYS},
    inbox::POSTPONE_COLUMNS,
    outcome::CHANGES,
    sessions::{CONFIRMED, SHARDS},
};
use super::{
    EngineError, ErrorClass, Health, close_connection,
    cluster::{ClusterMember, Notification},
    connect::{self, TransactionSetup},
    events::{BatchCommitted, ChangeSeqsRepaired, StoreAttached, StoreHealthChanged},
    failures::StoreAccess,
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
        let (change_seq, instance) = match file {
            Some(_) => (ChangeSeq::Counted(0), usage::MERGED_INSTANCE),
            None => (ChangeSeq::Postgres, members.id()),
        };
        let limits = settings.usage.for_file(settings.max_bytes);
        let context = Context {
            usage: Arc::new(UsageCounters::new(limits, instance, FileCapacity::new(settings.max_bytes))),
            max_queued: settings.max_queued,
            max_audit: settings.max_audit,
            keep_keys: settings.idempotency_retention,
            lease: settings.lease.duration,
            members,
            clocks,
            channel,
            row_security,
            change_seq,
            notifies_changes: false,
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
                self.write(Vec::new()).await;
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
            Err(error) => self.on_failure(StoreAccess::Connect, &error),
        }
    }

    /// Writes a batch, and replies to all its requests.
    async fn write(&mut self, mut batch: Vec<JobRequest>) {
        failpoint::message(Part::StoreWriter);
        if batch.len() == 1 {
            return self.write_each(batch).await;
        }
        let outcome = match AssertUnwindSafe(self.attempt_with_retries(&mut batch)).catch_unwind().await {
            Ok(outcome) => outcome,
            Err(panic) if batch.is_empty() => resume_unwind(panic),
            Err(_) => {
                // The batch is rolled back with its connection. The request at fault panics again when it runs alone,
                // which identifies it.
                let reason = "a batch panicked; its requests are written one by one";
                self.context.members.failures().on_isolated(StoreAccess::Write, "panic", reason);
                self.drop_connection(&connection_error(reason));
                return self.write_each(batch).await;
            }
        };
        match outcome {
            // One request may be at fault: the others must not fail because of it.
            Err(error) if may_be_caused_by_one(error.class()) => self.write_each(batch).await,
            outcome => self.reply(batch, outcome),
        }
    }

    /// Writes each request in a transaction of its own. If that panics, the input of the request is the cause.
    async fn write_each(&mut self, batch: Vec<JobRequest>) {
        for request in batch {
            let (input, mut batch) = (request.input(), vec![request]);
            let outcome = crash::with_input(input, pin!(self.attempt_with_retries(&mut batch))).await;
            self.reply(batch, outcome);
        }
    }

    fn reply(&mut self, batch: Vec<JobRequest>, outcome: Result<BatchResult, EngineError>) {
        let done = match outcome {
            Ok(done) => done,
            Err(error) => {
                self.on_failure(StoreAccess::Write, &error);
                return batch.into_iter().for_each(|request| request.reject(error.to_store_error()));
            }
        };
        self.set_health(Health::Up);
        self.context.members.wake(done.woken);
        if done.operations_changed {
            self.on_operations_changed();
        }
        done.set_aside.iter().for_each(|one| emit(one.telemetry()));
        for request in batch {
            self.claims_in_doubt |=
                request.deliver(self.context.members.process_lease()) == ResultDelivery::ClaimsInDoubt;
        }
    }

    /// Runs jobs; repeats them after a conflict with another process.
    async fn attempt_with_retries(&mut self, requests: &mut [JobRequest]) -> Result<BatchResult, EngineError> {
        let mut attempts = 1;
        loop {
            match self.attempt(requests).await {
                Err(error) if error.class() == ErrorClass::Raced && attempts < CONFLICT_ATTEMPTS => {
                    attempts += 1;
                    self.context.members.failures().on_failure(StoreAccess::Write, &error);
                }
                outcome => return outcome,
            }
        }
    }

    /// Runs jobs in one transaction. Afterwards it is committed, rolled back, or its outcome is unknown.
    async fn attempt(&mut self, requests: &mut [JobRequest]) -> Result<BatchResult, EngineError> {
        let deadline = Instant::now() + self.settings.timeout;
        if self.connection.is_none() {
            tokio::time::timeout_at(deadline, self.connect()).await.map_err(|_| timeout_error())??;
        }
        let started = Instant::now();
        let outcome = match tokio::time::timeout_at(deadline, self.transact(requests)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(timeout_error()),
        };
        match &outcome {
            Ok(_) => emit(BatchCommitted { requests: requests.len(), elapsed: started.elapsed() }),
            Err(error) => {
                self.claims_in_doubt |= requests.iter().any(|request| request.is_for::<ClaimFrom>());
                if error.class() == ErrorClass::Lost {
                    self.drop_connection(error);
                }
            }
        }
        outcome
    }

    async fn transact(&mut self, requests: &mut [JobRequest]) -> Result<BatchResult, EngineError> {
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
        let done = batch::run_jobs(&transaction, &self.context, requests).await;
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

    fn on_failure(&mut self, access: StoreAccess, error: &EngineError) {
        self.context.members.failures().on_failure(access, error);
        match error.class() {
            ErrorClass::Lost => self.drop_connection(error),
            ErrorClass::Busy | ErrorClass::Full => {
                self.set_health(Health::Down(error.to_store_error().to_string()));
            }
            ErrorClass::Refused | ErrorClass::Raced | ErrorClass::Corrupt => {}
        }
    }

    fn set_health(&self, health: Health) {
        let up = health == Health::Up;
        emit(StoreHealthChanged { up });
        if up {
            self.context.members.failures().on_success(StoreAccess::Write);
        }
        self.health.send_if_modified(|current| {
            let changed = *current != health;
            *current = health;
            changed
        });
    }
}

/// Takes all pending requests after the first, up to the batch limits.
fn gather(first: JobRequest, waiting: &mut mpsc::Receiver<JobRequest>) -> Vec<JobRequest> {
    let mut size = first.size();
    let mut batch = vec![first];
    while size.0 < BATCH_ROWS && size.1 < BATCH_BYTES {
        let Ok(next) = waiting.try_recv() else { break };
        let more = next.size();
        size = (size.0 + more.0, size.1 + more.1);
        batch.push(next);
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
    i64::try_from(unix_now().as_micros()).unwrap_or(i64::MAX)
}

/// A count or a time, as the engines store it.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
