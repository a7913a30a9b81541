//! The store as whoever follows operations sees it.

use guildhall_actors::operations::{Changes, Followed, ListFilter, Shown, StoreFuture};
use guildhall_core::operation::{Frontier, OperationId, Seen};
use tokio::sync::watch;

use super::{
    Store,
    read::{changes, operations},
};

impl Changes for Store {
    fn ticks(&self) -> watch::Receiver<u64> {
        self.shared.members.ticks()
    }

    fn seen(&self) -> StoreFuture<'_, Seen> {
        Box::pin(self.read(changes::seen(&self.shared.reading)))
    }

    fn follow(&self, from: Frontier, filter: ListFilter, most: usize) -> StoreFuture<'_, Followed> {
        Box::pin(async move { self.read(changes::follow(&self.shared.reading, &from, &filter, most)).await })
    }

    fn ended(&self, ids: Vec<OperationId>) -> StoreFuture<'_, Vec<OperationId>> {
        Box::pin(async move { self.read(operations::ended(&self.shared.reading, &ids)).await })
    }

    fn show_all(&self, ids: Vec<OperationId>) -> StoreFuture<'_, Vec<Shown>> {
        Box::pin(async move { self.read(operations::show_all(&self.shared.reading, &ids)).await })
    }
}
