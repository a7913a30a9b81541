//! What is logged on a test's own thread, where its actors are.

use std::{
    io,
    sync::{Arc, Mutex},
};

use tracing::{Dispatch, Level, subscriber::DefaultGuard};
use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Listens until the guards are dropped, down to lines of this level.
    pub(crate) fn capture(level: Level) -> (Self, (DefaultGuard, Dispatch)) {
        let log = Self::default();
        let subscriber =
            || tracing_subscriber::fmt().with_ansi(false).with_max_level(level).with_writer(log.clone()).finish();
        // If there is only one subscriber, a line that is first reached on a thread without it is taken for one that nobody
        // wants, on any thread. Hence another one, which no thread uses.
        let unused = Dispatch::new(subscriber());
        let guard = tracing::subscriber::set_default(subscriber());
        (log, (guard, unused))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}
