//! Limits: the global one, lanes, buckets, the budget of invalid requests, and the heaviest users of them.

use actix_web::web::Json;
use guildhall_core::spending::Measure;
use serde_json::json;

use crate::api::{
    dto::{Bucket, BucketPage, Limits, Top},
    extract::{App, JsonResult, Query},
    fields::{self, Field as _, NoFields, field_error, fields},
    openapi::{
        common::{A_GUILD, A_TIME},
        route_doc::{RouteDoc, Tag},
    },
};

pub(crate) fn show_doc() -> RouteDoc {
    let now = json!({
        "global": {"limit": 50, "window_ms": 1_000, "available": 42, "in_flight": 3, "waiting": 0, "blocked_until": null, "shared": false, "total": 50, "sharing": "alone", "members": null, "mode": null},
        "lanes": [{"lane": "interactive", "waiting": 0}, {"lane": "operation", "waiting": 3}, {"lane": "background", "waiting": 0}],
        "buckets": 17,
        "invalid_requests": {
            "used": 12, "most": 10_000, "window_ms": 600_000, "ratio": 0.0012, "stops": null, "shared": false,
            "spenders": [{"guild_id": A_GUILD, "route": "POST /channels/{id}/messages", "count": 12, "over": 0}],
            "share": {"percent": 25, "most": 2_500, "capped": 0, "held": 0, "holders": [
                {"by": "guild", "guild_id": A_GUILD, "used": 12, "in_flight": 0, "ratio": 0.0048, "capped": false, "room_at": null},
            ]},
        },
        "breakers": {"closed": 4, "open": 0, "half_open": 0, "forced_open": 0},
        "credentials": [{"credential": "198622483471925248", "limit": 50, "available": 42, "in_flight": 3, "blocked_until": null}],
        "gone_webhooks": 0, "refused_tokens": 0,
    });
    RouteDoc::new(Tag::Limits, "show_limits", "Show the limits").response(200, "The current limits.", [("limits", now)])
}

pub(crate) async fn show(_: Query<NoFields>, app: App) -> JsonResult<Limits> {
    let credential = app.gate()?.credential;
    let seen = app.with_gate(|service| async move { service.gate.observe().await }).await?;
    Ok(Json(Limits::new(&seen, credential, app.now())))
}

fields! {
    /// The buckets of a page.
    struct BucketQuery {
        /// Maximum number of entries.
        limit: usize = fields::page_size(),
        /// `next` of the previous response.
        cursor: Option<i64> = fields::cursor(|text| text.parse().ok()).optional(),
    }

    /// The heaviest users to list.
    struct TopQuery {
        /// Calls, 429s, or responses that count towards Discord's ban; default `spend`.
        by: Option<Measure> = fields::one_of("TopMeasure", Measure::ALL.map(Measure::name), Measure::from_name).optional(),
        /// Maximum number of entries.
        limit: usize = fields::integer(1..=100).or(10),
    }
}

pub(crate) fn buckets_doc() -> RouteDoc {
    let page = json!({"buckets": [{
        "route": "POST /guilds/{id}/roles", "routes": ["POST /guilds/{id}/roles"], "bucket": "b2fbc6c2", "id": A_GUILD, "limit": 250, "left": 249,
        "resets_at": A_TIME, "waiting": 0,
    }], "next": null});
    RouteDoc::new(Tag::Limits, "list_buckets", "List the known buckets of routes").response(
        200,
        "A page of buckets.",
        [("page", page)],
    )
}

pub(crate) async fn buckets(Query(query): Query<BucketQuery>, app: App) -> JsonResult<BucketPage> {
    let from = u32::try_from(query.cursor.unwrap_or(0));
    let from = from.map_err(|_| field_error("cursor", "must be `next` of the previous response"))?;
    let listed = app.with_gate(move |service| async move { service.gate.buckets(from, query.limit).await }).await?;
    let now = app.now();
    let buckets = listed.buckets.iter().map(|row| Bucket::new(row, now)).collect();
    Ok(Json(BucketPage { buckets, next: listed.next.map(|next| next.to_string()) }))
}

pub(crate) fn top_doc() -> RouteDoc {
    let example = json!({"by": "spend", "since": A_TIME, "top": [{"guild_id": A_GUILD, "count": 1_204, "over": 0}]});
    RouteDoc::new(Tag::Limits, "list_top", "List the heaviest users of the limits").response(
        200,
        "The heaviest users, the heaviest first.",
        [("top", example)],
    )
}

pub(crate) async fn top(Query(query): Query<TopQuery>, app: App) -> JsonResult<Top> {
    let by = query.by.unwrap_or(Measure::Spend);
    let top = app.with_gate(move |service| async move { service.gate.top(by, query.limit).await }).await?;
    Ok(Json(Top::new(by, &top, app.now())))
}
