//! The budget of invalid requests that processes behind one address share.

use futures_util::future::join_all;
use guildhall_testkit::redis::Relay;

use super::*;

async fn usage(process: &Process) -> (u32, u32, u32, u32) {
    let invalid_requests = process.observe().await.invalid_requests;
    let shared = invalid_requests.shared.unwrap();
    (invalid_requests.own, invalid_requests.used, shared.total, shared.members)
}

/// Makes calls that all get an invalid response until no more are permitted. Returns their number.
async fn spend(process: &Process, lane: Lane) -> u32 {
    let mut spent = 0;
    loop {
        let info = CallInfo { lane, ..call(1) };
        match process.admit(info).await {
            Ok(pass) => {
                pass.report(FORBIDDEN, Duration::ZERO).attempt().await;
                spent += 1;
            }
            Err(refused) => {
                let invalid_requests = process.observe().await.invalid_requests;
                let threshold = match lane {
                    Lane::Interactive => invalid_requests.thresholds.interactive,
                    Lane::Operation => invalid_requests.thresholds.operation,
                    Lane::Background => invalid_requests.thresholds.background,
                };
                if refused.reason == "invalid_requests" && invalid_requests.shared.unwrap().total >= threshold {
                    return spent;
                }
                // The allowance is used up or the total is not known yet. More is granted soon.
                yield_now().await;
            }
        }
    }
}

#[test]
fn processes_behind_one_address_see_the_common_total() {
    run(async {
        let server = RedisServer::start();
        let one = Process::ready(ProcessConfig::new(server.url(), "one"), &server).await;
        let other = Process::ready(ProcessConfig::new(server.url(), "other"), &server).await;
        let away = ProcessConfig { ip_group: "away", ..ProcessConfig::new(server.url(), "away") }.start();
        for _ in 0..30 {
            one.run(call(1), FORBIDDEN).await;
        }
        for _ in 0..12 {
            other.run(call(1), FORBIDDEN).await;
        }
        wait_until(async || usage(&one).await == (30, 42, 42, 2) && usage(&other).await == (12, 42, 42, 2)).await;
        assert_eq!(usage(&away).await.1, 0);
    });
}

#[test]
fn connected_processes_spend_the_whole_budget_and_stop_together() {
    run(async {
        let server = RedisServer::start();
        let spec = |name| ProcessConfig { limit: 1_000, ..ProcessConfig::new(server.url(), name) };
        let mut all = Vec::new();
        for name in ["one", "two", "three"] {
            all.push(Process::ready(spec(name), &server).await);
        }
        let mut total = 0;
        for (lane, threshold) in [(Lane::Background, 500), (Lane::Operation, 800), (Lane::Interactive, 950)] {
            total +=
                with_timeout(join_all(all.iter().map(|process| spend(process, lane)))).await.into_iter().sum::<u32>();
            assert!(total >= threshold && total <= 1_000, "{total} of {threshold}");
            // The others do not know the latest calls of one process yet, but these are few.
            assert!(total <= threshold + 50, "{total} of {threshold}");
        }
        for process in &all {
            assert_eq!(process.refusal().await, Some("invalid_requests"));
        }
    });
}

#[test]
fn key_that_uses_three_processes_has_one_share() {
    run(async {
        let server = RedisServer::start();
        let spec = |name| ProcessConfig { limit: 2_000, ..ProcessConfig::new(server.url(), name) };
        let mut all = Vec::new();
        for name in ["one", "two", "three"] {
            all.push(Process::ready(spec(name), &server).await);
        }
        let call_of =
            |key: &str, tenant: &str| CallInfo { submitter: Submitter::of(&key.into(), &tenant.into()), ..call(1) };
        // Every process sends as much as permitted for the same key, and learns of the others meanwhile.
        let greedy = async |process: &Process| {
            let mut sent = 0;
            loop {
                match process.admit(call_of("greedy", "acme")).await {
                    Ok(pass) => {
                        pass.report(FORBIDDEN, Duration::ZERO).attempt().await;
                        sent += 1;
                    }
                    Err(refused) => {
                        let share = process.observe().await.invalid_requests.share;
                        let is_capped = share.holders.iter().any(|holder| holder.id == "greedy" && holder.capped);
                        // Before that, the process only waits until the lender has granted more.
                        if refused.reason == "invalid_requests_key_share" && is_capped {
                            return sent;
                        }
                        yield_now().await;
                    }
                }
            }
        };
        let sent: u32 = with_timeout(join_all(all.iter().map(greedy))).await.into_iter().sum();
        assert!((400..=500).contains(&sent), "{sent} of 500");
        // All processes know of it, and other callers are not limited.
        for process in &all {
            wait_until(async || process.observe().await.invalid_requests.share.capped == 2).await;
            assert_eq!(
                process.admit(call_of("greedy", "acme")).await.unwrap_err().reason,
                "invalid_requests_key_share"
            );
            assert_eq!(
                process.admit(call_of("second", "acme")).await.unwrap_err().reason,
                "invalid_requests_tenant_share"
            );
            process.run(call_of("calm", "rival"), SUCCESS).await;
        }
        // A process that joins knows it, too.
        let new = Process::ready(spec("four"), &server).await;
        wait_until(async || new.observe().await.invalid_requests.share.capped == 2).await;
        assert_eq!(new.admit(call_of("greedy", "acme")).await.unwrap_err().reason, "invalid_requests_key_share");
    });
}

