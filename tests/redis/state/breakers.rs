//! Breaker changes of one process, and their effect in the others.

use guildhall_actors::circuit_breaker::ReplaceToken;
use guildhall_core::breaker::{BreakerReason, ChangeOrigin};
use guildhall_testkit::log::Log;
use guildhall_testkit::redis::Relay;

use super::*;

fn discord() -> BreakerKey {
    BreakerKey::Discord(BOT)
}

/// Two processes that are permitted to call.
async fn two_processes(server: &RedisServer) -> (Process, Process) {
    let one = Process::ready(ProcessConfig::new(server.url(), "one"), server).await;
    (one, Process::ready(ProcessConfig::new(server.url(), "other"), server).await)
}

#[test]
fn ban_stops_all_processes_behind_the_same_address() {
    run(async {
        let server = RedisServer::start();
        let (one, other) = two_processes(&server).await;
        let elsewhere = ProcessConfig { ip_group: "away", ..ProcessConfig::new(server.url(), "elsewhere") }.start();
        let (mut here, mut there, mut away) = (one.changes().await, other.changes().await, elsewhere.changes().await);
        one.run(call(7), BAN).await;
        let opened = next_change(&mut there, &BreakerKey::Address, "open").await;
        assert_eq!((opened.why, opened.origin), (BreakerReason::Blocked, ChangeOrigin::Elsewhere));
        assert!(opened.retry_after_ms.is_some_and(|wait| wait <= 3_600_000));
        assert_eq!(other.refusal().await, Some("blocked"));
        // The process receives the change that was published later, so it received this one, too.
        other.force(&target("crm")).await;
        next_change(&mut away, &target("crm"), "forced_open").await;
        assert_eq!(elsewhere.state_of(&BreakerKey::Address).await, "closed");
        // Nothing was published twice: after its own change, the first process only receives the other's.
        next_change(&mut here, &BreakerKey::Address, "open").await;
        assert_eq!(here.recv().await.unwrap().key, target("crm"));
    });
}

#[test]
fn log_has_the_origin_of_a_change() {
    run(async {
        let (log, _guards) = Log::capture(tracing::Level::INFO);
        let server = RedisServer::start();
        let (one, other) = two_processes(&server).await;
        one.force(&target("crm")).await;
        other.until_state(&target("crm"), "forced_open").await;
        let text = log.text();
        for origin in ["here", "elsewhere"] {
            let line = format!("why=\"forced\" origin=\"{origin}\"");
            assert_eq!(text.matches(&line).count(), 1, "{line} in {text}");
        }
    });
}

#[test]
fn invalid_token_stops_its_users_until_replaced_or_reset() {
    run(async {
        let server = RedisServer::start();
        let (one, other) = two_processes(&server).await;
        let with_new =
            Process::ready(ProcessConfig { token: "new", ..ProcessConfig::new(server.url(), "new") }, &server).await;
        one.run(call(7), UNAUTHORIZED).await;
        other.until_state(&discord(), "forced_open").await;
        assert_eq!(other.refusal().await, Some("unauthorized"));
        // The process with the new token receives later changes, and continues.
        one.force(&target("crm")).await;
        with_new.until_state(&target("crm"), "forced_open").await;
        with_new.run(call(7), SUCCESS).await;
        // A process that gets the new token continues. The others still have the old one.
        let new = ReplaceToken { credential: BOT, fingerprint: "new".to_owned() };
        other.breaker.send(new).await.unwrap();
        other.run(call(7), SUCCESS).await;
        assert_eq!(one.refusal().await, Some("unauthorized"));
        // The new token is invalid as well.
        with_new.run(call(7), UNAUTHORIZED).await;
        other.until_state(&discord(), "forced_open").await;
        with_new.reset(&discord()).await;
        other.until_state(&discord(), "closed").await;
        assert_eq!(one.refusal().await, Some("unauthorized"));
    });
}

#[test]
fn manual_open_and_reset_apply_in_all_processes() {
    run(async {
        let server = RedisServer::start();
        let (one, other) = two_processes(&server).await;
        let route = BreakerKey::Route(BOT, RouteKey::new(READ));
        for key in [BreakerKey::Address, discord(), route, target("crm")] {
            let mut changes = other.changes().await;
            one.force(&key).await;
            let forced = next_change(&mut changes, &key, "forced_open").await;
            assert_eq!((forced.why, forced.origin), (BreakerReason::Forced, ChangeOrigin::Elsewhere));
            let mut changes = one.changes().await;
            other.reset(&key).await;
            let closed = next_change(&mut changes, &key, "closed").await;
            assert_eq!((closed.why, closed.origin), (BreakerReason::Reset, ChangeOrigin::Elsewhere));
        }
    });
}

