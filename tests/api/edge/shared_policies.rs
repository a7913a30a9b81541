//! Request counts that processes share over Redis.

use std::{cell::RefCell, net::SocketAddr, sync::Arc, time::Duration};

use guildhall::api;
use guildhall::api::admin_key::AdminKey;
use guildhall::api::{Control, ControlConfig, Listener, PoliciesConfig, Readiness};
use guildhall::redis::{RedisClient, RedisConfig, RedisKeys, RedisPolicies};
use guildhall::settings::SecretValue;
use guildhall_core::{
    policy::{Meter, Rate},
    time::Timestamp,
};
use guildhall_testkit::{
    program::TEST_TIMEOUT,
    redis::{RedisServer, Relay},
};
use metrics_exporter_prometheus::PrometheusBuilder;
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{
    KEY,
    http::{Response, send_request},
};

const SCRIPT: &str = include_str!("../../../src/redis/policies.lua");

#[test]
fn redis_script_counts_like_the_meter() {
    let server = RedisServer::start();
    let redis = RefCell::new(server.client().get_connection().unwrap());
    assert!(SCRIPT.contains("redis.call('TIME')"));
    // The clock of the test instead of the server's.
    let script = redis::Script::new(&SCRIPT.replace("redis.call('TIME')", "{ARGV[6], ARGV[7]}"));
    let requests = prop::collection::vec((0..3_u8, 0..2_000_000_u64, 1..50_u32, any::<bool>()), 1..60);
    let max_delay = Duration::from_secs(60);
    let mut runner = TestRunner::new(Config { cases: 64, ..Config::default() });
    let cases = (1..500_u32, 1..40_u32, requests);
    runner
        .run(&cases, |(per_second, burst, requests)| {
            let rate = Rate::new(per_second, burst).unwrap();
            let redis = &mut *redis.borrow_mut();
            redis::cmd("FLUSHALL").exec(redis).unwrap();
            let mut meter = Meter::new(rate, 10);
            let mut now = 1_780_000_000_000_000_u64;
            for (caller, elapsed, cost, waits) in requests {
                now += elapsed;
                let max_wait = if waits { max_delay } else { Duration::ZERO };
                let mut call = script.key(format!("bucket {caller}"));
                let max_debt = max_delay + rate.interval() * 50;
                for argument in [rate.interval(), rate.window(), max_wait, max_debt] {
                    call.arg(u64::try_from(argument.as_micros()).unwrap());
                }
                call.arg(cost);
                let debt: u64 = call.arg(now / 1_000_000).arg(now % 1_000_000).invoke(redis).unwrap();
                let expected = meter.on_request(caller, cost, max_wait, Timestamp::from_micros(now)).decision;
                prop_assert_eq!(rate.decide(Duration::from_micros(debt), cost, max_wait), expected);
            }
            Ok(())
        })
        .unwrap();
}

/// A process of a fleet, with its policies only. It responds that it is starting, or that the limit is exceeded.
struct FleetMember {
    listener: Listener,
    _control: Control,
}

impl FleetMember {
    fn start(redis: &RedisConfig, heavy: Rate) -> Self {
        let policies =
            PoliciesConfig { heavy: Some(heavy), heavy_max_wait: Duration::ZERO, ..PoliciesConfig::default() };
        let control =
            Control::new(AdminKey::new(&SecretValue::new(KEY)), ControlConfig { policies, ..ControlConfig::default() });
        let shared = RedisPolicies::new(RedisClient::new(redis.clone()).unwrap(), RedisKeys::new(42), Duration::ZERO);
        control.share_policies(Arc::new(shared));
        let bound = api::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let metrics = PrometheusBuilder::new().build_recorder().handle();
        let listener = bound.serve(Readiness::default(), metrics, Some(control.clone())).unwrap();
        Self { listener, _control: control }
    }

    async fn submit(&self) -> Response {
        let body = serde_json::json!({"kind": "create_role", "payload": {"name": "a"}});
        send_request(self.listener.address(), "POST", "/v1/guilds/7/operations", &body).await.unwrap()
    }

