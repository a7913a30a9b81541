//! Rate limits of callers, and the handling of requests beyond them.

use std::time::Duration;

use guildhall::api::{ControlConfig, PoliciesConfig, TrustedProxies};
use guildhall_core::policy::Rate;
use serde_json::{Value, json};

use super::{Answer, Api, GUILD, KEY, Setup, call, role, run, sqlite::OnSqlite};

/// One in two seconds: a test would have to take as many seconds as it makes requests for refills to matter.
const SLOW: Option<Rate> = Rate::new(1, 2);

fn limited(policies: PoliciesConfig) -> Api {
    Setup { control: ControlConfig { policies, ..ControlConfig::default() }, ..Setup::default() }.start()
}

async fn submit(api: &Api, body: Value) -> Answer {
    api.post(&format!("/v1/guilds/{GUILD}/operations"), body).await
}

/// A numeric parameter of a header such as `"heavy";r=3;t=1`.
fn parameter(answer: &Answer, header: &str, name: &str) -> u64 {
    let value = answer.header(header).unwrap_or_else(|| panic!("no {header}: {answer:?}"));
    let found = value.split(';').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
    found.unwrap_or_else(|| panic!("no {name} in {value}")).parse().unwrap()
}

/// Time from acceptance of an operation until it is due.
fn waits(api: &Api, answer: &Answer) -> Duration {
    let kept = api.store.kept(&answer.text("id"));
    kept.eligible_at.since(kept.created_at)
}

#[test]
fn operations_beyond_the_burst_are_accepted_and_due_one_after_the_other() {
    run(async {
        let api = limited(PoliciesConfig { heavy: SLOW, ..PoliciesConfig::default() });
        let mut due = Vec::new();
        for n in 0..40 {
            let answer = submit(&api, role(&format!("role {n}"))).await;
            assert_eq!(answer.status, 202, "{answer:?}");
            assert_eq!(answer.header("ratelimit-policy").as_deref(), Some("\"heavy\";q=2;w=2"));
            let waits = waits(&api, &answer);
            assert_eq!(parameter(&answer, "ratelimit", "r") > 0, n == 0 && waits.is_zero(), "{answer:?}");
            let said = answer.text("eligible_at");
            assert_eq!(api.get(&answer.text("href")).await.text("eligible_at"), said);
            due.push(waits);
        }
        assert!(due[0].is_zero(), "{due:?}");
        // 38 of them exceed the burst, and become due one after the other.
        assert!(due[39] > Duration::from_secs(20), "{due:?}");
        assert_eq!(api.store.count(), 40);
    });
}

#[test]
fn what_would_be_due_too_late_is_refused_and_nothing_of_it_is_kept() {
    run(async {
        let policies =
            PoliciesConfig { heavy: SLOW, heavy_max_wait: Duration::from_secs(5), ..PoliciesConfig::default() };
        let api = limited(policies);
        let mut accepted = 0;
        let refused = loop {
            let answer = submit(&api, role("a")).await;
            if answer.status != 202 {
                break answer;
            }
            accepted += 1;
            assert!(accepted < 1_000, "the limit is never reached");
        };
        assert!(accepted >= 7, "{accepted}");
        let body = refused.is_problem(429, "too-many-requests").json();
        assert_eq!(body["policy"], "heavy");
        let after: u64 = refused.header("retry-after").unwrap().parse().unwrap();
        assert!(after >= 1 && body["retry_after_ms"].as_u64().unwrap() <= after * 1_000, "{refused:?}");
        assert_eq!(parameter(&refused, "ratelimit", "r"), 0);
        assert_eq!(api.store.count(), accepted);
    });
}

