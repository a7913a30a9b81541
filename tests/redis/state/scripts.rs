//! The scripts that store shared breaker states, one rule at a time. They use the test's clock.

use redis::Script;
use serde_json::Value;

use super::*;

/// Modifies a script to read the clock from its last argument, in microseconds.
pub(crate) fn with_clock(text: &str) -> String {
    let clock = "local real = redis
        local redis = { call = function(name, ...)
            if name == 'TIME' then
                local now = tonumber(ARGV[#ARGV])
                return { string.format('%.0f', math.floor(now / 1000000)), string.format('%.0f', now % 1000000) }
            end
            return real.call(name, ...)
        end }
        ";
    format!("{clock}{text}")
}

/// A private Redis server and its scripts.
struct BreakerScripts {
    _server: RedisServer,
    client: MultiplexedConnection,
    publish_script: Script,
    read: Script,
    claim: Script,
    now: u64,
}

const START: u64 = 1_700_000_000_000_000;
const SECOND: u64 = 1_000_000;

impl BreakerScripts {
    async fn new() -> Self {
        let server = RedisServer::start();
        Self {
            client: client(&server).await,
            _server: server,
            publish_script: Script::new(&with_clock(include_str!("../../../src/redis/publish.lua"))),
            read: Script::new(&with_clock(include_str!("../../../src/redis/read.lua"))),
            claim: Script::new(include_str!("../../../src/redis/claim.lua")),
            now: START,
        }
    }

    /// Publishes a state, and returns the script's result code and the stored record or version floor.
    async fn publish(&mut self, command: &str, by: &str, number: u64, state: (&str, &str, u64)) -> (String, String) {
        let (state, reason, remaining) = state;
        let head = format!(r#"{{"kind":"breaker","state":"{state}","by":"{by}""#);
        let mut call = self.publish_script.key(BREAKERS);
        call.key("clock").key("claim").arg(command).arg("field").arg(head).arg(state).arg(reason).arg(remaining);
        call.arg(by).arg(number).arg(NEWS).arg(86_400_000).arg(2).arg(self.now);
        let (result, now, text): (String, u64, String) = call.invoke_async(&mut self.client).await.unwrap();
        assert_eq!(now, self.now / 1_000);
        (result, text)
    }

    /// Claims the probe. Returns for how many milliseconds another process has it.
    async fn claim(&mut self, by: &str) -> u64 {
        self.claim.key("claim").arg(by).arg(60_000).invoke_async(&mut self.client).await.unwrap()
    }

    async fn publish_change(&mut self, by: &str, number: u64, state: (&str, &str, u64)) -> String {
        self.publish("change", by, number, state).await.0
    }

    /// The stored records: state and version of each.
    async fn read(&mut self) -> Vec<(String, u64)> {
        let mut call = self.read.key(BREAKERS);
        call.key("clock").arg(600_000).arg(3_600).arg(86_400_000).arg(self.now);
        let answer: Vec<redis::Value> = call.invoke_async(&mut self.client).await.unwrap();
        let records = answer.into_iter().skip(1).map(|record| {
            let record: String = redis::from_redis_value(record).unwrap();
            let record: Value = serde_json::from_str(&record).unwrap();
            let version = record["version"].as_str().unwrap().parse().unwrap();
            (record["state"].as_str().unwrap().to_owned(), version)
        });
        records.collect()
    }
}

const OPEN: (&str, &str, u64) = ("open", "failure_rate", 30_000);
const FORCED: (&str, &str, u64) = ("forced_open", "forced", 0);
const PROBED: (&str, &str, u64) = ("closed", "probes_succeeded", 0);
const RESET: (&str, &str, u64) = ("closed", "reset", 0);

#[test]
fn versions_increase_even_if_the_clock_goes_back() {
    run(async {
        let mut scripts = BreakerScripts::new().await;
        scripts.publish_change("one", 1, OPEN).await;
        assert_eq!(scripts.read().await, [("open".to_owned(), START)]);
        scripts.now -= 10 * SECOND;
        scripts.publish_change("other", 1, PROBED).await;
        assert_eq!(scripts.read().await, [("closed".to_owned(), START + 1)]);
    });
}

#[test]
fn forced_open_is_not_changed_by_a_timed_open_or_by_probes() {
    run(async {
        let mut scripts = BreakerScripts::new().await;
        assert_eq!(scripts.publish_change("one", 1, FORCED).await, "published");
        for (number, weak) in [(1, OPEN), (2, PROBED)] {
            let (result, text) = scripts.publish("change", "other", number, weak).await;
            assert_eq!(result, "existing");
            assert!(text.contains(r#""forced_open""#), "{text}");
        }
        assert_eq!(scripts.publish_change("other", 3, RESET).await, "published");
        assert_eq!(scripts.publish_change("other", 4, OPEN).await, "published");
    });
}

#[test]
fn stale_update_of_a_process_is_ignored() {
    run(async {
        let mut scripts = BreakerScripts::new().await;
        scripts.publish_change("one", 2, RESET).await;
        let (result, text) = scripts.publish("change", "one", 1, FORCED).await;
        assert_eq!(result, "existing");
        assert!(text.contains(r#""closed""#), "{text}");
        // Nor is the same update accepted twice.
        assert_eq!(scripts.publish_change("one", 2, RESET).await, "existing");
        assert_eq!(scripts.publish_change("other", 1, FORCED).await, "published");
        // A process without updates for a long time may be forgotten.
        scripts.now += 3_601 * SECOND;
        scripts.read().await;
        let fields: Vec<String> = redis::cmd("HKEYS").arg("clock").query_async(&mut scripts.client).await.unwrap();
        assert!(!fields.contains(&"by:one".to_owned()), "{fields:?}");
    });
}

#[test]
fn ended_record_is_dropped_and_not_seeded_again() {
    run(async {
        let mut scripts = BreakerScripts::new().await;
        scripts.publish_change("one", 1, FORCED).await;
        let (_, forced) = scripts.read().await.remove(0);
        scripts.now += SECOND;
        scripts.publish_change("one", 2, RESET).await;
        scripts.now += 600 * SECOND;
        assert_eq!(scripts.read().await.len(), 1);
        scripts.now += SECOND;
        assert!(scripts.read().await.is_empty());
        let (result, floor) = scripts.publish("seed", "other", forced, FORCED).await;
        assert_eq!((result.as_str(), floor.parse()), ("ended", Ok(START + SECOND)));
        // A record newer than all that were dropped is accepted, and then stored.
        assert_eq!(scripts.publish("seed", "other", START + 2 * SECOND, FORCED).await.0, "published");
        assert_eq!(scripts.publish("seed", "third", START + 2 * SECOND, FORCED).await.0, "existing");
    });
}

#[test]
fn empty_redis_accepts_a_seed() {
    run(async {
        let mut scripts = BreakerScripts::new().await;
        assert_eq!(scripts.publish("seed", "one", START - 1, FORCED).await.0, "published");
        assert_eq!(scripts.read().await.len(), 1);
    });
}

#[test]
fn record_expires_after_its_cooldown() {
    run(async {
        let mut scripts = BreakerScripts::new().await;
        scripts.publish_change("one", 1, OPEN).await;
        scripts.now += 30 * SECOND - 1_000;
        assert_eq!(scripts.read().await.len(), 1);
        scripts.now += 1_000;
        assert_eq!(scripts.publish("seed", "one", START + 1, OPEN).await.0, "published");
        scripts.now += 30 * SECOND;
        assert!(scripts.read().await.is_empty());
    });
}

#[test]
fn number_of_records_is_limited() {
    run(async {
        let mut scripts = BreakerScripts::new().await;
        for number in 0..2 {
            let () =
                redis::cmd("HSET").arg(BREAKERS).arg(number).arg("{}").query_async(&mut scripts.client).await.unwrap();
        }
        assert_eq!(scripts.publish_change("one", 1, OPEN).await, "full");
    });
}

#[test]
fn probe_claim_is_exclusive_until_its_owner_reports() {
    run(async {
        let mut scripts = BreakerScripts::new().await;
        scripts.publish_change("one", 1, OPEN).await;
        assert_eq!(scripts.claim("one").await, 0);
        assert_eq!(scripts.claim("one").await, 0, "the owner may renew it");
        assert!((1..=60_000).contains(&scripts.claim("other").await));
        scripts.publish_change("other", 1, OPEN).await;
        assert_ne!(scripts.claim("other").await, 0, "only the owner releases it");
        scripts.publish_change("one", 2, PROBED).await;
        assert_eq!(scripts.claim("other").await, 0);
    });
}
