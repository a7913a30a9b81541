//! Daemons on one PostgreSQL without Redis divide the global limit: together they never exceed it, even if one joins,
//! dies or freezes.

use std::{collections::BTreeMap, time::Duration};

use futures_util::future::join_all;
use guildhall_sim::Stage as On;
use guildhall_testkit::crash::{
    client::AcceptedOperation,
    daemon_process::{DaemonProcess, was_killed},
    fixture::{DaemonFixture, Engine},
    generator::OperationGenerator,
    test_operation::TestKind,
};
use http::Method;
use serde_json::Value;
use tokio::time::sleep;

use super::fleet::{LEASE, SHORT_LEASE, check_all, fixture_size, slow_down, wait_until, wait_until_listening};

const LIMIT: u32 = 50;
const GUILDS: u32 = 120;
const OPERATIONS_PER_GUILD: usize = 5;

fn start_daemon(fixture: &DaemonFixture) -> DaemonProcess {
    let limit_settings = [("GUILDHALL__LIMITS__GLOBAL", "50"), ("GUILDHALL__LIMITS__MARGIN_MS", "10")];
    let environment: Vec<_> = SHORT_LEASE.into_iter().chain(limit_settings).collect();
    fixture.start_daemon_with(&environment)
}

/// A daemon's part of the limit, and the number of members that share it.
async fn division(fixture: &DaemonFixture, daemon: &DaemonProcess) -> Option<(u64, u64)> {
    let response = fixture.request_at(wait_until_listening(daemon).await, Method::GET, "/v1/limits", None, None).await;
    let (200, response) = response.ok()? else { return None };
    let global: &Value = &response["global"];
    assert_eq!(global["sharing"], "store");
    Some((global["limit"].as_u64()?, global["members"].as_u64()?))
}

/// Waits until the whole limit is divided among these.
async fn wait_until_divided(fixture: &DaemonFixture, daemons: &[DaemonProcess]) {
    wait_until("the whole limit is divided", || async {
        let all = join_all(daemons.iter().map(|daemon| division(fixture, daemon))).await;
        let shares: Option<Vec<(u64, u64)>> = all.into_iter().collect();
        shares.is_some_and(|shares| {
            let is_complete = shares.iter().all(|(_, members)| *members == daemons.len() as u64);
            is_complete && shares.iter().map(|(share, _)| share).sum::<u64>() == u64::from(LIMIT)
        })
    })
    .await;
}

async fn submit_in_all_guilds(fixture: &DaemonFixture) -> Vec<AcceptedOperation> {
    let submissions = fixture.guilds.iter().map(|guild_fixture| async move {
        let mut generator = OperationGenerator::new(guild_fixture.clone());
        let mut accepted = Vec::new();
        for kind in [TestKind::CreateRole, TestKind::SendMessage, TestKind::AssignRole]
            .into_iter()
            .cycle()
            .take(OPERATIONS_PER_GUILD)
        {
            let operation = generator.next(kind, fixture).await;
            accepted.push(fixture.submit(&operation).await);
        }
        accepted
    });
    join_all(submissions).await.into_iter().flatten().collect()
}

fn busiest_second(fixture: &DaemonFixture) -> BTreeMap<String, u32> {
    fixture.sim.score().max_per_second
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn daemons_without_redis_never_exceed_the_limit_together() {
    let fixture = DaemonFixture::new(Engine::Postgres, fixture_size(GUILDS)).await;
    slow_down(&fixture, On::Answer, 0, 30);
    let mut daemons = vec![start_daemon(&fixture), start_daemon(&fixture)];
    let (accepted, mut daemons) = tokio::join!(submit_in_all_guilds(&fixture), async {
        wait_until_divided(&fixture, &daemons).await;
        fixture.wait_for_more_effects(40, Duration::from_secs(5)).await;
        // One joins.
        daemons.push(start_daemon(&fixture));
        wait_until_divided(&fixture, &daemons).await;
        fixture.wait_for_more_effects(40, Duration::from_secs(5)).await;
        // One freezes beyond its lease. Meanwhile another dies, and its successor joins.
        let frozen = wait_until_listening(&daemons[0]).await;
        fixture.remove_address(frozen);
        daemons[0].signal("STOP");
        let mut killed = daemons.remove(1);
        assert!(was_killed(killed.kill()), "it exited by itself");
        daemons.push(start_daemon(&fixture));
        sleep(LEASE + Duration::from_secs(1)).await;
        daemons[0].signal("CONT");
        fixture.add_address(frozen);
        daemons
    });
    check_all(&fixture, &accepted, &mut daemons).await.assert_ok("without Redis");
    wait_until_divided(&fixture, &daemons).await;
    let busiest = busiest_second(&fixture);
    println!("{} operations, at most in a second: {busiest:?}", accepted.len());
    assert!(busiest.values().all(|count| *count <= LIMIT), "{busiest:?}");
}
