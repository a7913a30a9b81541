//! Breaker changes of one process, and their effect in the others.

use guildhall_actors::circuit_breaker::ReplaceToken;
use guildhall_core::breaker::{BreakerReason, ChangeOrigin};

use super::log::Log;
use super::support::Relay;
use super::*;

fn discord() -> BreakerKey {
    BreakerKey::Discord(BOT)
}

/// Two processes that are permitted to call.
async fn two(server: &RedisServer) -> (Process, Process) {
    let one = Process::ready(Spec::new(server.url(), "one"), server).await;
    (one, Process::ready(Spec::new(server.url(), "other"), server).await)
}

#[test]
fn a_ban_that_one_process_sees_stops_all_behind_its_address_and_nobody_else() {
    run(async {
        let server = RedisServer::start();
        let (one, other) = two(&server).await;
        let elsewhere = Spec { ip_group: "away", ..Spec::new(server.url(), "elsewhere") }.start();
        let (mut here, mut there, mut away) = (one.changes().await, other.changes().await, elsewhere.changes().await);
        one.run(call(7), BAN).await;
        let heard = change(&mut there, &BreakerKey::Address, "open").await;
        assert_eq!((heard.why, heard.origin), (BreakerReason::Blocked, ChangeOrigin::Elsewhere));
        assert!(heard.retry_after_ms.is_some_and(|wait| wait <= 3_600_000));
        assert_eq!(other.refusal().await, Some("blocked"));
        // The process receives the change that was published later, so it received this one, too.
        other.force(&target("crm")).await;
        change(&mut away, &target("crm"), "forced_open").await;
        assert_eq!(elsewhere.state_of(&BreakerKey::Address).await, "closed");
        // Nothing was published twice: after its own change, the first process only receives the other's.
        change(&mut here, &BreakerKey::Address, "open").await;
        assert_eq!(here.recv().await.unwrap().key, target("crm"));
    });
}