/// Two processes that share a half-open route.
async fn half_open(server: &RedisServer) -> (Process, Process, BreakerKey) {
    let short = |name| ProcessConfig { cooldown: Duration::from_millis(300), ..ProcessConfig::new(server.url(), name) };
    let one = Process::ready(short("one"), server).await;
    let other = Process::ready(short("other"), server).await;
    let route = BreakerKey::Route(BOT, RouteKey::new(READ));
    let (mut here, mut there) = (one.changes().await, other.changes().await);
    for id in 0..5 {
        one.run(call(id), CallResult::TimedOut).await;
    }
    assert_eq!(next_change(&mut there, &route, "open").await.origin, ChangeOrigin::Elsewhere);
    next_change(&mut here, &route, "half_open").await;
    next_change(&mut there, &route, "half_open").await;
    (one, other, route)
}

#[test]
fn one_process_probes_a_failing_route_and_closes_it_for_all() {
    run(async {
        let server = RedisServer::start();
        let (one, other, route) = half_open(&server).await;
        let first = loop {
            match (one.admit(call(1)).await, other.admit(call(1)).await) {
                (Ok(first), Err(_)) => break (first, &one, &other),
                (Err(_), Ok(first)) => break (first, &other, &one),
                (Err(_), Err(_)) => yield_now().await,
                (Ok(_), Ok(_)) => panic!("both processes probe"),
            }
        };
        let (first, prober, waiting) = first;
        assert_eq!(waiting.refusal().await, Some("breaker_half_open"));
        let mut there = waiting.changes().await;
        first.report(SUCCESS, Duration::ZERO).attempt().await;
        for id in 0..2 {
            prober.run(call(id), SUCCESS).await;
        }
        assert_eq!(prober.state_of(&route).await, "closed");
        let closed = next_change(&mut there, &route, "closed").await;
        assert_eq!((closed.why, closed.origin), (BreakerReason::ProbesSucceeded, ChangeOrigin::Elsewhere));
    });
}

#[test]
fn disconnected_process_probes_alone() {
    run(async {
        let mut server = RedisServer::start();
        let short = ProcessConfig { cooldown: Duration::from_millis(300), ..ProcessConfig::new(server.url(), "one") };
        let one = Process::ready(short, &server).await;
        let route = BreakerKey::Route(BOT, RouteKey::new(READ));
        let mut changes = one.changes().await;
        for id in 0..5 {
            one.run(call(id), CallResult::TimedOut).await;
        }
        server.kill();
        next_change(&mut changes, &route, "half_open").await;
        wait_until(async || one.refusal().await.is_none()).await;
    });
}

#[test]
fn late_process_reads_the_current_states() {
    run(async {
        let server = RedisServer::start();
        let one = Process::ready(ProcessConfig::new(server.url(), "one"), &server).await;
        one.run(call(7), BAN).await;
        one.force(&target("crm")).await;
        let mut client = client(&server).await;
        wait_until(async || {
            let mut client = client.clone();
            redis::cmd("HLEN").arg(BREAKERS).query_async::<usize>(&mut client).await.unwrap() == 2
        })
        .await;
        let late = ProcessConfig::new(server.url(), "late").start();
        late.until_state(&BreakerKey::Address, "open").await;
        late.until_state(&target("crm"), "forced_open").await;
        // All keys have a TTL.
        for key in [BREAKERS, "guildhall:{42}:breakers:clock", LEDGER] {
            let ttl: i64 = redis::cmd("PTTL").arg(key).query_async(&mut client).await.unwrap();
            assert!(ttl > 0, "the TTL of {key} is {ttl}");
        }
    });
}

#[test]
fn processes_restore_an_emptied_redis() {
    run(async {
        let mut server = RedisServer::start();
        let (one, other) = two_processes(&server).await;
        one.force(&discord()).await;
        other.until_state(&discord(), "forced_open").await;
        drop(one);
        let mut connection = client(&server).await;
        let () = redis::cmd("FLUSHALL").query_async(&mut connection).await.unwrap();
        let late = ProcessConfig::new(server.url(), "late").start();
        late.until_state(&discord(), "forced_open").await;
        drop(late);
        server.restart_empty();
        let later = ProcessConfig::new(server.url(), "later").start();
        later.until_state(&discord(), "forced_open").await;
        // A reset has the usual effect.
        later.reset(&discord()).await;
        other.until_state(&discord(), "closed").await;
    });
}