#[test]
fn busy_process_may_use_the_budget_of_idle_ones() {
    run(async {
        let server = RedisServer::start();
        let spec = |name| ProcessConfig { limit: 1_000, ..ProcessConfig::new(server.url(), name) };
        let busy = Process::ready(spec("busy"), &server).await;
        let mut idle = Vec::new();
        for name in ["a", "b", "c", "d"] {
            idle.push(Process::ready(spec(name), &server).await);
        }
        let spent = with_timeout(spend(&busy, Lane::Interactive)).await;
        assert!((950..=1_000).contains(&spent), "{spent}");
    });
}

#[test]
fn limit_holds_through_disconnects_and_data_loss() {
    run(async {
        let mut server = RedisServer::start();
        let relays = [Relay::to(&server), Relay::to(&server), Relay::to(&server)];
        let mut all = Vec::new();
        for (relay, name) in relays.iter().zip(["one", "two", "three"]) {
            let spec = ProcessConfig { limit: 300, ..ProcessConfig::new(relay.url(), name) };
            all.push(Process::ready(spec, &server).await);
        }
        let greedy = async |process: &Process, calls: usize| {
            let mut spent = 0_usize;
            for _ in 0..calls {
                if let Ok(pass) = process.admit(call(1)).await {
                    pass.report(FORBIDDEN, Duration::ZERO).attempt().await;
                    spent += 1;
                }
            }
            spent
        };
        let mut total = 0;
        total += greedy(&all[0], 20).await;
        relays[1].cut();
        total += greedy(&all[1], 500).await;
        total += greedy(&all[0], 500).await;
        assert!(total > 20, "nothing was lent");
        relays[1].restore();
        relays[0].cut();
        total += greedy(&all[2], 500).await;
        server.restart_empty();
        total += greedy(&all[1], 500).await;
        total += greedy(&all[0], 500).await;
        relays[0].restore();
        // All processes reconnect and use everything that they are granted.
        for process in &all {
            wait_until(async || process.observe().await.invalid_requests.shared.unwrap().members == 3).await;
        }
        let before = total;
        let mut admin = client(&server).await;
        with_timeout(async {
            // The new Redis lends more once all processes have reported, and in the end nothing.
            let mut idle = 0;
            while total == before || idle < 1_000 {
                age_lender(&mut admin).await;
                let mut more = 0;
                for process in &all {
                    more += greedy(process, 1).await;
                }
                idle = if more == 0 { idle + 1 } else { 0 };
                total += more;
            }
        })
        .await;
        assert!(total <= 300, "{total}");
        // A new process that replaces a dead one gets no more.
        let dead = all.remove(0);
        drop(dead);
        let new = ProcessConfig { limit: 300, ..ProcessConfig::new(server.url(), "new") }.start();
        wait_until(async || new.observe().await.invalid_requests.shared.unwrap().lease_ms.is_some()).await;
        let more = greedy(&new, 500).await;
        assert!(total + more <= 300, "{total} and {more}");
    });
}

#[test]
fn leaving_process_returns_its_allowance_and_a_dead_one_does_not() {
    run(async {
        let server = RedisServer::start();
        let leaving = Process::ready(ProcessConfig::new(server.url(), "leaving"), &server).await;
        let dying = Process::ready(ProcessConfig::new(server.url(), "dying"), &server).await;
        leaving.run(call(1), FORBIDDEN).await;
        let breaker = leaving.breaker.clone();
        leaving.state.leave().await;
        dying.run(call(1), FORBIDDEN).await;
        wait_until(async || usage(&dying).await.2 == 2).await;
        drop(dying);
        let mut client = client(&server).await;
        let fields: Vec<String> = redis::cmd("HKEYS").arg(LEDGER).query_async(&mut client).await.unwrap();
        assert!(fields.contains(&"p:dying".to_owned()) && !fields.contains(&"p:leaving".to_owned()), "{fields:?}");
        let refused = breaker.send(Admit(call(1))).await.unwrap().unwrap_err();
        assert_eq!(refused.reason, "invalid_requests_unheard");
    });
}

#[test]
fn without_redis_calls_are_refused_at_once() {
    run(async {
        let mut server = RedisServer::start();
        let url = server.url();
        server.kill();
        let alone = ProcessConfig::new(url, "alone").start();
        for _ in 0..100 {
            assert_eq!(alone.refusal().await, Some("invalid_requests_unheard"));
        }
        alone.force(&target("crm")).await;
        // Redis starts, and grants an allowance.
        server.restart_empty();
        let admin = client(&server).await;
        wait_until(async || {
            age_lender(&mut admin.clone()).await;
            alone.refusal().await.is_none()
        })
        .await;
    });
}
