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
use sea_orm::{DatabaseTransaction, FromQueryResult, QueryResult};
use uuid::Uuid;

use super::{
    BatchNeeds, Context, EngineError, Reply, ResultDelivery, RunOrder, WriteJob, WriteTx, attempts,
    finish::{self, FinishedOperation, RelatedRows},
    job, locations, signed,
};
use crate::events::emit;
use crate::store::cluster::ProcessLease;
use crate::store::events::WritesFenced;
use crate::store::rows::{Columns, Rows, columns, row, with_rows, with_rows_as};
use crate::store::sql;

/// Columns of [`sql::outcome::UPDATE`].
pub(in crate::store) const CHANGES: Columns = columns![
    op: Uuid, line: Number, held: Number, state: Text, attempts: Number, delays: Number, eligible_at: Number,
    parked: Number, error: Text, result: Text, made: Number, at: Number, finished_at: Number, grown: Number, progress: Text,
];

/// Reads a row of [`sql::outcome::UPDATE`].
fn read_updated(row: &QueryResult) -> Result<(Uuid, RelatedRows), EngineError> {
    Ok((row.try_get("", "id")?, RelatedRows::from_number(row.try_get("", "related")?)))
}

/// Reads the caller and the tenant of a row of [`sql::outcome::UPDATE`]. Most changes do not need them.
fn read_charged(row: &QueryResult) -> Result<(String, String), EngineError> {
    Ok((row.try_get("", "caller")?, row.try_get("", "tenant")?))
}

const STATUS_COLUMNS: Columns = columns![op: Uuid, line: Number];

/// Changes operations, with one result for each of them.
pub(in crate::store) struct RecordUpdates(pub(in crate::store) Vec<OperationUpdate>);

impl WriteJob for RecordUpdates {
    type Output = Vec<UpdateResult>;

    const ORDER: RunOrder = RunOrder::Record;

    fn size(&self) -> (usize, usize) {
        let text = |change: &OperationUpdate| change.result.as_ref().map_or(0, String::len);
        (self.0.len(), self.0.iter().map(text).sum())
    }

    fn input(&self) -> Option<Input> {
        match self.0.as_slice() {
            [change] => Some(Input::Operation(change.id)),
            _ => None,
        }
    }

    fn prepare(&self, needs: &mut BatchNeeds<'_>) {
        needs.lock_queues(self.0.iter().map(|change| change.queue.number()));
    }

    async fn run_all(jobs: &[&Self], tx: &mut WriteTx<'_>) -> Result<Vec<Vec<UpdateResult>>, EngineError> {
        let changes: Vec<&OperationUpdate> = jobs.iter().flat_map(|job| &job.0).collect();
        let recorded = record_updates(tx, &changes).await?;
        tx.operations_changed |= recorded.contains(&UpdateResult::Done);
        Ok(job::split(recorded, jobs.iter().map(|job| job.0.len())))
    }

    fn deliver(
        &self,
        recorded: Vec<UpdateResult>,
        reply: Reply<Vec<UpdateResult>>,
        _: &ProcessLease,
    ) -> ResultDelivery {
        emit(WritesFenced { writes: recorded.iter().filter(|one| **one == UpdateResult::Fenced).count() });
        let _ = reply.send(Ok(recorded));
        ResultDelivery::Done
    }
}

