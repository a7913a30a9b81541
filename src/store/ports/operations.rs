//! Implements the port for operations on [`Store`].

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use guildhall_actors::access::{AuditRecord, DEFAULT_TENANT};
use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_actors::ports::{
    Claim, ClaimFrom, DeadLetter, DeadLetterFilter, Fence, GuildFilter, GuildPage, Instance, NewOperation,
    OperationDetails, OperationFilter, OperationPage, OperationStore, OperationUpdate, PauseTarget, ResolvedReference,
    Retention, StateWrite, StoreError, StoreFuture, StoreUsage, SubmitError, SubmitResult, SweepSummary,
    UnresolvedReference, UpdateResult,
};
use guildhall_core::{
    access::Owner,
    interaction::{ReceivedInteraction, TokenDigest},
    operation::{ManagedKind, OperationId, OperationState, Queue, payload::Location},
    time::UnixMs,
    usage::UsageScope,
};
use tokio::{sync::oneshot, time::timeout};

use crate::store::Store;
use crate::store::error::EngineError;
use crate::store::failures::StoreAccess;
use crate::store::read::{
    access, dead_letters, guilds, instances, interactions, locations, operations, resolve, totals, usage,
};
use crate::store::rows::without_nul;
use crate::store::write::{
    Request, WriteJob,
    cancel::{Cancel, CancelTarget, Expedite},
    dead_letters::{Discard, Redrive},
    locations::StoreLocation,
    outcome::RecordUpdates,
    queues::{Pause, ReleaseHeld, ReleaseQueue},
    schedule::JoinDue,
    submit::Submit,
    sweep::Sweep,
};

impl Store {
    /// Sends a job to the writer and waits for its result. The first job that changes something stores the audit record
    /// of the store, if it has one.
    pub(in crate::store) async fn write<J: WriteJob>(&self, job: J) -> Result<J::Output, StoreError> {
        let record = self.audit_record.as_ref().and_then(|record| lock(record).clone());
        let output = self.write_with(job, record).await?;
        if let Some(record) = self.audit_record.as_ref().filter(|_| J::is_change(&output)) {
            *lock(record) = None;
        }
        Ok(output)
    }

    /// Sends a job to the writer and waits for its result. Stores this audit record if the job changes something.
    pub(in crate::store) async fn write_with<J: WriteJob>(
        &self,
        job: J,
        audit_record: Option<AuditRecord>,
    ) -> Result<J::Output, StoreError> {
        let (reply, output) = oneshot::channel();
        let request = Request::boxed(job, audit_record, reply);
        match timeout(self.shared.timeout, self.shared.requests.send(request)).await {
            Ok(Ok(())) => output.await.unwrap_or_else(|_| Err(closed())),
            Ok(Err(_)) => Err(closed()),
            Err(_) => {
                let reason = "the number of pending writes has reached store.max_waiting; send fewer writes, or find out \
                    why the store is slow";
                Err(StoreError::Unavailable(reason.to_owned()))
            }
        }
    }

    /// Whether the caller may see a row of this tenant. A second check: queries and row-level security already exclude
    /// other tenants' rows.
    pub(crate) fn is_visible(&self, tenant: &str) -> bool {
        self.tenant.as_deref().is_none_or(|own| own == tenant)
    }

    /// Runs a read, with the timeout of the store.
    pub(in crate::store) async fn read<T>(
        &self,
        reading: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, StoreError> {
        let Ok(read) = timeout(self.shared.timeout, reading).await else {
            let reason = "a read took longer than store.timeout_ms";
            self.shared.members.failures().on_outage(StoreAccess::Read, "late", reason);
            return Err(StoreError::Unavailable(reason.to_owned()));
        };
        if read.is_ok() {
            self.shared.members.failures().on_success(StoreAccess::Read);
        }
        read.map_err(|error| {
            self.shared.members.failures().on_failure(StoreAccess::Read, &error);
            error.to_store_error()
        })
    }
}

fn lock(record: &Mutex<Option<AuditRecord>>) -> MutexGuard<'_, Option<AuditRecord>> {
    record.lock().unwrap_or_else(PoisonError::into_inner)
}

fn closed() -> StoreError {
    StoreError::Unavailable("it is closed because the process is about to end".to_owned())
}

/// Reads through the view of the caller.
macro_rules! look {
    ($store:expr, |$view:ident| $question:expr) => {
        $store.read(async {
            let $view = $store.view().await?;
            let found = $question.await?;
            $view.end().await?;
            Ok(found)
        })
    };
}

