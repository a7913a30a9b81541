//! A part of event handling panics under load: the process ends and the next one resumes, or a guild is restarted.

use guildhall_actors::supervision::Part;
use guildhall_testkit::crash::{
    killed_parts,
    part_exit::{assert_ended_by, failpoint},
};

use super::{
    checker::check_effects,
    event_load::run_load,
    fixture::{RestartFixture, TEST_TIMEOUT},
    random::{finish_and_check_replay, start_sessions_and_stop},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panic_in_an_event_part_loses_and_duplicates_nothing() {
    let fixture = RestartFixture::new(4_096).await;
    start_sessions_and_stop(&fixture).await;
    let runs = async {
        for &(part, messages) in killed_parts::EVENTS {
            let mut daemon = fixture.start_daemon_with(&[("GUILDHALL_FAILPOINT", &failpoint(part, messages))]);
            assert_ended_by(&mut daemon, part).await;
        }
        let mut daemon = fixture.start_daemon_with(&[("GUILDHALL_FAILPOINT", &failpoint(Part::EventGuild, 20))]);
        let expected = fixture.effect_count() + 60;
        assert!(
            fixture.wait_until(TEST_TIMEOUT, |fixture| fixture.effect_count() >= expected).await,
            "{}",
            daemon.log_tail()
        );
        assert_eq!(daemon.log_lines_with("failpoint of event_guild").len(), 1, "{}", daemon.log_tail());
        assert_eq!(daemon.exit_status(), None, "{}", daemon.log_tail());
    };
    let ((), sent) = run_load(&fixture, 5, runs).await;
    finish_and_check_replay(&fixture, &sent).await;
    let report = check_effects(&fixture.sim.score(), &sent);
    assert!(report.violations.is_empty(), "{:#?}", report.violations);
    assert!(report.effects > 0 && report.resumes > 0, "{report:?}");
}
