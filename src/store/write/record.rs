//! Changes of operations by the owners of their queues.

use std::collections::{HashMap, HashSet};

use guildhall_actors::crash::Input;
use guildhall_actors::ports::{Binding, IntentUpdate, OperationUpdate, UpdateResult};
use guildhall_actors::supervision::Part;
use guildhall_actors::{crash, failpoint};
use guildhall_core::{
    operation::{Failure, FailureClass, ManagedKind, Marker, OperationId, OperationState},
    usage::Usage,
};
use sea_orm::DatabaseTransaction;
use uuid::Uuid;

use super::{
    Context, EngineError, attempts,
    finish::{self, FinishedOperation, RelatedRows},
    locations, signed,
};
use crate::store::rows::{ColumnType, Columns, RowValue, Rows, with_rows};

/// Columns of [`UPDATE`].
pub(in crate::store) const CHANGES: Columns = Columns(&[
    ("op", ColumnType::Uuid),
    ("line", ColumnType::Number),
    ("held", ColumnType::Number),
    ("state", ColumnType::Text),
    ("attempts", ColumnType::Number),
    ("delays", ColumnType::Number),
    ("eligible_at", ColumnType::Number),
    ("parked", ColumnType::Number),
    ("error", ColumnType::Text),
    ("result", ColumnType::Text),
    ("made", ColumnType::Number),
    ("at", ColumnType::Number),
    ("finished_at", ColumnType::Number),
    ("grown", ColumnType::Number),
    ("progress", ColumnType::Text),
]);

/// Changes operations that are not finished, if the caller owns their queues. Returns which related rows exist for
/// those that it finishes.
pub(in crate::store) const UPDATE: &str =
    "UPDATE operations SET state = v.state, attempts = v.attempts, delays = v.delays,
    eligible_at = v.eligible_at, parked = v.parked, error = v.error, result = v.result,
    made = COALESCE(v.made, operations.made), progress = COALESCE(v.progress, operations.progress), updated_at = v.at, finished_at = v.finished_at, bytes = operations.bytes + v.grown,
    changed = {changed}
    FROM {v}, guild_queues q
    WHERE operations.id = v.op AND operations.queue = v.line AND operations.finished_at IS NULL
    AND q.queue = v.line AND q.fence = v.held AND q.owner = $2
    RETURNING id, CAST(CASE WHEN operations.finished_at IS NULL THEN 0 ELSE
    CASE WHEN EXISTS (SELECT 1 FROM idempotency k WHERE k.operation_id = operations.id) THEN 1 ELSE 0 END
    + CASE WHEN EXISTS (SELECT 1 FROM operation_refs r WHERE r.operation_id = operations.id) THEN 2 ELSE 0 END
    + CASE WHEN EXISTS (SELECT 1 FROM intents i WHERE i.operation_id = operations.id) THEN 4 ELSE 0 END
    END AS BIGINT), operations.caller, operations.tenant";

const STATUS_COLUMNS: Columns = Columns(&[("op", ColumnType::Uuid), ("line", ColumnType::Number)]);

const SELECT_STATUS: &str = "SELECT v.op, o.state, o.attempts, o.delays, q.fence, q.owner
    FROM {v} LEFT JOIN operations o ON o.id = v.op LEFT JOIN guild_queues q ON q.queue = v.line";

/// Stores the changes of several callers. Returns one result for each change.
pub(super) async fn record_updates(
    on: &DatabaseTransaction,
    context: &Context,
    requests: &[(usize, &[OperationUpdate])],
) -> Result<Vec<(usize, Vec<UpdateResult>)>, EngineError> {
    let mut results: Vec<(usize, Vec<UpdateResult>)> = Vec::with_capacity(requests.len());
    let mut flat = Vec::new();
    for (nth, (position, changes)) in requests.iter().enumerate() {
        results.push((*position, vec![UpdateResult::Finished; changes.len()]));
        flat.extend(changes.iter().enumerate().map(|(index, change)| (nth, index, change)));
    }
    // One statement can change an operation only once: further changes of it follow in another statement.
    let mut remaining = flat.as_slice();
    while !remaining.is_empty() {
        let mut seen = HashSet::new();
        let length = remaining.iter().position(|(_, _, change)| !seen.insert(change.id)).unwrap_or(remaining.len());
        let (wave, later) = remaining.split_at(length);
        let changes: Vec<&OperationUpdate> = wave.iter().map(|(_, _, change)| *change).collect();
        for ((nth, index, _), recorded) in wave.iter().zip(apply(on, context, &changes).await?) {
            results[*nth].1[*index] = recorded;
        }
        remaining = later;
    }
    Ok(results)
}

