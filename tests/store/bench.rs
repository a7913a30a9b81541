//! How fast it is. Not a test: run it by hand, and read what it prints.

use std::time::Instant;

use guildhall_actors::operations::{OperationStore as _, Recorded};
use guildhall_core::operation::{Queue, State};

use crate::setup::{Engine, GUILD, change, claim, fresh, operation, tried};

const CALLERS: u64 = 200;
const EACH: u64 = 50;

async fn measure(engine: Engine) {
    let (store, _place) = fresh(engine).await;
    let began = Instant::now();
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let store = store.clone();
            tokio::spawn(async move {
                let queue = Queue::Guild(GUILD + caller);
                let operations: Vec<_> = (0..EACH).map(|_| operation(queue)).collect();
                for operation in &operations {
                    store.submit(vec![operation.clone()]).await.unwrap();
                }
                let fence = claim(&store, queue).await.fence;
                (store, operations, fence)
            })
        })
        .collect();
    let mut ready = Vec::new();
    for caller in callers {
        ready.push(caller.await.unwrap());
    }
    let submitted = began.elapsed();
    let began = Instant::now();
    let callers: Vec<_> = ready
        .into_iter()
        .map(|(store, operations, fence)| {
            tokio::spawn(async move {
                let first = change(&operations[0], fence, State::Running);
                store.record(vec![first]).await.unwrap();
                for (nth, operation) in operations.iter().enumerate() {
                    let mut end = change(operation, fence, State::Succeeded);
                    end.attempt = Some(tried(1));
                    let next = operations.get(nth + 1).map(|next| change(next, fence, State::Running));
                    let done = store.record([Some(end), next].into_iter().flatten().collect()).await.unwrap();
                    assert!(done.iter().all(|recorded| *recorded == Recorded::Done));
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    let recorded = began.elapsed();
    let operations = (CALLERS * EACH) as f64;
    println!(
        "{engine:?}: {:.0} submits/s, {:.0} operations/s done ({:.0} changes/s)",
        operations / submitted.as_secs_f64(),
        operations / recorded.as_secs_f64(),
        2.0 * operations / recorded.as_secs_f64()
    );
}

#[ignore = "prints figures"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn figures_of_sqlite() {
    measure(Engine::Sqlite).await;
}

#[ignore = "prints figures"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn figures_of_postgres() {
    measure(Engine::Postgres).await;
}
