//! A daemon is suspended for so long that others take over its queues, and then continues.

use futures_util::future::join_all;
use guildhall_sim::Stage as On;
use guildhall_testkit::crash::{
    client::AcceptedOperation,
    fixture::{DaemonFixture, Engine},
    generator::OperationGenerator,
    test_operation::TestKind,
};
use http::Method;

use super::fleet::{
    KINDS, SHORT_LEASE, check_all, fixture_size, own_queues, slow_down, start_daemons, wait_until, wait_until_listening,
};

const GUILDS: u32 = 24;

/// Submits so many operations in each guild.
async fn submit_in_each_guild(
    fixture: &DaemonFixture,
    generators: &mut [OperationGenerator],
    count: usize,
    accepted: &mut [Vec<AcceptedOperation>],
) {
    let submissions = generators.iter_mut().zip(accepted).map(|(generator, accepted)| async move {
        for nth in 0..count {
            let operation = generator.next(KINDS[(nth + accepted.len()) % KINDS.len()], fixture).await;
            accepted.push(fixture.submit(&operation).await);
        }
    });
    join_all(submissions).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn daemon_frozen_beyond_its_lease_changes_nothing_when_resumed() {
    let fixture = DaemonFixture::new(Engine::Postgres, fixture_size(GUILDS)).await;
    slow_down(&fixture, On::Effect, 60, 60);
    let mut daemons = start_daemons(&fixture, &SHORT_LEASE).await;
    let frozen = wait_until_listening(&daemons[0]).await;
    let mut generators: Vec<OperationGenerator> = fixture.guilds.iter().cloned().map(OperationGenerator::new).collect();
    let mut accepted: Vec<Vec<AcceptedOperation>> = generators.iter().map(|_| Vec::new()).collect();

    submit_in_each_guild(&fixture, &mut generators, 4, &mut accepted).await;
    wait_until("it has queues", || async { own_queues(&fixture, frozen).await.is_some_and(|queues| queues > 0) }).await;
    fixture.remove_address(frozen);
    daemons[0].signal("STOP");
    submit_in_each_guild(&fixture, &mut generators, 2, &mut accepted).await;
    // The others do all of it, including the work of the frozen daemon.
    let before: Vec<AcceptedOperation> = accepted.iter().flatten().cloned().collect();
    let outcomes = fixture.wait_for_outcomes(&before).await;
    assert!(outcomes.iter().all(Result::is_ok), "no take-over\n{}", daemons[1].log_tail());

    daemons[0].signal("CONT");
    fixture.add_address(frozen);
    wait_until("it continues", || async {
        let ready = fixture.request_at(frozen, Method::GET, "/readyz", None, None).await;
        ready.is_ok_and(|(status, _)| status == 200) && own_queues(&fixture, frozen).await.is_some()
    })
    .await;
    submit_in_each_guild(&fixture, &mut generators, 2, &mut accepted).await;
    let accepted: Vec<AcceptedOperation> = accepted.into_iter().flatten().collect();
    check_all(&fixture, &accepted, &mut daemons).await.assert_ok("frozen");
}

/// A single daemon has sent a call for each guild when it is suspended. The calls take effect, but it gets the
/// responses only after others have taken over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_a_frozen_daemon_are_found_and_not_repeated() {
    let fixture = DaemonFixture::new(Engine::Postgres, fixture_size(6)).await;
    // Long enough to suspend a process meanwhile, and shorter than the request timeout.
    slow_down(&fixture, On::Effect, 250, 0);
    let frozen = fixture.start_daemon_with(&SHORT_LEASE);
    let address = wait_until_listening(&frozen).await;
    let mut accepted: Vec<AcceptedOperation> = Vec::new();
    for (guild_fixture, kind) in
        fixture.guilds.iter().zip([TestKind::CreateRole, TestKind::CreateChannel].into_iter().cycle())
    {
        let mut generator = OperationGenerator::new(guild_fixture.clone());
        for kind in [kind, TestKind::SendMessage] {
            let operation = generator.next(kind, &fixture).await;
            accepted.push(fixture.submit(&operation).await);
        }
    }
    fixture.wait_for_request().await;
    frozen.signal("STOP");
    fixture.remove_address(address);
    let mut daemons = vec![fixture.start_daemon_with(&SHORT_LEASE), fixture.start_daemon_with(&SHORT_LEASE)];
    let outcomes = fixture.wait_for_outcomes(&accepted).await;
    assert!(outcomes.iter().all(Result::is_ok), "no take-over\n{}", daemons[0].log_tail());
    frozen.signal("CONT");
    wait_until("it continues", || async { own_queues(&fixture, address).await.is_some() }).await;
    daemons.push(frozen);
    check_all(&fixture, &accepted, &mut daemons).await.assert_ok("calls in flight");
}
