//! Renews the lease of this process, and takes over the queues of processes whose leases have expired.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use guildhall_actors::failpoint;
use guildhall_actors::supervision::Part;
use guildhall_core::limit::division::{LimitShare, MemberId, Renewal, ShareAction, ShareRow};
use sea_orm::{DatabaseConnection, DatabaseTransaction, EntityTrait as _, FromQueryResult, TransactionTrait as _};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use uuid::Uuid;

use super::{
    ClusterEvent, ClusterMember, MemberPhase, Notification, Slots,
    division::{self, DivisionRequest},
    share_rows,
};
use crate::{
    clock::{Clocks, boot_time},
    events::emit,
    settings::{LeaseSettings, StoreSettings as Settings},
    store::{
        admin_key::host_name,
        connect::{self, TransactionSetup},
        entities::instances,
        error::EngineError,
        events::{InstancesCounted, LeaseHeld, LimitDivided, ProcessLeaseLost, QueuesTakenOver},
        failures::StoreAccess,
        operation_row::time,
        rows::{RowValue, Rows, query, query_as, scalars, with_rows},
        sql,
        write::{QUEUE_NUMBERS, signed},
    },
};

/// Delay of the next check after the end of another process's lease, so that the lease has expired by then.
const EXPIRY_CHECK_DELAY: Duration = Duration::from_millis(20);

/// State of the other processes, as read from the store.
#[derive(Debug)]
struct ClusterSnapshot {
    /// Processes with a valid lease, and whether they take work.
    live: BTreeSet<(Uuid, bool)>,
    /// Time until the next lease of another process ends, if it is not renewed.
    next_expiry: Option<Duration>,
    /// The table of shares, if this process divides a limit.
    shares: Option<Vec<ShareRow>>,
}

#[derive(FromQueryResult)]
struct RenewedLease {
    /// Whether the phase of the process has changed.
    changed: i64,
    now: i64,
}

#[derive(FromQueryResult)]
struct MemberRow {
    id: Uuid,
    leaving: i64,
    remaining: i64,
}

/// Maximum number of consecutive actions on shares before other work is done.
const MAX_ACTIONS: usize = 64;

/// The share of a limit, and its row.
struct HeldShare {
    machine: LimitShare,
    request: DivisionRequest,
    /// Sequence numbers of the last renewal that was tried, and of the last one that was committed.
    heartbeat: u64,
    renewed: u64,
}

/// Name of this process among those of a store.
pub(in crate::store) fn instance_name(settings: &Settings) -> String {
    let own = || format!("{}-{}", host_name(), std::process::id());
    settings.instance.clone().unwrap_or_else(own)
}

/// Renews the lease of this process.
pub(in crate::store) struct HeartbeatTask {
    members: Arc<ClusterMember>,
    clocks: Clocks,
    connection: DatabaseConnection,
    session: TransactionSetup,
    channel: String,
    name: String,
    started_at: i64,
    lease: LeaseSettings,
    timeout: Duration,
    live: BTreeSet<(Uuid, bool)>,
    last_heartbeat: Option<Instant>,
    /// Phase that is stored, so that the other processes know it.
    stored_phase: Option<MemberPhase>,
    /// The share of a limit, once this process divides one.
    share: Option<HeldShare>,
}

impl HeartbeatTask {
    /// Takes the first lease of this process.
    pub(in crate::store) async fn start(
        settings: &Settings,
        members: Arc<ClusterMember>,
        clocks: Clocks,
        connection: DatabaseConnection,
        session: TransactionSetup,
        channel: String,
    ) -> Result<Self, EngineError> {
        let mut task = Self::new(settings, members, clocks, connection, session, channel);
        task.free_orphans().await?;
        task.heartbeat(true).await?;
        Ok(task)
    }

    /// Gives up the lease over a connection of its own, for a process whose writer or heartbeat may have failed.
    pub(in crate::store) async fn leave_at_once(
        settings: &Settings,
        members: Arc<ClusterMember>,
        clocks: Clocks,
        channel: String,
    ) {
        // Without a connection the lease ends by itself.
        if let Ok(connection) = connect::open_writer(settings).await {
            Self::new(settings, members, clocks, connection, TransactionSetup::of(settings), channel).leave().await;
        }
    }

    fn new(
        settings: &Settings,
        members: Arc<ClusterMember>,
        clocks: Clocks,
        connection: DatabaseConnection,
        session: TransactionSetup,
        channel: String,
    ) -> Self {
        Self {
            members,
            connection,
            session,
            channel,
            name: instance_name(settings),
            started_at: signed(clocks.now().millis()),
            clocks,
            lease: settings.lease,
            timeout: settings.timeout.min(settings.lease.duration / 2),
            live: BTreeSet::new(),
            last_heartbeat: None,
            stored_phase: None,
            share: None,
        }
    }

