//! Implements the port for change feeds on [`Store`].

use std::sync::Arc;

use guildhall_actors::ports::{ChangeFeed, ChangePage, OperationDetails, OperationFilter, StoreFuture};
use guildhall_core::operation::{ChangeCursor, OperationId, VisibleChanges};
use tokio::sync::watch;

use crate::store::Store;
use crate::store::ports::operations::look;
use crate::store::read::{changes, operations};

impl ChangeFeed for Store {
    fn for_tenant(self: Arc<Self>, tenant: Arc<str>) -> Arc<dyn ChangeFeed> {
        Arc::new(self.scoped_to_tenant(tenant))
    }

    fn ticks(&self) -> watch::Receiver<u64> {
        self.shared.members.ticks()
    }

    fn visible(&self) -> StoreFuture<'_, VisibleChanges> {
        Box::pin(self.read(changes::visible_changes(&self.shared.reading)))
    }

    fn follow(&self, from: ChangeCursor, filter: OperationFilter, limit: usize) -> StoreFuture<'_, ChangePage> {
        Box::pin(async move {
            let mut page = look!(self, |view| changes::follow(&view, &from, &filter, limit)).await?;
            page.changed.retain(|changed| self.is_visible(&changed.details.stored.operation.tenant));
            Ok(page)
        })
    }

    fn finished(&self, ids: Vec<OperationId>) -> StoreFuture<'_, Vec<OperationId>> {
        Box::pin(async move { self.read(operations::finished(&self.shared.reading, &ids)).await })
    }

    fn get_all(&self, ids: Vec<OperationId>) -> StoreFuture<'_, Vec<OperationDetails>> {
        Box::pin(async move {
            let mut details = look!(self, |view| operations::show_all(&view, &ids)).await?;
            details.retain(|details| self.is_visible(&details.stored.operation.tenant));
            Ok(details)
        })
    }
}
