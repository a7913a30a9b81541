//! Erases data about a user or a guild, a bounded number of rows at a time.
//!
//! Rows are examined in the order of their keys. The engine returns the text of rows that contain the ID anywhere;
//! whether the ID is a separate number there is decided here, since one ID may be a part of another.

use guildhall_actors::access::{DataSubject, ErasureCursor, ErasureStep};
use sea_orm::{
    ColumnTrait as _, DbErr, EntityTrait as _, FromQueryResult, PaginatorTrait as _, QueryFilter as _, QueryResult,
    QuerySelect as _, Value,
};
use uuid::Uuid;

use super::{EngineError, WriteJob, WriteTx, change_seq, sweep};
use crate::store::sql;
use crate::store::{
    entities::{managed_objects, operations},
    rows::{Columns, Rows, columns, query, row, with_rows},
};

/// Number of rows that one step examines: few enough not to delay other writes.
const STEP: i64 = 1_000;

/// Number of tables that contain data about users or guilds.
const TABLES: usize = 8;

const IDS: Columns = columns![op: Uuid];

/// Examines the next rows of a table, and removes those about the subject.
pub(in crate::store) struct Erase {
    pub(in crate::store) subject: DataSubject,
    pub(in crate::store) from: ErasureCursor,
}

/// Result of one step on a table.
#[derive(Default)]
struct TableStep {
    removed: usize,
    /// Number of rows that mention the subject and stay.
    retained: u64,
    /// The last key that was examined, unless the table is finished.
    last: Option<String>,
}

/// Rows of a table that were examined.
struct ErasurePage<K> {
    /// Keys of rows to remove.
    remove: Vec<K>,
    retained: u64,
    last: Option<K>,
}

impl<K> ErasurePage<K> {
    fn step(self, cursor: impl FnOnce(K) -> String) -> TableStep {
        TableStep { removed: self.remove.len(), retained: self.retained, last: self.last.map(cursor) }
    }
}

/// What decides whether a row is removed, besides its key.
#[derive(FromQueryResult)]
struct ErasureRow {
    /// NULL without the ID.
    text: Option<String>,
    /// Whether the guild's column names the subject.
    its: i64,
    /// Whether the row must stay.
    stays: i64,
}

impl WriteJob for Erase {
    type Output = ErasureStep;

    async fn run(&self, tx: &mut WriteTx<'_>) -> Result<ErasureStep, EngineError> {
        // Cursors depend on this order.
        let nth = self.from.table;
        let (table, TableStep { removed, retained, last }) = match nth {
            0 => ("operations", self.operations(tx).await?),
            1 => ("dead_letters", self.dead_letters(tx).await?),
            2 => ("results", self.results(tx).await?),
            3 => ("events", self.events(tx).await?),
            4 => ("state", self.state(tx).await?),
            5 => ("managed_objects", self.managed_objects(tx).await?),
            6 => ("channels", self.channels(tx).await?),
            7 => ("guild_names", self.guild_names(tx).await?),
            _ => return Ok(ErasureStep::default()),
        };
        let (table_of_next, after) = last.map_or_else(|| (nth + 1, String::new()), |last| (nth, last));
        let next = (table_of_next < TABLES).then_some(ErasureCursor { table: table_of_next, after });
        let mut erased = ErasureStep { next, ..ErasureStep::default() };
        if removed > 0 {
            erased.removed.insert(table, removed as u64);
        }
        if retained > 0 {
            erased.retained.insert(table, retained);
        }
        Ok(erased)
    }
}

impl Erase {
    /// Pattern of the texts that may be about the subject.
    fn pattern(&self) -> Value {
        format!("%{}%", self.subject.id()).into()
    }

    /// The guild to compare with.
    fn guild(&self) -> Option<i64> {
        match self.subject {
            DataSubject::User(_) => None,
            DataSubject::Guild(id) => Some(id.cast_signed()),
        }
    }

    /// Reads the next rows of a table: a key, and the columns of [`ErasureRow`].
    async fn examine<K>(
        &self,
        tx: &WriteTx<'_>,
        select: &str,
        values: Vec<Value>,
        key: fn(&QueryResult) -> Result<K, DbErr>,
    ) -> Result<ErasurePage<K>, EngineError> {
        let rows = query(tx.on, select, values).await?;
        let last = rows.last().filter(|_| rows.len() as i64 == STEP).map(key).transpose()?;
        let mut page = ErasurePage { remove: Vec::new(), retained: 0, last };
        for row in &rows {
            let ErasureRow { text, its, stays } = ErasureRow::from_query_result(row, "")?;
            if its == 0 && !text.is_some_and(|text| self.subject.is_in(&text)) {
                continue;
            }
            if stays == 0 {
                page.remove.push(key(row)?);
            } else {
                page.retained += 1;
            }
        }
        Ok(page)
    }

    /// Reads the next rows of a table with UUIDs as keys and a column for the guild.
    async fn examine_by_id(&self, tx: &WriteTx<'_>, select: &str) -> Result<ErasurePage<Uuid>, EngineError> {
        let after = self.from.after.parse::<Uuid>().unwrap_or_default();
        let values = vec![self.pattern(), self.guild().unwrap_or(0).into(), after.into(), STEP.into()];
        self.examine(tx, select, values, |row| row.try_get("", "id")).await
    }

