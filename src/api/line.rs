//! The other end of a connection, to be let go of.

use std::{
    any::Any,
    net::{Shutdown, TcpStream},
    os::fd::AsFd as _,
    sync::Arc,
};

/// A connection that can be cut while an answer is on its way. Nothing else ends one whose other end does not read: what is
/// to be written to it waits for ever.
#[derive(Clone, Debug)]
pub(super) struct Line(Arc<TcpStream>);

impl Line {
    /// The line of a connection that was just made; nothing if it cannot be had, or is none of TCP.
    pub(super) fn of(connection: &dyn Any) -> Option<Self> {
        let stream = connection.downcast_ref::<actix_rt::net::TcpStream>()?;
        let own = stream.as_fd().try_clone_to_owned().ok()?;
        Some(Self(Arc::new(TcpStream::from(own))))
    }

    /// Ends it in both directions, whatever waits on it.
    pub(super) fn cut(&self) {
        // If it has ended already, all the better.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}
