//! Checks that every request passes: the key, the limits of the body, and whether the API has started.

use std::time::Duration;

use guildhall::api::ControlConfig;
use guildhall::api::Services;
use guildhall_actors::submission::SubmissionConfig;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{
    ApiSetup, GUILD, KEY, RecordingNotifier, Response, TestApi, call, listen, memory_store::MemoryStore, new_control,
    new_service, role, run, send_raw,
};

/// Every path of the API with a supported method.
const ROUTES: [(&str, &str); 16] = [
    ("POST", "/v1/guilds/1/operations"),
    ("GET", "/v1/guilds/1"),
    ("POST", "/v1/guilds/1/pause"),
    ("POST", "/v1/guilds/1/resume"),
    ("POST", "/v1/pause"),
    ("POST", "/v1/resume"),
    ("GET", "/v1/operations"),
    ("POST", "/v1/operations"),
    ("GET", "/v1/operations/01890a5d-ac96-774b-bcce-b302099a8057"),
    ("POST", "/v1/operations/01890a5d-ac96-774b-bcce-b302099a8057/cancel"),
    ("POST", "/v1/operations/01890a5d-ac96-774b-bcce-b302099a8057/retry"),
    ("GET", "/v1/dead-letters"),
    ("GET", "/v1/dead-letters/01890a5d-ac96-774b-bcce-b302099a8057"),
    ("DELETE", "/v1/dead-letters/01890a5d-ac96-774b-bcce-b302099a8057"),
    ("POST", "/v1/dead-letters/01890a5d-ac96-774b-bcce-b302099a8057/redrive"),
    ("POST", "/v1/dead-letters/redrive"),
];

#[test]
fn every_route_requires_the_key_and_says_how_to_get_it() {
    run(async {
        let api = TestApi::start();
        let longer_key = format!("Bearer {KEY}x");
        let basic = format!("Basic {KEY}");
        for (method, path) in ROUTES.into_iter().chain([("GET", "/v1/elsewhere"), ("PATCH", "/v1/operations")]) {
            for (authorization, problem) in [
                ("", "unauthorized"),
                ("Bearer", "unauthorized"),
                ("Bearer ", "unauthorized"),
                (&basic, "unauthorized"),
                (KEY, "unauthorized"),
                ("Bearer wrong", "key-invalid"),
                (&longer_key, "key-invalid"),
            ] {
                let response = call(api.address(), method, path, &[("Authorization", authorization)], "").await;
                let detail = response.assert_problem(401, problem).text("detail");
                assert!(detail.contains("api.admin_key") && !response.body.contains(KEY), "{detail}");
                assert_eq!(response.header("www-authenticate").as_deref(), Some("Bearer realm=\"guildhall\""));
            }
        }
        assert!(api.take_notifications().is_empty() && api.store.count() == 0);
        let lower = format!("bearer {KEY}");
        assert_eq!(call(api.address(), "GET", "/v1/operations", &[("Authorization", &lower)], "").await.status, 200);
    });
}

#[test]
fn health_and_metrics_need_no_key() {
    run(async {
        let api = TestApi::start();
        for (path, status) in [("/livez", 200), ("/readyz", 503), ("/startupz", 503), ("/metrics", 200), ("/", 404)] {
            let response = call(api.address(), "GET", path, &[("Authorization", "none")], "").await;
            assert_eq!(response.status, status, "{path}");
        }
    });
}

#[test]
fn unknown_paths_and_methods_are_problems() {
    run(async {
        let api = TestApi::start();
        api.get("/v1/elsewhere").await.assert_problem(404, "not-found");
        api.get("/v1/operations/").await.assert_problem(404, "not-found");
        for (path, allow) in [
            ("/v1/operations", "GET, HEAD, POST"),
            ("/v1/guilds/1/operations", "POST"),
            ("/v1/dead-letters/01890a5d-ac96-774b-bcce-b302099a8057", "GET, HEAD, DELETE"),
        ] {
            let response = call(api.address(), "PATCH", path, &[], "").await;
            assert_eq!(response.assert_problem(405, "method-not-allowed").header("allow").as_deref(), Some(allow));
        }
        let head = call(api.address(), "HEAD", "/v1/operations", &[], "").await;
        assert_eq!((head.status, head.body.as_str()), (200, ""));
    });
}

