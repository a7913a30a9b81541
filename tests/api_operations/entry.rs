//! Checks that every request passes: the key, the limits of the body, and whether the API has started.

use std::time::Duration;

use guildhall::api::ControlConfig;
use guildhall::api::Services;
use guildhall_actors::submission::SubmissionConfig;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{Answer, Api, Ear, GUILD, KEY, Setup, call, listen, new_control, new_desk, raw, role, run, store::Memory};

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
fn nothing_is_answered_without_the_key_and_how_to_get_it_is_told() {
    run(async {
        let api = Api::start();
        let longer = format!("Bearer {KEY}x");
        let basic = format!("Basic {KEY}");
        for (method, path) in ROUTES.into_iter().chain([("GET", "/v1/elsewhere"), ("PATCH", "/v1/operations")]) {
            for shown in ["", "Bearer", "Bearer ", "Bearer wrong", &longer, &basic, KEY] {
                let answer = call(api.address(), method, path, &[("Authorization", shown)], "").await;
                let says = answer.is_problem(401, "unauthorized").text("detail");
                assert!(says.contains("api.admin_key") && !answer.body.contains(KEY), "{says}");
                assert_eq!(answer.header("www-authenticate").as_deref(), Some("Bearer realm=\"guildhall\""));
            }
        }
        assert!(api.heard().is_empty() && api.store.count() == 0);
        let lower = format!("bearer {KEY}");
        assert_eq!(call(api.address(), "GET", "/v1/operations", &[("Authorization", &lower)], "").await.status, 200);
    });
}

#[test]
fn health_and_metrics_need_no_key() {
    run(async {
        let api = Api::start();
        for (path, status) in [("/livez", 200), ("/readyz", 503), ("/startupz", 503), ("/metrics", 200), ("/", 404)] {
            let answer = call(api.address(), "GET", path, &[("Authorization", "none")], "").await;
            assert_eq!(answer.status, status, "{path}");
        }
    });
}

#[test]
fn paths_and_methods_that_are_not_there_are_problems() {
    run(async {
        let api = Api::start();
        api.get("/v1/elsewhere").await.is_problem(404, "not-found");
        api.get("/v1/operations/").await.is_problem(404, "not-found");
        for (path, allow) in [
            ("/v1/operations", "GET, HEAD, POST"),
            ("/v1/guilds/1/operations", "POST"),
            ("/v1/dead-letters/01890a5d-ac96-774b-bcce-b302099a8057", "GET, HEAD, DELETE"),
        ] {
            let answer = call(api.address(), "PATCH", path, &[], "").await;
            assert_eq!(answer.is_problem(405, "method-not-allowed").header("allow").as_deref(), Some(allow));
        }
        let head = call(api.address(), "HEAD", "/v1/operations", &[], "").await;
        assert_eq!((head.status, head.body.as_str()), (200, ""));
    });
}

#[test]
fn until_there_is_a_desk_everything_says_so() {
    run(async {
        let control = new_control(ControlConfig::default());
        let listener = listen(control.clone());
        let ask = async |method: &str, path: &str| {
            let body = if method == "POST" { "{}" } else { "" };
            call(listener.address(), method, path, &[], body).await
        };
        let mut early = Vec::new();
        for (method, path) in ROUTES {
            early.push(ask(method, path).await);
        }
        let early: Vec<_> = early.iter().filter(|answer| answer.status == 503).collect();
        // A request that is validated before it reaches the service may be rejected first.
        assert!(early.len() >= ROUTES.len() - 2, "{early:?}");
        for answer in early {
            assert_eq!(answer.is_problem(503, "starting").header("retry-after").as_deref(), Some("1"));
        }
        let store = Memory::new(10);
        let ear = std::sync::Arc::new(Ear::default());
        let operations = Some(std::sync::Arc::new(new_desk(store, ear, None, SubmissionConfig::default())));
        control.publish(Services { operations, ..Services::default() });
        assert_eq!(ask("GET", "/v1/operations").await.status, 200);
    });
}

#[test]
fn a_body_that_is_too_large_is_refused_whether_it_is_announced_or_not() {
    run(async {
        let control = ControlConfig { body_most: 2_000, submission_most: 2_000, ..ControlConfig::default() };
        let api = Setup { control, ..Setup::default() }.start();
        let path = format!("/v1/guilds/{GUILD}/operations");
        let fits = role(&"x".repeat(50)).to_string();
        assert_eq!(call(api.address(), "POST", &path, &[], &fits).await.status, 202);
        let large = role(&"x".repeat(2_000)).to_string();
        call(api.address(), "POST", &path, &[], &large).await.is_problem(413, "body-too-large");

        let chunk = format!("{:x}\r\n{large}\r\n", large.len());
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n\
             Transfer-Encoding: chunked\r\n\r\n{chunk}"
        );
        raw(api.address(), request.as_bytes()).await.is_problem(413, "body-too-large");
        assert_eq!(api.store.count(), 1);
    });
}

#[test]
fn a_body_that_never_comes_is_not_waited_for() {
    run(async {
        let control = ControlConfig { body_within: Duration::from_millis(20), ..ControlConfig::default() };
        let api = Setup { control, ..Setup::default() }.start();
        let request = format!(
            "POST /v1/operations HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {KEY}\r\n\
             Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
        );
        raw(api.address(), request.as_bytes()).await.is_problem(408, "body-too-slow");
    });
}

#[test]
fn who_has_no_key_cannot_make_a_body_be_read() {
    run(async {
        let api = Api::start();
        let mut stream = TcpStream::connect(api.address()).await.unwrap();
        let head = "POST /v1/operations HTTP/1.1\r\nHost: test\r\nContent-Length: 1000000\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        // The server responds although no byte of the body was sent.
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 401 "), "{}", String::from_utf8_lossy(&answer));
    });
}

#[test]
fn a_body_has_to_be_json_and_to_say_so() {
    run(async {
        let api = Api::start();
        let (path, body) = (format!("/v1/guilds/{GUILD}/operations"), role("a").to_string());
        for kind in ["text/plain", "application/x-www-form-urlencoded", ""] {
            let answer = call(api.address(), "POST", &path, &[("Content-Type", kind)], &body).await;
            answer.is_problem(415, "not-json");
        }
        for kind in ["application/json; charset=utf-8", "Application/JSON", "application/vnd.bot+json"] {
            let answer = call(api.address(), "POST", &path, &[("Content-Type", kind)], &body).await;
            assert_eq!(answer.status, 202, "{kind}");
        }
        for wrong in ["{", "[1,", "{\"kind\": }", "nul", "\u{0}"] {
            call(api.address(), "POST", &path, &[], wrong).await.is_problem(400, "bad-request");
        }
        let json = [("Content-Type", "application/json")];
        call(api.address(), "POST", &path, &json, "").await.is_problem(400, "bad-request");
        let deep = format!("{{\"kind\":\"send_dm\",\"payload\":{}{}}}", "[".repeat(50_000), "]".repeat(50_000));
        call(api.address(), "POST", &path, &[], &deep).await.is_problem(400, "bad-request");
    });
}

#[test]
fn several_requests_go_over_one_connection() {
    run(async {
        let api = Api::start();
        let one = format!("GET /v1/operations HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {KEY}\r\n");
        let both = format!("{one}\r\n{one}Connection: close\r\n\r\n");
        let answers: Answer = raw(api.address(), both.as_bytes()).await;
        assert_eq!(answers.status, 200);
        assert_eq!(answers.body.matches("HTTP/1.1 200").count(), 1, "{answers:?}");
    });
}