#[test]
fn reconnected_process_reads_and_reports_missed_changes() {
    run(async {
        let server = RedisServer::start();
        let relay = Relay::to(&server);
        let one = Process::ready(ProcessConfig::new(server.url(), "one"), &server).await;
        let far = Process::ready(ProcessConfig::new(relay.url(), "far"), &server).await;
        one.force(&target("crm")).await;
        far.until_state(&target("crm"), "forced_open").await;
        relay.cut();
        one.reset(&target("crm")).await;
        one.force(&target("shop")).await;
        // A ban in the disconnected process, and a manual open that is reset again.
        far.run(call(7), BAN).await;
        far.force(&target("mail")).await;
        far.reset(&target("mail")).await;
        assert_eq!(far.refusal().await, Some("blocked"));
        assert_eq!(far.state_of(&target("crm")).await, "forced_open");
        assert_eq!(one.state_of(&BreakerKey::Address).await, "closed");
        relay.restore();
        far.until_state(&target("crm"), "closed").await;
        far.until_state(&target("shop"), "forced_open").await;
        one.until_state(&BreakerKey::Address, "open").await;
        assert_eq!(one.state_of(&target("mail")).await, "closed");
    });
}

#[test]
fn expired_reset_is_not_undone_by_a_process_that_missed_it() {
    run(async {
        let server = RedisServer::start();
        let relay = Relay::to(&server);
        let one = ProcessConfig::new(server.url(), "one").start();
        let far = ProcessConfig::new(relay.url(), "far").start();
        one.force(&target("crm")).await;
        far.until_state(&target("crm"), "forced_open").await;
        relay.cut();
        one.reset(&target("crm")).await;
        // As if the retention time of the reset had passed: its version is moved to the past.
        let mut client = client(&server).await;
        with_timeout(async {
            loop {
                let record: String =
                    redis::cmd("HGET").arg(BREAKERS).arg("target:crm").query_async(&mut client).await.unwrap();
                if record.contains("\"closed\"") {
                    let mut record: serde_json::Value = serde_json::from_str(&record).unwrap();
                    let version: u64 = record["version"].as_str().unwrap().parse().unwrap();
                    record["version"] = (version - 3_600_000_000).to_string().into();
                    // The version that the disconnected process knows is older still.
                    let set = redis::cmd("HSET").arg(BREAKERS).arg("target:crm").arg(record.to_string()).clone();
                    let floor =
                        redis::cmd("HSET").arg("guildhall:{42}:breakers:clock").arg("floor").arg(version).clone();
                    let () = set.query_async(&mut client).await.unwrap();
                    let () = floor.query_async(&mut client).await.unwrap();
                    break;
                }
            }
        })
        .await;
        wait_until(async || {
            let mut client = client.clone();
            redis::cmd("HLEN").arg(BREAKERS).query_async::<usize>(&mut client).await.unwrap() == 0
        })
        .await;
        relay.restore();
        far.until_state(&target("crm"), "closed").await;
        assert_eq!(one.state_of(&target("crm")).await, "closed");
    });
}

#[test]
fn suspended_redis_does_not_block_decisions() {
    run(async {
        let server = RedisServer::start();
        let (one, other) = two_processes(&server).await;
        server.stop();
        one.run(call(7), SUCCESS).await;
        one.force(&target("crm")).await;
        assert_eq!(one.state_of(&target("crm")).await, "forced_open");
        one.reset(&target("crm")).await;
        one.force(&target("shop")).await;
        server.resume();
        other.until_state(&target("shop"), "forced_open").await;
        // Whichever update was still in flight, the last one applies.
        other.until_state(&target("crm"), "closed").await;
        one.until_state(&target("crm"), "closed").await;
    });
}

#[test]
fn block_is_forwarded_and_an_invalid_message_is_not() {
    run(async {
        let server = RedisServer::start();
        let mut one = ProcessConfig::new(server.url(), "one").start();
        let mut client = client(&server).await;
        let received = with_timeout(async {
            loop {
                for text in
                    ["nonsense", r#"{"kind":"weather"}"#, r#"{"kind":"block","scope":"bot","ms":1234,"by":"m"}"#]
                {
                    let () = redis::cmd("PUBLISH").arg(NEWS).arg(text).query_async(&mut client).await.unwrap();
                }
                // Repeated until the process is subscribed.
                if let Ok(block) = one.blocks.try_recv() {
                    return block;
                }
                yield_now().await;
            }
        })
        .await;
        assert_eq!(received, RateLimitBlock { scope: "bot".to_owned(), ms: 1_234, by: "m".to_owned() });
    });
}