#[test]
fn an_operation_that_could_not_be_done_in_time_is_refused_instead_of_left_to_die() {
    run(async {
        let api = limited(PoliciesConfig { heavy: SLOW, ..PoliciesConfig::default() });
        for _ in 0..10 {
            assert_eq!(submit(&api, role("a")).await.status, 202);
        }
        let soon = json!({"kind": "create_role", "payload": {"name": "b"}, "deadline_ms": 100});
        let says = submit(&api, soon).await.is_problem(429, "too-many-requests").text("detail");
        assert!(says.contains("deadline"), "{says}");
        let later = json!({"kind": "create_role", "payload": {"name": "b"}, "delay_ms": 600_000});
        let answer = submit(&api, later).await;
        assert_eq!(waits(&api, &answer), Duration::from_secs(600), "the longer delay applies");
        assert_eq!(api.store.count(), 11);
    });
}

#[test]
fn doing_many_letters_again_is_as_heavy_and_is_refused_beyond_the_burst() {
    run(async {
        let api = limited(PoliciesConfig { heavy: SLOW, ..PoliciesConfig::default() });
        for _ in 0..10 {
            assert_eq!(submit(&api, role("a")).await.status, 202);
        }
        let refused = api.post("/v1/dead-letters/redrive", json!({})).await;
        refused.is_problem(429, "too-many-requests");
        assert_eq!(api.get("/v1/operations").await.status, 200, "reads have another limit");
    });
}

#[test]
fn each_key_has_its_own_count_and_health_has_none() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let policies = PoliciesConfig { light: Rate::new(1, 20), ..PoliciesConfig::default() };
        let control = ControlConfig { policies, ..ControlConfig::default() };
        let api = OnSqlite::open_with(&folder, 5, control).await;
        let made = api.ask("POST", "/v1/keys", json!({"name": "a test", "scopes": ["operations:read"]})).await;
        let other = format!("Bearer {}", made.text("key"));
        let mut answers = Vec::new();
        for _ in 0..60 {
            answers.push(api.ask("GET", "/v1/operations", Value::Null).await);
        }
        let refused: Vec<_> = answers.iter().filter(|answer| answer.status == 429).collect();
        assert!(refused.len() >= 20, "{}", refused.len());
        assert_eq!(refused[0].is_problem(429, "too-many-requests").json()["policy"], "light");
        // Unknown and forbidden paths count, too.
        api.ask("GET", "/v1/elsewhere", Value::Null).await.is_problem(429, "too-many-requests");

        let with = async |path: &str| call(api.address(), "GET", path, &[("Authorization", &other)], "").await;
        assert_eq!(with("/v1/operations").await.status, 200);
        let forbidden = with("/v1/audit").await;
        forbidden.is_problem(403, "forbidden");
        assert!(parameter(&forbidden, "ratelimit", "r") <= 18);
        for _ in 0..60 {
            let answer = call(api.address(), "GET", "/livez", &[], "").await;
            assert_eq!((answer.status, answer.header("ratelimit")), (200, None));
        }
    });
}

#[test]
fn an_address_that_shows_wrong_keys_is_slowed_down_and_good_keys_are_not() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let policies = PoliciesConfig { failed: Rate::new(1, 5), ..PoliciesConfig::default() };
        let api = OnSqlite::open_with(&folder, 5, ControlConfig { policies, ..ControlConfig::default() }).await;
        let made = api.ask("POST", "/v1/keys", json!({"name": "a test", "scopes": ["operations:read"]})).await;
        let (key, id) = (made.text("key"), made.text("id"));
        let with = async |key: &str| {
            let shown = format!("Bearer {key}");
            call(api.address(), "GET", "/v1/operations", &[("Authorization", &shown)], "").await
        };
        assert_eq!(with(&key).await.status, 200);
        let (head, secret) = key.rsplit_once(&id).unwrap();
        let mut said = [0; 2];
        for n in 0..60_u32 {
            // No key, an invalid format, a wrong secret, and guessed ids.
            let wrong = match n % 4 {
                0 => String::new(),
                1 => "nonsense".to_owned(),
                2 => format!("{head}{id}{}", secret.replace(|c: char| c.is_ascii_digit(), "x")),
                _ => format!("{head}{}{secret}", format!("{n:02}").repeat(id.len()).split_at(id.len()).0),
            };
            match with(&wrong).await {
                answer if answer.status == 401 => said[0] += 1,
                answer => {
                    assert_eq!(answer.is_problem(429, "too-many-requests").json()["policy"], "failed");
                    said[1] += 1;
                }
            }
        }
        assert!(said[0] >= 5 && said[1] >= 20, "{said:?}");
        assert_eq!(with(&key).await.status, 200, "valid keys of that address keep working");
        assert_eq!(with(KEY).await.status, 200);
    });
}