/// Stores changes of different operations.
async fn apply(
    on: &DatabaseTransaction,
    context: &Context,
    changes: &[&OperationUpdate],
) -> Result<Vec<UpdateResult>, EngineError> {
    let mut rows = Rows::new();
    let mut grown: HashMap<Uuid, i64> = HashMap::with_capacity(changes.len());
    for change in changes {
        let _entered = crash::enter(Some(Input::Operation(change.id)));
        failpoint::input(Part::StoreWriter, || format!("{} {}", change.id, change.state.name()));
        let error = change.error.as_ref().map(json);
        let more = attempts::growth(change, error.as_deref());
        grown.insert(change.id.uuid(), more);
        rows.push(&[
            RowValue::Uuid(change.id.uuid()),
            RowValue::Number(change.queue.number()),
            RowValue::Number(signed(change.fence.0)),
            RowValue::Text(change.state.name()),
            RowValue::Number(change.attempts.into()),
            RowValue::Number(change.delays.into()),
            RowValue::Number(signed(change.eligible_at.millis())),
            RowValue::Number(change.parked.into()),
            error.as_deref().into(),
            change.result.as_deref().into(),
            change.created.map(u64::cast_signed).into(),
            RowValue::Number(signed(change.at.millis())),
            change.state.is_final().then(|| signed(change.at.millis())).into(),
            RowValue::Number(more),
            change.progress.as_ref().map(|progress| progress.json.as_str()).into(),
        ]);
    }
    let finished: HashSet<Uuid> =
        changes.iter().filter(|change| change.state.is_final()).map(|change| change.id.uuid()).collect();
    let mut stored: HashMap<Uuid, RelatedRows> = HashMap::new();
    let (update, values) = context.change_seq.bind(UPDATE, vec![context.members.id().into()], 1);
    for row in with_rows(on, &update, CHANGES, rows, values).await? {
        let id: Uuid = row.try_get_by_index(0)?;
        stored.insert(id, RelatedRows::from_number(row.try_get_by_index(1)?));
        let more = grown.get(&id).copied().unwrap_or_default();
        let change = Usage { operations: -i64::from(finished.contains(&id)), bytes: more };
        if !change.is_zero() {
            let (caller, tenant): (String, String) = (row.try_get_by_index(2)?, row.try_get_by_index(3)?);
            context.usage.add(&caller, &tenant, change);
        }
    }
    let (done, rejected): (Vec<&OperationUpdate>, Vec<&OperationUpdate>) =
        changes.iter().copied().partition(|change| stored.contains_key(&change.id.uuid()));
    let reasons = rejection_reasons(on, context, &rejected).await?;
    store_related(on, context, &done, &stored).await?;
    let result = |change: &&OperationUpdate| reasons.get(&change.id).copied().unwrap_or(UpdateResult::Done);
    Ok(changes.iter().map(result).collect())
}

/// Why changes were not stored: the queue has another owner, or the operation is finished. Or this very change was
/// stored before, and its caller did not get the result.
async fn rejection_reasons(
    on: &DatabaseTransaction,
    context: &Context,
    rejected: &[&OperationUpdate],
) -> Result<HashMap<OperationId, UpdateResult>, EngineError> {
    if rejected.is_empty() {
        return Ok(HashMap::new());
    }
    let mut rows = Rows::new();
    for change in rejected {
        rows.push(&[RowValue::Uuid(change.id.uuid()), RowValue::Number(change.queue.number())]);
    }
    let mut status = HashMap::new();
    for row in with_rows(on, SELECT_STATUS, STATUS_COLUMNS, rows, Vec::new()).await? {
        let id: Uuid = row.try_get_by_index(0)?;
        let state: Option<String> = row.try_get_by_index(1)?;
        let attempts: Option<i64> = row.try_get_by_index(2)?;
        let delays: Option<i64> = row.try_get_by_index(3)?;
        let fence: Option<i64> = row.try_get_by_index(4)?;
        let owner: Option<Uuid> = row.try_get_by_index(5)?;
        status.insert(id, (state, attempts, delays, fence, owner));
    }
    let reason = |change: &&OperationUpdate| {
        let Some((state, attempts, delays, fence, owner)) = status.get(&change.id.uuid()) else {
            return (change.id, UpdateResult::Finished);
        };
        let ours = *fence == Some(signed(change.fence.0)) && *owner == Some(context.members.id());
        let same = state.as_deref() == Some(change.state.name())
            && *attempts == Some(change.attempts.into())
            && *delays == Some(change.delays.into());
        let recorded = match (ours, same) {
            (false, _) => UpdateResult::Fenced,
            (true, true) => UpdateResult::Done,
            (true, false) => UpdateResult::Finished,
        };
        (change.id, recorded)
    };
    Ok(rejected.iter().map(reason).collect())
}