#[test]
fn the_log_says_who_decided_a_change() {
    run(async {
        let (log, _guards) = Log::capture(tracing::Level::INFO);
        let server = RedisServer::start();
        let (one, other) = two(&server).await;
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
fn a_wrong_token_stops_those_who_have_it_until_it_is_replaced_or_reset() {
    run(async {
        let server = RedisServer::start();
        let (one, other) = two(&server).await;
        let with_new = Process::ready(Spec { token: "new", ..Spec::new(server.url(), "new") }, &server).await;
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
fn what_a_person_forces_and_resets_holds_in_all_processes() {
    run(async {
        let server = RedisServer::start();
        let (one, other) = two(&server).await;
        let route = BreakerKey::Route(BOT, RouteKey::new(READ));
        for key in [BreakerKey::Address, discord(), route, target("crm")] {
            let mut changes = other.changes().await;
            one.force(&key).await;
            let forced = change(&mut changes, &key, "forced_open").await;
            assert_eq!((forced.why, forced.origin), (BreakerReason::Forced, ChangeOrigin::Elsewhere));
            let mut changes = one.changes().await;
            other.reset(&key).await;
            let closed = change(&mut changes, &key, "closed").await;
            assert_eq!((closed.why, closed.origin), (BreakerReason::Reset, ChangeOrigin::Elsewhere));
        }
    });
}

/// Two processes that share a half-open route.
async fn half_open(server: &RedisServer) -> (Process, Process, BreakerKey) {
    let short = |name| Spec { cooldown: Duration::from_millis(300), ..Spec::new(server.url(), name) };
    let one = Process::ready(short("one"), server).await;
    let other = Process::ready(short("other"), server).await;
    let route = BreakerKey::Route(BOT, RouteKey::new(READ));
    let (mut here, mut there) = (one.changes().await, other.changes().await);
    for id in 0..5 {
        one.run(call(id), CallResult::TimedOut).await;
    }
    assert_eq!(change(&mut there, &route, "open").await.origin, ChangeOrigin::Elsewhere);
    change(&mut here, &route, "half_open").await;
    change(&mut there, &route, "half_open").await;
    (one, other, route)
}

#[test]
fn route_that_fails_is_probed_by_one_process_which_closes_it_for_all() {
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
        let closed = change(&mut there, &route, "closed").await;
        assert_eq!((closed.why, closed.origin), (BreakerReason::ProbesSucceeded, ChangeOrigin::Elsewhere));
    });
}

#[test]
fn process_that_cannot_reach_redis_probes_by_itself() {
    run(async {
        let mut server = RedisServer::start();
        let short = Spec { cooldown: Duration::from_millis(300), ..Spec::new(server.url(), "one") };
        let one = Process::ready(short, &server).await;
        let route = BreakerKey::Route(BOT, RouteKey::new(READ));
        let mut changes = one.changes().await;
        for id in 0..5 {
            one.run(call(id), CallResult::TimedOut).await;
        }
        server.kill();
        change(&mut changes, &route, "half_open").await;
        until(async || one.refusal().await.is_none()).await;
    });
}

#[test]
fn whoever_starts_late_finds_what_stands() {
    run(async {
        let server = RedisServer::start();
        let one = Process::ready(Spec::new(server.url(), "one"), &server).await;
        one.run(call(7), BAN).await;
        one.force(&target("crm")).await;
        let mut client = client(&server).await;
        until(async || {
            let mut client = client.clone();
            redis::cmd("HLEN").arg(BREAKERS).query_async::<usize>(&mut client).await.unwrap() == 2
        })
        .await;
        let late = Spec::new(server.url(), "late").start();
        late.until_state(&BreakerKey::Address, "open").await;
        late.until_state(&target("crm"), "forced_open").await;
        // All keys have a TTL.
        for key in [BREAKERS, "guildhall:{42}:breakers:clock", LEDGER] {
            let lasts: i64 = redis::cmd("PTTL").arg(key).query_async(&mut client).await.unwrap();
            assert!(lasts > 0, "the TTL of {key} is {lasts}");
        }
    });
}

#[test]
fn an_emptied_redis_is_filled_again_by_those_who_know() {
    run(async {
        let mut server = RedisServer::start();
        let (one, other) = two(&server).await;
        one.force(&discord()).await;
        other.until_state(&discord(), "forced_open").await;
        drop(one);
        let mut connection = client(&server).await;
        let () = redis::cmd("FLUSHALL").query_async(&mut connection).await.unwrap();
        let late = Spec::new(server.url(), "late").start();
        late.until_state(&discord(), "forced_open").await;
        drop(late);
        server.restart_empty();
        let later = Spec::new(server.url(), "later").start();
        later.until_state(&discord(), "forced_open").await;
        // A reset has the usual effect.
        later.reset(&discord()).await;
        other.until_state(&discord(), "closed").await;
    });
}

#[test]
fn a_process_that_was_cut_off_learns_what_it_missed_and_tells_what_nobody_heard() {
    run(async {
        let server = RedisServer::start();
        let relay = Relay::to(&server);
        let one = Process::ready(Spec::new(server.url(), "one"), &server).await;
        let far = Process::ready(Spec::new(relay.url(), "far"), &server).await;
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
fn a_reset_so_long_ago_that_nobody_knows_of_it_is_not_undone_by_whoever_missed_it() {
    run(async {
        let server = RedisServer::start();
        let relay = Relay::to(&server);
        let one = Spec::new(server.url(), "one").start();
        let far = Spec::new(relay.url(), "far").start();
        one.force(&target("crm")).await;
        far.until_state(&target("crm"), "forced_open").await;
        relay.cut();
        one.reset(&target("crm")).await;
        // As if the retention time of the reset had passed: its version is moved to the past.
        let mut client = client(&server).await;
        soon(async {
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
        until(async || {
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
fn a_redis_that_holds_still_keeps_nobody_from_deciding() {
    run(async {
        let server = RedisServer::start();
        let (one, other) = two(&server).await;
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
fn a_block_is_handed_on_and_nonsense_is_not() {
    run(async {
        let server = RedisServer::start();
        let mut one = Spec::new(server.url(), "one").start();
        let mut client = client(&server).await;
        let heard = soon(async {
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
        assert_eq!(heard, RateLimitBlock { scope: "bot".to_owned(), ms: 1_234, by: "m".to_owned() });
    });
}
