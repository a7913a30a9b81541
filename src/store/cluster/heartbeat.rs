//! Renews the lease of this process, and takes over the queues of processes whose leases have expired.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use guildhall_actors::failpoint;
use guildhall_actors::supervision::Part;
use guildhall_core::limit::division::{LimitShare, MemberId, Renewal, ShareAction, ShareRow};
use sea_orm::{DatabaseConnection, DatabaseTransaction, QueryResult, TransactionTrait as _};
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
        error::EngineError,
        events::{InstancesCounted, LeaseHeld, LimitDivided, ProcessLeaseLost, QueuesTakenOver, StoreFailed},
        operation_row::time,
        rows::{RowValue, Rows, query, with_rows},
        write::{LINES, NEXT_DUE, signed},
    },
};

/// Present time of the database's clock, in milliseconds.
pub(in crate::store) const NOW: &str = "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000)::bigint";

/// Delay of the next check after the end of another process's lease, so that the lease has expired by then.
const AFTER_END: Duration = Duration::from_millis(20);

/// State of the other processes, as read from the store.
#[derive(Debug)]
struct ClusterSnapshot {
    /// Processes with a valid lease, and whether they take work.
    live: BTreeSet<(Uuid, bool)>,
    /// Time until the next lease of another process ends, if it is not renewed.
    next_end: Option<Duration>,
    /// The table of shares, if this process divides a limit.
    shares: Option<Vec<ShareRow>>,
}

/// Maximum number of consecutive actions on shares before other work is done.
const MOST_ACTIONS: usize = 64;