/// Stores everything that belongs to the stored changes.
async fn store_related(
    on: &DatabaseTransaction,
    context: &Context,
    done: &[&OperationUpdate],
    related: &HashMap<Uuid, RelatedRows>,
) -> Result<(), EngineError> {
    attempts::insert(on, done).await?;
    store_intents(on, done).await?;
    store_unknown_outcomes(on, done).await?;
    store_objects(on, done).await?;
    let mut finished = Vec::new();
    for change in done.iter().filter(|change| change.state.is_final()) {
        finished.push(FinishedOperation {
            id: change.id,
            queue: change.queue,
            state: change.state,
            result: change.result.as_deref(),
            at: change.at,
        });
    }
    let finished: Vec<_> = finished.iter().filter_map(|end| Some((end, *related.get(&end.id.uuid())?))).collect();
    finish::finish_with_related(on, context, &finished).await?;
    store_dead_letters(on, context, done).await
}

async fn store_intents(on: &DatabaseTransaction, done: &[&OperationUpdate]) -> Result<(), EngineError> {
    const SHAPE: Columns =
        Columns(&[("op", ColumnType::Uuid), ("marker", ColumnType::Text), ("at", ColumnType::Number)]);
    const OPEN: &str = "INSERT INTO intents (operation_id, marker, at) SELECT op, marker, at FROM {v} WHERE 1 = 1
        ON CONFLICT (operation_id) DO NOTHING";
    let mut open = Rows::new();
    let mut closed = Vec::new();
    for change in done {
        match change.intent {
            IntentUpdate::Open(at) if !change.state.is_final() => {
                let marker = Marker::of(change.id).to_string();
                open.push(&[
                    RowValue::Uuid(change.id.uuid()),
                    RowValue::Text(&marker),
                    RowValue::Number(signed(at.millis())),
                ]);
            }
            // Intents of operations that finish are removed with them.
            IntentUpdate::Close if !change.state.is_final() => closed.push(change.id),
            IntentUpdate::Open(_) | IntentUpdate::Close | IntentUpdate::Unchanged => {}
        }
    }
    if !open.is_empty() {
        with_rows(on, OPEN, SHAPE, open, Vec::new()).await?;
    }
    finish::close_intents(on, &closed).await
}

/// Stores which operations may have taken effect. Rare, so it is not a column of [`UPDATE`].
async fn store_unknown_outcomes(on: &DatabaseTransaction, done: &[&OperationUpdate]) -> Result<(), EngineError> {
    const SHAPE: Columns = Columns(&[("op", ColumnType::Uuid), ("unknown_outcome", ColumnType::Text)]);
    const SET: &str = "UPDATE operations SET unknown_outcome = v.unknown_outcome FROM {v} WHERE id = v.op";
    let mut rows = Rows::new();
    for change in done {
        if let Some(unknown) = &change.unknown_outcome {
            let text = serde_json::to_string(unknown).expect("invariant: an unknown outcome serializes to JSON");
            rows.push(&[RowValue::Uuid(change.id.uuid()), RowValue::Text(&text)]);
        }
    }
    if !rows.is_empty() {
        with_rows(on, SET, SHAPE, rows, Vec::new()).await?;
    }
    Ok(())
}

