//! Says again and again that this process lives, and takes over from those that do not say so any more.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use sea_orm::{DatabaseConnection, DatabaseTransaction, QueryResult, TransactionTrait as _};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use uuid::Uuid;

use super::{Members, Notice, Said, Slots, Standing, tenure::boot_time};
use crate::{
    events::emit,
    settings::{Lease, Store as Settings},
    store::{
        admin_key::host_name,
        connect::Session,
        events::{InstancesCounted, LeaseHeld, ProcessDisowned, StoreFailed, TakenOver},
        rows::{Cell, Rows, query, with_rows},
        trouble::Trouble,
        write::{LINES, NEXT_DUE, signed},
    },
};

/// The present time by the database's clock, in milliseconds.
const NOW: &str = "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000)::bigint";

/// So long after somebody's lease has ended it is looked at again, so that it has.
const AFTER_END: Duration = Duration::from_millis(20);

/// What one look at the others has shown.
#[derive(Debug)]
struct Seen {
    /// Those that live, and whether they are here to work.
    live: BTreeSet<(Uuid, bool)>,
    /// When the next lease of another ends, if it is not renewed.
    next_end: Option<Duration>,
}

/// The name that this process has among those of a store.
pub(in crate::store) fn instance_name(settings: &Settings) -> String {
    let own = || format!("{}-{}", host_name(), std::process::id());
    settings.instance.clone().unwrap_or_else(own)
}

/// Keeps this process among the living.
pub(in crate::store) struct Keeper {
    members: Arc<Members>,
    connection: DatabaseConnection,
    session: Session,
    channel: String,
    name: String,
    started_at: i64,
    lease: Lease,
    timeout: Duration,
    live: BTreeSet<(Uuid, bool)>,
    beaten: Option<Instant>,
    /// What the others know.
    said: Option<Standing>,
}

impl Keeper {
    /// Says for the first time that this process lives.
    pub(in crate::store) async fn start(
        settings: &Settings,
        members: Arc<Members>,
        connection: DatabaseConnection,
        session: Session,
        channel: String,
    ) -> Result<Self, Trouble> {
        let name = instance_name(settings);
        let mut keeper = Self {
            members,
            connection,
            session,
            channel,
            name,
            started_at: crate::store::write::now(),
            lease: settings.lease,
            timeout: settings.timeout.min(settings.lease.lasts / 2),
            live: BTreeSet::new(),
            beaten: None,
            said: None,
        };
        keeper.free_orphans().await?;
        keeper.beat(true).await?;
        Ok(keeper)
    }

