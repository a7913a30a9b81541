//! What stands outside `/v1`, and asks for no key.

use serde_json::json;
use utoipa::openapi::schema::AdditionalProperties;

use crate::api::openapi::{
    headers::ResponseHeader,
    route_doc::{RouteDoc, Tag},
    schema::{Describe as _, SchemaRef, any_object, may, must, named, object, one_of_names, text, truth},
};

/// A path, and what there is to say about it.
type RouteDocEntry = (&'static str, fn() -> RouteDoc);

/// Every path outside `/v1`, all of them for GET and HEAD.
pub(in crate::api::openapi) const OUTSIDE: [RouteDocEntry; 6] = [
    ("/livez", livez),
    ("/readyz", readyz),
    ("/startupz", startupz),
    ("/metrics", metrics),
    ("/openapi.json", description),
    ("/docs", page),
];

/// Every schema of this file, by its name.
pub(super) fn schemas() -> Vec<(&'static str, SchemaRef)> {
    let part =
        object([must("state", one_of_names(["ready", "not_ready"])), may("reason", text().says("Why it is not."))]);
    let parts = any_object().additional_properties(Some(AdditionalProperties::from(part)));
    let readiness = object([
        must("ready", truth()),
        must("stopping", truth().says("Whether the process is on its way out.")),
        must("parts", parts.says("Each part by its name.")),
    ]);
    vec![
        ("Live", object([must("live", truth())]).into()),
        ("Readiness", readiness.into()),
        ("Started", object([must("started", truth())]).into()),
    ]
}

fn livez() -> RouteDoc {
    RouteDoc::new(Tag::Health, "livez", "Ask whether the daemon is alive")
        .answers(200, "Its event loop runs.", named("Live"), [("alive", json!({"live": true}))])
        .answers(503, "It does not.", named("Live"), [("not alive", json!({"live": false}))])
}

fn readyz() -> RouteDoc {
    let ready = json!({"ready": true, "stopping": false, "parts": {"gateway": {"state": "ready"}}});
    let not = json!({
        "ready": false, "stopping": false,
        "parts": {"gateway": {"state": "not_ready", "reason": "0 of 1 shards are connected"}},
    });
    RouteDoc::new(Tag::Health, "readyz", "Ask whether the daemon is ready")
        .answers(200, "Every part is.", named("Readiness"), [("ready", ready)])
        .answers(503, "Some part is not, and says why.", named("Readiness"), [("not ready", not)])
}

fn startupz() -> RouteDoc {
    RouteDoc::new(Tag::Health, "startupz", "Ask whether the daemon has started")
        .says("Every part has been ready at the same time at least once.")
        .answers(200, "It has.", named("Started"), [("started", json!({"started": true}))])
        .answers(503, "It has not yet.", named("Started"), [("starting", json!({"started": false}))])
}

fn metrics() -> RouteDoc {
    RouteDoc::new(Tag::Health, "metrics", "Read the metrics").answers_as(
        "text/plain",
        200,
        "For Prometheus.",
        text(),
        [("a line", "guildhall_operations_enqueued_total{kind=\"create_role\"} 3\n".into())],
    )
}

fn description() -> RouteDoc {
    let cached = RouteDoc::new(Tag::Health, "openapi", "Read this description")
        .says("OpenAPI 3.1. Ask again with `If-None-Match` to be told only what is new.")
        .header("If-None-Match", text(), "`ETag` of an answer before.")
        .answers(200, "The description.", any_object(), [] as [(&str, serde_json::Value); 0]);
    unchanged(cached)
}

fn page() -> RouteDoc {
    let cached = RouteDoc::new(Tag::Health, "docs", "Read this description as a page")
        .says("It loads nothing from elsewhere.")
        .header("If-None-Match", text(), "`ETag` of an answer before.")
        .answers_as("text/html", 200, "The page.", text(), [] as [(&str, serde_json::Value); 0]);
    unchanged(cached)
}

/// What may be asked for again.
fn unchanged(about: RouteDoc) -> RouteDoc {
    about
        .with(ResponseHeader::ETag)
        .with(ResponseHeader::CacheControl)
        .answers_nothing(304, "It is what the caller has already.")
        .with(ResponseHeader::ETag)
        .with(ResponseHeader::CacheControl)
}
