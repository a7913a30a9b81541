//! Lists shards with their owners, and restarts them.

use std::collections::HashMap;

use actix_web::{HttpResponse, web::Json};
use guildhall_actors::access::{AuditAction, Caller};
use guildhall_actors::ports::{Instance, ShardView, StoredSession};
use serde_json::{Value, json};

use crate::{
    api::{
        app_state::AppState,
        dto::{Shard, ShardRestarting, Shards},
        errors,
        events::ManualIntervention,
        extract::{App, HandlerResult, JsonResult, OptionalBody, Path, Query, ShardId},
        fields::{self, Field as _, NoFields, field_error, fields},
        openapi::route_doc::{RouteDoc, Tag},
        problem::{ProblemResponse, ProblemType},
    },
    events::emit,
};

/// Default and maximum number of shards in a response.
const PAGE_SIZE: usize = 500;

fields! {
    struct ShardQuery {
        /// Maximum number of entries.
        limit: usize = fields::integer(1..=PAGE_SIZE as u64).or(PAGE_SIZE),
        /// `next` of the previous response.
        cursor: Option<i64> = fields::cursor(|text| text.parse().ok()).optional(),
    }
}

pub(crate) fn list_doc() -> RouteDoc {
    let all = json!({"shards": [{
        "id": 0, "state": "connected", "session": "8f14e45f", "sequence": 1042, "confirmed": 1042, "lag": 0, "latency_ms": 41,
        "instance": "guildhall-1", "resumes": 2, "identifies": 1,
    }], "total": 1, "next": null});
    RouteDoc::new(Tag::Fleet, "list_shards", "List shards")
        .description("Shards of other processes are shown as far as the store knows them.")
        .response(200, "A page of shards.", [("shards", all)])
}

pub(crate) async fn list(Query(query): Query<ShardQuery>, app: App) -> JsonResult<Shards> {
    let from = u32::try_from(query.cursor.unwrap_or(0));
    let from = from.map_err(|_| field_error("cursor", "must be `next` of the previous response"))?;
    let (total, own, stored) = app
        .with_shards(|service| async move {
            let (own, stored) = tokio::join!(service.admin.shards(), service.sessions.sessions());
            (service.admin.total(), own, stored)
        })
        .await?;
    let stored = stored.map_err(|error| errors::store_problem(&error))?;
    let owners = owners(&app).await?;
    let own: HashMap<u32, ShardView> = own.into_iter().map(|view| (view.shard, view)).collect();
    let stored: HashMap<u32, StoredSession> =
        stored.into_iter().filter(|stored| stored.shards == total).map(|stored| (stored.shard, stored)).collect();
    let last = total.min(from.saturating_add(u32::try_from(query.limit).unwrap_or(u32::MAX)));
    let shards = (from..last)
        .map(|id| match own.get(&id) {
            Some(view) => Shard::own(view, owners.own.as_deref()),
            None => Shard::of_other(id, owners.by_shard.get(&id).map(String::as_str), stored.get(&id)),
        })
        .collect();
    let next = (last < total).then(|| last.to_string());
    Ok(Json(Shards { shards, total, next }))
}

/// The owners of shards.
struct Owners {
    by_shard: HashMap<u32, String>,
    /// This process.
    own: Option<String>,
}

async fn owners(app: &AppState) -> Result<Owners, ProblemResponse> {
    let instances = app.with_operations(|service| async move { service.instances().await }).await?;
    let instances: Vec<Instance> = instances.map_err(|error| errors::operation_problem(&error))?;
    let own = instances.iter().find(|instance| instance.is_self).map(|instance| instance.id.to_string());
    let owned = |instance: &Instance| {
        let id = instance.id.to_string();
        instance.shards.iter().map(move |shard| (*shard, id.clone())).collect::<Vec<_>>()
    };
    Ok(Owners { by_shard: instances.iter().flat_map(owned).collect(), own })
}

pub(crate) fn restart_doc() -> RouteDoc {
    RouteDoc::new(Tag::Fleet, "restart_shard", "Restart a shard")
        .description("Closes its connection so that it resumes its session: no event is lost.")
        .body_example("nothing", json!({}))
        .response_of::<ShardRestarting>(
            202,
            "The shard will reconnect.",
            [("restarting", json!({"id": 0, "restarting": true}))],
        )
        .problem(ProblemType::Conflict)
}

pub(crate) async fn restart(
    _: OptionalBody<NoFields>,
    Path(ShardId(id)): Path<ShardId>,
    caller: Caller,
    app: App,
) -> HandlerResult {
    let (total, is_own) = app
        .with_shards(move |service| async move {
            let own = service.admin.shards().await;
            (service.admin.total(), own.iter().any(|view| view.shard == id))
        })
        .await?;
    if id >= total {
        return Err(ProblemType::NotFound.with_detail(format!(
            "There is no shard {id}: the bot has {total} shards, counted \
            from 0."
        )));
    }
    if !is_own {
        return Err(elsewhere(id, &owners(&app).await?));
    }
    let note = caller.audit_record(AuditAction::ShardsRestart, app.now()).with_target(&id);
    let audit = app.audit_writer()?;
    let restarted = app.with_shards(move |service| async move {
        audit.write(note).await?;
        Ok::<bool, ProblemResponse>(service.admin.restart(id))
    });
    if !restarted.await?? {
        return Err(elsewhere(id, &owners(&app).await?));
    }
    emit(ManualIntervention { action: AuditAction::ShardsRestart, target: &id, caller: &caller });
    Ok(HttpResponse::Accepted().json(ShardRestarting { id, restarting: true }))
}

/// Only the owner of a shard can restart it.
fn elsewhere(id: u32, owners: &Owners) -> ProblemResponse {
    match owners.by_shard.get(&id).filter(|owner| owners.own.as_ref() != Some(*owner)) {
        Some(owner) => ProblemType::Conflict
            .with_detail(format!(
                "Process {owner} has shard {id}: send the request to that process, which `GET /v1/instances` \
                lists."
            ))
            .with("instance", owner.as_str()),
        None => ProblemType::Conflict
            .with_detail(format!(
                "No process has shard {id} at the moment; it connects by itself as soon as a process has \
                it."
            ))
            .with("instance", Value::Null),
    }
}
