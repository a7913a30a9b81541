//! The budget of invalid requests that processes behind one address share.

use futures_util::future::join_all;

use super::support::Relay;
use super::*;

async fn shown(process: &Process) -> (u32, u32, u32, u32) {
    let shown = process.observe().await.invalid_requests;
    let shared = shown.shared.unwrap();
    (shown.own, shown.used, shared.total, shared.members)
}

/// Makes calls that all get an invalid response until no more are permitted. Returns their number.
async fn spend(process: &Process, lane: Lane) -> u32 {
    let mut spent = 0;
    loop {
        let ask = CallInfo { lane, ..call(1) };
        match process.admit(ask).await {
            Ok(pass) => {
                pass.report(FORBIDDEN, Duration::ZERO).attempt().await;
                spent += 1;
            }
            Err(refused) => {
                let shown = process.observe().await.invalid_requests;
                let threshold = match lane {
                    Lane::Interactive => shown.thresholds.interactive,
                    Lane::Operation => shown.thresholds.operation,
                    Lane::Background => shown.thresholds.background,
                };
                if refused.reason == "invalid_requests" && shown.shared.unwrap().total >= threshold {
                    return spent;
                }
                // The allowance is used up or the total is not known yet. More is granted soon.
                yield_now().await;
            }
        }
    }
}

#[test]
fn all_processes_behind_an_address_see_what_all_have_spent() {
    run(async {
        let server = RedisServer::start();
        let one = Process::ready(Spec::new(server.url(), "one"), &server).await;
        let other = Process::ready(Spec::new(server.url(), "other"), &server).await;
        let away = Spec { ip_group: "away", ..Spec::new(server.url(), "away") }.start();
        for _ in 0..30 {
            one.run(call(1), FORBIDDEN).await;
        }
        for _ in 0..12 {
            other.run(call(1), FORBIDDEN).await;
        }
        until(async || shown(&one).await == (30, 42, 42, 2) && shown(&other).await == (12, 42, 42, 2)).await;
        assert_eq!(shown(&away).await.1, 0);
    });
}

#[test]
fn processes_that_are_well_spend_as_much_as_one_alone_and_stop_together() {
    run(async {
        let server = RedisServer::start();
        let spec = |name| Spec { limit: 1_000, ..Spec::new(server.url(), name) };
        let mut all = Vec::new();
        for name in ["one", "two", "three"] {
            all.push(Process::ready(spec(name), &server).await);
        }
        let mut total = 0;
        for (lane, threshold) in [(Lane::Background, 500), (Lane::Operation, 800), (Lane::Interactive, 950)] {
            total += soon(join_all(all.iter().map(|process| spend(process, lane)))).await.into_iter().sum::<u32>();
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
        let spec = |name| Spec { limit: 2_000, ..Spec::new(server.url(), name) };
        let mut all = Vec::new();
        for name in ["one", "two", "three"] {
            all.push(Process::ready(spec(name), &server).await);
        }
        let of =
            |key: &str, tenant: &str| CallInfo { submitter: Submitter::of(&key.into(), &tenant.into()), ..call(1) };
        // Every process sends as much as permitted for the same key, and learns of the others meanwhile.
        let greedy = async |process: &Process| {
            let mut sent = 0;
            loop {
                match process.admit(of("greedy", "acme")).await {
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
        let sent: u32 = soon(join_all(all.iter().map(greedy))).await.into_iter().sum();
        assert!((400..=500).contains(&sent), "{sent} of 500");
        // All processes know of it, and other callers are not limited.
        for process in &all {
            until(async || process.observe().await.invalid_requests.share.capped == 2).await;
            assert_eq!(process.admit(of("greedy", "acme")).await.unwrap_err().reason, "invalid_requests_key_share");
            assert_eq!(process.admit(of("second", "acme")).await.unwrap_err().reason, "invalid_requests_tenant_share");
            process.run(of("calm", "rival"), SUCCESS).await;
        }
        // A process that joins knows it, too.
        let new = Process::ready(spec("four"), &server).await;
        until(async || new.observe().await.invalid_requests.share.capped == 2).await;
        assert_eq!(new.admit(of("greedy", "acme")).await.unwrap_err().reason, "invalid_requests_key_share");
    });
}

#[test]
fn one_busy_process_may_use_what_the_idle_ones_do_not() {
    run(async {
        let server = RedisServer::start();
        let spec = |name| Spec { limit: 1_000, ..Spec::new(server.url(), name) };
        let busy = Process::ready(spec("busy"), &server).await;
        let mut idle = Vec::new();
        for name in ["a", "b", "c", "d"] {
            idle.push(Process::ready(spec(name), &server).await);
        }
        let spent = soon(spend(&busy, Lane::Interactive)).await;
        assert!((950..=1_000).contains(&spent), "{spent}");
    });
}

#[test]
fn whoever_is_cut_off_and_whatever_is_lost_the_limit_is_never_passed() {
    run(async {
        let mut server = RedisServer::start();
        let relays = [Relay::to(&server), Relay::to(&server), Relay::to(&server)];
        let mut all = Vec::new();
        for (relay, name) in relays.iter().zip(["one", "two", "three"]) {
            let spec = Spec { limit: 300, ..Spec::new(relay.url(), name) };
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
            until(async || process.observe().await.invalid_requests.shared.unwrap().members == 3).await;
        }
        let before = total;
        let mut admin = client(&server).await;
        soon(async {
            // The new Redis lends more once all processes have reported, and in the end nothing.
            let mut idle = 0;
            while total == before || idle < 1_000 {
                grow_old(&mut admin).await;
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
        let new = Spec { limit: 300, ..Spec::new(server.url(), "new") }.start();
        until(async || new.observe().await.invalid_requests.shared.unwrap().lease_ms.is_some()).await;
        let more = greedy(&new, 500).await;
        assert!(total + more <= 300, "{total} and {more}");
    });
}

#[test]
fn a_process_that_leaves_gives_back_what_it_was_lent_and_one_that_dies_does_not() {
    run(async {
        let server = RedisServer::start();
        let leaving = Process::ready(Spec::new(server.url(), "leaving"), &server).await;
        let dying = Process::ready(Spec::new(server.url(), "dying"), &server).await;
        leaving.run(call(1), FORBIDDEN).await;
        let breaker = leaving.breaker.clone();
        leaving.state.leave().await;
        dying.run(call(1), FORBIDDEN).await;
        until(async || shown(&dying).await.2 == 2).await;
        drop(dying);
        let mut client = client(&server).await;
        let fields: Vec<String> = redis::cmd("HKEYS").arg(LEDGER).query_async(&mut client).await.unwrap();
        assert!(fields.contains(&"p:dying".to_owned()) && !fields.contains(&"p:leaving".to_owned()), "{fields:?}");
        let refused = breaker.send(Admit(call(1))).await.unwrap().unwrap_err();
        assert_eq!(refused.reason, "invalid_requests_unheard");
    });
}

#[test]
fn without_redis_nothing_goes_out_and_nobody_waits() {
    run(async {
        let mut server = RedisServer::start();
        let url = server.url();
        server.kill();
        let alone = Spec::new(url, "alone").start();
        for _ in 0..100 {
            assert_eq!(alone.refusal().await, Some("invalid_requests_unheard"));
        }
        alone.force(&target("crm")).await;
        // Redis starts, and grants an allowance.
        server.restart_empty();
        let admin = client(&server).await;
        until(async || {
            grow_old(&mut admin.clone()).await;
            alone.refusal().await.is_none()
        })
        .await;
    });
}
