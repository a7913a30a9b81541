//! A part of event handling panics under load: the process ends and the next one resumes, or a guild is restarted.

use guildhall_actors::supervision::Part;

use crate::{
    ended::{ended_by, failpoint},
    judge::judge,
    killed,
    random::{begins_and_ends, comes_to_rest},
    stage::{STUCK, Stage},
    weather::rages,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_of_the_events_that_panics_loses_doubles_and_reorders_nothing() {
    let stage = Stage::new(4_096).await;
    begins_and_ends(&stage).await;
    let lives = async {
        for &(part, messages) in killed::EVENTS {
            let mut life = stage.begin_with(&[("GUILDHALL_FAILPOINT", &failpoint(part, messages))]);
            ended_by(&mut life, part).await;
        }
        let mut life = stage.begin_with(&[("GUILDHALL_FAILPOINT", &failpoint(Part::EventGuild, 20))]);
        let enough = stage.seen() + 60;
        assert!(stage.within(STUCK, |stage| stage.seen() >= enough).await, "{}", life.last_words());
        assert_eq!(life.lines_with("failpoint of event_guild").len(), 1, "{}", life.last_words());
        assert_eq!(life.ended(), None, "{}", life.last_words());
    };
    let ((), sent) = rages(&stage, 5, lives).await;
    comes_to_rest(&stage, &sent).await;
    let finding = judge(&stage.sim.score(), &sent);
    assert!(finding.wrong.is_empty(), "{:#?}", finding.wrong);
    assert!(finding.effects > 0 && finding.resumes > 0, "{finding:?}");
}