/// Stores changes, with one result for each of them.
pub(super) async fn record_updates(
    tx: &WriteTx<'_>,
    changes: &[&OperationUpdate],
) -> Result<Vec<UpdateResult>, EngineError> {
    let mut results = Vec::with_capacity(changes.len());
    // One statement can change an operation only once: further changes of it follow in another statement.
    let mut remaining = changes;
    while !remaining.is_empty() {
        let mut seen = HashSet::new();
        let length = remaining.iter().position(|change| !seen.insert(change.id)).unwrap_or(remaining.len());
        let (wave, later) = remaining.split_at(length);
        results.extend(apply(tx.on, tx.context, wave).await?);
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
        rows.push(row! {
            change.id, change.queue, signed(change.fence.0), change.state.name(), change.attempts, change.delays,
            change.eligible_at, change.parked, error.as_deref(), change.result.as_deref(),
            change.created.map(u64::cast_signed), change.at, change.state.is_final().then_some(change.at), more,
            change.progress.as_ref().map(|progress| &progress.json),
        });
    }
    let finished: HashSet<Uuid> =
        changes.iter().filter(|change| change.state.is_final()).map(|change| change.id.uuid()).collect();
    let mut stored: HashMap<Uuid, RelatedRows> = HashMap::new();
    let (update, values) = context.change_seq.bind(sql::outcome::UPDATE, vec![context.members.id().into()], 1);
    for row in with_rows(on, &update, CHANGES, rows, values).await? {
        let (id, related) = read_updated(&row)?;
        stored.insert(id, related);
        let more = grown.get(&id).copied().unwrap_or_default();
        let change = Usage { operations: -i64::from(finished.contains(&id)), bytes: more };
        if !change.is_zero() {
            let (caller, tenant) = read_charged(&row)?;
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
        rows.push(row! { change.id, change.queue });
    }
    let status: Vec<OperationStatus> =
        with_rows_as(on, sql::outcome::SELECT_STATUS, STATUS_COLUMNS, rows, Vec::new()).await?;
    let status: HashMap<Uuid, OperationStatus> = status.into_iter().map(|status| (status.id, status)).collect();
    let reason = |change: &&OperationUpdate| {
        let recorded = match status.get(&change.id.uuid()) {
            None => UpdateResult::Finished,
            Some(status) if !status.is_ours(change, context) => UpdateResult::Fenced,
            Some(status) if status.is_result_of(change) => UpdateResult::Done,
            Some(_) => UpdateResult::Finished,
        };
        (change.id, recorded)
    };
    Ok(rejected.iter().map(reason).collect())
}

/// An operation and its queue, if they exist.
#[derive(FromQueryResult)]
struct OperationStatus {
    id: Uuid,
    state: Option<String>,
    attempts: Option<i64>,
    delays: Option<i64>,
    fence: Option<i64>,
    owner: Option<Uuid>,
}

impl OperationStatus {
    fn is_ours(&self, change: &OperationUpdate, context: &Context) -> bool {
        self.fence == Some(signed(change.fence.0)) && self.owner == Some(context.members.id())
    }

    fn is_result_of(&self, change: &OperationUpdate) -> bool {
        self.state.as_deref() == Some(change.state.name())
            && self.attempts == Some(change.attempts.into())
            && self.delays == Some(change.delays.into())
    }
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
    const SHAPE: Columns = columns![op: Uuid, marker: Text, at: Number];
    let mut open = Rows::new();
    let mut closed = Vec::new();
    for change in done {
        match change.intent {
            IntentUpdate::Open(at) if !change.state.is_final() => {
                let marker = Marker::of(change.id).to_string();
                open.push(row! { change.id, &marker, at });
            }
            // Intents of operations that finish are removed with them.
            IntentUpdate::Close if !change.state.is_final() => closed.push(change.id),
            IntentUpdate::Open(_) | IntentUpdate::Close | IntentUpdate::Unchanged => {}
        }
    }
    with_rows(on, sql::outcome::OPEN_INTENTS, SHAPE, open, Vec::new()).await?;
    finish::close_intents(on, &closed).await
}

/// Stores which operations may have taken effect. Rare, so it is not a column of [`sql::outcome::UPDATE`].
async fn store_unknown_outcomes(on: &DatabaseTransaction, done: &[&OperationUpdate]) -> Result<(), EngineError> {
    const SHAPE: Columns = columns![op: Uuid, unknown_outcome: Text];
    let mut rows = Rows::new();
    for change in done {
        if let Some(unknown) = &change.unknown_outcome {
            let text = serde_json::to_string(unknown).expect("invariant: an unknown outcome serializes to JSON");
            rows.push(row! { change.id, &text });
        }
    }
    with_rows(on, sql::outcome::SET_UNKNOWN_OUTCOME, SHAPE, rows, Vec::new()).await?;
    Ok(())
}

/// Stores the net effect of all changes on managed objects: each object is bound to one key, or to none.
async fn store_objects(on: &DatabaseTransaction, done: &[&OperationUpdate]) -> Result<(), EngineError> {
    const OBJECTS: Columns = columns![sort: Text, object: Number];
    const BINDINGS: Columns = columns![
        guild_id: Number, kind: Text, key: Text, discord_id: Number, channel_id: Number, origin: Text,
        updated_at: Number,
    ];
    let bound = net_bindings(done);
    if bound.is_empty() {
        return Ok(());
    }
    let mut objects = Rows::new();
    let mut bindings = Rows::new();
    for ((kind, object), binding) in &bound {
        objects.push(row! { kind.name(), object.cast_signed() });
        if let Some((change, binding)) = binding {
            bindings.push(row! {
                guild_number(change.guild), kind.name(), &binding.key, object.cast_signed(),
                binding.channel.map(u64::cast_signed), binding.origin, change.at,
            });
        }
    }
    with_rows(on, sql::outcome::FORGET_OBJECTS, OBJECTS, objects, Vec::new()).await?;
    let gone = bound.iter().filter(|((kind, _), bound)| *kind == ManagedKind::Channel && bound.is_none());
    locations::forget(on, &gone.map(|((_, id), _)| *id).collect::<Vec<_>>()).await?;
    with_rows(on, sql::outcome::BIND_OBJECTS, BINDINGS, bindings, Vec::new()).await?;
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
    const SHAPE: Columns = columns![op: Uuid, class: Text, error: Text, wording: Text, at: Number];
    let mut rows = Rows::new();
    for change in done.iter().filter(|change| change.state == OperationState::Dead) {
        let missing_error = || Failure::new(FailureClass::Transient, "the operation failed without an error message");
        let error = change.error.clone().unwrap_or_else(missing_error);
        // Converted to lower case here: the engines have different rules.
        let wording = error.message.to_lowercase();
        rows.push(row! { change.id, error.class.name(), &json(&error), &wording, change.at });
    }
    for row in with_rows(on, sql::outcome::INSERT_DEAD_LETTERS, SHAPE, rows, Vec::new()).await? {
        let (caller, tenant): (String, String) = (row.try_get("", "caller")?, row.try_get("", "tenant")?);
        context.usage.add(&caller, &tenant, Usage { operations: 0, bytes: row.try_get("", "bytes")? });
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
