//! Discord fails too: it drops connections after or before the effect of a create, or responds with a 502. Meanwhile
//! the daemon is killed.

use guildhall_sim::{Fault, FaultAction};

use crate::{
    asker::Asker,
    errand::Sort,
    judge::judge,
    random::{Weather, round},
    stage::{Engine, Furniture, Stage},
};

/// Manage channels and roles, view and send, manage messages, read history; but not the audit log.
const WITHOUT_LOG: u64 = 1 << 4 | 1 << 28 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16;
const WITH_LOG: u64 = WITHOUT_LOG | 1 << 7;

/// The routes that create objects.
const MAKING: [&str; 3] = ["POST /guilds/**", "POST /channels/**", "POST /webhooks/**"];

fn on_making(action: &FaultAction, probability: f64) -> impl Iterator<Item = Fault> {
    let action = action.clone();
    MAKING.into_iter().map(move |route| Fault {
        route: route.to_owned(),
        action: action.clone(),
        probability,
        count: None,
        skip: 0,
    })
}

fn makes() -> Vec<Sort> {
    vec![
        Sort::CreateRole,
        Sort::CreateChannel,
        Sort::EnsureRole,
        Sort::EnsureChannel,
        Sort::SendMessage,
        Sort::EnsureMessage,
        Sort::PinMessage,
        Sort::SendDm,
        Sort::Followup,
        Sort::Post,
    ]
}

/// Every create is cut off after its effect, in addition to kills.
async fn cut_off(engine: Engine, permissions: Option<u64>, seed: u64) {
    let faults = on_making(&FaultAction::DropAfter, 1.0).collect();
    let finding = round(engine, 4, seed, &Weather { sorts: makes(), faults, permissions }).await;
    finding.holds(engine.name());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_cut_off_after_its_effect_is_found_by_the_audit_log() {
    tokio::join!(cut_off(Engine::Sqlite, None, 21), cut_off(Engine::Postgres, None, 22));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_cut_off_after_its_effect_is_found_without_the_audit_log() {
    tokio::join!(cut_off(Engine::Sqlite, Some(WITHOUT_LOG), 23), cut_off(Engine::Postgres, Some(WITHOUT_LOG), 24));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cuts_and_errors_of_every_kind_double_and_lose_nothing() {
    let worst = async |engine: Engine, seed| {
        let faults = on_making(&FaultAction::DropAfter, 0.3)
            .chain(on_making(&FaultAction::DropBefore, 0.3))
            .chain(on_making(&FaultAction::Status { status: 502, code: 0 }, 0.3))
            .collect();
        let finding = round(engine, 4, seed, &Weather { sorts: Sort::ALL.to_vec(), faults, permissions: None }).await;
        finding.holds(engine.name());
    };
    tokio::join!(worst(Engine::Sqlite, 25), worst(Engine::Postgres, 26));
}

/// Creates channels that the bot cannot see, and kills the daemon before it gets the response.
async fn hidden(permissions: u64) -> (usize, usize) {
    let furniture = Furniture { guilds: 1, roles: 0, doomed: 0, permissions: Some(permissions) };
    let stage = Stage::new(Engine::Sqlite, furniture).await;
    for fault in on_making(&FaultAction::DropAfter, 1.0) {
        stage.sim.add_fault(fault).unwrap();
    }
    let mut asker = Asker::new(stage.places[0].clone());
    let (mut accepted, mut became) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let mut life = stage.begin();
        let errand = asker.next(Sort::CreateChannel, &stage).await.hidden(&stage.places[0]);
        let one = stage.submit(&errand).await;
        stage.effects_in_all(accepted.len() + 1).await;
        life.kill();
        let effects = stage.sim.score().effects;
        let channels = effects.values().flatten().map(|effect| effect.object).collect();
        let action = FaultAction::HideChannels { channels };
        let route = "GET /guilds/{guild.id}/channels".to_owned();
        stage.sim.add_fault(Fault { route, action, probability: 1.0, count: None, skip: 0 }).unwrap();
        let _life = stage.begin();
        became.extend(stage.all_became(std::slice::from_ref(&one)).await);
        accepted.push(one);
    }
    let finding = judge(&stage.sim.score(), &accepted, &became);
    finding.holds("hidden channels");
    (finding.operations, finding.reviewed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_that_the_bot_cannot_see_is_found_by_the_audit_log_or_left_to_a_person() {
    let (seen, unseen) = tokio::join!(hidden(WITH_LOG), hidden(WITHOUT_LOG));
    assert_eq!(seen, (3, 0), "the audit log shows the channel");
    assert_eq!(unseen, (3, 3), "nothing shows the channel, and nothing is created twice");
}
