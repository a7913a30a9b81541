//! Users of other proxies find what they rely on.

use guildhall_sim::LimitConfig;
use guildhall_testkit::program::{CANARY, Guildhall, text as text_of};
use serde_json::{Value, json};

use crate::fixture::{ADMIN, Call, EgressFixture};

const HEALTH: &str = "GET /nirn/healthz HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_path_and_metrics_of_nirn_are_served() {
    let fixture = EgressFixture::start_with(LimitConfig::off(), &[("GUILDHALL__EGRESS__COMPAT", "nirn")]).await;
    let health = fixture.raw(HEALTH);
    assert_eq!((health.status, health.body.as_str()), (200, ""), "{}", health.head);
    let application = fixture.sim.application(CANARY).unwrap();
    assert_eq!(fixture.get("/users/@me").status, 200);
    assert_eq!(fixture.get("/channels/1").status, 404);
    let labels = format!("method=\"GET\",status=\"200 OK\",route=\"/users/@me\",clientId=\"{application}\"");
    fixture.wait_for_metric(&format!("nirn_proxy_requests_count{{{labels}}} 1"));
    for bound in ["0.1", "0.25", "1", "2.5", "5", "20", "+Inf"] {
        fixture.wait_for_metric(&format!("nirn_proxy_requests_bucket{{{labels},le=\"{bound}\"}}"));
    }
    fixture.wait_for_metric("nirn_proxy_requests_count{method=\"GET\",status=\"404 Not Found\",route=\"other\"");
    fixture.wait_for_metric("nirn_proxy_error 0");
    assert_eq!(fixture.get("/users/@me").status, 200);
    fixture.wait_for_metric("nirn_proxy_open_connections{route=\"/users/@me\",method=\"GET\"} 0");

    let forced = fixture.api("POST", "/v1/breakers/force", &json!({"key": "discord"}));
    assert_eq!(forced.status, 200, "{}", forced.body);
    assert_eq!(fixture.get("/users/@me").status, 503);
    fixture.wait_for_metric("nirn_proxy_error 1");
    assert_eq!(fixture.arrived_at("GET /users/@me"), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metric_of_twilight_is_written_and_that_of_nirn_is_not() {
    let fixture = EgressFixture::start_with(LimitConfig::off(), &[("GUILDHALL__EGRESS__COMPAT", "twilight")]).await;
    assert_eq!(fixture.get("/users/@me").status, 200);
    fixture.wait_for_metric(
        "twilight_http_proxy_count{method=\"GET\",route=\"User info\",status=\"200 OK\",scope=\"\"} 1",
    );
    let metrics = fixture.api("GET", "/metrics", &Value::Null).body;
    assert!(!metrics.contains("nirn_proxy"), "{metrics}");
    assert_eq!(fixture.raw(HEALTH).status, 400, "it is not a path of Discord's API");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_names_routes_and_callers() {
    let fixture = EgressFixture::start().await;
    let guild = fixture.sim.guilds()[0];
    let reader = fixture.create_key(&["egress:read", "application"]);
    let id = reader.strip_prefix("Bot gh_").unwrap().split('_').next().unwrap().to_owned();
    for _ in 0..3 {
        assert_eq!(fixture.get("/users/@me").status, 200);
    }
    assert_eq!(fixture.get("/channels/1").status, 404);
    let call = Call {
        method: "POST",
        path: &format!("/guilds/{guild}/roles"),
        authorization: &reader,
        body: "{}",
        ..Call::default()
    };
    assert_eq!(fixture.send(&call).status, 403);
    assert_eq!(fixture.send(&Call { authorization: "Bot gh_wrong", ..Call::default() }).status, 401);

    let top = |query: &str| {
        let response = fixture.api("GET", &format!("/v1/egress/top{query}"), &Value::Null);
        assert_eq!(response.status, 200, "{}", response.body);
        response.json()
    };
    let numbers = |row: &Value| ["calls", "refused", "errors"].map(|name| row[name].as_u64().unwrap());
    let all = top("");
    assert_eq!((&all["enabled"], &all["by"]), (&json!(true), &json!("calls")), "{all}");
    let routes: Vec<_> =
        all["routes"].as_array().unwrap().iter().map(|row| (row["name"].as_str().unwrap(), numbers(row))).collect();
    assert_eq!(routes[0], ("GET /users/@me", [4, 1, 0]), "{all}");
    assert!(routes.contains(&("GET /channels/{id}", [1, 0, 1])), "{all}");
    assert!(routes.contains(&("POST /guilds/{id}/roles", [1, 1, 0])), "{all}");
    let callers: Vec<_> =
        all["callers"].as_array().unwrap().iter().map(|row| (row["name"].as_str().unwrap(), numbers(row))).collect();
    assert_eq!(callers, [("bot", [4, 0, 1]), (id.as_str(), [1, 1, 0])], "{all}");
    let refused = top("?by=refused&limit=1");
    assert_eq!(refused["callers"][0]["name"], id.as_str(), "{refused}");
    assert_eq!(refused["routes"].as_array().unwrap().len(), 1, "{refused}");

    let output = Guildhall::new(&["egress", "top", "--by", "errors"])
        .env("GUILDHALL_API", &format!("http://{}", fixture.api))
        .env("GUILDHALL_KEY", ADMIN);
    let output = tokio::task::block_in_place(|| output.output());
    let text = text_of(&output.stdout);
    assert!(text.contains("GET /channels/{id}  1 "), "{text}{}", text_of(&output.stderr));
    assert!(text.contains("\nCALLER") && text.contains("\nbot"), "{text}");
}
