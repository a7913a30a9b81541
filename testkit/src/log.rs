//! Captures the log of a test's own thread, where its actors run.

use std::{
    io,
    sync::{Arc, Mutex},
};

use tracing::{Dispatch, Level, subscriber::DefaultGuard};
use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Captures lines of at least this level until the guards are dropped.
    pub fn capture(level: Level) -> (Self, (DefaultGuard, Dispatch)) {
        let log = Self::default();
        let subscriber =
            || tracing_subscriber::fmt().with_ansi(false).with_max_level(level).with_writer(log.clone()).finish();
        // With only one subscriber, tracing disables a callsite on all threads if it is first reached on a thread
        // without the subscriber. Hence a second one, which no thread uses.
        let unused = Dispatch::new(subscriber());
        let guard = tracing::subscriber::set_default(subscriber());
        (log, (guard, unused))
    }

    pub fn text(&self) -> String {
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
