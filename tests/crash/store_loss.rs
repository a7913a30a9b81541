//! The store is unavailable or full while operations run. Accepted operations are finished; operations that could not
//! be stored are refused.

use std::time::Duration;

use tokio::{task::block_in_place, time::sleep};

use crate::{
    asker::Asker,
    caller::{Accepted, Unanswered},
    errand::Sort,
    judge::judge,
    postgres::PostgresServer,
    stage::{Engine, Furniture, Stage},
};

const ROOM: Furniture = Furniture { guilds: 1, roles: 10, doomed: 5, permissions: None };

const SORTS: [Sort; 6] = [
    Sort::CreateRole,
    Sort::SendMessage,
    Sort::AssignRole,
    Sort::CreateChannel,
    Sort::UpdatePermissions,
    Sort::DeleteRole,
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_accepted_outlives_a_restart_of_postgres() {
    let mut server = block_in_place(PostgresServer::start);
    let stage = Stage::over(server.database().await, tempfile::tempdir().unwrap(), ROOM).await;
    let _life = stage.begin_with(&[("GUILDHALL__STORE__TIMEOUT_MS", "1000")]);
    let mut asker = Asker::new(stage.places[0].clone());
    let mut accepted: Vec<Accepted> = Vec::new();
    for nth in 0..24 {
        let errand = asker.next(SORTS[nth % SORTS.len()], &stage).await;
        if nth == 12 {
            stage.effects(2, Duration::from_secs(5)).await;
            block_in_place(|| server.kill());
            let refused = loop {
                match stage.submit_once(&errand).await {
                    Ok((503, problem)) => break problem,
                    Ok(other) => panic!("accepted without a store: {other:?}"),
                    Err(Unanswered) => sleep(Duration::from_millis(10)).await,
                }
            };
            assert!(refused["type"].as_str().unwrap().contains("store"), "{refused}");
            block_in_place(|| server.start_again());
        }
        accepted.push(stage.submit(&errand).await);
    }
    let became = stage.all_became(&accepted).await;
    judge(&stage.sim.score(), &accepted, &became).holds("postgres restarted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_file_refuses_what_it_cannot_keep_and_loses_nothing_that_it_accepted() {
    let stage = Stage::new(Engine::Sqlite, ROOM).await;
    let mut life = stage.begin();
    life.listens().await.unwrap();
    life.kill();
    // The WAL will be moved into the file.
    let size = |name| std::fs::metadata(stage.file(name)).map_or(0, |file| file.len());
    // New operations may fill half of it.
    let most = 2 * (size("guildhall.db") + size("guildhall.db-wal") + 100_000);
    let mut life = stage.begin_with(&[("GUILDHALL__STORE__MAX_BYTES", &most.to_string())]);
    let mut asker = Asker::new(stage.places[0].clone());
    let mut accepted: Vec<Accepted> = Vec::new();
    let mut errand = asker.next(Sort::SendMessage, &stage).await.at_length();
    let refused = loop {
        assert!(accepted.len() < 500, "the file never became full");
        match stage.submit_once(&errand).await {
            Ok((200 | 202, answer)) => {
                accepted.push(Accepted::new(errand, &answer));
                errand = asker.next(Sort::SendMessage, &stage).await.at_length();
            }
            Ok((507, problem)) if problem["setting"] == "store.max_bytes" => break errand,
            // Not open yet, or still the previous process.
            Ok((503, _)) | Err(Unanswered) => sleep(Duration::from_millis(10)).await,
            Ok(other) => panic!("{other:?}"),
        }
    };
    assert!(accepted.len() > 10, "accepted only {}", accepted.len());
    life.kill();
    let _life = stage.begin();
    let again = loop {
        match stage.submit_once(&refused).await {
            Ok((503, _)) | Err(Unanswered) => sleep(Duration::from_millis(10)).await,
            Ok(answer) => break answer,
        }
    };
    assert_eq!((again.0, &again.1["replayed"]), (202, &false.into()), "a refused operation was not stored");
    accepted.push(Accepted::new(refused, &again.1));
    let became = stage.all_became(&accepted).await;
    judge(&stage.sim.score(), &accepted, &became).holds("full");
}
