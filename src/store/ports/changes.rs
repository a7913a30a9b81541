//! Implements the port for change feeds on [`Store`].

use std::sync::Arc;

use guildhall_actors::ports::{ChangeFeed, ChangePage, OperationDetails, OperationFilter, StoreFuture};
use guildhall_core::operation::{ChangeCursor, OperationId, VisibleChanges};
use tokio::sync::watch;

use crate::store::Store;
use crate::store::ports::operations::look;
use crate::store::read::{changes, operations};

impl ChangeFeed for Store {
    fn within(self: Arc<Self>, tenant: Arc<str>) -> Arc<dyn ChangeFeed> {
        Arc::new(self.of_tenant(tenant))
    }

    fn ticks(&self) -> watch::Receiver<u64> {
        self.shared.members.ticks()
    }

    fn seen(&self) -> StoreFuture<'_, VisibleChanges> {
        Box::pin(self.read(changes::seen(&self.shared.reading)))
    }

    fn follow(&self, from: ChangeCursor, filter: OperationFilter, most: usize) -> StoreFuture<'_, ChangePage> {
        Box::pin(async move {
            let mut followed = look!(self, |view| changes::follow(&view, &from, &filter, most)).await?;
            followed.changed.retain(|changed| self.is_own(&changed.shown.stored.operation.tenant));
            Ok(followed)
        })
    }

    fn ended(&self, ids: Vec<OperationId>) -> StoreFuture<'_, Vec<OperationId>> {
        Box::pin(async move { self.read(operations::ended(&self.shared.reading, &ids)).await })
    }

    fn show_all(&self, ids: Vec<OperationId>) -> StoreFuture<'_, Vec<OperationDetails>> {
        Box::pin(async move {
            let mut shown = look!(self, |view| operations::show_all(&view, &ids)).await?;
            shown.retain(|shown| self.is_own(&shown.stored.operation.tenant));
            Ok(shown)
        })
    }
}
