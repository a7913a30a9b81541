//! Rate limits of callers, and the handling of requests beyond them.

use std::time::Duration;

use guildhall::api::{ControlConfig, PoliciesConfig, TrustedProxies};
use guildhall_core::policy::Rate;
use serde_json::{Value, json};

use super::{ApiSetup, GUILD, KEY, Response, TestApi, call, role, run, sqlite_fixture::SqliteApi};

/// One in two seconds: a test would have to take as many seconds as it makes requests for refills to matter.
const SLOW_RATE: Option<Rate> = Rate::new(1, 2);

fn api_with_policies(policies: PoliciesConfig) -> TestApi {
    ApiSetup { control: ControlConfig { policies, ..ControlConfig::default() }, ..ApiSetup::default() }.start()
}

async fn submit(api: &TestApi, body: Value) -> Response {
    api.post(&format!("/v1/guilds/{GUILD}/operations"), body).await
}

/// A numeric parameter of a header such as `"heavy";r=3;t=1`.
fn parameter(response: &Response, header: &str, name: &str) -> u64 {
    let value = response.header(header).unwrap_or_else(|| panic!("no {header}: {response:?}"));
    let found = value.split(';').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
    found.unwrap_or_else(|| panic!("no {name} in {value}")).parse().unwrap()
}

/// Time from acceptance of an operation until it is due.
fn delay_of(api: &TestApi, response: &Response) -> Duration {
    let stored = api.store.stored(&response.text("id"));
    stored.eligible_at.since(stored.created_at)
}

#[test]
fn operations_beyond_the_burst_are_delayed() {
    run(async {
        let api = api_with_policies(PoliciesConfig { heavy: SLOW_RATE, ..PoliciesConfig::default() });
        let mut delays = Vec::new();
        for n in 0..40 {
            let response = submit(&api, role(&format!("role {n}"))).await;
            assert_eq!(response.status, 202, "{response:?}");
            assert_eq!(response.header("ratelimit-policy").as_deref(), Some("\"heavy\";q=2;w=2"));
            let delay = delay_of(&api, &response);
            assert_eq!(parameter(&response, "ratelimit", "r") > 0, n == 0 && delay.is_zero(), "{response:?}");
            let eligible_at = response.text("eligible_at");
            assert_eq!(api.get(&response.text("href")).await.text("eligible_at"), eligible_at);
            delays.push(delay);
        }
        assert!(delays[0].is_zero(), "{delays:?}");
        // 38 of them exceed the burst, and become due one after the other.
        assert!(delays[39] > Duration::from_secs(20), "{delays:?}");
        assert_eq!(api.store.count(), 40);
    });
}

#[test]
fn operation_with_too_long_a_delay_is_refused() {
    run(async {
        let policies =
            PoliciesConfig { heavy: SLOW_RATE, heavy_max_wait: Duration::from_secs(5), ..PoliciesConfig::default() };
        let api = api_with_policies(policies);
        let mut accepted = 0;
        let refused = loop {
            let response = submit(&api, role("a")).await;
            if response.status != 202 {
                break response;
            }
            accepted += 1;
            assert!(accepted < 1_000, "the limit is never reached");
        };
        assert!(accepted >= 7, "{accepted}");
        let body = refused.assert_problem(429, "too-many-requests").json();
        assert_eq!(body["policy"], "heavy");
        let after: u64 = refused.header("retry-after").unwrap().parse().unwrap();
        assert!(after >= 1 && body["retry_after_ms"].as_u64().unwrap() <= after * 1_000, "{refused:?}");
        assert_eq!(parameter(&refused, "ratelimit", "r"), 0);
        assert_eq!(api.store.count(), accepted);
    });
}

#[test]
fn operation_that_would_miss_its_deadline_is_refused() {
    run(async {
        let api = api_with_policies(PoliciesConfig { heavy: SLOW_RATE, ..PoliciesConfig::default() });
        for _ in 0..10 {
            assert_eq!(submit(&api, role("a")).await.status, 202);
        }
        let soon = json!({"kind": "create_role", "payload": {"name": "b"}, "deadline_ms": 100});
        let detail = submit(&api, soon).await.assert_problem(429, "too-many-requests").text("detail");
        assert!(detail.contains("deadline"), "{detail}");
        let later = json!({"kind": "create_role", "payload": {"name": "b"}, "delay_ms": 600_000});
        let response = submit(&api, later).await;
        assert_eq!(delay_of(&api, &response), Duration::from_secs(600), "the longer delay applies");
        assert_eq!(api.store.count(), 11);
    });
}