    /// Finished operations to which no pending operation refers. Others stay until they are finished.
    async fn operations(&self, tx: &WriteTx<'_>) -> Result<TableStep, EngineError> {
        let page = self.examine_by_id(tx, sql::erase::SELECT_OPERATIONS).await?;
        let ids = Rows::of(page.remove.iter().copied());
        with_rows(tx.on, sql::erase::CLEAR_OPERATIONS, IDS, ids.clone(), Vec::new()).await?;
        let gone = with_rows(tx.on, sql::erase::REMOVE_OPERATIONS, IDS, ids, Vec::new()).await?;
        if let Some(change) = sweep::after_removal(tx.on, tx.context, &gone).await? {
            change_seq::record_removed(tx.on, change).await?;
        }
        Ok(page.step(|id| id.to_string()))
    }

    async fn dead_letters(&self, tx: &WriteTx<'_>) -> Result<TableStep, EngineError> {
        let page = self.examine_by_id(tx, sql::erase::SELECT_DEAD_LETTERS).await?;
        let gone =
            with_rows(tx.on, sql::erase::REMOVE_DEAD_LETTERS, IDS, Rows::of(page.remove.iter().copied()), Vec::new())
                .await?;
        tx.context.count_removed(&gone)?;
        Ok(page.step(|id| id.to_string()))
    }

    /// Results that outlive their operations together with an idempotency key. The key itself stays, so that nothing is
    /// done twice.
    async fn results(&self, tx: &WriteTx<'_>) -> Result<TableStep, EngineError> {
        const KEYS: Columns = columns![its_scope: Text, its_key: Text];
        // Neither scopes nor keys contain a line break.
        let (scope, key) = self.from.after.split_once('\n').unwrap_or_default();
        let values = vec![self.pattern(), scope.into(), key.into(), STEP.into()];
        let key = |row: &QueryResult| {
            Ok::<_, DbErr>((row.try_get::<String>("", "scope")?, row.try_get::<String>("", "key")?))
        };
        let page = self.examine(tx, sql::erase::SELECT_RESULTS, values, key).await?;
        let mut keys = Rows::new();
        for (scope, key) in &page.remove {
            keys.push(row! { scope, key });
        }
        with_rows(tx.on, sql::erase::CLEAR_RESULTS, KEYS, keys, Vec::new()).await?;
        Ok(page.step(|(scope, key)| format!("{scope}\n{key}")))
    }

    /// Dead events. Waiting events are handled soon, and removed then.
    async fn events(&self, tx: &WriteTx<'_>) -> Result<TableStep, EngineError> {
        const PLACES: Columns = columns![its_place: Number];
        let after = self.from.after.parse::<i64>().unwrap_or(i64::MIN);
        let values = vec![self.pattern(), after.into(), STEP.into()];
        let page = self.examine(tx, sql::erase::SELECT_EVENTS, values, |row| row.try_get::<i64>("", "place")).await?;
        with_rows(tx.on, sql::erase::REMOVE_EVENTS, PLACES, Rows::of(page.remove.iter().copied()), Vec::new()).await?;
        Ok(page.step(|place| place.to_string()))
    }

    /// Values that bots store, by key or content. Values of the daemon itself are not about people.
    async fn state(&self, tx: &WriteTx<'_>) -> Result<TableStep, EngineError> {
        const KEYS: Columns = columns![its_key: Text];
        let values = vec![self.pattern(), self.from.after.clone().into(), STEP.into()];
        let page = self.examine(tx, sql::erase::SELECT_STATE, values, |row| row.try_get::<String>("", "key")).await?;
        with_rows(tx.on, sql::erase::REMOVE_STATE, KEYS, Rows::of(&page.remove), Vec::new()).await?;
        Ok(page.step(|key| key))
    }

    /// Keys of a guild's roles, channels and messages. They stay while operations of the guild are pending.
    async fn managed_objects(&self, tx: &WriteTx<'_>) -> Result<TableStep, EngineError> {
        let Some(guild) = self.guild() else { return Ok(TableStep::default()) };
        let pending = operations::Entity::find()
            .select_only()
            .column(operations::Column::Id)
            .filter(operations::Column::GuildId.eq(guild))
            .filter(operations::Column::FinishedAt.is_null());
        if pending.into_tuple::<Uuid>().one(tx.on).await?.is_some() {
            let objects = managed_objects::Entity::find().filter(managed_objects::Column::GuildId.eq(guild));
            return Ok(TableStep { retained: objects.count(tx.on).await?, ..TableStep::default() });
        }
        self.remove_of_guild(tx, sql::erase::REMOVE_MANAGED_OBJECTS).await
    }

    /// Channels and webhooks of a guild. They are looked up again when they are needed.
    async fn channels(&self, tx: &WriteTx<'_>) -> Result<TableStep, EngineError> {
        self.remove_of_guild(tx, sql::erase::REMOVE_CHANNELS).await
    }

    /// The name of the guild.
    async fn guild_names(&self, tx: &WriteTx<'_>) -> Result<TableStep, EngineError> {
        self.remove_of_guild(tx, sql::erase::REMOVE_GUILD_NAMES).await
    }

    /// Removes rows of the guild, if the subject is one.
    async fn remove_of_guild(&self, tx: &WriteTx<'_>, remove: &str) -> Result<TableStep, EngineError> {
        let Some(guild) = self.guild() else { return Ok(TableStep::default()) };
        let removed = query(tx.on, remove, vec![guild.into(), STEP.into()]).await?.len();
        let last = (removed as i64 == STEP).then(|| "more".to_owned());
        Ok(TableStep { removed, last, ..TableStep::default() })
    }
}
