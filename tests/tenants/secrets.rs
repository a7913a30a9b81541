//! Neither the token nor the secret of a key appears in a response, in the metrics, or in the log at level trace.

use guildhall_testkit::program::CANARY;
use serde_json::Value;

use super::{
    fixture::{ADMIN, Engine, Key, MultiTenantFixture},
    routes::expectations,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_metrics_and_log_contain_no_secret() {
    for engine in [Engine::Sqlite, Engine::Postgres] {
        let fixture = MultiTenantFixture::open(engine).await;
        let other_key = fixture.create_key("rival", &["operations:read"]);
        for (route, expectation) in expectations() {
            for key in [expectation.allowed_key(route, &fixture).text(), ADMIN, &other_key.text, ""] {
                let prepared = expectation.prepare_request(&fixture).await;
                fixture.request_with(key, route.method, &prepared.path, &prepared.body);
                // Also malformed bodies, since errors may repeat their input.
                let malformed = format!("{{\"kind\": \"{key}\", \"{key}\": 1");
                fixture.request_with(key, route.method, &prepared.path, &Value::String(malformed));
            }
        }
        for path in ["/metrics", "/readyz", "/livez", "/startupz", "/v1/nowhere"] {
            fixture.request_with("", "GET", path, &Value::Null);
        }
        let keys = fixture.created_keys.lock().unwrap().clone();
        let (responses, log) = fixture.stop();
        assert!(responses.len() > 200 && log.contains("\"TRACE\""), "{} responses", responses.len());
        // A key is in one response only: the one that creates it.
        let returns_a_key = |request: &str| request == "POST /v1/keys" || request.ends_with("/rotate");
        for (request, response) in &responses {
            for secret in [CANARY, ADMIN] {
                assert!(!response.contains(secret), "{request} exposes {secret}: {response}");
            }
            if !returns_a_key(request) {
                let exposed = keys.iter().find(|key| response.contains(key.secret()));
                assert!(exposed.is_none(), "{request} exposes the secret of a key: {response}");
            }
        }
        for secret in [CANARY, ADMIN].into_iter().chain(keys.iter().map(Key::secret)) {
            let line = log.lines().find(|line| line.contains(secret));
            assert!(line.is_none(), "the log has a secret: {line:?}");
        }
    }
}
