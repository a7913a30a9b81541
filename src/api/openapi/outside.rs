//! Paths outside `/v1`, which require no key.

use serde_json::json;

use super::{
    headers::ResponseHeader,
    route_doc::{RouteDoc, Tag},
    schema::{any_object, text},
};
use crate::api::dto::{Live, ReadinessReport, Started};

/// A path and its documentation.
type RouteDocEntry = (&'static str, fn() -> RouteDoc);

/// All paths outside `/v1`, all of them for GET and HEAD.
pub(crate) const DOCS: [RouteDocEntry; 7] = [
    ("/livez", livez),
    ("/readyz", readyz),
    ("/startupz", startupz),
    ("/metrics", metrics),
    ("/openapi.json", description),
    ("/docs", page),
    ("/docs/runbooks", runbooks),
];

fn livez() -> RouteDoc {
    RouteDoc::new(Tag::Health, "livez", "Check whether the daemon is alive")
        .response_of::<Live>(200, "The event loop runs.", [("alive", json!({"live": true}))])
        .response_of::<Live>(503, "The event loop does not run.", [("not alive", json!({"live": false}))])
}

fn readyz() -> RouteDoc {
    let ready = json!({"ready": true, "stopping": false, "parts": {"gateway": {"state": "ready"}}});
    let not = json!({
        "ready": false, "stopping": false,
        "parts": {"gateway": {"state": "not_ready", "reason": "0 of 1 shards are connected"}},
    });
    RouteDoc::new(Tag::Health, "readyz", "Check whether the daemon is ready")
        .response_of::<ReadinessReport>(200, "All parts are ready.", [("ready", ready)])
        .response_of::<ReadinessReport>(503, "Some parts are not ready; each has a reason.", [("not ready", not)])
}

fn startupz() -> RouteDoc {
    RouteDoc::new(Tag::Health, "startupz", "Check whether the daemon has started")
        .description("It has started when all parts have been ready at the same time once.")
        .response_of::<Started>(200, "The daemon has started.", [("started", json!({"started": true}))])
        .response_of::<Started>(503, "The daemon has not started yet.", [("starting", json!({"started": false}))])
}

fn metrics() -> RouteDoc {
    RouteDoc::new(Tag::Health, "metrics", "Read the metrics").response_as(
        "text/plain",
        200,
        "Metrics in the text format of Prometheus.",
        text(),
        [("a line", "guildhall_operations_enqueued_total{kind=\"create_role\"} 3\n".into())],
    )
}

fn description() -> RouteDoc {
    let cached = RouteDoc::new(Tag::Health, "openapi", "Read this description")
        .description("OpenAPI 3.1. Send `If-None-Match` to get the description only if it has changed.")
        .header("If-None-Match", text(), "`ETag` of a previous response.")
        .response_as("application/json", 200, "The description.", any_object(), [] as [(&str, serde_json::Value); 0]);
    unchanged(cached)
}

fn page() -> RouteDoc {
    let cached = RouteDoc::new(Tag::Health, "docs", "Read this description as a page")
        .description("The page loads nothing from other servers.")
        .header("If-None-Match", text(), "`ETag` of a previous response.")
        .response_as("text/html", 200, "The page.", text(), [] as [(&str, serde_json::Value); 0]);
    unchanged(cached)
}

fn runbooks() -> RouteDoc {
    let cached = RouteDoc::new(Tag::Health, "runbooks", "List the runbooks of the alerts")
        .description(
            "A page that links to the runbook of each alert, such as `/docs/runbooks/GuildhallStoreDown`; with the suffix \
             `.md` it is Markdown.",
        )
        .header("If-None-Match", text(), "`ETag` of a previous response.")
        .response_as("text/html", 200, "The page.", text(), [] as [(&str, serde_json::Value); 0]);
    unchanged(cached)
}

/// Adds the headers and the response for caching.
fn unchanged(doc: RouteDoc) -> RouteDoc {
    doc.headers([ResponseHeader::ETag, ResponseHeader::CacheControl])
        .empty_response(304, "The caller's version is up to date.")
        .headers([ResponseHeader::ETag, ResponseHeader::CacheControl])
}
