//! Neither the token nor the secret of a key appears in a response, in the metrics, or in the log at level trace.

use serde_json::Value;

use super::{
    support::CANARY,
    town::{ADMIN, Engine, Key, Town},
    ways::rows,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_no_metric_and_no_line_of_the_log_holds_a_secret() {
    for engine in [Engine::Sqlite, Engine::Postgres] {
        let town = Town::open(engine).await;
        let stranger = town.key("rival", &["operations:read"]);
        for (way, row) in rows() {
            for key in [row.key(way, &town).text(), ADMIN, &stranger.text, ""] {
                let ask = row.ask(&town).await;
                town.with(key, way.method, &ask.path, &ask.body);
                // Also malformed bodies, since errors may repeat their input.
                let wrong = format!("{{\"kind\": \"{key}\", \"{key}\": 1");
                town.with(key, way.method, &ask.path, &Value::String(wrong));
            }
        }
        for path in ["/metrics", "/readyz", "/livez", "/startupz", "/v1/nowhere"] {
            town.with("", "GET", path, &Value::Null);
        }
        let keys = town.made.lock().unwrap().clone();
        let (answers, log) = town.close();
        assert!(answers.len() > 200 && log.contains("\"TRACE\""), "{} responses", answers.len());
        // A key is in one response only: the one that creates it.
        let tells = |asked: &str| asked == "POST /v1/keys" || asked.ends_with("/rotate");
        for (asked, answer) in &answers {
            for secret in [CANARY, ADMIN] {
                assert!(!answer.contains(secret), "{asked} exposes {secret}: {answer}");
            }
            if !tells(asked) {
                let told = keys.iter().find(|key| answer.contains(key.secret()));
                assert!(told.is_none(), "{asked} exposes the secret of a key: {answer}");
            }
        }
        for secret in [CANARY, ADMIN].into_iter().chain(keys.iter().map(Key::secret)) {
            let line = log.lines().find(|line| line.contains(secret));
            assert!(line.is_none(), "the log has a secret: {line:?}");
        }
    }
}