pub(crate) use look;

impl OperationStore for Store {
    fn with_audit(self: Arc<Self>, note: AuditRecord) -> Arc<dyn OperationStore> {
        Arc::new(self.with_audit_record(note))
    }

    fn for_tenant(self: Arc<Self>, tenant: Arc<str>) -> Arc<dyn OperationStore> {
        Arc::new(self.scoped_to_tenant(tenant))
    }

    fn guilds(&self, filter: GuildFilter) -> StoreFuture<'_, GuildPage> {
        Box::pin(async move {
            // As the engine: a name belongs to no tenant by itself, and the tenant's role cannot tell whether a guild has one.
            let mut page = self.read(guilds::guilds(&self.shared.reading, &filter)).await?;
            page.guilds.retain(|guild| self.is_visible(&guild.tenant));
            Ok(page)
        })
    }

    fn tenant(&self, guild: u64) -> StoreFuture<'_, Option<Arc<str>>> {
        Box::pin(self.read(access::tenant(&self.shared.reading, guild)))
    }

    fn owners(&self, locations: Vec<Location>) -> StoreFuture<'_, Vec<Option<Owner>>> {
        Box::pin(async move { self.read(locations::owners(&self.shared.reading, &locations)).await })
    }

    fn record_location(&self, location: Location, guild: Option<u64>) -> StoreFuture<'_, Owner> {
        Box::pin(async move {
            self.write(StoreLocation { location, guild }).await?;
            let tenant = match guild {
                Some(guild) => self.tenant(guild).await?,
                None => None,
            };
            Ok(Owner { guild, tenant: tenant.as_deref().unwrap_or(DEFAULT_TENANT).to_owned() })
        })
    }

    fn received_interactions(&self, tokens: Vec<TokenDigest>) -> StoreFuture<'_, Vec<ReceivedInteraction>> {
        Box::pin(async move { self.read(interactions::received(&self.shared.reading, &tokens)).await })
    }

    fn submit(&self, operations: Vec<NewOperation>) -> StoreFuture<'_, Vec<SubmitResult>, SubmitError> {
        let job = Submit { operations, tenant: self.tenant.clone() };
        Box::pin(async move { self.write(job).await? })
    }

    fn lease(&self) -> LeaseGuard {
        self.shared.members.lease()
    }

    fn queue_lease(&self, queue: Queue, fence: Fence) -> LeaseGuard {
        self.shared.members.queue_guard(queue, fence)
    }

    fn assigned_elsewhere(&self, queues: &[Queue]) -> Vec<Queue> {
        let members = &self.shared.members;
        queues.iter().copied().filter(|queue| !members.is_ours(queue.number())).collect()
    }

    fn claim(&self, mut from: ClaimFrom) -> StoreFuture<'_, Vec<Claim>> {
        if let ClaimFrom::Queues(queues) = &mut from {
            queues.retain(|queue| self.shared.members.is_ours(queue.number()));
            if queues.is_empty() {
                return Box::pin(std::future::ready(Ok(Vec::new())));
            }
        }
        Box::pin(self.write(from))
    }

    fn release(&self, queue: Queue, fence: Fence) -> StoreFuture<'_, bool> {
        Box::pin(self.write(ReleaseQueue { queue, fence }))
    }

    fn load(&self, queue: Queue, after: u64, limit: usize) -> StoreFuture<'_, OperationPage> {
        Box::pin(async move {
            let mut page = look!(self, |view| operations::load(&view, queue, after, limit)).await?;
            page.operations.retain(|stored| self.is_visible(&stored.operation.tenant));
            if self.tenant.is_some() {
                // Their tenant may be one of the values that cannot be read.
                page.unreadable.clear();
            }
            Ok(page)
        })
    }

    fn join_due(&self, queue: Queue, now: UnixMs, limit: usize) -> StoreFuture<'_, Option<UnixMs>> {
        Box::pin(self.write(JoinDue { queue, now, limit }))
    }

    fn count_scheduled(&self, queue: Queue, limit: usize) -> StoreFuture<'_, u64> {
        Box::pin(async move { look!(self, |view| operations::scheduled(&view, queue, limit)).await })
    }

    fn record(&self, changes: Vec<OperationUpdate>) -> StoreFuture<'_, Vec<UpdateResult>> {
        Box::pin(self.write(RecordUpdates(changes)))
    }

    fn resolve(
        &self,
        guild: Option<u64>,
        references: Vec<UnresolvedReference>,
    ) -> StoreFuture<'_, Vec<ResolvedReference>> {
        Box::pin(async move { self.read(resolve::resolve(&self.shared.reading, guild, &references)).await })
    }

    fn find_bound(&self, kind: ManagedKind, ids: Vec<u64>) -> StoreFuture<'_, Vec<u64>> {
        Box::pin(async move { self.read(resolve::bound(&self.shared.reading, kind, &ids)).await })
    }

    fn release_held(&self, now: UnixMs, limit: usize) -> StoreFuture<'_, usize> {
        Box::pin(self.write(ReleaseHeld { now, limit }))
    }

    fn next_due(&self) -> StoreFuture<'_, Option<UnixMs>> {
        Box::pin(self.read(totals::next_due(&self.shared.reading)))
    }

    fn get(&self, id: OperationId) -> StoreFuture<'_, Option<OperationDetails>> {
        Box::pin(async move {
            let details = look!(self, |view| operations::show(&view, id)).await?;
            Ok(details.filter(|details| self.is_visible(&details.stored.operation.tenant)))
        })
    }

    fn list(&self, filter: OperationFilter) -> StoreFuture<'_, Vec<OperationDetails>> {
        Box::pin(async move {
            let mut listed = look!(self, |view| operations::list(&view, &filter)).await?;
            listed.retain(|details| self.is_visible(&details.stored.operation.tenant));
            Ok(listed)
        })
    }

    fn cancel(&self, id: OperationId, now: UnixMs) -> StoreFuture<'_, Option<(OperationState, Queue)>> {
        Box::pin(self.write(Cancel(CancelTarget { id, now, tenant: self.tenant.clone() })))
    }

    fn expedite(&self, id: OperationId, now: UnixMs) -> StoreFuture<'_, Option<(OperationState, Queue)>> {
        Box::pin(self.write(Expedite(CancelTarget { id, now, tenant: self.tenant.clone() })))
    }

    fn dead_letters(&self, filter: DeadLetterFilter) -> StoreFuture<'_, Vec<DeadLetter>> {
        Box::pin(async move {
            let mut listed = look!(self, |view| dead_letters::list(&view, &filter)).await?;
            listed.retain(|letter| self.is_visible(&letter.tenant));
            Ok(listed)
        })
    }

    fn redrive(&self, operations: Vec<NewOperation>) -> StoreFuture<'_, Vec<OperationId>, SubmitError> {
        let job = Redrive { operations, tenant: self.tenant.clone() };
        Box::pin(async move { self.write(job).await? })
    }

    fn discard(&self, filter: DeadLetterFilter) -> StoreFuture<'_, u64> {
        Box::pin(self.write(Discard { filter, tenant: self.tenant.clone() }))
    }

    fn pause(&self, target: PauseTarget, paused: bool) -> StoreFuture<'_, ()> {
        Box::pin(self.write(Pause { target, paused, tenant: self.tenant.clone() }))
    }

    fn paused(&self) -> StoreFuture<'_, (bool, Vec<Queue>)> {
        Box::pin(look!(self, |view| totals::paused(&view, self.tenant.as_deref())))
    }

    fn instances(&self) -> StoreFuture<'_, Vec<Instance>> {
        Box::pin(self.read(instances::instances(
            &self.shared.reading,
            self.shared.members.id(),
            self.shared.clocks.now(),
        )))
    }

    fn depths(&self) -> StoreFuture<'_, BTreeMap<&'static str, u64>> {
        Box::pin(self.read(totals::depths(&self.shared.reading)))
    }

    fn usage(&self, scopes: Option<Vec<UsageScope>>) -> StoreFuture<'_, StoreUsage> {
        let (limits, max_bytes) = (self.shared.limits, self.shared.max_bytes);
        Box::pin(async move { self.read(usage::usage(&self.shared.reading, limits, max_bytes, scopes)).await })
    }

    fn sweep(&self, retention: Retention, now: UnixMs) -> StoreFuture<'_, SweepSummary> {
        Box::pin(self.write(Sweep { retention, now }))
    }

    fn state(&self, key: &str) -> StoreFuture<'_, Option<String>> {
        let key = without_nul(key);
        Box::pin(async move {
            self.read(totals::state(&self.shared.reading, &key, self.expiry(self.shared.clocks.now()))).await
        })
    }

    fn set_state(&self, key: &str, value: Option<String>, expires_at: Option<UnixMs>) -> StoreFuture<'_, ()> {
        Box::pin(self.write(StateWrite { key: key.to_owned(), value, expires_at }))
    }
}