#[test]
fn bulk_redrive_counts_as_heavy() {
    run(async {
        let api = api_with_policies(PoliciesConfig { heavy: SLOW_RATE, ..PoliciesConfig::default() });
        for _ in 0..10 {
            assert_eq!(submit(&api, role("a")).await.status, 202);
        }
        let refused = api.post("/v1/dead-letters/redrive", json!({})).await;
        refused.assert_problem(429, "too-many-requests");
        assert_eq!(api.get("/v1/operations").await.status, 200, "reads have another limit");
    });
}

#[test]
fn each_key_has_its_own_limit_and_health_has_none() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let policies = PoliciesConfig { light: Rate::new(1, 20), ..PoliciesConfig::default() };
        let control = ControlConfig { policies, ..ControlConfig::default() };
        let api = SqliteApi::open_with(&folder, 5, control).await;
        let created = api.request("POST", "/v1/keys", json!({"name": "a test", "scopes": ["operations:read"]})).await;
        let other = format!("Bearer {}", created.text("key"));
        let mut responses = Vec::new();
        for _ in 0..60 {
            responses.push(api.request("GET", "/v1/operations", Value::Null).await);
        }
        let refused: Vec<_> = responses.iter().filter(|response| response.status == 429).collect();
        assert!(refused.len() >= 20, "{}", refused.len());
        assert_eq!(refused[0].assert_problem(429, "too-many-requests").json()["policy"], "light");
        // Unknown and forbidden paths count, too.
        api.request("GET", "/v1/elsewhere", Value::Null).await.assert_problem(429, "too-many-requests");

        let get_with_other =
            async |path: &str| call(api.address(), "GET", path, &[("Authorization", &other)], "").await;
        assert_eq!(get_with_other("/v1/operations").await.status, 200);
        let forbidden = get_with_other("/v1/audit").await;
        forbidden.assert_problem(403, "forbidden");
        assert!(parameter(&forbidden, "ratelimit", "r") <= 18);
        for _ in 0..60 {
            let response = call(api.address(), "GET", "/livez", &[], "").await;
            assert_eq!((response.status, response.header("ratelimit")), (200, None));
        }
    });
}

#[test]
fn invalid_keys_are_limited_and_valid_keys_are_not() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let policies = PoliciesConfig { failed: Rate::new(1, 5), ..PoliciesConfig::default() };
        let api = SqliteApi::open_with(&folder, 5, ControlConfig { policies, ..ControlConfig::default() }).await;
        let created = api.request("POST", "/v1/keys", json!({"name": "a test", "scopes": ["operations:read"]})).await;
        let (key, id) = (created.text("key"), created.text("id"));
        let get_with = async |key: &str| {
            let authorization = format!("Bearer {key}");
            call(api.address(), "GET", "/v1/operations", &[("Authorization", &authorization)], "").await
        };
        assert_eq!(get_with(&key).await.status, 200);
        let (head, secret) = key.rsplit_once(&id).unwrap();
        let mut counts = [0; 2];
        for n in 0..60_u32 {
            // No key, an invalid format, a wrong secret, and guessed ids.
            let invalid_key = match n % 4 {
                0 => String::new(),
                1 => "nonsense".to_owned(),
                2 => format!("{head}{id}{}", secret.replace(|c: char| c.is_ascii_digit(), "x")),
                _ => format!("{head}{}{secret}", format!("{n:02}").repeat(id.len()).split_at(id.len()).0),
            };
            match get_with(&invalid_key).await {
                response if response.status == 401 => counts[0] += 1,
                response => {
                    assert_eq!(response.assert_problem(429, "too-many-requests").json()["policy"], "failed");
                    counts[1] += 1;
                }
            }
        }
        assert!(counts[0] >= 5 && counts[1] >= 20, "{counts:?}");
        assert_eq!(get_with(&key).await.status, 200, "valid keys of that address keep working");
        assert_eq!(get_with(KEY).await.status, 200);
    });
}