#[test]
fn requests_before_startup_return_503() {
    run(async {
        let control = new_control(ControlConfig::default());
        let listener = listen(control.clone());
        let send = async |method: &str, path: &str| {
            let body = if method == "POST" { "{}" } else { "" };
            call(listener.address(), method, path, &[], body).await
        };
        let mut early = Vec::new();
        for (method, path) in ROUTES {
            early.push(send(method, path).await);
        }
        let early: Vec<_> = early.iter().filter(|response| response.status == 503).collect();
        // A request that is validated before it reaches the service may be rejected first.
        assert!(early.len() >= ROUTES.len() - 2, "{early:?}");
        for response in early {
            assert_eq!(response.assert_problem(503, "starting").header("retry-after").as_deref(), Some("1"));
        }
        let store = MemoryStore::new(10);
        let notifier = std::sync::Arc::new(RecordingNotifier::default());
        let operations = Some(std::sync::Arc::new(new_service(store, notifier, None, SubmissionConfig::default())));
        control.publish(Services { operations, ..Services::default() });
        assert_eq!(send("GET", "/v1/operations").await.status, 200);
    });
}

#[test]
fn too_large_body_is_rejected_with_and_without_length() {
    run(async {
        let control = ControlConfig { max_body: 2_000, max_submission: 2_000, ..ControlConfig::default() };
        let api = ApiSetup { control, ..ApiSetup::default() }.start();
        let path = format!("/v1/guilds/{GUILD}/operations");
        let fits = role(&"x".repeat(50)).to_string();
        assert_eq!(call(api.address(), "POST", &path, &[], &fits).await.status, 202);
        let large = role(&"x".repeat(2_000)).to_string();
        call(api.address(), "POST", &path, &[], &large).await.assert_problem(413, "body-too-large");

        let chunk = format!("{:x}\r\n{large}\r\n", large.len());
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n\
             Transfer-Encoding: chunked\r\n\r\n{chunk}"
        );
        send_raw(api.address(), request.as_bytes()).await.assert_problem(413, "body-too-large");
        assert_eq!(api.store.count(), 1);
    });
}

#[test]
fn missing_body_times_out() {
    run(async {
        let control = ControlConfig { body_timeout: Duration::from_millis(20), ..ControlConfig::default() };
        let api = ApiSetup { control, ..ApiSetup::default() }.start();
        let request = format!(
            "POST /v1/operations HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {KEY}\r\n\
             Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
        );
        send_raw(api.address(), request.as_bytes()).await.assert_problem(408, "body-too-slow");
    });
}

#[test]
fn body_is_not_read_without_a_key() {
    run(async {
        let api = TestApi::start();
        let mut stream = TcpStream::connect(api.address()).await.unwrap();
        let head = "POST /v1/operations HTTP/1.1\r\nHost: test\r\nContent-Length: 1000000\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        // The server responds although no byte of the body was sent.
        let mut response = Vec::new();
        stream.read_to_end(&mut response).await.unwrap();
        assert!(response.starts_with(b"HTTP/1.1 401 "), "{}", String::from_utf8_lossy(&response));
    });
}

#[test]
fn body_must_be_json_with_a_json_content_type() {
    run(async {
        let api = TestApi::start();
        let (path, body) = (format!("/v1/guilds/{GUILD}/operations"), role("a").to_string());
        for kind in ["text/plain", "application/x-www-form-urlencoded", ""] {
            let response = call(api.address(), "POST", &path, &[("Content-Type", kind)], &body).await;
            response.assert_problem(415, "not-json");
        }
        for kind in ["application/json; charset=utf-8", "Application/JSON", "application/vnd.bot+json"] {
            let response = call(api.address(), "POST", &path, &[("Content-Type", kind)], &body).await;
            assert_eq!(response.status, 202, "{kind}");
        }
        for malformed in ["{", "[1,", "{\"kind\": }", "nul", "\u{0}"] {
            call(api.address(), "POST", &path, &[], malformed).await.assert_problem(400, "bad-request");
        }
        let json = [("Content-Type", "application/json")];
        call(api.address(), "POST", &path, &json, "").await.assert_problem(400, "bad-request");
        let deep = format!("{{\"kind\":\"send_dm\",\"payload\":{}{}}}", "[".repeat(50_000), "]".repeat(50_000));
        call(api.address(), "POST", &path, &[], &deep).await.assert_problem(400, "bad-request");
    });
}

#[test]
fn connection_is_reused_for_several_requests() {
    run(async {
        let api = TestApi::start();
        let one = format!("GET /v1/operations HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {KEY}\r\n");
        let both = format!("{one}\r\n{one}Connection: close\r\n\r\n");
        let responses: Response = send_raw(api.address(), both.as_bytes()).await;
        assert_eq!(responses.status, 200);
        assert_eq!(responses.body.matches("HTTP/1.1 200").count(), 1, "{responses:?}");
    });
}
