//! Lists shards with their owners, and restarts them.

use std::{collections::HashMap, time::Duration};

use actix_web::{HttpRequest, HttpResponse, web::Data};
use guildhall_actors::access::AuditAction;
use guildhall_actors::ports::{Instance, ShardView, StoredSession};
use serde_json::{Value, json};

use crate::api::app_state::AppState;
use crate::api::params::Params;
use crate::api::{errors, middleware, params};
use crate::{
    api::{
        events::ManualIntervention,
        problem::{ProblemResponse, ProblemType},
    },
    events::emit,
};

type HandlerResult = Result<HttpResponse, ProblemResponse>;

/// Default and maximum number of shards in a response.
const PAGE_SIZE: usize = 500;

pub(crate) async fn list(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let mut params = Params::query(&request);
    let limit = params.limit_up_to(PAGE_SIZE).unwrap_or(PAGE_SIZE);
    let from = params.position("cursor").unwrap_or(0);
    params.finish()?;
    let from =
        u32::try_from(from).map_err(|_| params::parameter("cursor", "must be `next` of the previous response"))?;
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
    let last = total.min(from.saturating_add(u32::try_from(limit).unwrap_or(u32::MAX)));
    let shards: Vec<_> = (from..last)
        .map(|id| match own.get(&id) {
            Some(view) => own_shard_json(view, owners.own.as_deref()),
            None => other_shard_json(id, owners.by_shard.get(&id).map(String::as_str), stored.get(&id)),
        })
        .collect();
    let next = (last < total).then(|| last.to_string());
    Ok(HttpResponse::Ok().json(json!({"shards": shards, "total": total, "next": next})))
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

fn own_shard_json(view: &ShardView, instance: Option<&str>) -> Value {
    json!({
        "id": view.shard,
        "state": view.state.name(),
        "session": view.session,
        "sequence": view.sequence,
        "confirmed": view.confirmed,
        "lag": view.confirmed.map(|confirmed| view.sequence.saturating_sub(confirmed)),
        "latency_ms": view.latency.map(millis),
        "instance": instance,
        "resumes": view.resumes,
        "identifies": view.identifies,
    })
}

/// A shard of another process, as far as the store knows it.
fn other_shard_json(id: u32, instance: Option<&str>, session: Option<&StoredSession>) -> Value {
    json!({
        "id": id,
        "state": if instance.is_some() { "elsewhere" } else { "unclaimed" },
        "session": session.map(|session| &session.session),
        "sequence": null,
        "confirmed": session.map(|session| session.confirmed),
        "lag": null,
        "latency_ms": null,
        "instance": instance,
        "resumes": null,
        "identifies": null,
    })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) async fn restart(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    Params::optional_body(&request)?.finish()?;
    let given = params::path_parameter(&request, "id")?;
    let id: u32 = given.parse().map_err(|_| params::parameter("id", "must be the number of a shard, from 0"))?;
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
    let caller = middleware::caller_of(&request);
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
    Ok(HttpResponse::Accepted().json(json!({"id": id, "restarting": true})))
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
