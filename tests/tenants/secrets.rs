//! Neither the token nor a key's secret shows: not in an answer, not in the metrics, not in the log at its most talkative.

use serde_json::Value;

use super::{
    support::CANARY,
    town::{ADMIN, Engine, Town},
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
                // And what makes no sense, since errors like to repeat what they were given.
                let wrong = format!("{{\"kind\": \"{key}\", \"{key}\": 1");
                town.with(key, way.method, &ask.path, &Value::String(wrong));
            }
        }
        for path in ["/metrics", "/readyz", "/livez", "/startupz", "/v1/nowhere"] {
            town.with("", "GET", path, &Value::Null);
        }
        let keys = town.made.lock().unwrap().clone();
        let (answers, log) = town.close();
        assert!(answers.len() > 200 && log.contains("\"TRACE\""), "{} answers", answers.len());
        // A key is told once, to whoever made it.
        let tells = |asked: &str| asked == "POST /v1/keys" || asked.ends_with("/rotate");
        for (asked, answer) in &answers {
            for secret in [CANARY, ADMIN] {
                assert!(!answer.contains(secret), "{asked} tells {secret}: {answer}");
            }
            if !tells(asked) {
                let told = keys.iter().find(|key| answer.contains(key.secret()));
                assert!(told.is_none(), "{asked} tells a key's secret: {answer}");
            }
        }
        for secret in [CANARY, ADMIN].into_iter().chain(keys.iter().map(|key| key.secret())) {
            let line = log.lines().find(|line| line.contains(secret));
            assert!(line.is_none(), "the log holds a secret: {line:?}");
        }
    }
}