    /// Goes on until it is told to stop; then says goodbye.
    pub(in crate::store) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut next = self.lease.heartbeat;
        loop {
            tokio::select! {
                () = async { drop(stop.wait_for(|stop| *stop).await) } => break,
                () = self.members.hurry.notified() => {}
                () = tokio::time::sleep(next) => {}
            }
            let left = self.beaten.map_or(Duration::ZERO, |at| self.lease.heartbeat.saturating_sub(at.elapsed()));
            let hurry = self.said != Some(self.members.standing());
            let looked = if left.is_zero() || hurry { self.beat(false).await } else { self.look_around().await };
            next = match looked {
                Ok(seen) => {
                    let left =
                        self.beaten.map_or(Duration::ZERO, |at| self.lease.heartbeat.saturating_sub(at.elapsed()));
                    seen.next_end.map_or(left, |end| left.min(end + AFTER_END))
                }
                Err(trouble) => {
                    emit(StoreFailed { what: "heartbeat", why: trouble.meaning().name(), says: &trouble.says() });
                    self.lease.heartbeat / 5
                }
            };
            emit(LeaseHeld { held: self.members.tenure.left().is_some() });
        }
        self.say_goodbye().await;
    }

    /// Renews the lease, and looks around.
    async fn beat(&mut self, first: bool) -> Result<Seen, Trouble> {
        // The lease counts from before it was asked for, on a clock that also counts while the machine sleeps.
        let (asked, standing) = (boot_time(), self.members.standing());
        let renewed = self.within(self.renew(standing)).await?;
        (self.beaten, self.said) = (Some(Instant::now()), Some(standing));
        if !renewed && !first {
            self.members.tell(Notice::Disowned);
            emit(ProcessDisowned);
        }
        self.members.tenure.extend(asked + self.lease.lasts.saturating_sub(self.lease.margin));
        let seen = self.look_around().await;
        if standing == Standing::Leaving {
            self.members.left.send_replace(true);
        }
        seen
    }

    /// Extends the lease; `false` if there was none any more, and a new one has begun.
    async fn renew(&self, standing: Standing) -> Result<bool, Trouble> {
        let renew = format!(
            "UPDATE instances SET seen_at = {NOW}, lease_until = {NOW} + $2, leaving = $3 WHERE id = $1
            RETURNING (SELECT COUNT(*) FROM instances i WHERE i.leaving <> $3 AND i.id = $1)"
        );
        let begin = format!(
            "INSERT INTO instances (id, name, started_at, seen_at, lease_until, leaving)
            VALUES ($1, $4, $5, {NOW}, {NOW} + $2, $3)"
        );
        let on = self.begin().await?;
        let lasts = signed(u64::try_from(self.lease.lasts.as_millis()).unwrap_or(u64::MAX));
        let values = vec![self.members.me.into(), lasts.into(), standing.number().into()];
        let renewed = query(&on, &renew, values.clone()).await?;
        let has_changed = match renewed.first() {
            Some(row) => row.try_get_by_index::<i64>(0)? > 0,
            None => {
                // Whoever took it for dead has freed its queues. Before it can claim any anew, it forgets them.
                self.members.tenure.clear();
                let more = [self.name.clone().into(), self.started_at.into()];
                query(&on, &begin, values.into_iter().chain(more).collect()).await?;
                true
            }
        };
        if has_changed {
            self.say(&on, &Said::members()).await?;
        }
        on.commit().await?;
        Ok(!renewed.is_empty())
    }

    /// Sees who lives, and takes over from those that do not.
    async fn look_around(&mut self) -> Result<Seen, Trouble> {
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

    /// Finds out which queues are this process's own among those that live.
    fn settle(&self) {
        let me = self.members.me;
        let here: Vec<Uuid> = self.live.iter().filter(|(_, here)| *here).map(|(id, _)| *id).collect();
        let slots = if here.contains(&me) { Slots::of(me, &here) } else { Slots::NONE };
        self.members.set_slots(slots);
        let others = self.live.iter().any(|(id, _)| *id != me);
        self.members.shared.store(others, std::sync::atomic::Ordering::Release);
        self.members.tell(Notice::Members);
        emit(InstancesCounted { live: self.live.len() });
    }

    async fn see(&self) -> Result<(Seen, Vec<Uuid>), Trouble> {
        let select = format!("SELECT id, leaving, lease_until - {NOW} FROM instances ORDER BY id");
        let on = self.begin().await?;
        let rows = query(&on, &select, Vec::new()).await?;
        on.commit().await?;
        let mut seen = Seen { live: BTreeSet::new(), next_end: None };
        let mut dead = Vec::new();
        for row in rows {
            let (id, standing): (Uuid, i64) = (row.try_get_by_index(0)?, row.try_get_by_index(1)?);
            let left: i64 = row.try_get_by_index(2)?;
            if id != self.members.me && left <= 0 {
                dead.push(id);
                continue;
            }
            seen.live.insert((id, standing == Standing::Here.number()));
            if id != self.members.me {
                let end = Duration::from_millis(left.unsigned_abs());
                seen.next_end = Some(seen.next_end.map_or(end, |other| other.min(end)));
            }
        }
        Ok((seen, dead))
    }

    /// Frees the queues of processes whose leases have ended. Their fences grow, so that nothing that they still write
    /// changes anything.
    async fn take_over(&self) -> Result<(), Trouble> {
        let bury = format!(
            "DELETE FROM instances WHERE id IN
            (SELECT id FROM instances WHERE lease_until <= {NOW} AND id <> $1 FOR UPDATE SKIP LOCKED) RETURNING id, name"
        );
        let on = self.begin().await?;
        let buried = query(&on, &bury, vec![self.members.me.into()]).await?;
        for row in &buried {
            let (id, name): (Uuid, String) = (row.try_get_by_index(0)?, row.try_get_by_index(1)?);
            let freed = self.free(&on, "owner = $1", vec![id.into()]).await?;
            emit(TakenOver { from: &name, queues: freed });
        }
        // One that is in the middle of something, frozen perhaps, is buried when its connection has been ended.
        if !buried.is_empty() {
            self.say(&on, &Said::members()).await?;
        }
        on.commit().await?;
        Ok(())
    }

    /// Frees queues of processes that have left no trace but these.
    async fn free_orphans(&self) -> Result<(), Trouble> {
        let on = self.begin().await?;
        let orphans = "owner IS NOT NULL AND NOT EXISTS (SELECT 1 FROM instances i WHERE i.id = owner)";
        self.free(&on, orphans, Vec::new()).await?;
        on.commit().await?;
        Ok(())
    }

    /// Frees queues; how many.
    async fn free(&self, on: &DatabaseTransaction, which: &str, values: Vec<sea_orm::Value>) -> Result<u64, Trouble> {
        // Shards go with them.
        let shards = format!(
            "UPDATE shard_owners SET owner = NULL, fence = fence + 1, freed_at = {NOW} WHERE (shards, shard) IN
            (SELECT shards, shard FROM shard_owners WHERE {which} ORDER BY shards, shard FOR UPDATE)"
        );
        query(on, &shards, values.clone()).await?;
        // Locked by a statement of their own: the next one also sees what was submitted by those whom this one waits for. One
        // statement that did both would read operations as they were before it waited, and a queue that it then takes to be
        // empty would be due for nobody.
        let lock = format!("SELECT queue FROM guild_queues WHERE {which} ORDER BY queue FOR UPDATE");
        let rows = query(on, &lock, values).await?;
        let line = |row: &QueryResult| Ok::<_, Trouble>(Cell::Number(row.try_get_by_index(0)?));
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
        // Nothing may be sent for what is somebody else's from now on.
        self.members.tenure.clear();
        let goodbye = async {
            let on = self.begin().await?;
            query(&on, "DELETE FROM instances WHERE id = $1", vec![self.members.me.into()]).await?;
            self.free(&on, "owner = $1", vec![self.members.me.into()]).await?;
            self.say(&on, &Said::members()).await?;
            on.commit().await?;
            Ok::<_, Trouble>(())
        };
        // If it cannot, its lease ends by itself.
        let _ = self.within(goodbye).await;
        let _ = timeout(Duration::from_secs(1), self.connection.clone().close()).await;
    }

    async fn say(&self, on: &DatabaseTransaction, said: &Said) -> Result<(), Trouble> {
        if let Some(payload) = said.payload() {
            query(on, "SELECT pg_notify($1, $2)", vec![self.channel.clone().into(), payload.into()]).await?;
        }
        Ok(())
    }

    async fn begin(&self) -> Result<DatabaseTransaction, Trouble> {
        let on = self.connection.begin().await?;
        self.session.prepare(&on).await?;
        Ok(on)
    }

    async fn within<T>(&self, doing: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
        timeout(self.timeout, doing).await.unwrap_or_else(|_| Err(crate::store::write::late()))
    }
}