    /// Runs until it is stopped; then gives up the lease.
    pub(in crate::store) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut usage = self.members.division.usage();
        let mut next_check = Instant::now() + self.lease.heartbeat;
        loop {
            let mut is_usage = false;
            tokio::select! {
                () = async { drop(stop.wait_for(|stop| *stop).await) } => break,
                () = self.members.heartbeat_now.notified() => {}
                Ok(()) = usage.changed() => is_usage = true,
                () = tokio::time::sleep_until(next_check) => {}
                () = self.share_wakeup() => {}
            }
            failpoint::message(Part::Heartbeat);
            let members = Arc::clone(&self.members);
            let Some(_writes) = members.write_guard().await else { return };
            if let Some(share) = &mut self.share {
                share.machine.on_usage(*usage.borrow_and_update());
            }
            if is_usage && self.share.is_some() {
                self.run_share_actions().await;
                continue;
            }
            let next = match self.refresh().await {
                Ok(seen) => {
                    self.members.failures().on_success(StoreAccess::Heartbeat);
                    let remaining = self.until_heartbeat();
                    seen.next_expiry.map_or(remaining, |end| remaining.min(end + EXPIRY_CHECK_DELAY))
                }
                Err(error) => {
                    self.members.failures().on_failure(StoreAccess::Heartbeat, &error);
                    self.lease.heartbeat / 5
                }
            };
            next_check = Instant::now() + next;
            emit(LeaseHeld { held: self.members.process_lease.remaining().is_some() });
        }
        self.leave().await;
    }

    /// Renews the lease if it is due, and reads the state of the other processes.
    async fn refresh(&mut self) -> Result<ClusterSnapshot, EngineError> {
        let is_new = self.share.is_none() && self.start_share();
        let hurry = is_new || self.stored_phase != Some(self.members.phase());
        let is_due = self.until_heartbeat().is_zero() || hurry;
        let mut seen = if is_due { self.heartbeat(false).await? } else { self.refresh_members().await? };
        self.update_shares(&mut seen);
        self.run_share_actions().await;
        Ok(seen)
    }

    fn until_heartbeat(&self) -> Duration {
        self.last_heartbeat.map_or(Duration::ZERO, |at| self.lease.heartbeat.saturating_sub(at.elapsed()))
    }

    /// Starts to divide a limit if that was requested.
    fn start_share(&mut self) -> bool {
        let Some(mut request) = self.members.division.request().cloned() else { return false };
        request.config.lease = self.lease.duration;
        let machine = LimitShare::new(request.config.clone(), MemberId(self.members.id.as_u128()));
        self.share = Some(HeldShare { machine, request, heartbeat: 0, renewed: 0 });
        true
    }

    /// Waits until an action on shares becomes possible by time alone.
    async fn share_wakeup(&self) {
        let now = division::now();
        match self.share.as_ref().and_then(|share| share.machine.next_wake(now)) {
            Some(then) => tokio::time::sleep(then.since(now)).await,
            None => std::future::pending().await,
        }
    }

    fn update_shares(&mut self, seen: &mut ClusterSnapshot) {
        if let (Some(share), Some(rows)) = (&mut self.share, seen.shares.take()) {
            share.machine.on_rows(rows, division::now());
        }
        self.publish_share();
    }

    fn publish_share(&self) {
        let Some(share) = &self.share else { return };
        if let Some(allowance) = self.members.division.publish(&share.machine) {
            emit(LimitDivided { allowance });
        }
    }

    /// Performs the actions on shares that are due now.
    async fn run_share_actions(&mut self) {
        for _ in 0..MAX_ACTIONS {
            let action = self.share.as_mut().and_then(|share| share.machine.next_action(division::now()));
            // The allowance may have decreased.
            self.publish_share();
            let Some(action) = action else { return };
            let done = self.with_timeout(self.change_share(action)).await;
            let Some(share) = &mut self.share else { return };
            let now = division::now();
            match done {
                Ok(true) => share.machine.on_done(action, now),
                Ok(false) => {
                    share.machine.on_refused(action, now);
                    // The table has changed.
                    if matches!(action, ShareAction::Lower { .. }) {
                        self.last_heartbeat = None;
                        self.members.heartbeat_now.notify_one();
                    }
                    if let Ok(mut seen) = self.refresh_members().await {
                        self.update_shares(&mut seen);
                    }
                }
                Err(error) => {
                    share.machine.on_failed(action, now);
                    // The next renewal shows the outcome.
                    self.last_heartbeat = None;
                    self.members.heartbeat_now.notify_one();
                    self.publish_share();
                    self.members.failures().on_failure(StoreAccess::Share, &error);
                    return;
                }
            }
            self.publish_share();
        }
    }

    async fn change_share(&self, action: ShareAction) -> Result<bool, EngineError> {
        let Some(share) = &self.share else { return Ok(false) };
        let on = self.begin().await?;
        let changed = share_rows::change(&on, &share.request, self.members.id, share.renewed, action).await?;
        if changed && !matches!(action, ShareAction::Reserve { .. }) {
            self.notify(&on, &Notification::members()).await?;
        }
        on.commit().await?;
        Ok(changed)
    }

    /// Renews the lease, and reads the state of the other processes.
    async fn heartbeat(&mut self, first: bool) -> Result<ClusterSnapshot, EngineError> {
        // The lease counts from before the request, on a clock that also counts while the machine sleeps.
        let (requested_at, phase) = (boot_time(), self.members.phase());
        if let Some(share) = &mut self.share {
            share.heartbeat += 1;
        }
        let (renewed, renewal) = self.with_timeout(self.renew(phase)).await?;
        (self.last_heartbeat, self.stored_phase) = (Some(Instant::now()), Some(phase));
        if !renewed && !first {
            self.members.send_event(ClusterEvent::LeaseLost);
            emit(ProcessLeaseLost);
        }
        let until = requested_at + self.lease.duration.saturating_sub(self.lease.margin);
        self.members.process_lease.extend(until);
        if let (Some(share), Some(renewal)) = (&mut self.share, renewal) {
            share.renewed = share.heartbeat;
            share.machine.on_renewed(renewal, division::timestamp(until), division::now());
        }
        self.publish_share();
        let seen = self.refresh_members().await;
        if phase == MemberPhase::Leaving {
            self.members.leave_announced.send_replace(true);
        }
        seen
    }

    /// Extends the lease, and renews the share of a limit with it. Returns `false` if the lease had expired and a new
    /// one has started.
    async fn renew(&self, phase: MemberPhase) -> Result<(bool, Option<Renewal>), EngineError> {
        let on = self.begin().await?;
        let duration = signed(u64::try_from(self.lease.duration.as_millis()).unwrap_or(u64::MAX));
        let values = vec![self.members.id.into(), duration.into(), phase.number().into()];
        let sent = self.clocks.monotonic();
        let renewed: Vec<RenewedLease> = query_as(&on, &sql::cluster::renew_lease(), values.clone()).await?;
        if let Some(row) = renewed.first() {
            self.clocks.observe_database(time(row.now), sent);
        }
        let has_changed = match renewed.first() {
            Some(row) => row.changed > 0,
            None => {
                // The process that removed this lease has freed its queues. This process must forget them before it can
                // claim any again.
                self.members.process_lease.clear();
                let more = [self.name.clone().into(), self.started_at.into()];
                query(&on, &sql::cluster::begin_lease(), values.into_iter().chain(more).collect()).await?;
                true
            }
        };
        let renewal = match &self.share {
            Some(share) => Some(share_rows::renew(&on, &share.request, self.members.id, share.heartbeat).await?),
            None => None,
        };
        if has_changed || matches!(renewal, Some(Renewal::Joined { .. })) {
            self.notify(&on, &Notification::members()).await?;
        }
        on.commit().await?;
        Ok((!renewed.is_empty(), renewal))
    }

    /// Reads which processes are alive, and takes over from those that are not.
    async fn refresh_members(&mut self) -> Result<ClusterSnapshot, EngineError> {
        let (mut seen, dead) = self.with_timeout(self.read_members()).await?;
        if !dead.is_empty() {
            self.with_timeout(self.take_over()).await?;
            (seen, _) = self.with_timeout(self.read_members()).await?;
        }
        if seen.live != self.live {
            self.live.clone_from(&seen.live);
            self.update_slots();
        }
        Ok(seen)
    }

    /// Computes which queues belong to this process, from the processes that are alive.
    fn update_slots(&self) {
        let own_id = self.members.id;
        let here: Vec<Uuid> = self.live.iter().filter(|(_, here)| *here).map(|(id, _)| *id).collect();
        let slots = if here.contains(&own_id) { Slots::of(own_id, &here) } else { Slots::NONE };
        self.members.set_slots(slots);
        let others = self.live.iter().any(|(id, _)| *id != own_id);
        self.members.shared.store(others, std::sync::atomic::Ordering::Release);
        self.members.send_event(ClusterEvent::Members);
        emit(InstancesCounted { live: self.live.len() });
    }

    async fn read_members(&self) -> Result<(ClusterSnapshot, Vec<Uuid>), EngineError> {
        let on = self.begin().await?;
        let rows: Vec<MemberRow> = query_as(&on, &sql::cluster::members(), Vec::new()).await?;
        let shares = match &self.share {
            Some(share) => Some(share_rows::read(&on, &share.request.scope, &self.members.division).await?),
            None => None,
        };
        on.commit().await?;
        let mut seen = ClusterSnapshot { live: BTreeSet::new(), next_expiry: None, shares };
        let mut dead = Vec::new();
        for MemberRow { id, leaving, remaining } in rows {
            if id != self.members.id && remaining <= 0 {
                dead.push(id);
                continue;
            }
            seen.live.insert((id, leaving == MemberPhase::Active.number()));
            if id != self.members.id {
                let end = Duration::from_millis(remaining.unsigned_abs());
                seen.next_expiry = Some(seen.next_expiry.map_or(end, |other| other.min(end)));
            }
        }
        Ok((seen, dead))
    }

    /// Frees the queues of processes whose leases have ended. Their fences increase, so that later writes of these
    /// processes have no effect.
    async fn take_over(&self) -> Result<(), EngineError> {
        let on = self.begin().await?;
        let removed: Vec<instances::Model> =
            query_as(&on, &sql::cluster::remove_dead(), vec![self.members.id.into()]).await?;
        for instance in &removed {
            let freed = self.free(&on, "owner = $1", vec![instance.id.into()]).await?;
            emit(QueuesTakenOver { from: &instance.name, queues: freed });
        }
        // A process that is inside a transaction, perhaps frozen, is removed after its connection has been ended.
        if !removed.is_empty() {
            self.notify(&on, &Notification::members()).await?;
        }
        on.commit().await?;
        Ok(())
    }

    /// Frees queues and shards whose owner has no row in `instances`.
    async fn free_orphans(&self) -> Result<(), EngineError> {
        let on = self.begin().await?;
        let orphans = "owner IS NOT NULL AND NOT EXISTS (SELECT 1 FROM instances i WHERE i.id = owner)";
        self.free(&on, orphans, Vec::new()).await?;
        on.commit().await?;
        Ok(())
    }

    /// Frees queues and shards. Returns the number of queues.
    async fn free(
        &self,
        on: &DatabaseTransaction,
        condition: &str,
        values: Vec<sea_orm::Value>,
    ) -> Result<u64, EngineError> {
        // Shards are freed together with the queues.
        query(on, &sql::cluster::free_shards(condition), values.clone()).await?;
        // The queues are locked by a statement of their own, so that the next statement also sees the operations that
        // were submitted by the transactions that this one waited for. A single statement would read operations as they
        // were before it waited; a queue that it then considers empty would never become due.
        let queues = scalars(&query(on, &sql::cluster::lock_queues(condition), values).await?)?;
        let queues = Rows::of(queues.into_iter().map(RowValue::Number));
        if queues.is_empty() {
            return Ok(0);
        }
        Ok(with_rows(on, &sql::queues::free(), QUEUE_NUMBERS, queues, Vec::new()).await?.len() as u64)
    }

    async fn leave(&self) {
        // From now on nothing may be sent for these queues: other processes can own them.
        self.members.process_lease.clear();
        self.members.division.stop();
        let goodbye = async {
            let on = self.begin().await?;
            instances::Entity::delete_by_id(self.members.id).exec(&on).await?;
            let division = &self.members.division;
            if let Some((request, hold)) = division.request().zip(division.departure_hold()) {
                share_rows::depart(&on, request, self.members.id, hold).await?;
            }
            self.free(&on, "owner = $1", vec![self.members.id.into()]).await?;
            self.notify(&on, &Notification::members()).await?;
            on.commit().await?;
            Ok::<_, EngineError>(())
        };
        // If this fails, the lease ends by itself.
        let _ = self.with_timeout(goodbye).await;
        let _ = timeout(Duration::from_secs(1), self.connection.clone().close()).await;
    }

    async fn notify(&self, on: &DatabaseTransaction, notification: &Notification) -> Result<(), EngineError> {
        if let Some(payload) = notification.payload() {
            query(on, sql::cluster::NOTIFY, vec![self.channel.clone().into(), payload.into()]).await?;
        }
        Ok(())
    }

    async fn begin(&self) -> Result<DatabaseTransaction, EngineError> {
        let on = self.connection.begin().await?;
        self.session.prepare(&on).await?;
        Ok(on)
    }

    async fn with_timeout<T>(&self, future: impl Future<Output = Result<T, EngineError>>) -> Result<T, EngineError> {
        timeout(self.timeout, future).await.unwrap_or_else(|_| Err(crate::store::write::timeout_error()))
    }
}
