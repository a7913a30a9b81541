//! Limits: the global one, lanes, buckets, the budget of invalid requests, and the heaviest users of them.

use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, web::Data};
use guildhall_actors::circuit_breaker::TopSpenders;
use guildhall_actors::gate::GateView;
use guildhall_core::{
    heavy_hitters::HeavyHitter,
    invalid::{HolderKind, HolderSnapshot, InvalidLedgerSnapshot, Spender},
    lane::Lane,
    limit::BucketRow,
    response::Credential,
    spending::{Consumer, Measure},
    time::UnixMs,
};
use serde_json::{Value, json};

use crate::api::app_state::AppState;
use crate::api::params::Params;
use crate::api::problem::ProblemResponse;
use crate::api::{dto, params};

type HandlerResult = Result<HttpResponse, ProblemResponse>;

/// Default number of heaviest users.
const DEFAULT_TOP: usize = 10;
/// The maximum of that.
const MAX_TOP: usize = 100;

pub(crate) async fn show(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    Params::query(&request).finish()?;
    let credential = app.gate()?.credential;
    let seen = app.with_gate(|service| async move { service.gate.observe().await }).await?;
    Ok(HttpResponse::Ok().json(limits_json(&seen, credential, app.now())))
}

fn limits_json(seen: &GateView, credential: Credential, now: UnixMs) -> Value {
    let limits = &seen.limits;
    // Before its first call the bot has no window of its own, and nothing is taken from it.
    let own = limits.credentials.iter().find(|view| view.credential == credential);
    let closed = own.map_or(0, |own| own.closed_ms);
    let lanes = Lane::ALL.iter().zip(limits.lanes);
    let sharing = match (own.is_some_and(|own| own.shared.is_some()), limits.division) {
        (true, _) => "redis",
        (false, Some(_)) => "store",
        (false, None) => "alone",
    };
    let usable = limits.division.map_or(limits.limit, |division| division.share);
    let redis = own.and_then(|own| own.shared.as_ref());
    let members = redis.map(|shared| shared.members).or(limits.division.map(|division| division.members));
    json!({
        "global": {
            "limit": own.map_or(usable, |own| own.limit),
            "total": limits.limit,
            "sharing": sharing,
            "members": members,
            "window_ms": limits.window_ms,
            "available": own.map_or(usable, |own| own.available),
            "in_flight": own.map_or(0, |own| own.in_flight),
            "waiting": limits.waiting,
            "blocked_until": (closed > 0).then(|| dto::time(now + Duration::from_millis(closed))),
            "shared": sharing != "alone",
            "mode": redis.map(|shared| shared.mode.name()),
        },
        "lanes": lanes.map(|(lane, waiting)| json!({"lane": lane.name(), "waiting": waiting})).collect::<Vec<_>>(),
        "buckets": limits.known,
        "invalid_requests": invalid(&seen.breakers.invalid_requests, now),
        "breakers": seen.breakers.breakers.states,
    })
}

fn invalid(ledger: &InvalidLedgerSnapshot, now: UnixMs) -> Value {
    let stops = match ledger.used {
        used if used >= ledger.thresholds.interactive => Some("everything"),
        used if used >= ledger.thresholds.operation => Some("all_but_interactive"),
        used if used >= ledger.thresholds.background => Some("background"),
        _ => None,
    };
    let spender = |spender: &Spender| {
        json!({
            "guild_id": spender.guild.map(|guild| guild.to_string()),
            "route": spender.route,
            "count": spender.count,
            "over": spender.error,
        })
    };
    json!({
        "used": ledger.used,
        "most": ledger.limit,
        "window_ms": ledger.window_seconds * 1_000,
        "ratio": ledger.ratio,
        "stops": stops,
        "shared": ledger.shared.is_some(),
        "spenders": ledger.top_spenders.iter().map(spender).collect::<Vec<_>>(),
        "share": {
            "percent": ledger.share.percent,
            "most": ledger.share.cap,
            "capped": ledger.share.capped,
            "held": ledger.share.held,
            "holders": ledger.share.holders.iter().map(|one| holder(one, now)).collect::<Vec<_>>(),
        },
    })
}

fn holder(holder: &HolderSnapshot, now: UnixMs) -> Value {
    let id = match holder.by {
        HolderKind::Key => "key",
        HolderKind::Tenant => "tenant",
        HolderKind::Guild => "guild_id",
    };
    json!({
        "by": holder.by.name(),
        id: holder.id,
        "used": holder.used,
        "in_flight": holder.in_flight,
        "ratio": holder.ratio,
        "capped": holder.capped,
        "room_at": holder.room_in_ms.map(|room| dto::time(now + Duration::from_millis(room))),
    })
}

pub(crate) async fn buckets(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let mut params = Params::query(&request);
    let (limit, from) = (params.limit(), params.position("cursor"));
    params.finish()?;
    let from = u32::try_from(from.unwrap_or(0));
    let from = from.map_err(|_| params::parameter("cursor", "must be `next` of the previous response"))?;
    let listed = app.with_gate(move |service| async move { service.gate.buckets(from, limit).await }).await?;
    let now = app.now();
    let buckets: Vec<_> = listed.buckets.iter().map(|row| bucket(row, now)).collect();
    Ok(HttpResponse::Ok().json(json!({"buckets": buckets, "next": listed.next.map(|next| next.to_string())})))
}

fn bucket(row: &BucketRow, now: UnixMs) -> Value {
    let id = row.major.id();
    json!({
        "route": row.routes.first(),
        "routes": row.routes,
        "bucket": row.bucket,
        "id": (id != 0).then(|| id.to_string()),
        "limit": row.limit,
        "left": row.left,
        "resets_at": row.resets_in.map(|wait| dto::time(now + wait)),
        "waiting": row.waiting,
    })
}

pub(crate) async fn top(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let mut params = Params::query(&request);
    let names = Measure::ALL.map(Measure::name).join(", ");
    let by = params.one_of("by", &names, Measure::from_name).unwrap_or(Measure::Spend);
    let limit = params.limit_up_to(MAX_TOP).unwrap_or(DEFAULT_TOP);
    params.finish()?;
    let TopSpenders { top, period: over } =
        app.with_gate(move |service| async move { service.gate.top(by, limit).await }).await?;
    let top: Vec<_> = top.iter().map(spender).collect();
    let since = dto::time(app.now().before(over));
    Ok(HttpResponse::Ok().json(json!({"by": by.name(), "since": since, "top": top})))
}

fn spender(counted: &HeavyHitter<Consumer>) -> Value {
    let HeavyHitter { key, count, over } = counted;
    match key {
        Consumer::Guild(guild) => json!({"guild_id": guild.to_string(), "count": count, "over": over}),
        Consumer::Application => json!({"caller": "application", "count": count, "over": over}),
    }
}