    /// Submits until the limit is exceeded. Returns how many requests were not limited.
    async fn exhaust(&self) -> usize {
        for accepted in 0..1_000 {
            match self.submit().await.status {
                503 => {}
                429 => return accepted,
                other => panic!("{other}"),
            }
        }
        panic!("the limit is never reached");
    }
}

fn config(url: guildhall::settings::RedisUrl) -> RedisConfig {
    RedisConfig { url, ca_file: None, timeout: Duration::from_secs(5) }
}

#[test]
fn processes_share_counts_and_count_alone_without_redis() {
    guildhall::daemon::block_on(async {
        let server = RedisServer::start();
        let relay = Relay::to(&server);
        // Only one request a second is restored while the test runs.
        let rate = Rate::new(1, 20).unwrap();
        let members = [FleetMember::start(&config(relay.url()), rate), FleetMember::start(&config(relay.url()), rate)];
        let keys = server.client();
        let policy_keys = || -> Vec<String> {
            let mut connection = keys.get_connection().unwrap();
            redis::cmd("KEYS").arg("*policy*").query(&mut connection).unwrap()
        };
        // A call that is slow on a busy machine counts as failed. Later ones are counted together.
        let deadline = Instant::now() + TEST_TIMEOUT;
        while policy_keys().is_empty() {
            members[0].submit().await;
            assert!(Instant::now() < deadline, "Redis is never called");
            sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(policy_keys(), ["guildhall:{42}:policy:heavy:admin"]);
        members[0].exhaust().await;
        // What one process has used is not available to the other.
        let refused = loop {
            let response = members[1].submit().await;
            if response.status == 429 {
                break response;
            }
        };
        assert!(refused.head.contains("ratelimit: \"heavy\";r=0"), "{refused:?}");
        let mut connection = keys.get_connection().unwrap();
        let full_at: f64 = redis::cmd("GET").arg(&policy_keys()[0]).query(&mut connection).unwrap();
        let (seconds, _): (f64, f64) = redis::cmd("TIME").query(&mut connection).unwrap();
        assert!(full_at / 1e6 - seconds <= 21.0, "no more than the burst was granted: {full_at}");

        relay.cut();
        // Alone it is no stricter: requests are neither refused forever nor delayed for long.
        let deadline = Instant::now() + TEST_TIMEOUT;
        while members[1].submit().await.status == 429 {
            assert!(Instant::now() < deadline, "without Redis everything is refused");
            sleep(Duration::from_millis(100)).await;
        }
        redis::cmd("FLUSHALL").exec(&mut connection).unwrap();
        relay.restore();
        let deadline = Instant::now() + TEST_TIMEOUT;
        while policy_keys().is_empty() {
            members[1].submit().await;
            assert!(Instant::now() < deadline, "Redis is never called again");
            sleep(Duration::from_millis(100)).await;
        }
    })
    .unwrap();
}

#[test]
fn refusal_does_not_call_redis() {
    guildhall::daemon::block_on(async {
        let server = RedisServer::start();
        let member = FleetMember::start(&config(server.url()), Rate::new(1, 3).unwrap());
        member.exhaust().await;
        let calls = || -> usize {
            let mut connection = server.client().get_connection().unwrap();
            let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut connection).unwrap();
            let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")).unwrap_or("0,");
            line.split(',').next().unwrap().parse().unwrap()
        };
        let before = calls();
        let refused = {
            let mut refused = 0;
            for _ in 0..50 {
                refused += usize::from(member.submit().await.status == 429);
            }
            refused
        };
        assert!(refused >= 25, "{refused}");
        assert!(calls() - before <= 50 - refused, "a refusal does not call Redis");

        let ready = send_request(member.listener.address(), "GET", "/livez", &Value::Null).await.unwrap();
        assert_eq!(ready.status, 200);
    })
    .unwrap();
}
