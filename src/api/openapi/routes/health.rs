//! Paths outside `/v1`, which require no key.

use serde_json::json;
use utoipa::openapi::schema::AdditionalProperties;

use crate::api::openapi::{
    headers::ResponseHeader,
    route_doc::{RouteDoc, Tag},
    schema::{
        Describe as _, SchemaRef, any_object, boolean, object, one_of_names, optional, required, schema_ref, text,
    },
};

/// A path and its documentation.
type RouteDocEntry = (&'static str, fn() -> RouteDoc);

/// All paths outside `/v1`, all of them for GET and HEAD.
pub(crate) const OUTSIDE: [RouteDocEntry; 6] = [
    ("/livez", livez),
    ("/readyz", readyz),
    ("/startupz", startupz),
    ("/metrics", metrics),
    ("/openapi.json", description),
    ("/docs", page),
];

/// All schemas of this file, by name.
pub(crate) fn schemas() -> Vec<(&'static str, SchemaRef)> {
    let part = object([
        required("state", one_of_names(["ready", "not_ready"])),
        optional(
            "reason",
            text().describe(
                "Why the part is not \
            ready.",
            ),
        ),
    ]);
    let parts = any_object().additional_properties(Some(AdditionalProperties::from(part)));
    let readiness = object([
        required("ready", boolean()),
        required("stopping", boolean().describe("Whether the process is shutting down.")),
        required("parts", parts.describe("All parts, by name.")),
    ]);
    vec![
        ("Live", object([required("live", boolean())]).into()),
        ("Readiness", readiness.into()),
        ("Started", object([required("started", boolean())]).into()),
    ]
}

fn livez() -> RouteDoc {
    RouteDoc::new(Tag::Health, "livez", "Check whether the daemon is alive")
        .responses(200, "The event loop runs.", schema_ref("Live"), [("alive", json!({"live": true}))])
        .responses(503, "The event loop does not run.", schema_ref("Live"), [("not alive", json!({"live": false}))])
}

fn readyz() -> RouteDoc {
    let ready = json!({"ready": true, "stopping": false, "parts": {"gateway": {"state": "ready"}}});
    let not = json!({
        "ready": false, "stopping": false,
        "parts": {"gateway": {"state": "not_ready", "reason": "0 of 1 shards are connected"}},
    });
    RouteDoc::new(Tag::Health, "readyz", "Check whether the daemon is ready")
        .responses(200, "All parts are ready.", schema_ref("Readiness"), [("ready", ready)])
        .responses(503, "Some parts are not ready; each has a reason.", schema_ref("Readiness"), [("not ready", not)])
}

fn startupz() -> RouteDoc {
    RouteDoc::new(Tag::Health, "startupz", "Check whether the daemon has started")
        .description("It has started when all parts have been ready at the same time once.")
        .responses(200, "The daemon has started.", schema_ref("Started"), [("started", json!({"started": true}))])
        .responses(
            503,
            "The daemon has not started yet.",
            schema_ref("Started"),
            [("starting", json!({"started": false}))],
        )
}

fn metrics() -> RouteDoc {
    RouteDoc::new(Tag::Health, "metrics", "Read the metrics").responses_as(
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
        .responses(200, "The description.", any_object(), [] as [(&str, serde_json::Value); 0]);
    unchanged(cached)
}

fn page() -> RouteDoc {
    let cached = RouteDoc::new(Tag::Health, "docs", "Read this description as a page")
        .description("The page loads nothing from other servers.")
        .header("If-None-Match", text(), "`ETag` of a previous response.")
        .responses_as("text/html", 200, "The page.", text(), [] as [(&str, serde_json::Value); 0]);
    unchanged(cached)
}

/// Adds the headers and the response for caching.
fn unchanged(doc: RouteDoc) -> RouteDoc {
    doc.with_header(ResponseHeader::ETag)
        .with_header(ResponseHeader::CacheControl)
        .empty_response(304, "The caller's version is up to date.")
        .with_header(ResponseHeader::ETag)
        .with_header(ResponseHeader::CacheControl)
}