/// The share of a limit, and its row.
struct HeldShare {
    machine: LimitShare,
    request: DivisionRequest,
    /// Sequence numbers of the last renewal that was tried, and of the last one that was committed.
    beat: u64,
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
    beaten: Option<Instant>,
    /// Phase that is stored, so that the other processes know it.
    said: Option<MemberPhase>,
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
        let mut keeper = Self::new(settings, members, clocks, connection, session, channel);
        keeper.free_orphans().await?;
        keeper.beat(true).await?;
        Ok(keeper)
    }

    /// Gives up the lease over a connection of its own, for a process whose writer or heartbeat may have failed.
    pub(in crate::store) async fn leave_at_once(
        settings: &Settings,
        members: Arc<ClusterMember>,
        clocks: Clocks,
        channel: String,
    ) {
        // Without a connection the lease ends by itself.
        if let Ok(connection) = connect::writing(settings).await {
            Self::new(settings, members, clocks, connection, TransactionSetup::of(settings), channel)
                .say_goodbye()
                .await;
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
            timeout: settings.timeout.min(settings.lease.lasts / 2),
            live: BTreeSet::new(),
            beaten: None,
            said: None,
            share: None,
        }
    }

    /// Runs until it is stopped; then gives up the lease.
    pub(in crate::store) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut usage = self.members.division.usage();
        let mut look_at = Instant::now() + self.lease.heartbeat;
        loop {
            let mut is_usage = false;
            tokio::select! {
                () = async { drop(stop.wait_for(|stop| *stop).await) } => break,
                () = self.members.hurry.notified() => {}
                Ok(()) = usage.changed() => is_usage = true,
                () = tokio::time::sleep_until(look_at) => {}
                () = self.share_wakes() => {}
            }
            failpoint::message(Part::Heartbeat);
            let members = Arc::clone(&self.members);
            let Some(_writes) = members.writes().await else { return };
            if let Some(share) = &mut self.share {
                share.machine.on_usage(*usage.borrow_and_update());
            }
            if is_usage && self.share.is_some() {
                self.settle_shares().await;
                continue;
            }
            let next = match self.look().await {
                Ok(seen) => {
                    let left = self.until_heartbeat();
                    seen.next_end.map_or(left, |end| left.min(end + AFTER_END))
                }
                Err(trouble) => {
                    emit(StoreFailed { what: "heartbeat", why: trouble.meaning().name(), says: &trouble.says() });
                    self.lease.heartbeat / 5
                }
            };
            look_at = Instant::now() + next;
            emit(LeaseHeld { held: self.members.tenure.left().is_some() });
        }
        self.say_goodbye().await;
    }

    /// Renews the lease if it is due, and reads the state of the other processes.
    async fn look(&mut self) -> Result<ClusterSnapshot, EngineError> {
        let is_new = self.share.is_none() && self.begin_share();
        let hurry = is_new || self.said != Some(self.members.standing());
        let is_due = self.until_heartbeat().is_zero() || hurry;
        let mut seen = if is_due { self.beat(false).await? } else { self.look_around().await? };
        self.see_shares(&mut seen);
        self.settle_shares().await;
        Ok(seen)
    }

    fn until_heartbeat(&self) -> Duration {
        self.beaten.map_or(Duration::ZERO, |at| self.lease.heartbeat.saturating_sub(at.elapsed()))
    }

    /// Starts to divide a limit if that was requested.
    fn begin_share(&mut self) -> bool {
        let Some(mut request) = self.members.division.request().cloned() else { return false };
        request.config.lease = self.lease.lasts;
        let machine = LimitShare::new(request.config.clone(), MemberId(self.members.me.as_u128()));
        self.share = Some(HeldShare { machine, request, beat: 0, renewed: 0 });
        true
    }

    /// Waits until an action on shares becomes possible by time alone.
    async fn share_wakes(&self) {
        let now = division::now();
        match self.share.as_ref().and_then(|share| share.machine.next_wake(now)) {
            Some(then) => tokio::time::sleep(then.since(now)).await,
            None => std::future::pending().await,
        }
    }

    fn see_shares(&mut self, seen: &mut ClusterSnapshot) {
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
    async fn settle_shares(&mut self) {
        for _ in 0..MOST_ACTIONS {
            let action = self.share.as_mut().and_then(|share| share.machine.next_action(division::now()));
            // The allowance may have decreased.
            self.publish_share();
            let Some(action) = action else { return };
            let done = self.within(self.change_share(action)).await;
            let Some(share) = &mut self.share else { return };
            let now = division::now();
            match done {
                Ok(true) => share.machine.on_done(action, now),
                Ok(false) => {
                    share.machine.on_refused(action, now);
                    // The table has changed.
                    if matches!(action, ShareAction::Lower { .. }) {
                        self.beaten = None;
                        self.members.hurry.notify_one();
                    }
                    if let Ok(mut seen) = self.look_around().await {
                        self.see_shares(&mut seen);
                    }
                }
                Err(trouble) => {
                    share.machine.on_failed(action, now);
                    // The next renewal shows the outcome.
                    self.beaten = None;
                    self.members.hurry.notify_one();
                    self.publish_share();
                    emit(StoreFailed { what: "share", why: trouble.meaning().name(), says: &trouble.says() });
                    return;
                }
            }
            self.publish_share();
        }
    }

    async fn change_share(&self, action: ShareAction) -> Result<bool, EngineError> {
        let Some(share) = &self.share else { return Ok(false) };
        let on = self.begin().await?;
        let changed = share_rows::change(&on, &share.request, self.members.me, share.renewed, action).await?;
        if changed && !matches!(action, ShareAction::Reserve { .. }) {
            self.say(&on, &Notification::members()).await?;
        }
        on.commit().await?;
        Ok(changed)
    }

    /// Renews the lease, and reads the state of the other processes.
    async fn beat(&mut self, first: bool) -> Result<ClusterSnapshot, EngineError> {
        // The lease counts from before the request, on a clock that also counts while the machine sleeps.
        let (asked, standing) = (boot_time(), self.members.standing());
        if let Some(share) = &mut self.share {
            share.beat += 1;
        }
        let (renewed, renewal) = self.within(self.renew(standing)).await?;
        (self.beaten, self.said) = (Some(Instant::now()), Some(standing));
        if !renewed && !first {
            self.members.tell(ClusterEvent::Disowned);
            emit(ProcessLeaseLost);
        }
        let until = asked + self.lease.lasts.saturating_sub(self.lease.margin);
        self.members.tenure.extend(until);
        if let (Some(share), Some(renewal)) = (&mut self.share, renewal) {
            share.renewed = share.beat;
            share.machine.on_renewed(renewal, division::timestamp(until), division::now());
        }
        self.publish_share();
        let seen = self.look_around().await;
        if standing == MemberPhase::Leaving {
            self.members.left.send_replace(true);
        }
        seen
    }

    /// Extends the lease, and renews the share of a limit with it. Returns `false` if the lease had expired and a new
    /// one has started.
    async fn renew(&self, standing: MemberPhase) -> Result<(bool, Option<Renewal>), EngineError> {
        let renew = format!(
            "UPDATE instances SET seen_at = {NOW}, lease_until = {NOW} + $2, leaving = $3 WHERE id = $1
            RETURNING (SELECT COUNT(*) FROM instances i WHERE i.leaving <> $3 AND i.id = $1), {NOW}"
        );
        let begin = format!(
            "INSERT INTO instances (id, name, started_at, seen_at, lease_until, leaving)
            VALUES ($1, $4, $5, {NOW}, {NOW} + $2, $3)"
        );
        let on = self.begin().await?;
        let lasts = signed(u64::try_from(self.lease.lasts.as_millis()).unwrap_or(u64::MAX));
        let values = vec![self.members.me.into(), lasts.into(), standing.number().into()];
        let sent = self.clocks.monotonic();
        let renewed = query(&on, &renew, values.clone()).await?;
        if let Some(row) = renewed.first() {
            self.clocks.observe_database(time(row.try_get_by_index(1)?), sent);
        }
        let has_changed = match renewed.first() {
            Some(row) => row.try_get_by_index::<i64>(0)? > 0,
            None => {
                // The process that removed this lease has freed its queues. This process must forget them before it can
                // claim any again.
                self.members.tenure.clear();
                let more = [self.name.clone().into(), self.started_at.into()];
                query(&on, &begin, values.into_iter().chain(more).collect()).await?;
                true
            }
        };
        let renewal = match &self.share {
            Some(share) => Some(share_rows::renew(&on, &share.request, self.members.me, share.beat).await?),
            None => None,
        };
        if has_changed || matches!(renewal, Some(Renewal::Joined { .. })) {
            self.say(&on, &Notification::members()).await?;
        }
        on.commit().await?;
        Ok((!renewed.is_empty(), renewal))
    }

    /// Reads which processes are alive, and takes over from those that are not.
    async fn look_around(&mut self) -> Result<ClusterSnapshot, EngineError> {
        let (mut seen, dead) = self.within(self.see()).await?;
        if !dead.is_empty() {
            self.within(self.take_over()).await?;
            (seen, _) = self.within(self.see()).await?;
        }
        if seen.live != self.live {
            self.live.clone_from(&seen.live);
            self.settle();
        }
        Ok(seen)
    }

    /// Computes which queues belong to this process, from the processes that are alive.
    fn settle(&self) {
        let me = self.members.me;
        let here: Vec<Uuid> = self.live.iter().filter(|(_, here)| *here).map(|(id, _)| *id).collect();
        let slots = if here.contains(&me) { Slots::of(me, &here) } else { Slots::NONE };
        self.members.set_slots(slots);
        let others = self.live.iter().any(|(id, _)| *id != me);
        self.members.shared.store(others, std::sync::atomic::Ordering::Release);
        self.members.tell(ClusterEvent::Members);
        emit(InstancesCounted { live: self.live.len() });
    }

    async fn see(&self) -> Result<(ClusterSnapshot, Vec<Uuid>), EngineError> {
        let select = format!("SELECT id, leaving, lease_until - {NOW} FROM instances ORDER BY id");
        let on = self.begin().await?;
        let rows = query(&on, &select, Vec::new()).await?;
        let shares = match &self.share {
            Some(share) => Some(share_rows::read(&on, &share.request.scope, &self.members.division).await?),
            None => None,
        };
        on.commit().await?;
        let mut seen = ClusterSnapshot { live: BTreeSet::new(), next_end: None, shares };
        let mut dead = Vec::new();
        for row in rows {
            let (id, standing): (Uuid, i64) = (row.try_get_by_index(0)?, row.try_get_by_index(1)?);
            let left: i64 = row.try_get_by_index(2)?;
            if id != self.members.me && left <= 0 {
                dead.push(id);
                continue;
            }
            seen.live.insert((id, standing == MemberPhase::Here.number()));
            if id != self.members.me {
                let end = Duration::from_millis(left.unsigned_abs());
                seen.next_end = Some(seen.next_end.map_or(end, |other| other.min(end)));
            }
        }
        Ok((seen, dead))
    }

    /// Frees the queues of processes whose leases have ended. Their fences increase, so that later writes of these
    /// processes have no effect.
    async fn take_over(&self) -> Result<(), EngineError> {
        let bury = format!(
            "DELETE FROM instances WHERE id IN
            (SELECT id FROM instances WHERE lease_until <= {NOW} AND id <> $1 FOR UPDATE SKIP LOCKED) RETURNING id, name"
        );
        let on = self.begin().await?;
        let buried = query(&on, &bury, vec![self.members.me.into()]).await?;
        for row in &buried {
            let (id, name): (Uuid, String) = (row.try_get_by_index(0)?, row.try_get_by_index(1)?);
            let freed = self.free(&on, "owner = $1", vec![id.into()]).await?;
            emit(QueuesTakenOver { from: &name, queues: freed });
        }
        // A process that is inside a transaction, perhaps frozen, is removed after its connection has been ended.
        if !buried.is_empty() {
            self.say(&on, &Notification::members()).await?;
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
        which: &str,
        values: Vec<sea_orm::Value>,
    ) -> Result<u64, EngineError> {
        // Shards are freed together with the queues.
        let shards = format!(
            "UPDATE shard_owners SET owner = NULL, fence = fence + 1, freed_at = {NOW} WHERE (shards, shard) IN
            (SELECT shards, shard FROM shard_owners WHERE {which} ORDER BY shards, shard FOR UPDATE)"
        );
        query(on, &shards, values.clone()).await?;
        // The queues are locked by a statement of their own, so that the next statement also sees the operations that
        // were submitted by the transactions that this one waited for. A single statement would read operations as they
        // were before it waited; a queue that it then considers empty would never become due.
        let lock = format!("SELECT queue FROM guild_queues WHERE {which} ORDER BY queue FOR UPDATE");
        let rows = query(on, &lock, values).await?;
        let line = |row: &QueryResult| Ok::<_, EngineError>(RowValue::Number(row.try_get_by_index(0)?));
        let lines = Rows::of(rows.iter().map(line).collect::<Result<Vec<_>, _>>()?);
        if lines.is_empty() {
            return Ok(0);
        }
        let free = format!(
            "UPDATE guild_queues SET owner = NULL, fence = fence + 1, ready_at = {NEXT_DUE} FROM {{v}} WHERE queue = v.line
            RETURNING queue"
        );
        Ok(with_rows(on, &free, LINES, lines, Vec::new()).await?.len() as u64)
    }

    async fn say_goodbye(&self) {
        // From now on nothing may be sent for these queues: other processes can own them.
        self.members.tenure.clear();
        self.members.division.end();
        let goodbye = async {
            let on = self.begin().await?;
            query(&on, "DELETE FROM instances WHERE id = $1", vec![self.members.me.into()]).await?;
            let division = &self.members.division;
            if let Some((request, hold)) = division.request().zip(division.departure_hold()) {
                share_rows::depart(&on, request, self.members.me, hold).await?;
            }
            self.free(&on, "owner = $1", vec![self.members.me.into()]).await?;
            self.say(&on, &Notification::members()).await?;
            on.commit().await?;
            Ok::<_, EngineError>(())
        };
        // If this fails, the lease ends by itself.
        let _ = self.within(goodbye).await;
        let _ = timeout(Duration::from_secs(1), self.connection.clone().close()).await;
    }

    async fn say(&self, on: &DatabaseTransaction, said: &Notification) -> Result<(), EngineError> {
        if let Some(payload) = said.payload() {
            query(on, "SELECT pg_notify($1, $2)", vec![self.channel.clone().into(), payload.into()]).await?;
        }
        Ok(())
    }

    async fn begin(&self) -> Result<DatabaseTransaction, EngineError> {
        let on = self.connection.begin().await?;
        self.session.prepare(&on).await?;
        Ok(on)
    }

    async fn within<T>(&self, doing: impl Future<Output = Result<T, EngineError>>) -> Result<T, EngineError> {
        timeout(self.timeout, doing).await.unwrap_or_else(|_| Err(crate::store::write::late()))
    }
}
