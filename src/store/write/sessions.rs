//! Confirmed positions of the sessions of shards, and removal of the rows that these make unnecessary.

use std::collections::{BTreeMap, HashMap};

use guildhall_actors::ports::StoredSession;
use guildhall_actors::shard::ShardClaim;
use guildhall_core::time::UnixMs;
use sea_orm::{ColumnTrait as _, DatabaseTransaction, EntityTrait as _, FromQueryResult, QueryFilter as _};

use super::{EngineError, RunOrder, WriteJob, WriteTx, crashes, queues, shards, signed};
use crate::store::sql;
use crate::store::{
    entities::sessions,
    rows::{Columns, Rows, columns, query, row, scalars, with_rows, without_nul},
};

/// Maximum number of rows of a kind that one sweep removes.
const SWEEP: i64 = 500;

/// Number of sessions without a shard that one sweep checks.
const SWEEP_SESSIONS: i64 = 20;

/// Shard count and shard ID.
type ShardKey = (i64, i64);

pub(in crate::store) const SHARDS: Columns = columns![of_shards: Number, nth: Number];

/// Rows up to a sequence number, by session.
pub(in crate::store) const CONFIRMED: Columns = columns![its_session: Text, up_to: Number];

#[derive(FromQueryResult)]
struct SessionRow {
    session: String,
    resume_url: Option<String>,
    confirmed: i64,
    updated_at: i64,
}

impl SessionRow {
    fn of(session: &StoredSession) -> Self {
        Self {
            session: without_nul(&session.session),
            resume_url: session.resume_url.clone(),
            confirmed: signed(session.confirmed),
            updated_at: signed(session.at.millis()),
        }
    }

    /// Merges a later record of the same session. The confirmed position never decreases.
    fn merge(&self, later: Self) -> Self {
        Self {
            session: later.session,
            resume_url: later.resume_url.or_else(|| self.resume_url.clone()),
            confirmed: self.confirmed.max(later.confirmed),
            updated_at: self.updated_at.max(later.updated_at),
        }
    }
}

/// Stores sessions. Removes the handled rows up to their confirmed positions, and all rows of sessions that were
/// replaced.
pub(in crate::store) struct StoreSessions(pub(in crate::store) Vec<StoredSession>);

impl WriteJob for StoreSessions {
    type Output = ();

    const ORDER: RunOrder = RunOrder::StoreSessions;

    fn size(&self) -> (usize, usize) {
        (self.0.len(), 0)
    }

    async fn run_all(jobs: &[&Self], tx: &mut WriteTx<'_>) -> Result<Vec<()>, EngineError> {
        store_sessions(tx, jobs.iter().flat_map(|job| &job.0).collect()).await?;
        Ok(vec![(); jobs.len()])
    }
}

async fn store_sessions(
    WriteTx { on, context, .. }: &WriteTx<'_>,
    sessions: Vec<&StoredSession>,
) -> Result<(), EngineError> {
    let claim = |one: &StoredSession| Some(ShardClaim { shards: one.shards, shard: one.shard, fence: one.fence? });
    let valid_claims = shards::valid_claims(on, context, sessions.iter().filter_map(|one| claim(one))).await?;
    let is_ours = |one: &&StoredSession| claim(one).is_none_or(|claim| valid_claims.contains(&claim));
    let sessions: Vec<(ShardKey, &StoredSession)> =
        sessions.into_iter().filter(is_ours).map(|one| ((i64::from(one.shards), i64::from(one.shard)), one)).collect();
    if sessions.is_empty() {
        return Ok(());
    }
    let mut stored = read_sessions(on, sessions.iter().map(|(key, _)| *key)).await?;
    let mut forget: HashMap<String, i64> = HashMap::new();
    for (key, sessions) in sessions {
        let new = SessionRow::of(sessions);
        let now = match stored.remove(&key) {
            Some(before) if before.session == new.session => before.merge(new),
            Some(before) => {
                forget.insert(before.session, i64::MAX);
                new
            }
            None => new,
        };
        stored.insert(key, now);
    }
    for session in stored.values() {
        let up_to = forget.entry(session.session.clone()).or_insert(session.confirmed);
        *up_to = session.confirmed.max(*up_to);
    }
    upsert(on, &stored).await?;
    let mut rows = Rows::new();
    for (session, up_to) in &forget {
        rows.push(row! { session, *up_to });
    }
    let sql = if queues::is_shared(on) { sql::sessions::FORGET_ON_POSTGRES } else { sql::sessions::FORGET };
    with_rows(*on, sql, CONFIRMED, rows, Vec::new()).await?;
    Ok(())
}

async fn read_sessions(
    on: &DatabaseTransaction,
    keys: impl Iterator<Item = ShardKey>,
) -> Result<BTreeMap<ShardKey, SessionRow>, EngineError> {
    let mut rows = Rows::new();
    for (shards, shard) in keys {
        rows.push(row! { shards, shard });
    }
    let lock = if queues::is_shared(on) { " ORDER BY shards, shard FOR NO KEY UPDATE" } else { "" };
    let mut sessions = BTreeMap::new();
    for row in with_rows(on, &format!("{}{lock}", sql::sessions::SELECT_SESSIONS), SHARDS, rows, Vec::new()).await? {
        let key = (row.try_get("", "shards")?, row.try_get("", "shard")?);
        sessions.insert(key, SessionRow::from_query_result(&row, "")?);
    }
    Ok(sessions)
}

async fn upsert(on: &DatabaseTransaction, sessions: &BTreeMap<ShardKey, SessionRow>) -> Result<(), EngineError> {
    const SHAPE: Columns = columns![
        shards: Number, shard: Number, session: Text, resume_url: Text, confirmed: Number, updated_at: Number,
    ];
    let mut rows = Rows::new();
    for ((shards, shard), session) in sessions {
        rows.push(row! {
            *shards, *shard, &session.session, session.resume_url.as_deref(), session.confirmed, session.updated_at,
        });
    }
    with_rows(on, sql::sessions::UPSERT, SHAPE, rows, Vec::new()).await?;
    Ok(())
}

/// Removes dead events, sessions that were not updated since then, crashes that did not recur since then, and rows of
/// sessions that no shard has; a small batch of each. Returns the total number.
pub(in crate::store) struct SweepEvents(pub(in crate::store) UnixMs);

impl WriteJob for SweepEvents {
    type Output = u64;

    async fn run(&self, WriteTx { on, .. }: &mut WriteTx<'_>) -> Result<u64, EngineError> {
        let before = signed(self.0.millis());
        let mut swept = query(*on, sql::sessions::SWEEP_DEAD, vec![before.into(), SWEEP.into()]).await?.len();
        // There are only as many sessions as shards. Without them, the rows of a session are orphaned.
        let sessions = sessions::Entity::delete_many().filter(sessions::Column::UpdatedAt.lt(before));
        let sessions = sessions.exec(*on).await?.rows_affected;
        swept += crashes::sweep(on, before).await?;
        for session in
            scalars::<String>(&query(*on, sql::sessions::ORPHANED_SESSIONS, vec![SWEEP_SESSIONS.into()]).await?)?
        {
            swept += query(*on, sql::sessions::SWEEP_ORPHANED, vec![session.into(), before.into(), SWEEP.into()])
                .await?
                .len();
        }
        Ok(swept as u64 + sessions)
    }
}