/// Stores the net effect of all changes on managed objects: each object is bound to one key, or to none.
async fn store_objects(on: &DatabaseTransaction, done: &[&OperationUpdate]) -> Result<(), EngineError> {
    const OBJECTS: Columns = Columns(&[("sort", ColumnType::Text), ("object", ColumnType::Number)]);
    const FORGET: &str = "DELETE FROM managed_objects WHERE (kind, discord_id) IN (SELECT sort, object FROM {v})";
    const BINDINGS: Columns = Columns(&[
        ("guild_id", ColumnType::Number),
        ("kind", ColumnType::Text),
        ("key", ColumnType::Text),
        ("discord_id", ColumnType::Number),
        ("channel_id", ColumnType::Number),
        ("origin", ColumnType::Text),
        ("updated_at", ColumnType::Number),
    ]);
    const BIND: &str = "INSERT INTO managed_objects
        (guild_id, kind, key, discord_id, channel_id, origin, updated_at)
        SELECT guild_id, kind, key, discord_id, channel_id, origin, updated_at FROM {v} WHERE 1 = 1
        ON CONFLICT (guild_id, kind, key) DO UPDATE SET discord_id = excluded.discord_id,
        channel_id = excluded.channel_id, origin = excluded.origin, updated_at = excluded.updated_at";
    let bound = net_bindings(done);
    if bound.is_empty() {
        return Ok(());
    }
    let mut objects = Rows::new();
    let mut bindings = Rows::new();
    for ((kind, object), binding) in &bound {
        objects.push(&[RowValue::Text(kind.name()), RowValue::Number(object.cast_signed())]);
        if let Some((change, binding)) = binding {
            bindings.push(&[
                RowValue::Number(guild_number(change.guild)),
                RowValue::Text(kind.name()),
                RowValue::Text(&binding.key),
                RowValue::Number(object.cast_signed()),
                binding.channel.map(u64::cast_signed).into(),
                RowValue::Text(binding.origin),
                RowValue::Number(signed(change.at.millis())),
            ]);
        }
    }
    with_rows(on, FORGET, OBJECTS, objects, Vec::new()).await?;
    let gone = bound.iter().filter(|((kind, _), bound)| *kind == ManagedKind::Channel && bound.is_none());
    locations::forget(on, &gone.map(|((_, id), _)| *id).collect::<Vec<_>>()).await?;
    if !bindings.is_empty() {
        with_rows(on, BIND, BINDINGS, bindings, Vec::new()).await?;
    }
    Ok(())
}

type NetBindings<'a> = HashMap<(ManagedKind, u64), Option<(&'a OperationUpdate, &'a Binding)>>;

fn net_bindings<'a>(done: &[&'a OperationUpdate]) -> NetBindings<'a> {
    let mut bound: NetBindings<'a> = HashMap::new();
    for change in done {
        for gone in &change.unbind {
            bound.insert(*gone, None);
        }
        for binding in &change.bind {
            // A key that was bound to another object before now belongs to this one.
            for other in bound.values_mut() {
                let same = |(earlier, existing): &(&OperationUpdate, &Binding)| {
                    earlier.guild == change.guild && existing.kind == binding.kind && existing.key == binding.key
                };
                if other.as_ref().is_some_and(same) {
                    *other = None;
                }
            }
            bound.insert((binding.kind, binding.discord_id), Some((change, binding)));
        }
    }
    bound
}

async fn store_dead_letters(
    on: &DatabaseTransaction,
    context: &Context,
    done: &[&OperationUpdate],
) -> Result<(), EngineError> {
    const SHAPE: Columns = Columns(&[
        ("op", ColumnType::Uuid),
        ("class", ColumnType::Text),
        ("error", ColumnType::Text),
        ("wording", ColumnType::Text),
        ("at", ColumnType::Number),
    ]);
    const INSERT: &str = "INSERT INTO dead_letters
        (id, tenant, queue, guild_id, kind, payload, class, error, wording, attempts, reason, created_at, died_at,
        redrive_of, caller, bounds, scopes, bytes)
        SELECT o.id, o.tenant, o.queue, o.guild_id, o.kind, o.payload, v.class, v.error, v.wording, o.attempts, o.reason,
        o.created_at, v.at, o.redrive_of, o.caller, o.bounds, o.scopes, o.bytes FROM {v} JOIN operations o ON o.id = v.op WHERE 1 = 1
        ON CONFLICT DO NOTHING RETURNING caller, tenant, bytes";
    let mut rows = Rows::new();
    for change in done.iter().filter(|change| change.state == OperationState::Dead) {
        let missing_error = || Failure::new(FailureClass::Transient, "the operation failed without an error message");
        let error = change.error.clone().unwrap_or_else(missing_error);
        rows.push(&[
            RowValue::Uuid(change.id.uuid()),
            RowValue::Text(error.class.name()),
            RowValue::Text(&json(&error)),
            // Converted to lower case here: the engines have different rules.
            RowValue::Text(&error.message.to_lowercase()),
            RowValue::Number(signed(change.at.millis())),
        ]);
    }
    for row in with_rows(on, INSERT, SHAPE, rows, Vec::new()).await? {
        let (caller, tenant): (String, String) = (row.try_get_by_index(0)?, row.try_get_by_index(1)?);
        context.usage.add(&caller, &tenant, Usage { operations: 0, bytes: row.try_get_by_index(2)? });
    }
    Ok(())
}

/// Guild ID in the tables of objects; 0 means no guild.
pub(in crate::store) fn guild_number(guild: Option<u64>) -> i64 {
    guild.unwrap_or(0).cast_signed()
}

fn json(failure: &Failure) -> String {
    serde_json::to_string(failure).expect("invariant: a failure serializes to JSON")
}
