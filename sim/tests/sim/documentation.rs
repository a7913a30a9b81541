//! Checks that docs/simulator.md is complete: endpoints, faults, limits, and the fields of the score.

use guildhall_sim::{Algorithm, Case, LimitConfig, Score, SimConfig};
use http::Method;
use serde_json::{Value, json};

use crate::common::Fixture;

const PAGE: &str = include_str!("../../../docs/simulator.md");

fn assert_documented(kind: &str, name: &str) {
    assert!(PAGE.contains(name), "docs/simulator.md does not contain the {kind} {name}");
}

#[tokio::test]
async fn page_documents_every_endpoint() {
    let fixture = Fixture::start(SimConfig::default()).await;
    let listed = fixture.control(Method::GET, "/sim", None).await.json();
    let endpoints: Vec<_> = listed.as_array().unwrap().iter().map(|one| one["endpoint"].as_str().unwrap()).collect();
    assert!(endpoints.len() > 20, "{endpoints:?}");
    for endpoint in endpoints {
        assert_documented("endpoint", &format!("`{endpoint}`"));
    }
}

/// The kinds that an endpoint accepts, from its error for an unknown one.
async fn kinds(fixture: &Fixture, path: &str, unknown: Value) -> Vec<String> {
    let refused = fixture.control(Method::POST, path, Some(unknown)).await;
    assert_eq!(refused.status, 400, "{}", refused.text);
    let error = refused.json()["error"].as_str().unwrap().to_owned();
    let (_, listed) = error.split_once("expected one of ").unwrap();
    listed.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The kinds of all faults.
async fn all_kinds(fixture: &Fixture) -> Vec<String> {
    let mut kinds_of_rest = kinds(fixture, "/sim/faults", json!({ "do": { "kind": "unknown" } })).await;
    let kinds_of_gateway = kinds(fixture, "/sim/gateway/faults", json!({ "kind": "unknown" })).await;
    assert!(!kinds_of_rest.is_empty() && !kinds_of_gateway.is_empty());
    kinds_of_rest.extend(kinds_of_gateway);
    kinds_of_rest
}

#[tokio::test]
async fn page_documents_every_kind_of_fault() {
    let fixture = Fixture::start(SimConfig::default()).await;
    for kind in all_kinds(&fixture).await {
        assert_documented("fault", &format!("| `{{\"kind\": \"{kind}\""));
    }
}

#[tokio::test]
async fn every_documented_fault_is_accepted() {
    let fixture = Fixture::start(SimConfig::default()).await;
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `{\"kind\": ")?.split_once("` |"));
    let bodies: Vec<Value> =
        rows.map(|(rest, _)| serde_json::from_str(&format!("{{\"kind\": {rest}")).unwrap()).collect();
    assert_eq!(bodies.len(), all_kinds(&fixture).await.len());
    for body in bodies {
        let as_rest = fixture.control(Method::POST, "/sim/faults", Some(json!({ "do": body }))).await;
        let as_gateway = fixture.control(Method::POST, "/sim/gateway/faults", Some(body.clone())).await;
        assert!([as_rest.status, as_gateway.status].contains(&200), "{body}: {} {}", as_rest.text, as_gateway.text);
    }
}

#[test]
fn page_documents_the_current_limits() {
    for row in LimitConfig::default().routes {
        let case = match row.case {
            Case::Any => "any",
            Case::OldMessage => "old_message",
            Case::Message => "message",
            Case::NameOrTopic => "name_or_topic",
        };
        let algorithm = match row.algorithm {
            Algorithm::Fixed => "fixed",
            Algorithm::Leaky => "leaky",
            Algorithm::Sliding | Algorithm::Aligned => panic!("routes do not use this algorithm"),
        };
        let bucket = row.bucket.as_deref().unwrap_or("its own");
        let (method, path, limit, per_ms) = (row.method, row.path, row.limit, row.per_ms);
        assert_documented(
            "limit",
            &format!("| `{method} {path}` | {case} | {limit} | {per_ms} | {algorithm} | {bucket} |"),
        );
    }
}

#[test]
fn page_documents_every_field_of_the_score() {
    let score = serde_json::to_value(Score::default()).unwrap();
    for part in [&score, &score["gateway"], &score["interactions"]] {
        for field in part.as_object().unwrap().keys() {
            assert_documented("field of the score", &format!("`{field}`"));
        }
    }
}