#[test]
fn trusted_proxy_headers_separate_callers() {
    let count_refused = |proxies: TrustedProxies, header: &'static str| {
        run(async move {
            let policies = PoliciesConfig { failed: Rate::new(1, 1), ..PoliciesConfig::default() };
            let control = ControlConfig { policies, ..ControlConfig::default() };
            let api = ApiSetup { control, proxies, ..ApiSetup::default() }.start();
            let mut refused = 0;
            for n in 0..30 {
                // The left address is set by the caller.
                let from = if header == "forwarded" { format!("for=203.0.113.{n}") } else { format!("203.0.113.{n}") };
                let headers = [("Authorization", "Bearer wrong"), (header, from.as_str())];
                let response = call(api.address(), "GET", "/v1/operations", &headers, "").await;
                refused += usize::from(response.status == 429);
            }
            refused
        })
    };
    let trusted = || TrustedProxies { networks: vec!["127.0.0.0/8".parse().unwrap()], ..TrustedProxies::default() };
    assert_eq!(count_refused(trusted(), "x-forwarded-for"), 0);
    assert!(count_refused(trusted(), "forwarded") >= 10, "the header is not configured");
    assert!(count_refused(TrustedProxies::default(), "x-forwarded-for") >= 10, "the proxy is not trusted");
}

#[test]
fn untracked_callers_share_one_limit() {
    run(async {
        let policies = PoliciesConfig { failed: Rate::new(1, 3), max_tracked: 4, ..PoliciesConfig::default() };
        let proxies = TrustedProxies { networks: vec!["127.0.0.0/8".parse().unwrap()], ..TrustedProxies::default() };
        let control = ControlConfig { policies, ..ControlConfig::default() };
        let api = ApiSetup { control, proxies, ..ApiSetup::default() }.start();
        let from = async |n: usize| {
            let from = format!("203.0.113.{n}");
            let headers = [("Authorization", "Bearer wrong"), ("X-Forwarded-For", from.as_str())];
            call(api.address(), "GET", "/v1/operations", &headers, "").await.status
        };
        // Each of many callers fails once, which alone stays below the limit.
        let mut refused = 0;
        for n in 0..100 {
            refused += usize::from(from(n).await == 429);
        }
        assert!(refused >= 50, "{refused}");
        assert_eq!(api.get("/v1/operations").await.status, 200);
    });
}

#[test]
fn batch_costs_as_much_as_it_has_operations() {
    run(async {
        let heavy = Rate::new(1, 10);
        let policies = PoliciesConfig { heavy, heavy_max_wait: Duration::from_secs(60), ..PoliciesConfig::default() };
        let api = api_with_policies(policies);
        let batch = |count: usize| json!({"operations": (0..count).map(|_| role("a")).collect::<Vec<_>>()});
        let first = submit(&api, batch(8)).await;
        assert_eq!(first.status, 202, "{first:?}");
        assert_eq!(parameter(&first, "ratelimit", "r"), 2, "{first:?}");
        // Larger than the rest of the burst, and than the whole burst: accepted, but later submissions wait.
        let second = submit(&api, batch(40)).await;
        assert_eq!((second.status, parameter(&second, "ratelimit", "r")), (202, 0), "{second:?}");
        let third = submit(&api, role("b")).await;
        assert!(delay_of(&api, &third) > Duration::from_secs(30), "{third:?}");
        let fourth = submit(&api, batch(40)).await;
        assert_eq!(fourth.status, 202, "{fourth:?}");
        let refused = submit(&api, batch(2)).await;
        assert_eq!(refused.assert_problem(429, "too-many-requests").json()["policy"], "heavy");
        assert_eq!(api.store.count(), 8 + 40 + 1 + 40);
    });
}

#[test]
fn large_body_costs_as_much_as_many_operations() {
    run(async {
        let api = api_with_policies(PoliciesConfig { heavy: Rate::new(1, 100), ..PoliciesConfig::default() });
        let large = json!({"kind": "create_role", "payload": {"name": "a"}, "reason": "r".repeat(80 * 1_024)});
        let response = submit(&api, large).await;
        let remaining = parameter(&response, "ratelimit", "r");
        assert!((85..=90).contains(&remaining), "{remaining}: {response:?}");
    });
}