#[test]
fn behind_a_proxy_callers_are_told_apart_if_it_is_trusted() {
    let count_refused = |proxies: TrustedProxies, header: &'static str| {
        run(async move {
            let policies = PoliciesConfig { failed: Rate::new(1, 1), ..PoliciesConfig::default() };
            let control = ControlConfig { policies, ..ControlConfig::default() };
            let api = Setup { control, proxies, ..Setup::default() }.start();
            let mut refused = 0;
            for n in 0..30 {
                // The left address is set by the caller.
                let from = if header == "forwarded" { format!("for=203.0.113.{n}") } else { format!("203.0.113.{n}") };
                let headers = [("Authorization", "Bearer wrong"), (header, from.as_str())];
                let answer = call(api.address(), "GET", "/v1/operations", &headers, "").await;
                refused += usize::from(answer.status == 429);
            }
            refused
        })
    };
    let trusted = || TrustedProxies { trusted: vec!["127.0.0.0/8".parse().unwrap()], ..TrustedProxies::default() };
    assert_eq!(count_refused(trusted(), "x-forwarded-for"), 0);
    assert!(count_refused(trusted(), "forwarded") >= 10, "the header is not configured");
    assert!(count_refused(TrustedProxies::default(), "x-forwarded-for") >= 10, "the proxy is not trusted");
}

#[test]
fn more_callers_than_are_remembered_are_counted_together() {
    run(async {
        let policies = PoliciesConfig { failed: Rate::new(1, 3), most: 4, ..PoliciesConfig::default() };
        let proxies = TrustedProxies { trusted: vec!["127.0.0.0/8".parse().unwrap()], ..TrustedProxies::default() };
        let control = ControlConfig { policies, ..ControlConfig::default() };
        let api = Setup { control, proxies, ..Setup::default() }.start();
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
        let api = limited(policies);
        let batch = |count: usize| json!({"operations": (0..count).map(|_| role("a")).collect::<Vec<_>>()});
        let first = submit(&api, batch(8)).await;
        assert_eq!(first.status, 202, "{first:?}");
        assert_eq!(parameter(&first, "ratelimit", "r"), 2, "{first:?}");
        // Larger than the rest of the burst, and than the whole burst: accepted, but later submissions wait.
        let second = submit(&api, batch(40)).await;
        assert_eq!((second.status, parameter(&second, "ratelimit", "r")), (202, 0), "{second:?}");
        let third = submit(&api, role("b")).await;
        assert!(waits(&api, &third) > Duration::from_secs(30), "{third:?}");
        let fourth = submit(&api, batch(40)).await;
        assert_eq!(fourth.status, 202, "{fourth:?}");
        let refused = submit(&api, batch(2)).await;
        assert_eq!(refused.is_problem(429, "too-many-requests").json()["policy"], "heavy");
        assert_eq!(api.store.count(), 8 + 40 + 1 + 40);
    });
}

#[test]
fn large_body_costs_as_much_as_many_operations() {
    run(async {
        let api = limited(PoliciesConfig { heavy: Rate::new(1, 100), ..PoliciesConfig::default() });
        let large = json!({"kind": "create_role", "payload": {"name": "a"}, "reason": "r".repeat(80 * 1_024)});
        let answer = submit(&api, large).await;
        let left = parameter(&answer, "ratelimit", "r");
        assert!((85..=90).contains(&left), "{left}: {answer:?}");
    });
}
